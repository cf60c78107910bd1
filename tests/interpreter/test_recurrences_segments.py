"""Packed sequences, padding and single steps of recurrences on generated kernels. Requirements 35 to 39."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests.catalogue import chance, generator
from tests.kernels import LOWERINGS, Tiles, guarded
from tests.recurrence_kernels import check, outcome
from tests.recurrences import BY_NAME, ENTRIES, SIZES, draw
from tests.reference.compare import differentiable, many
from tests.reference.fused import (
    Outcome,
    assert_same,
    differentiate,
    every_entry,
    expected,
    named,
    packed_loop,
    scan,
    single,
    some,
)
from tests.tolerances import assert_close, assert_equal

pytestmark = pytest.mark.interpreter
F32 = torch.float32

# Empty sequences first, last and between; one of a single step; one longer than a chunk.
CUTS = {"mixed": [0, 0, 6, 7, 7, 10, 10], "one": [0, 7], "empty": [0, 0, 0], "steps": [0, 1, 2, 3]}
SPLIT = {"RGLRU", "Mamba", "HGRN2", "LinearAttention", "LogSumExp", "Summing"}


@pytest.fixture(autouse=True)
def short_tiles(monkeypatch):
    Tiles(4, 2, chunk=4).force(monkeypatch)


def check_packed(entry, cu, seed, *, given, **options):
    """Each sequence by itself: values, final states, gradients of all of them together."""
    tensors, _ = draw(entry, seed=seed, b=1, t=cu[-1])
    _, initial = draw(entry, seed=seed, b=len(cu) - 1)
    initial = initial if given else None
    inputs, start = differentiable(tensors), differentiable(named(entry, initial))
    outputs, finals = packed_loop(entry, inputs, tuple(start.values()) or None, cu, options["reverse"])
    slopes = differentiate(outputs, finals, inputs | start, ["both"], missing=True)
    got = outcome(entry, tensors, initial, cu_seqlens=torch.tensor(cu), **options)
    assert_same(got, Outcome(outputs, finals, slopes), what=f"{entry.name} packed")
    return got, initial


@every_entry
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_req35_packed_sequences(entry, lowering):
    """Requirement 36 too: an empty sequence passes its own state on."""
    if lowering == "split" and entry.name not in SPLIT:
        pytest.skip("split is packed for a few")
    seed, cu = ENTRIES.index(entry) + (lowering == "split"), CUTS["mixed"]
    got, initial = check_packed(
        entry, cu, seed, given=bool(seed & 2), reverse=bool(seed & 1), lowering=lowering
    )
    for x, y in zip(got.finals, initial or entry.fresh(SIZES | {"b": 6}, torch.float64), strict=True):
        assert x.shape[0] == 6
        assert torch.equal(x[[0, 3, 5]], y[[0, 3, 5]])


@some("RGLRU", "Mamba", "LinearAttention", "Summing")
@pytest.mark.parametrize("cut", [name for name in CUTS if name != "mixed"])
def test_req36_other_cuts(entry, cut):
    check_packed(entry, CUTS[cut], 0, given=True, reverse=False)


def test_req35_nothing_leaks():
    """Linear attention forgets nothing, so a leak would show; int32 bounds."""
    entry = BY_NAME["LinearAttention"]
    tensors, _ = draw(entry, F32, b=1, t=12, h=1)
    cu = torch.tensor([0, 5, 8, 12], dtype=torch.int32)
    y = sf.scan(entry.recurrence, **tensors, cu_seqlens=cu, backend="triton")
    for first, last in ((0, 5), (5, 8), (8, 12)):
        part = {n: x[:, first:last] for n, x in tensors.items()}
        (alone,), _ = scan(entry, part, backend="triton")
        assert_close(y[:, first:last], alone, "forward")


@some("RGLRU", "SelectiveSSM", "LinearAttention", "LogSumExp")
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_req38_padding_may_hold_anything(entry, reverse):
    """NaN in a padded step reaches neither a value nor a gradient."""
    tensors, initial = draw(entry, t=9)
    mask = chance(generator(5), (2, 9), 0.6)
    batched = [n for n, p in entry.inputs.items() if p.axes.startswith("b t")]
    spoilt = {n: x.clone() for n, x in tensors.items()}
    for name in batched:
        spoilt[name][~mask] = float("nan") if spoilt[name].is_floating_point() else 1
    got = outcome(entry, spoilt, initial, mask=mask, reverse=reverse)
    assert_same(got, expected(entry, tensors, initial, ["both"], mask=mask, reverse=reverse))
    for name in batched:
        assert not got.gradients["both"][name][~mask].any()


@some("RGLRU", "HGRN2", "LinearAttention")
def test_req38_rows_of_different_lengths(entry):
    """`lengths` is the mask of padding on the right: the final state is the one at the last real step."""
    tensors, initial = draw(entry, t=9, h=1)
    lengths = torch.tensor([9, 4])
    got = outcome(entry, tensors, initial, lengths=lengths)
    assert_same(got, expected(entry, tensors, initial, ["both"], mask=torch.arange(9) < lengths[:, None]))


@some("Mamba", "LinearAttention", "Positional")
def test_req39_a_reset_at_every_step(entry):
    check(entry, *draw(entry, t=4, h=1), reset=torch.ones(2, 4, dtype=torch.bool))


def rows_of(entry, tensors, t):
    axes = {n: part.axes.split() for n, part in entry.inputs.items()}
    return {n: x.select(axes[n].index("t"), t) if "t" in axes[n] else x for n, x in tensors.items()}


def walk(entry, tensors, state, steps, **options):
    """Outputs and the state after so many single steps."""
    history = []
    for t in range(steps):
        y, state = sf.step(entry.recurrence, state, **rows_of(entry, tensors, t), backend="triton", **options)
        history.append(many(y))
    return history, many(state)


def joined(entry, history):
    return tuple(
        torch.stack(ys, a.split().index("t")) if "t" in a.split() else sum(ys)
        for a, ys in zip(entry.outputs, zip(*history, strict=True), strict=True)
    )


@every_entry
def test_req37_steps_equal_the_scan(entry):
    """Values, final states and all gradients, through three steps from the first one on or a given state."""
    given = ENTRIES.index(entry) % 2 == 0
    tensors, initial = draw(entry, t=3)
    truth = expected(entry, tensors, initial if given else None, ["both"])
    inputs = differentiable({n: guarded(x) for n, x in tensors.items()})
    start = differentiable(named(entry, initial if given else None))
    history, finals = walk(entry, inputs, single(tuple(start.values()) or None), 3)
    outputs = joined(entry, history)
    slopes = differentiate(outputs, finals, inputs | start, ["both"], missing=True)
    assert_same(Outcome(outputs, finals, slopes), truth, what=f"{entry.name} step")


@every_entry
def test_req37_steps_in_place(entry):
    """The state's memory is written, and only where asked; twice the same steps give the same bits."""
    tensors, initial = draw(entry, t=2)
    places = tuple(guarded(x) for x in initial)
    before = [x.data_ptr() for x in places]
    with torch.no_grad():
        history, state = walk(entry, tensors, single(places), 2)
        for x, y in zip(places, initial, strict=True):
            assert torch.equal(x, y), "a step wrote into its state unasked"
        again, after = walk(entry, tensors, single(places), 2, inplace=True)
    assert [x.data_ptr() for x in after] == before
    for x, y in zip((*after, *joined(entry, again)), (*state, *joined(entry, history)), strict=True):
        assert_equal(x, y)


