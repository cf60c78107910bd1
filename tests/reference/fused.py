"""Run a recurrence through scanforge and through its loop, forward and backward, and compare."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import scanforge as sf
from tests.recurrences import BY_NAME, ENTRIES, Entry, Initial
from tests.reference.compare import LOWERINGS, cotangent, differentiable, many, wide
from tests.tolerances import assert_close

LOSSES = ("outputs", "finals", "both")
Tensors = dict[str, Tensor]

every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
every_lowering = pytest.mark.parametrize("lowering", LOWERINGS)
both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def some(*names: str):
    """The entries of these names, as a parametrisation."""
    return pytest.mark.parametrize("entry", [BY_NAME[n] for n in names], ids=lambda entry: entry.name)


@dataclass(frozen=True)
class Outcome:
    """Outputs and final states in order; for each loss, the gradient of each float input and start."""

    outputs: tuple[Tensor, ...]
    finals: tuple[Tensor, ...]
    gradients: dict[str, Tensors]


def single(states: Initial | None) -> Any:
    """What `initial_state=` takes: a tensor where there is one state."""
    return states[0] if states is not None and len(states) == 1 else states


def named(entry: Entry, initial: Initial | None) -> Tensors:
    return {} if initial is None else {f"initial {n}": x for n, x in zip(entry.states, initial, strict=True)}


def scan(entry: Entry, tensors: Tensors, initial: Initial | None = None, **options: Any):
    """`(outputs, final states)` of scanforge, both tuples."""
    outputs, finals = sf.scan(
        entry.recurrence, **tensors, initial_state=single(initial), return_final_state=True, **options
    )
    return many(outputs), many(finals)


def differentiate(outputs, finals, inputs: Tensors, losses, missing: bool) -> dict[str, Tensors]:
    """The gradients of each loss; with `missing`, torch may have none for an input, and it counts as 0."""
    wanted = {n: x for n, x in inputs.items() if x.requires_grad}
    cotangents = [cotangent(x, seed).to(x.dtype) for seed, x in enumerate((*outputs, *finals))]
    count, found = len(outputs), {}
    for loss in losses:
        chosen = {"outputs": slice(count), "finals": slice(count, None), "both": slice(None)}[loss]
        read, put = [*outputs, *finals][chosen], cotangents[chosen]
        if missing:
            pairs = [(x, c) for x, c in zip(read, put, strict=True) if x.requires_grad]
            if not pairs:
                found[loss] = {n: torch.zeros_like(x) for n, x in wanted.items()}
                continue
            read, put = (list(column) for column in zip(*pairs, strict=True))
        slopes = torch.autograd.grad(
            read,
            list(wanted.values()),
            put,
            retain_graph=True,
            allow_unused=missing,
            materialize_grads=missing,
        )
        found[loss] = dict(zip(wanted, slopes, strict=True))
    return found


def expected(entry: Entry, tensors, initial=None, losses=LOSSES, **options: Any) -> Outcome:
    """The loop's outcome in float64; `options` are its reverse, reset and mask."""
    inputs = differentiable({n: wide(x) for n, x in tensors.items()})
    start = differentiable(named(entry, initial and tuple(wide(x) for x in initial)))
    outputs, finals = entry.loop(inputs, tuple(start.values()) or None, **options)
    return Outcome(outputs, finals, differentiate(outputs, finals, inputs | start, losses, missing=True))


def actual(entry: Entry, tensors, initial=None, losses=LOSSES, **options: Any) -> Outcome:
    """scanforge's outcome; `options` go to scan."""
    inputs, start = differentiable(tensors), differentiable(named(entry, initial))
    outputs, finals = scan(entry, inputs, tuple(start.values()) or None, **options)
    return Outcome(outputs, finals, differentiate(outputs, finals, inputs | start, losses, missing=False))


def assert_same(
    got: Outcome, truth: Outcome, quantities=("long", "long"), what: str = "", rounded=None
) -> None:
    """Values within the first quantity of the table, gradients within the second.

    `rounded` is the type of the operands of products, to which all is as good.
    """
    for label, xs, ys in (("output", got.outputs, truth.outputs), ("final", got.finals, truth.finals)):
        assert len(xs) == len(ys), f"{what}: {len(xs)} {label}s, expected {len(ys)}"
        for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
            assert_close(x, y, quantities[0], f"{what} {label} {index}", rounded)
    assert got.gradients.keys() == truth.gradients.keys()
    for loss, slopes in got.gradients.items():
        assert slopes.keys() == truth.gradients[loss].keys()
        for name, x in slopes.items():
            assert_close(x, truth.gradients[loss][name], quantities[1], f"{what} {loss} by {name}", rounded)


def check(
    entry: Entry, tensors: Tensors, initial: Initial | None = None, losses=LOSSES, lowerings=LOWERINGS,
    quantities=("long", "long"), **options: Any,
) -> Outcome:  # fmt: skip
    """scanforge's outcome in the last lowering, once all agree with the loop's."""
    truth = expected(entry, tensors, initial, losses, **options)
    for lowering in lowerings:
        got = actual(entry, tensors, initial, losses, lowering=lowering, **options)
        assert_same(got, truth, quantities, f"{entry.name} {lowering}")
    return got


def packed_loop(entry: Entry, tensors: Tensors, initial: Initial | None, cu: list[int], reverse: bool):
    """The loop on each sequence of a packed batch by itself: `(outputs, final states)`."""
    times = {n: p.axes.split().index("t") for n, p in entry.inputs.items() if "t" in p.axes.split()}
    pieces = []
    for number, (begin, end) in enumerate(pairwise(cu)):
        cut = {n: x.narrow(times[n], begin, end - begin) if n in times else x for n, x in tensors.items()}
        start = initial and tuple(x[number : number + 1] for x in initial)
        pieces.append(entry.loop(cut, start, reverse))
    outputs = []
    for axes, column in zip(entry.outputs, zip(*(y for y, _ in pieces), strict=True), strict=True):
        names = axes.split()
        outputs.append(torch.cat(column, names.index("t")) if "t" in names else sum(column))
    return tuple(outputs), tuple(torch.cat(column) for column in zip(*(x for _, x in pieces), strict=True))


def check_packed(
    entry: Entry, tensors: Tensors, initial: Initial | None, cu: list[int], losses=LOSSES,
    lowerings=LOWERINGS, quantities=("long", "long"), reverse: bool = False,
) -> Outcome:  # fmt: skip
    """As `check`, for sequences packed into a batch of one."""
    inputs = differentiable({n: wide(x) for n, x in tensors.items()})
    start = differentiable(named(entry, initial and tuple(wide(x) for x in initial)))
    outputs, finals = packed_loop(entry, inputs, tuple(start.values()) or None, cu, reverse)
    truth = Outcome(outputs, finals, differentiate(outputs, finals, inputs | start, losses, missing=True))
    for lowering in lowerings:
        got = actual(
            entry, tensors, initial, losses, cu_seqlens=torch.tensor(cu), reverse=reverse, lowering=lowering
        )
        assert_same(got, truth, quantities, f"{entry.name} {lowering}")
    return got
