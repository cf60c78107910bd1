"""No speed is reported for a scan that is wrong: values and gradients against the loop in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.cases import Work
from tests.loops import loop
from tests.tolerances import TOLERANCES, err

LANES = 32  # that are compared; every element of the rest is checked to have been written


@dataclass(frozen=True)
class Errors:
    """The largest relative distance from the loop, of values and of gradients."""

    forward: float
    gradient: float


@contextmanager
def poisoned(wanted: bool = True) -> Iterator[None]:
    """Fresh memory is NaN, and the largest int, so that what a kernel leaves out shows."""
    if not wanted:
        yield
        return
    fill, strict = (
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.are_deterministic_algorithms_enabled(),
    )
    torch.utils.deterministic.fill_uninitialized_memory = True
    # What has no deterministic form is computed all the same: only what fills memory is wanted.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = fill
        torch.use_deterministic_algorithms(strict)


def check(work: Work) -> Errors:
    """The errors of one forward and backward pass; an AssertionError if they pass the table's bounds."""
    leaves = work.trainable()
    with poisoned():
        plain = work.scan(work.leaves)
        results = work.scan(leaves)
        gradients = work.gradients(results, leaves)
    for x in (*plain, *results, *gradients):
        assert _written(x), f"{work.row}: not every element was written, or some are NaN"
    for x, y in zip(plain, results, strict=True):
        assert torch.equal(x, y), f"{work.row}: the states differ when a gradient is wanted"
    picks = _picks(work)
    expected, expected_gradients = _loop(work, picks)
    got = [_at(x, picks, work.row.dim if x.ndim == 3 else None) for x in results]
    got_gradients = [_at(g, picks, work.row.dim) for g in gradients]
    found = Errors(_worst(got, expected), _worst(got_gradients, expected_gradients))
    for quantity, error in (("forward", found.forward), ("gradient", found.gradient)):
        exact = quantity == "forward" and work.case.selects
        bound = 0.0 if exact else TOLERANCES[work.row.dtype, quantity].value
        assert error <= bound, f"{work.row}: {quantity} error {error:.2g}, allowed {bound:.0e}"
    return found


def _written(x: Tensor) -> bool:
    if not x.is_floating_point():
        return not bool((x == torch.iinfo(x.dtype).max).any())
    return not bool(x.isnan().any())


def _picks(work: Work) -> tuple[Tensor, Tensor]:
    """The lanes to compare, as (b, d): the first, the last, and random ones between."""
    b, _, d = work.row.size
    some = torch.randint(b * d, (LANES - 2,), generator=torch.Generator().manual_seed(1))
    flat = torch.cat([torch.tensor([0, b * d - 1]), some]).unique()
    return flat // d, flat % d


def _at(x: Tensor, picks: tuple[Tensor, Tensor], time: int | None) -> Tensor:
    """`[lane, time]` of a tensor, or `[lane]` of one without time, on the CPU."""
    lanes = x if time is None else x.movedim(time, -1)
    return lanes[tuple(p.to(x.device) for p in picks)].detach().cpu()


def _loop(work: Work, picks: tuple[Tensor, Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The states, the final ones, and the gradients of the picked lanes."""
    case, time = work.case, work.row.dim
    leaves = {n: _double(_at(x, picks, time)) for n, x in work.leaves.items()}
    for name in case.float_leaves:
        leaves[name].requires_grad_()
    states, finals = loop(case.name, leaves, tuple(_double(_at(x, picks, None)) for x in work.initial))
    results = (*states, *finals)
    seeds = [_double(_at(x, picks, time if x.ndim == 3 else None)) for x in work.cotangents]
    gradients = torch.autograd.grad(work.floats(results), [leaves[n] for n in case.float_leaves], seeds)
    return [x.detach() for x in results], list(gradients)


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def _worst(got: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    return max(err(x, y) for x, y in zip(got, expected, strict=True))
