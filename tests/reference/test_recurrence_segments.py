"""Resets, padding, packed sequences and single steps of every recurrence, against the loop by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import scanforge as sf
from tests.catalogue import chance, generator
from tests.recurrences import BY_NAME, ENTRIES, draw
from tests.reference.compare import cotangent, differentiable, many
from tests.reference.fused import (
    both_ways,
    check,
    check_packed,
    every_entry,
    every_lowering,
    expected,
    named,
    scan,
    single,
    some,
)
from tests.tolerances import assert_close, assert_equal

T = 9
with_start = pytest.mark.parametrize("given", [False, True], ids=["default start", "given start"])


def flags(seed: int, p: float, length: int = T) -> Tensor:
    return chance(generator(seed), (2, length), p)


@every_entry
@both_ways
@with_start
def test_resets(entry, reverse, given):
    """Rows differ, neighbours are set together; every segment enters with the initial state."""
    tensors, initial = draw(entry, t=T)
    reset = flags(1, 0.4)
    check(entry, tensors, initial if given else None, reset=reset, reverse=reverse)


@every_entry
@both_ways
def test_a_reset_at_every_step(entry, reverse):
    """The first one included: every step is a sequence of its own."""
    tensors, _ = draw(entry, t=4)
    check(entry, tensors, reset=torch.ones(2, 4, dtype=torch.bool), reverse=reverse)


@every_entry
@both_ways
@with_start
def test_padding_anywhere(entry, reverse, given):
    tensors, initial = draw(entry, t=T)
    check(entry, tensors, initial if given else None, mask=flags(2, 0.6), reverse=reverse)


@every_entry
@both_ways
def test_resets_and_padding_together(entry, reverse):
    """A boundary stands even where its step is padding."""
    tensors, initial = draw(entry, t=T)
    reset = flags(3, 0.4)
    check(entry, tensors, initial, reset=reset, mask=flags(4, 0.6), reverse=reverse)


@every_entry
def test_nothing_is_real(entry):
    """The state passes through; outputs and the gradients of inputs are 0."""
    tensors, initial = draw(entry, t=4)
    got = check(entry, tensors, initial, mask=torch.zeros(2, 4, dtype=torch.bool))
    for x, y in zip(got.finals, initial, strict=True):
        assert_equal(x, y)
    for x in got.outputs:
        assert not x.any()


@every_entry
@every_lowering
@both_ways
def test_padding_may_hold_anything(entry, lowering, reverse):
    """NaN in a padded step reaches neither a value nor a gradient."""
    tensors, initial = draw(entry, t=T)
    mask = flags(5, 0.6)
    batched = [n for n, p in entry.inputs.items() if p.axes.startswith("b t")]
    spoilt = {n: x.clone() for n, x in tensors.items()}
    for name in batched:
        spoilt[name][~mask] = float("nan") if spoilt[name].is_floating_point() else 1
    truth = expected(entry, tensors, initial, ["both"], mask=mask, reverse=reverse)
    inputs, start = differentiable(spoilt), differentiable(named(entry, initial))
    outputs, finals = scan(
        entry, inputs, tuple(start.values()), mask=mask, reverse=reverse, lowering=lowering
    )
    for x, y in zip((*outputs, *finals), (*truth.outputs, *truth.finals), strict=True):
        assert_close(x, y, "long", "value")
    wanted = {n: x for n, x in (inputs | start).items() if x.requires_grad}
    read = [*outputs, *finals]
    slopes = torch.autograd.grad(read, list(wanted.values()), [cotangent(y, i) for i, y in enumerate(read)])
    for (name, _), x in zip(wanted.items(), slopes, strict=True):
        assert_close(x, truth.gradients["both"][name], "long", name)
        if name in batched:
            assert not x[~mask].any()


@every_entry
def test_lengths_are_a_mask(entry):
    tensors, initial = draw(entry, t=T)
    lengths = torch.tensor([T, 4])
    mask = torch.arange(T) < lengths[:, None]
    for x, y in zip(
        scan(entry, tensors, initial, lengths=lengths), scan(entry, tensors, initial, mask=mask), strict=True
    ):
        for a, b in zip(x, y, strict=True):
            assert_equal(a, b)


CUTS = {
    "several": [0, 3, 4, 9],
    "empty ones": [0, 0, 5, 5, 9, 9],
    "one": [0, 9],
}


@every_entry
@both_ways
@with_start
@pytest.mark.parametrize("cu", CUTS.values(), ids=CUTS)
def test_packed_sequences(entry, reverse, given, cu):
    tensors, _ = draw(entry, t=cu[-1], b=1)
    _, initial = draw(entry, b=len(cu) - 1)
    check_packed(entry, tensors, initial if given else None, cu, reverse=reverse)


@every_entry
def test_packed_sequences_that_are_all_empty(entry):
    tensors, _ = draw(entry, t=0, b=1)
    _, initial = draw(entry, b=2)
    check_packed(entry, tensors, initial, [0, 0, 0])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_offsets_of_either_type(dtype):
    entry = BY_NAME["Decay"]
    tensors, _ = draw(entry, t=9, b=1)
    cu = torch.tensor([0, 3, 9])
    truth = sf.scan(entry.recurrence, **tensors, cu_seqlens=cu)
    assert_equal(sf.scan(entry.recurrence, **tensors, cu_seqlens=cu.to(dtype)), truth)


STEPPED = [entry for entry in ENTRIES if entry.name != "RGLRUDocuments"]
every_stepped = pytest.mark.parametrize("entry", STEPPED, ids=lambda entry: entry.name)


def rows(entry, tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The inputs of each step, without their time axis."""
    axes = {n: p.axes.split() for n, p in entry.inputs.items()}
    length = next(x.shape[axes[n].index("t")] for n, x in tensors.items() if "t" in axes[n])
    return [
        {n: x.select(axes[n].index("t"), t) if "t" in axes[n] else x for n, x in tensors.items()}
        for t in range(length)
    ]


