"""Which dtype goes in, which comes out, and what is computed in between."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests.catalogue import BY_NAME, CASES, chance, draw, generator
from tests.reference.compare import (
    LOWERINGS,
    Loss,
    actual,
    assert_same_gradients,
    assert_same_values,
    cotangent,
    expected,
)
from tests.tolerances import assert_close, assert_equal

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
FLOATS = (F16, BF16, F32, F64)
PAIRS = [pytest.param(x, y, id=f"{x}-{y}") for x in FLOATS for y in FLOATS]
PARTS = (("re", "real"), ("im", "imag"))

every_operator = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_lowering = pytest.mark.parametrize("lowering", LOWERINGS)
every_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def state_dtype(*inputs: torch.dtype) -> torch.dtype:
    return F64 if F64 in inputs else F32


def output_dtype(*inputs: torch.dtype) -> torch.dtype:
    dtype = inputs[0]
    for other in inputs[1:]:
        dtype = torch.promote_types(dtype, other)
    return dtype


@every_operator
@every_lowering
@every_dtype
class TestOneDtype:
    def test_values_and_gradients(self, case, lowering, dtype):
        """Against the loop in float64 on the same upcast inputs; finals carry the precision of the state."""
        leaves, initial = draw(case, (2, 30, 3), dtype)
        everything = tuple(range(len(case.float_states)))
        got = actual(case, leaves, initial, Loss(everything, everything), lowering=lowering)
        truth = expected(case, leaves, initial, Loss(everything, everything))
        assert_same_values(case, got, truth)
        assert_same_gradients(case, got, truth)

    def test_dtypes(self, case, lowering, dtype):
        leaves, initial = draw(case, (2, 5, 3), dtype)
        got = actual(case, leaves, initial, Loss(), lowering=lowering)
        for name, states, finals in zip(case.states, got.states, got.finals, strict=True):
            if name in case.float_states:
                assert (states.dtype, finals.dtype) == (dtype, state_dtype(dtype)), name
            else:
                assert (states.dtype, finals.dtype) == (torch.int64, torch.int64), name
        for name, gradient in got.gradients.items():
            assert gradient.dtype == dtype, name


@every_lowering
@pytest.mark.parametrize(("first", "second"), PAIRS)
class TestMixes:
    def test_dtypes_and_values(self, first, second, lowering):
        case = BY_NAME["Affine"]
        leaves, _ = draw(case, (2, 30, 3))
        leaves = {"a": leaves["a"].to(first), "b": leaves["b"].to(second)}
        got, truth = (run(case, leaves, None, Loss()) for run in (partial_actual(lowering), expected))
        assert got.states[0].dtype == output_dtype(first, second)
        assert got.finals[0].dtype == state_dtype(first, second)
        assert (got.gradients["a"].dtype, got.gradients["b"].dtype) == (first, second)
        assert_same_values(case, got, truth)
        assert_same_gradients(case, got, truth)

    def test_initial_state_of_another_dtype(self, first, second, lowering):
        """It decides neither the output's dtype nor the computation's, and gets its gradient in its own."""
        case = BY_NAME["Affine"]
        leaves, (h0,) = draw(case, (2, 30, 3), first)
        got, truth = (
            run(case, leaves, (h0.to(second),), Loss()) for run in (partial_actual(lowering), expected)
        )
        assert got.states[0].dtype == first
        assert_same_values(case, got, truth)
        for name, dtype in (("a", first), ("b", first), ("initial h", second)):
            assert got.gradients[name].dtype == dtype
            assert_close(
                got.gradients[name],
                truth.gradients[name],
                "gradient",
                name,
                F32 if dtype == F64 != first else dtype,
            )


def partial_actual(lowering):
    return lambda case, leaves, initial, loss: actual(case, leaves, initial, loss, lowering=lowering)


@every_lowering
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
class TestIntegers:
    def test_flags_of_every_width(self, kind, lowering):
        leaves, initial = draw(BY_NAME["LastFlagged"], (2, 30, 3))
        flags = leaves | {"flag": leaves["flag"].to(kind)}
        got = sf.scan(sf.operators.LastFlagged, **flags, initial_state=initial[0], lowering=lowering)
        assert_equal(got, BY_NAME["LastFlagged"].loop(leaves, initial)[0][0])
        assert sf.prefixes(sf.operators.LastFlagged, **flags).flag.dtype == kind

    def test_integer_states_keep_the_tensors_type(self, kind, lowering):
        leaves, _ = draw(BY_NAME["RunningMax"], (2, 30, 3))
        leaves["index"] = leaves["index"].to(kind)
        (_, at), (_, last) = sf.scan(
            sf.operators.RunningMax, **leaves, return_final_state=True, lowering=lowering
        )
        assert at.dtype == kind
        start = (torch.full((2, 3), -float("inf"), dtype=F64), torch.full((2, 3), -1).to(kind))
        (_, truth), (_, final) = BY_NAME["RunningMax"].loop(leaves, start)
        assert_equal(at, truth)
        assert_equal(last.to(kind), final)


class Seen(sf.Operator):
    """seen_t = seen_{t-1} or now_t, and how often: a bool and an int state, no float at all"""

    now = sf.Element(identity=False, kind="bool")
    many = sf.Element(identity=0, kind="int")
    seen = sf.State(initial=False, kind="bool")
    count = sf.State(initial=0, kind="int")

    def combine(self, later):
        return Seen(now=self.now | later.now, many=self.many + later.many)

    def apply(self, seen, count):
        return seen | self.now, count + self.many


class Gated(sf.Operator):
    """h_t = (0 if clear_t else h_{t-1}) + b_t"""

    clear = sf.Element(identity=False, kind="bool")
    b = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return Gated(clear=self.clear | later.clear, b=later.apply(self.b))

    def apply(self, h):
        return sf.where(self.clear, 0.0, h) + self.b


@every_lowering
class TestBools:
    def test_bool_stays_bool_and_int_counts(self, lowering):
        now = chance(generator(0), (3, 40), 0.1)
        (seen, count), (last, total) = sf.scan(
            Seen, now=now, many=now.to(torch.int32), return_final_state=True, lowering=lowering
        )
        assert seen.dtype == last.dtype == torch.bool
        assert count.dtype == torch.int32
        assert torch.equal(seen, now.cumsum(1) > 0)
        assert torch.equal(count, now.cumsum(1).int())
        assert torch.equal(last, now.any(1))
        assert torch.equal(total.long(), now.sum(1))

    def test_gradient_beside_a_bool(self, lowering):
        g = generator(1)
        clear = chance(g, (2, 30, 3), 0.2)
        b = torch.randn(2, 30, 3, generator=g, dtype=F64, requires_grad=True)
        h0 = torch.randn(2, 3, generator=g, dtype=F64, requires_grad=True)
        got = sf.scan(Gated, clear=clear, b=b, initial_state=h0, lowering=lowering)
        truth = BY_NAME["Affine"].loop({"a": (~clear).to(F64), "b": b}, (h0,))[0][0]
        assert_close(got, truth, "forward")
        c = cotangent(truth, 0)
        for x, y in zip(*(torch.autograd.grad(z, (b, h0), c) for z in (got, truth)), strict=True):
            assert_close(x, y, "gradient")


def complex_leaves(dtype, length=30):
    g = generator(2)
    phase = 6 * torch.rand(2, length, 3, generator=g, dtype=F64)
    size = torch.where(chance(g, phase.shape, 0.5), 1.0, torch.rand(phase.shape, generator=g, dtype=F64))
    b = torch.complex(*torch.randn(2, *phase.shape, generator=g, dtype=F64))
    h0 = torch.complex(*torch.randn(2, 2, 3, generator=g, dtype=F64))
    return {"a": torch.polar(size, phase).to(dtype), "b": b.to(dtype)}, (h0.to(dtype),)


@every_lowering
class TestComplex:
    """Against torch's own complex loop: the gradient convention is torch's."""

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
    @pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
    @pytest.mark.parametrize("loss", [Loss((0,), ()), Loss((), (0,)), Loss((0,), (0,))], ids=str)
    def test_affine(self, dtype, reverse, loss, lowering):
        leaves, initial = complex_leaves(dtype)
        case = BY_NAME["Affine"]
        for start in (None, initial):
            got = actual(case, leaves, start, loss, reverse, lowering=lowering)
            truth = expected(case, leaves, start, loss, reverse)
            assert got.states[0].dtype == got.finals[0].dtype == dtype
            assert all(x.dtype == dtype for x in got.gradients.values())
            assert_same_values(case, got, truth)
            assert_same_gradients(case, got, truth)

    @pytest.mark.parametrize("real", ["a", "b"])
    def test_real_leaf_beside_a_complex_one(self, real, lowering):
        leaves, initial = complex_leaves(torch.complex128)
        leaves[real] = leaves[real].real
        case = BY_NAME["Affine"]
        got = actual(case, leaves, initial, Loss(), lowering=lowering)
        truth = expected(case, leaves, initial, Loss())
        assert got.gradients[real].dtype == F64
        assert_same_values(case, got, truth)
        assert_same_gradients(case, got, truth)

    def test_complex_start_of_real_leaves(self, lowering):
        leaves, _ = draw(BY_NAME["Affine"], (2, 30, 3))
        _, initial = complex_leaves(torch.complex128)
        got = actual(BY_NAME["Affine"], leaves, initial, Loss(), lowering=lowering)
        truth = expected(BY_NAME["Affine"], leaves, initial, Loss())
        assert_same_values(BY_NAME["Affine"], got, truth)
        assert_same_gradients(BY_NAME["Affine"], got, truth)

    def test_agrees_with_real_pairs(self, lowering):
        leaves, (h0,) = complex_leaves(torch.complex128)
        got = sf.scan(sf.operators.Affine, **leaves, initial_state=h0, lowering=lowering)
        pairs = {f"{n}_{part}": getattr(x, long) for n, x in leaves.items() for part, long in PARTS}
        h_re, h_im = sf.scan(
            sf.operators.ComplexAffine, **pairs, initial_state=(h0.real, h0.imag), lowering=lowering
        )
        assert_close(torch.complex(h_re, h_im), got, "forward")

    def test_prefixes(self, lowering):
        leaves, _ = complex_leaves(torch.complex128)
        got = sf.prefixes(sf.operators.Affine, **leaves)
        for name, truth in BY_NAME["Affine"].prefix_loop(leaves).items():
            assert_close(getattr(got, name), truth, "forward", name)

    def test_gradcheck(self, lowering):
        leaves, (h0,) = complex_leaves(torch.complex128, length=3)
        inputs = tuple(x.clone().requires_grad_() for x in (*leaves.values(), h0))

        def function(a, b, h0):
            return sf.scan(
                sf.operators.Affine, a=a, b=b, initial_state=h0, return_final_state=True, lowering=lowering
            )

        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


@every_lowering
def test_a_state_wider_than_its_output_is_kept_for_the_backward(lowering):
    """The gradient reads float32 states: rounded to the bfloat16 output, 3.0001 would tie with 3."""
    r = torch.tensor([[9.0, 3.0, 9.0]], dtype=BF16, requires_grad=True)
    s = torch.full((1, 3), -3.0, dtype=BF16)
    h0 = torch.tensor([3.0001], requires_grad=True)
    states = sf.scan(sf.operators.MinMax, r=r, s=s, initial_state=h0, lowering=lowering)
    assert states.tolist() == [[3, 3, 3]]
    dr, dh0 = torch.autograd.grad(states[0, 2], (r, h0))
    assert (dr.tolist(), dh0.tolist()) == ([[0, 1, 0]], [0])
