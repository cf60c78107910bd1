"""Resets, padding, packed sequences and steps of bare operators, against the loop of each sequence alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

import scanforge as sf
from tests.catalogue import BY_NAME, CASES, Case, chance, draw, generator
from tests.loops import INITIAL
from tests.reference.compare import (
    LOWERINGS,
    Loss,
    Outcome,
    actual,
    assert_same_gradients,
    assert_same_values,
    cotangent,
    differentiable,
    differentiate,
    many,
    named_initial,
    wide,
)
from tests.tolerances import assert_close, assert_equal

T = 9
States = tuple[Tensor, ...]
Tensors = dict[str, Tensor]

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_lowering = pytest.mark.parametrize("lowering", LOWERINGS)
both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
with_start = pytest.mark.parametrize("given", [False, True], ids=["default start", "given start"])


def both(case: Case) -> Loss:
    """A loss of all states and all final states."""
    count = tuple(range(len(case.float_states)))
    return Loss(count, count)


def flags(seed: int, p: float, length: int = T) -> Tensor:
    return chance(generator(seed), (2, length), p)


def fresh(case: Case, like: Tensor) -> States:
    """The states where none is given, for one sequence of leaves like this."""
    ints = dict.fromkeys(set(case.states) - set(case.float_states), torch.int64)
    values = zip(case.states, INITIAL[case.name], strict=True)
    return tuple(like.new_full(like[:, 0].shape, v, dtype=ints.get(n, torch.float64)) for n, v in values)


def sequence(
    case: Case, tensors: Tensors, start: States, real: Tensor, reverse: bool
) -> tuple[States, States]:
    """One sequence of a batch of one: the loop over its real steps, 0 at the others; and its final states."""
    kept = real.nonzero().flatten()
    length = len(real)
    if not len(kept):
        return tuple(x[:, None].expand(1, length, *x.shape[1:]) * 0 for x in start), start
    states, finals = case.loop({n: x[:, kept] for n, x in tensors.items()}, start, reverse)
    whole = [x.new_zeros(1, length, *x.shape[2:]).index_copy(1, kept, x) for x in states]
    return tuple(whole), finals


def cut(case: Case, leaves, initial, bounds: list[int], real: Tensor, reverse: bool) -> tuple[States, States]:
    """The segments of a batch of one; all start alike, and the last in order of processing ends it."""
    parts = [
        sequence(case, {n: x[:, i:j] for n, x in leaves.items()}, initial, real[i:j], reverse)
        for i, j in pairwise(bounds)
    ]
    states = tuple(torch.cat(column, 1) for column in zip(*(s for s, _ in parts), strict=True))
    return states, parts[0 if reverse else -1][1]


def expected(case: Case, leaves, initial, reset: Tensor, mask: Tensor, reverse: bool) -> Outcome:
    """Each row and segment by itself, in float64."""
    tensors = differentiable({n: wide(x) for n, x in leaves.items()})
    given = differentiable(named_initial(case, initial))
    rows = []
    for b in range(len(mask)):
        row = {n: x[b : b + 1] for n, x in tensors.items()}
        start = tuple(x[b : b + 1] for x in given.values()) or fresh(case, next(iter(row.values())))
        bounds = [0, *(t for t in range(1, T) if reset[b, t]), T]
        rows.append(cut(case, row, start, bounds, mask[b], reverse))
    states, finals = ([torch.cat(x) for x in zip(*column, strict=True)] for column in zip(*rows, strict=True))
    slopes = differentiate(case, (states, finals), both(case), tensors | given, missing=True)
    return Outcome(tuple(states), tuple(finals), slopes)


@every_case
@every_lowering
@both_ways
@with_start
def test_resets_and_padding(case, lowering, reverse, given):
    """Rows differ; a boundary stands even where its step is padding."""
    leaves, initial = draw(case, (2, T, 3))
    initial = initial if given else None
    for reset, mask in (
        (flags(1, 0.4), torch.ones(2, T) > 0),
        (torch.zeros(2, T) > 0, flags(2, 0.6)),
        (flags(3, 0.4), flags(4, 0.6)),
    ):
        options = {"reset": reset, "mask": mask, "reverse": reverse, "lowering": lowering}
        got = actual(case, leaves, initial, both(case), **options)
        truth = expected(case, leaves, initial, reset, mask, reverse)
        assert_same_values(case, got, truth)
        assert_same_gradients(case, got, truth)


@every_case
@every_lowering
@both_ways
@with_start
@pytest.mark.parametrize("cu", [[0, 4, 5, 9], [0, 0, 5, 5, 9, 9]], ids=str)
def test_packed_sequences(case, lowering, reverse, given, cu):
    """As separate calls, each with an initial and a final state of its own."""
    leaves, _ = draw(case, (1, T, 3))
    _, initial = draw(case, (len(cu) - 1, 1, 3))
    initial = initial if given else None
    got = actual(
        case, leaves, initial, both(case), cu_seqlens=torch.tensor(cu), reverse=reverse, lowering=lowering
    )
    tensors = differentiable({n: wide(x) for n, x in leaves.items()})
    start = differentiable(named_initial(case, initial))
    states, finals = [], []
    for n, (i, j) in enumerate(pairwise(cu)):
        own = tuple(x[n : n + 1] for x in start.values()) or fresh(case, next(iter(tensors.values())))
        part = {name: x[:, i:j] for name, x in tensors.items()}
        s, f = sequence(case, part, own, torch.ones(j - i) > 0, reverse)
        states.append(s)
        finals.append(f)
    outputs = (
        [torch.cat(x, 1) for x in zip(*states, strict=True)],
        [torch.cat(x) for x in zip(*finals, strict=True)],
    )
    slopes = differentiate(case, outputs, both(case), tensors | start, missing=True)
    truth = Outcome(*map(tuple, outputs), slopes)
    assert_same_values(case, got, truth)
    assert_same_gradients(case, got, truth)


@every_case
@every_lowering
@both_ways
def test_req38_padding_may_hold_anything(case, lowering, reverse):
    """NaN in padded steps reaches no value and no gradient."""
    leaves, initial = draw(case, (2, T, 3))
    mask = flags(5, 0.6)
    spoilt = {n: x.clone() for n, x in leaves.items()}
    for x in spoilt.values():
        x[~mask] = float("nan") if x.is_floating_point() else 1
    got = actual(case, spoilt, initial, both(case), reverse, mask=mask, lowering=lowering)
    truth = expected(case, leaves, initial, torch.zeros(2, T) > 0, mask, reverse)
    assert_same_values(case, got, truth)
    assert_same_gradients(case, got, truth)
    for name in case.float_leaves:
        assert not got.gradients[name][~mask].any()


@every_case
def test_req38_lengths_are_a_mask(case):
    leaves, _ = draw(case, (2, T, 3))
    lengths = torch.tensor([T, 4])
    by_length = many(sf.scan(case.operator, **leaves, lengths=lengths))
    by_mask = many(sf.scan(case.operator, **leaves, mask=torch.arange(T) < lengths[:, None]))
    for x, y in zip(by_length, by_mask, strict=True):
        assert_equal(x, y)


@every_lowering
def test_one_row_of_flags_for_the_whole_batch(lowering):
    leaves, _ = draw(BY_NAME["Affine"], (2, T, 3))
    reset, mask = flags(6, 0.4)[:1], flags(7, 0.6)[:1]
    shared = sf.scan(sf.Affine, **leaves, reset=reset, mask=mask, lowering=lowering)
    whole = {"reset": reset.expand(2, T), "mask": mask.expand(2, T)}
    assert_equal(shared, sf.scan(sf.Affine, **leaves, **whole, lowering=lowering))


@pytest.mark.parametrize("dim", [0, 2])
def test_another_time_axis(dim):
    """Flags are always (b, t); b is the first axis that is not time."""
    leaves, _ = draw(BY_NAME["Affine"], (2, T, 3))
    reset, mask = flags(8, 0.4), flags(9, 0.6)
    truth = sf.scan(sf.Affine, **leaves, reset=reset, mask=mask)
    moved = {n: x.movedim(1, dim) for n, x in leaves.items()}
    assert_close(
        sf.scan(sf.Affine, **moved, reset=reset, mask=mask, dim=dim).movedim(dim, 1), truth, "forward"
    )


@every_lowering
@both_ways
def test_complex_leaves(lowering, reverse):
    """The same numbers as of the operator on real and imaginary parts."""
    leaves, _ = draw(BY_NAME["ComplexAffine"], (2, T, 3))
    options = {"reset": flags(10, 0.4), "mask": flags(11, 0.6), "reverse": reverse, "lowering": lowering}
    a, b = (torch.complex(leaves[f"{n}_re"], leaves[f"{n}_im"]) for n in ("a", "b"))
    real, imag = sf.scan(sf.operators.ComplexAffine, **leaves, **options)
    assert_close(sf.scan(sf.Affine, a=a, b=b, **options), torch.complex(real, imag), "forward")


def one(states: States):
    return states if len(states) > 1 else states[0]


@every_case
def test_steps_are_the_scan(case):
    """Values, and gradients through the chain of steps; the states handed in are left alone."""
    leaves, initial = draw(case, (2, T, 3))
    truth = expected(case, leaves, initial, torch.zeros(2, T) > 0, torch.ones(2, T) > 0, False)
    tensors, start = differentiable(leaves), differentiable(named_initial(case, initial))
    kept = [x.detach().clone() for x in start.values()]
    state, history = one(tuple(start.values())), []
    for t in range(T):
        y, state = sf.step(case.operator, state, **{n: x[:, t] for n, x in tensors.items()})
        history.append(many(y))
    outputs = tuple(torch.stack(x, 1) for x in zip(*history, strict=True)), many(state)
    slopes = differentiate(case, outputs, both(case), tensors | start, missing=False)
    got = Outcome(*outputs, slopes)
    assert_same_values(case, got, truth)
    assert_same_gradients(case, got, truth)
    for x, y in zip(start.values(), kept, strict=True):
        assert_equal(x, y)


@every_case
def test_a_step_in_place(case):
    leaves, initial = draw(case, (2, 1, 3))
    row = {n: x[:, 0] for n, x in leaves.items()}
    _, fresh_state = sf.step(case.operator, one(initial), **row)
    state = tuple(x.clone() for x in initial)
    _, after = sf.step(case.operator, one(state), **row, inplace=True)
    for x, y, z in zip(state, many(after), many(fresh_state), strict=True):
        assert x.data_ptr() == y.data_ptr()
        assert_equal(x, z)


@every_case
def test_a_step_with_resets_and_padding(case):
    """Rows: an ordinary step, a reset, padding, and padding at a reset, which still enters anew."""
    leaves, initial = draw(case, (4, 1, 3))
    row = {n: x[:, 0] for n, x in leaves.items()}
    reset, mask = torch.tensor([0, 1, 0, 1]) > 0, torch.tensor([1, 1, 0, 0]) > 0
    y, state = sf.step(case.operator, one(initial), **row, reset=reset, mask=mask)
    ordinary = many(sf.step(case.operator, one(initial), **row)[1])
    anew = many(sf.step(case.operator, None, **row)[1])
    first = fresh(case, next(iter(leaves.values())))
    for x, out, a, b, c, d in zip(many(state), many(y), ordinary, anew, initial, first, strict=True):
        assert_equal(x, torch.stack([a[0], b[1], c[2], d[3].to(x.dtype)]))
        assert_equal(out, torch.stack([a[0], b[1], torch.zeros_like(a[0]), torch.zeros_like(a[0])]))


def test_the_cotangent_of_a_padded_output_goes_nowhere():
    """Not even an infinite one."""
    leaves, _ = draw(BY_NAME["Affine"], (2, T, 3))
    tensors, mask = differentiable(leaves), flags(12, 0.6)
    states = sf.scan(sf.Affine, **tensors, mask=mask)
    c = cotangent(states, 1)
    truth = torch.autograd.grad(states, list(tensors.values()), c, retain_graph=True)
    c = torch.where(mask[..., None], c, float("inf"))
    for x, y in zip(torch.autograd.grad(states, list(tensors.values()), c), truth, strict=True):
        assert_equal(x, y)
