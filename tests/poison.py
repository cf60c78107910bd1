"""NaN and infinities in one place: they must reach what they reach in the loop, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import scanforge as sf
from scanforge.boundaries import bounded
from scanforge.prepared import prepare
from scanforge.sequential import sequential
from tests.catalogue import CASES, Case, generator
from tests.catalogue import draw as draw_case
from tests.recurrence_declarations import HGRN2
from tests.recurrences import ENTRIES, Entry
from tests.recurrences import draw as draw_entry
from tests.reference import compare, fused
from tests.tolerances import assert_close

VALUES = {"NaN": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
EVERY: list[Case | Entry] = [*CASES, *ENTRIES]
Outcome = compare.Outcome | fused.Outcome
Run = Callable[..., Outcome]


def everything(case: Case) -> compare.Loss:
    indices = tuple(range(len(case.float_states)))
    return compare.Loss(indices, indices)


def drawn(one: Case | Entry, dtype: torch.dtype) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    return draw_case(one, (2, 9, 3), dtype) if isinstance(one, Case) else draw_entry(one, dtype, t=9)


def poisoned(tensors: dict[str, Tensor], value: float, seed: int) -> dict[str, Tensor]:
    """One entry of one float tensor is this value: of each tensor in turn, at a place the seed chooses."""
    names = [n for n, x in tensors.items() if x.is_floating_point()]
    name = names[seed % len(names)]
    x = tensors[name].clone()
    at = torch.randint(x.numel(), (1,), generator=generator(seed))
    x.view(-1)[at] = value
    return tensors | {name: x}


def expected(one: Case | Entry, tensors: dict[str, Tensor], initial: Any) -> Outcome:
    """The sequential loop's on the declaration as it stands: what a NaN meets is a matter of its wording."""
    inputs = compare.differentiable({n: compare.wide(x) for n, x in tensors.items()})
    names = one.states if isinstance(one, Case) else tuple(one.states)
    start = compare.differentiable(
        {f"initial {n}": compare.wide(x) for n, x in zip(names, initial, strict=True)}
    )
    declared = one.operator if isinstance(one, Case) else one.recurrence
    call = bounded(prepare(declared, inputs, fused.single(tuple(start.values()))), reverse=False)
    outputs, finals = sequential(call.text, call.inputs, call.initial)
    found = tuple(call.outputs(outputs)), tuple(call.states(finals))
    if isinstance(one, Case):
        slopes = compare.differentiate(one, found, everything(one), inputs | start, missing=True)
        return compare.Outcome(*found, slopes)
    return fused.Outcome(*found, fused.differentiate(*found, inputs | start, ("both",), missing=True))


def numbers(found: Outcome) -> list[Tensor]:
    """Values and gradients, always in the same order."""
    if isinstance(found, compare.Outcome):
        return [*found.states, *found.finals, *found.gradients.values()]
    return [*found.outputs, *found.finals, *found.gradients["both"].values()]


def assert_no_further(got: Outcome, truth: Outcome, what: str) -> int:
    """Where the loop has a number, so has `got`, and the same one; how many numbers the loop has not."""
    spoilt = 0
    for k, (x, y) in enumerate(zip(numbers(got), numbers(truth), strict=True)):
        finite = y.isfinite()
        spoilt += int((~finite).sum())
        assert bool(x[finite].isfinite().all()), f"{what}: {k} has reached what the loop keeps clean"
        if y.is_floating_point():
            assert_close(torch.where(finite, x, 0.0), torch.where(finite, y, 0.0), "gradient", f"{what} {k}")
    return spoilt


def check(one: Case | Entry, value: float, run: Run, dtype: torch.dtype, seeds: int) -> None:
    """`run(one, tensors, initial)` on so many poisoned calls, against the loop."""
    spoilt, clean = 0, 0
    for seed in range(seeds):
        tensors, initial = drawn(one, dtype)
        tensors = poisoned(tensors, value, seed)
        truth = expected(one, tensors, initial)
        spoilt += assert_no_further(run(one, tensors, initial), truth, f"{one.name} {value} {seed}")
        clean += sum(int(y.isfinite().sum()) for y in numbers(truth))
    assert clean > 0
    assert spoilt > 0 or value == value  # an infinite bound, say, is no fault; a NaN is seen somewhere


def check_segments(**options: Any) -> None:
    """A NaN after a reset, behind a loss that it spoils: values and gradients before the reset are clean."""
    shape, at = (2, 40, 3), 21
    starts = torch.zeros(2, 40)
    starts[:, at] = 1
    inside = slice(at, None) if not options.get("reverse") else slice(None, at)
    outside = slice(None, at) if not options.get("reverse") else slice(at, None)
    found = []
    for value in (0.0, VALUES["NaN"]):
        a = torch.full(shape, 0.5, dtype=torch.float64, requires_grad=True)
        b = torch.ones(shape, dtype=torch.float64)
        b[0, inside, 1][3] = value
        h = sf.scan(sf.Affine, a=a, b=b.requires_grad_(), reset=starts, **options)
        found.append((h, *torch.autograd.grad((h**2).sum(), (a, b))))
    for x, y in zip(*found, strict=True):
        assert y[0, inside, 1].isnan().any()
        others = torch.ones(shape, dtype=torch.bool)
        others[0, inside, 1] = False
        assert torch.equal(x[others], y[others])
        assert y[0, outside].isfinite().all()


def check_closed_gate(**options: Any) -> None:
    """An infinite cotangent behind a bound that wins, as sqrt sends at 0."""
    r, s = (torch.full((1, 40, 2), x, dtype=torch.float64, requires_grad=True) for x in (9.0, -9.0))
    low = torch.zeros(1, 40, 2, dtype=torch.float64)
    low[:, 25, 0] = 1.0
    x = sf.scan(sf.operators.MinMax, r=r, s=s + 10 * low, initial_state=low[:, 0] + 0.5, **options)
    c = torch.zeros(1, 40, 2, dtype=torch.float64)
    c[:, 30] = VALUES["inf"]
    dr, ds = torch.autograd.grad(x, (r, s), c)
    assert ds[0, 25].tolist() == [VALUES["inf"], 0.0]
    assert int(ds.isfinite().sum()) == ds.numel() - 1
    assert bool((dr == 0).all())


def check_channels(
    name: str, tensors: dict[str, Tensor], at: tuple[int, ...], value: float, **options: Any
) -> None:
    """A NaN in products over chunks reaches other steps, and no channel that it does not reach in the loop.

    Of HGRN2 with the tensors of its call, in values and gradients: a channel is all of an entry but time.
    """
    reached = []
    for lowering, backend in (("loop", "reference"), ("chunked", "triton")):
        holes = tensors | {name: tensors[name].clone()}
        holes[name][at] = value
        leaves = {n: x.detach().requires_grad_() for n, x in holes.items()}
        where = options if backend == "triton" else {}
        y = sf.scan(HGRN2, **leaves, backend=backend, lowering=lowering, **where)
        slopes = torch.autograd.grad((y**2).sum(), list(leaves.values()))
        reached.append([~x.isfinite() for x in (y, *slopes)])
    for loop, chunked in zip(*reached, strict=True):
        assert bool(chunked[loop].all()), f"{name}: what the loop spoils is not clean"
        over_time = [x.any(1) if x.ndim == 4 else x for x in (loop, chunked)]
        assert torch.equal(*over_time), f"{name}: a channel is reached that the loop keeps clean"
    assert bool(reached[0][0].any())
    assert not bool(reached[0][0].all())