@some("Mamba", "LinearAttention", "GatedMinMax")
def test_steps_with_resets_and_padding(entry):
    """Each flag at its own step, as in the scan."""
    tensors, initial = draw(entry, t=3)
    reset, mask = chance(generator(1), (2, 3), 0.5), chance(generator(2), (2, 3), 0.6)
    fresh = entry.fresh(entry.sizes(tensors, initial), torch.float64)  # a reset step starts from it
    history, state = [], single(fresh)
    for t in range(3):
        flags = {"reset": reset[:, t], "mask": mask[:, t]}
        y, state = sf.step(
            entry.recurrence, state if t else None, **rows_of(entry, tensors, t), **flags, backend="triton"
        )
        history.append(many(y))
    outputs, finals = entry.loop(tensors, fresh, reset=reset, mask=mask)
    for x, y in zip((*joined(entry, history), *many(state)), (*outputs, *finals), strict=True):
        assert_close(x, y, "long", entry.name)


@some("Mamba", "LinearAttention")
def test_req24_a_step_in_bfloat16_keeps_a_float32_state(entry):
    tensors, _ = draw(entry, torch.bfloat16, t=3)
    _, finals = scan(entry, tensors, backend="triton")
    _, state = walk(entry, tensors, None, 3)
    for x, y in zip(state, finals, strict=True):
        assert x.dtype == F32
        assert_close(x, y.double(), "forward")