def step_through(entry, tensors: dict[str, Tensor], initial, **options):
    """`(outputs, final states)`, one step at a time."""
    state, history = single(initial), []
    for row in rows(entry, tensors):
        y, state = sf.step(entry.recurrence, state, **row, **options)
        history.append(many(y))
    outputs = []
    for axes, column in zip(entry.outputs, zip(*history, strict=True), strict=True):
        names = axes.split()
        outputs.append(torch.stack(column, names.index("t")) if "t" in names else sum(column))
    return tuple(outputs), many(state)


@every_stepped
def test_steps_are_the_scan(entry):
    """Values, and gradients through the chain of steps."""
    tensors, initial = draw(entry, t=6)
    truth = expected(entry, tensors, initial, ["both"])
    inputs, start = differentiable(tensors), differentiable(named(entry, initial))
    outputs, finals = step_through(entry, inputs, tuple(start.values()))
    read = [*outputs, *finals]
    for x, y in zip(read, (*truth.outputs, *truth.finals), strict=True):
        assert_close(x, y, "long", entry.name)
    wanted = {n: x for n, x in (inputs | start).items() if x.requires_grad}
    slopes = torch.autograd.grad(read, list(wanted.values()), [cotangent(y, i) for i, y in enumerate(read)])
    for name, x in zip(wanted, slopes, strict=True):
        assert_close(x, truth.gradients["both"][name], "long", name)


@every_stepped
def test_a_step_in_place(entry):
    """The state that was handed in holds the new one; without `inplace` it is untouched."""
    tensors, initial = draw(entry, t=3)
    kept = tuple(x.clone() for x in initial)
    outputs, finals = step_through(entry, tensors, initial)
    for x, y in zip(initial, kept, strict=True):
        assert_equal(x, y)
    states = tuple(x.clone() for x in initial)
    ys, ends = step_through(entry, tensors, states, inplace=True)
    for x, y in zip((*ys, *ends), (*outputs, *finals), strict=True):
        assert_equal(x, y)
    for x, y, z in zip(states, ends, finals, strict=True):
        assert x.data_ptr() == y.data_ptr()
        assert_equal(x, z)


@some("RGLRU", "HGRN2", "SelectiveSSM")
def test_a_step_keeps_the_state_s_type(entry):
    tensors, initial = draw(entry, torch.bfloat16, t=1)
    y, state = sf.step(entry.recurrence, single(tuple(x.float() for x in initial)), **rows(entry, tensors)[0])
    assert (y.dtype, state.dtype) == (torch.bfloat16, torch.float32)


def test_bare_operators_step_too():
    h = torch.randn(2, 3, dtype=torch.float64)
    a, b = torch.randn(2, 2, 3, dtype=torch.float64)
    y, state = sf.step(sf.operators.Affine, h, a=a, b=b)
    assert_equal(y, a * h + b)
    assert_equal(state, a * h + b)


@both_ways
def test_bare_operators_know_segments(reverse):
    x = torch.randn(2, T, 3, dtype=torch.float64)
    a, reset, mask = torch.rand_like(x), flags(6, 0.4), flags(7, 0.6)
    h0 = torch.randn(2, 3, dtype=torch.float64)
    options = {"initial_state": h0, "reset": reset, "mask": mask, "reverse": reverse}
    states, final = sf.scan(sf.operators.Affine, a=a, b=x, return_final_state=True, **options)
    h, history = h0, [torch.zeros_like(h0)] * T
    for t in reversed(range(T)) if reverse else range(T):
        boundary = (reset[:, t + 1] if t + 1 < T else torch.zeros(2).bool()) if reverse else reset[:, t]
        h = torch.where(boundary[:, None], h0, h)
        h = torch.where(mask[:, t, None], a[:, t] * h + x[:, t], h)
        history[t] = torch.where(mask[:, t, None], h, 0.0)
    assert_close(states, torch.stack(history, 1), "long")
    assert_close(final, h, "long")
