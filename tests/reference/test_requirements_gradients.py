"""Faults reported in the field that concern gradients: requirements 8, 11, 15, 16."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations

import pytest
import torch

import scanforge as sf
from tests.catalogue import BY_NAME, draw
from tests.reference.compare import LOWERINGS, Loss, assert_same, cotangent, differentiable
from tests.tolerances import assert_close

F64 = torch.float64

every_lowering = pytest.mark.parametrize("lowering", LOWERINGS)
COUPLED = ("Affine", "ComplexAffine", "Matrix2x2", "LogSumExp", "Kalman")


def choices(things):
    return chain.from_iterable(combinations(things, size) for size in range(1, len(things) + 1))


# 8: any subset of the outputs


@every_lowering
@pytest.mark.parametrize("name", COUPLED)
def test_req08_any_subset_of_states_and_finals(name, lowering):
    case = BY_NAME[name]
    leaves, initial = draw(case, (2, 5, 3), seed=8)
    kinds = [(kind, i) for kind in ("states", "finals") for i in range(len(case.float_states))]
    for chosen in choices(kinds):
        loss = Loss(*(tuple(i for kind, i in chosen if kind == wanted) for wanted in ("states", "finals")))
        assert_same(case, leaves, initial, loss, lowering=lowering)


@pytest.mark.parametrize("name", COUPLED)
def test_req08_any_subset_of_composed_leaves(name):
    """The pair scan of the report: its value leaf alone, its factor leaf alone, both."""
    case = BY_NAME[name]
    leaves, _ = draw(case, (2, 5, 3), seed=8)
    leaves = {n: x.clamp(min=-9) for n, x in leaves.items()}
    for chosen in choices(case.float_leaves):
        results = []
        for run in (lambda e: sf.prefixes(case.operator, **e)._asdict(), case.prefix_loop):
            inputs = differentiable(leaves)
            outputs = run(inputs)
            loss = sum((outputs[n] * cotangent(outputs[n], i)).sum() for i, n in enumerate(chosen))
            results.append(torch.autograd.grad(loss, list(inputs.values()), materialize_grads=True))
        for leaf, x, y in zip(leaves, *results, strict=True):
            assert_close(x, y, "gradient", f"{chosen} by {leaf}")


# 11: a derivative that is zero by structure is a zero, not a None


class Constant(sf.Operator):
    """h_t = b_t: the state before does not matter, so no element leaves it alone"""

    b = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return Constant(b=later.b)

    def apply(self, h):
        return self.b


class Spare(sf.Operator):
    """h_t = h_{t-1} + b_t, with a leaf that nothing reads"""

    b = sf.Element(identity=0.0)
    spare = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return Spare(b=self.b + later.b, spare=later.spare)

    def apply(self, h):
        return h + self.b


class Apart(sf.Operator):
    """Two sums that do not meet"""

    b = sf.Element(identity=0.0)
    c = sf.Element(identity=0.0)
    h = sf.State()
    k = sf.State()

    def combine(self, later):
        return Apart(b=self.b + later.b, c=self.c + later.c)

    def apply(self, h, k):
        return h + self.b, k + self.c


@pytest.fixture
def laws_off() -> Iterator[None]:
    sf.set_law_check(False)
    yield
    sf.set_law_check(True)


def backward(states, *inputs):
    """What `.grad` holds after `backward`; a None would show."""
    states.sum().backward()
    for x in inputs:
        assert x.grad is not None
        assert (x.grad.shape, x.grad.dtype) == (x.shape, x.dtype)
    return [x.grad.tolist() for x in inputs]


@every_lowering
@pytest.mark.usefixtures("laws_off")
def test_req11_a_state_that_is_ignored(lowering):
    b = torch.arange(6.0).reshape(1, 3, 2).requires_grad_()
    h0 = torch.ones(1, 2, requires_grad=True)
    states, final = sf.scan(Constant, b=b, initial_state=h0, return_final_state=True, lowering=lowering)
    assert torch.equal(states, b)
    assert torch.equal(final, b[:, -1])
    assert backward(states, b, h0) == [torch.ones(1, 3, 2).tolist(), [[0, 0]]]


@every_lowering
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, F64], ids=str)
def test_req11_an_input_that_is_ignored(dtype, lowering):
    b, spare = (torch.ones(1, 3, 2, dtype=dtype, requires_grad=True) for _ in range(2))
    states = sf.scan(Spare, b=b, spare=spare, lowering=lowering)
    rows = [[3, 3], [2, 2], [1, 1]]
    assert backward(states, b, spare) == [[rows], torch.zeros(1, 3, 2).tolist()]


@every_lowering
def test_req11_an_output_that_does_not_depend(lowering):
    b, c = (torch.ones(1, 3, 2, requires_grad=True) for _ in range(2))
    h0, k0 = (torch.ones(1, 2, requires_grad=True) for _ in range(2))
    h, _ = sf.scan(Apart, b=b, c=c, initial_state=(h0, k0), lowering=lowering)
    zeros = torch.zeros(1, 3, 2).tolist()
    assert backward(h, b, c, h0, k0) == [[[[3, 3], [2, 2], [1, 1]]], zeros, [[3, 3]], [[0, 0]]]


# 15: the final state's cotangent


@every_lowering
def test_req15_final_state_by_hand(lowering):
    a = torch.tensor([[2.0, 3.0, 5.0]], requires_grad=True)
    b = torch.tensor([[1.0, 10.0, 100.0]], requires_grad=True)
    h0 = torch.tensor([7.0], requires_grad=True)
    _, final = sf.scan(
        sf.operators.Affine, a=a, b=b, initial_state=h0, return_final_state=True, lowering=lowering
    )
    assert backward(final, a, b, h0) == [[[7 * 15, 15 * 5, 55]], [[15, 5, 1]], [30]]


@every_lowering
@pytest.mark.parametrize("name", sorted(BY_NAME))
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_req15_chained_chunks_are_one_call(name, reverse, lowering):
    case = BY_NAME[name]
    leaves, initial = draw(case, (2, 96, 3), seed=15)
    whole, parts = differentiable(leaves), differentiable(leaves)
    start = initial if len(initial) > 1 else initial[0]
    options = {"return_final_state": True, "reverse": reverse, "lowering": lowering}
    states, _ = sf.scan(case.operator, **whole, initial_state=start, **options)
    chunks, state = [], start
    for begin in (64, 32, 0) if reverse else (0, 32, 64):
        piece = {n: x[:, begin : begin + 32] for n, x in parts.items()}
        outputs, state = sf.scan(case.operator, **piece, initial_state=state, **options)
        chunks.append(outputs)
    one, three = (total(case, outputs) for outputs in ([states], chunks))
    assert_close(three, one, "forward", name)
    wanted = case.float_leaves
    truth = torch.autograd.grad(one, [whole[n] for n in wanted])
    for leaf, x, y in zip(wanted, torch.autograd.grad(three, [parts[n] for n in wanted]), truth, strict=True):
        assert_close(x, y, "gradient", leaf)


def total(case, chunks):
    """The sum of every finite float output."""
    tensors = [x for c in chunks for x in case.float_outputs(c if isinstance(c, tuple) else (c,))]
    return sum(torch.where(x.isfinite(), x, 0).sum() for x in tensors)


# 16: ties


@every_lowering
def test_req16_ties_by_hand(lowering):
    r = torch.ones(1, 2, requires_grad=True)
    s = torch.full((1, 2), -1.0, requires_grad=True)
    h0 = torch.ones(1, requires_grad=True)
    _, final = sf.scan(
        sf.operators.MinMax, r=r, s=s, initial_state=h0, return_final_state=True, lowering=lowering
    )
    assert backward(final, r, s, h0) == [[[0.25, 0.5]], [[0, 0]], [0.25]]


@every_lowering
@pytest.mark.parametrize("name", ["MinMax", "MaxPlus", "RunningMax"])
@pytest.mark.parametrize("length", [1, 7, 64, 130])
def test_req16_all_equal(name, length, lowering):
    """Every comparison is a tie; halves and zeros are exact, so the gradient is too."""
    case = BY_NAME[name]
    leaves, initial = draw(case, (1, length, 2))
    still = {
        n: torch.full_like(x, 0.0 if n == "a" else 1.0) if x.is_floating_point() else x
        for n, x in leaves.items()
    }
    start = tuple(torch.ones_like(x) for x in initial)
    for loss in (Loss((0,), ()), Loss((), (0,))):
        assert_same(case, still, start, loss, lowering=lowering)
