"""Faults reported in the field that concern order, laws, kinds and axes: requirements 1, 3, 4, 6, 20, 22."""

from __future__ import annotations

import math

import pytest
import torch

import scanforge as sf
from tests.catalogue import BY_NAME, CASES, chance, draw, generator
from tests.reference.compare import LOWERINGS, many
from tests.tolerances import assert_close, assert_equal

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16

every_operator = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_lowering = pytest.mark.parametrize("lowering", LOWERINGS)


# 1: "earlier" and "later" are processing order, also in reverse


@every_lowering
def test_req01_reverse_by_hand(lowering):
    a, b = torch.tensor([[2.0, 3.0, 5.0]]), torch.tensor([[1.0, 10.0, 100.0]])
    assert sf.scan(sf.operators.Affine, a=a, b=b, reverse=True, lowering=lowering).tolist() == [
        [621, 310, 100]
    ]


def integer_matrices(length: int) -> dict[str, torch.Tensor]:
    """Integers of -1..1 while products stay below 2^53, else signed permutations: exact, and in order."""
    g = generator(length)
    names, shape = ("m00", "m01", "m10", "m11"), (2, length, 3)
    if length <= 33:
        return {name: torch.randint(-1, 2, shape, generator=g).double() for name in names}
    swap = chance(g, shape, 0.5).double()
    up, down = (torch.where(chance(g, shape, 0.5), 1.0, -1.0).double() for _ in range(2))
    return {"m00": up * (1 - swap), "m01": up * swap, "m10": down * swap, "m11": down * (1 - swap)}


@every_lowering
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [3, 33, 257, 1000])
def test_req01_matrix_products_are_exact(length, reverse, lowering):
    case, leaves = BY_NAME["Matrix2x2"], integer_matrices(length)
    initial = tuple(torch.randint(-3, 4, (2, 3), generator=generator(1)).double() for _ in range(2))
    got = sf.scan(
        sf.operators.Matrix2x2,
        **leaves,
        initial_state=initial,
        reverse=reverse,
        return_final_state=True,
        lowering=lowering,
    )
    for outputs, truths in zip(got, case.loop(leaves, initial, reverse), strict=True):
        for x, truth in zip(outputs, truths, strict=True):
            assert_equal(x, truth)
    prefix = sf.prefixes(sf.operators.Matrix2x2, **leaves, reverse=reverse)
    for name, truth in case.prefix_loop(leaves, reverse).items():
        assert_equal(getattr(prefix, name), truth, name)


@every_operator
@every_lowering
def test_req01_reverse_is_a_flip_bit_for_bit(case, lowering):
    for length in (1, 2, 7, 65, 200):
        leaves, initial = draw(case, (2, length, 3), seed=length)
        flipped = {name: x.flip(1) for name, x in leaves.items()}
        options = {
            "initial_state": initial if len(initial) > 1 else initial[0],
            "return_final_state": True,
            "lowering": lowering,
        }
        there, final = sf.scan(case.operator, **leaves, reverse=True, **options)
        back, twin = sf.scan(case.operator, **flipped, **options)
        for x, y in zip(
            (*many(there), *many(final)), (*(z.flip(1) for z in many(back)), *many(twin)), strict=True
        ):
            assert_equal(x, y, case.name)


# 3: an operator that breaks a law is refused, with the sample and both results


class Fading(sf.Operator):
    """x_t = x_{t-1} / 2 + e_t, said to combine in the same way, which is not associative"""

    e = sf.Element(identity=0.0)
    x = sf.State()

    def combine(self, later):
        return Fading(e=0.5 * self.e + later.e)

    def apply(self, x):
        return 0.5 * x + self.e


class Swapped(sf.Operator):
    """Affine with its operands the wrong way round: associative, and no composition of these maps"""

    a = sf.Element(identity=1.0)
    b = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return Swapped(a=self.a * later.a, b=self.a * later.b + self.b)

    def apply(self, h):
        return self.a * h + self.b


class NoUnit(sf.Operator):
    """Affine with identity (0, 0), which clears the state"""

    a = sf.Element(identity=0.0)
    b = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return NoUnit(a=later.a * self.a, b=later.a * self.b + later.b)

    def apply(self, h):
        return self.a * h + self.b


class RoundedSwap(sf.Operator):
    """Swapped operands behind a function that no algebra decides, so the search must find the sample"""

    a = sf.Element(identity=0.0)
    b = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return RoundedSwap(a=self.a + later.a, b=sf.exp(self.a) * later.b + self.b)

    def apply(self, h):
        return sf.exp(self.a) * h + self.b


def leaves_of(operator):
    return {name: torch.ones(1, 4) for name in (("e",) if operator is Fading else ("a", "b"))}


@pytest.mark.parametrize("operator", [Fading, Swapped, NoUnit, RoundedSwap])
def test_req03_a_broken_law_is_an_error_that_shows_it(operator):
    with pytest.raises(sf.LawError) as caught:
        sf.scan(operator, **leaves_of(operator))
    error, message = caught.value, str(caught.value)
    assert error.operator == operator.__name__
    assert error.law and error.law in message  # noqa: PT018 - an empty name is in every message
    assert operator.__name__ in message
    assert error.sample
    assert error.left != error.right
    for shown in (error.sample, error.left, error.right):
        for value in shown.values():
            assert value in message


@pytest.mark.parametrize("operator", [Fading, Swapped, NoUnit, RoundedSwap])
def test_req03_the_sample_is_a_counterexample(operator):
    """Recompute the broken law in plain Python from the reported sample."""
    with pytest.raises(sf.LawError) as caught:
        sf.scan(operator, **leaves_of(operator))
    left, right = (next(iter(side.values())) for side in (caught.value.left, caught.value.right))
    assert not math.isclose(float_of(left), float_of(right), rel_tol=1e-9)


def float_of(text: str) -> float:
    numerator, _, denominator = text.partition("/")
    return float(numerator) / float(denominator or 1)


@pytest.mark.parametrize("operator", [Fading, Swapped])
def test_req03_check_says_no_instead_of_raising(operator):
    assert not sf.check(operator).ok


def test_req03_the_check_can_be_switched_off():
    sf.set_law_check(False)
    try:
        got = sf.scan(Fading, e=torch.ones(1, 4), lowering="loop")
    finally:
        sf.set_law_check(True)
    assert got.tolist() == [[1, 1.5, 1.75, 1.875]]


@every_operator
def test_req03_shipped_operators_obey_their_laws(case):
    assert sf.check(case.operator).ok


# 4: leaves of different dtypes


@every_lowering
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_req04_flag_and_value(dtype, lowering):
    g = generator(4)
    flag = chance(g, (2, 1000, 3), 0.05).to(torch.int32)
    value = torch.randn(2, 1000, 3, generator=g).to(dtype).requires_grad_()
    got = sf.scan(sf.operators.LastFlagged, flag=flag, value=value, lowering=lowering)
    (truth,), _ = BY_NAME["LastFlagged"].loop({"flag": flag, "value": value.detach().double()})
    assert got.dtype == dtype
    assert_equal(got, truth)
    (gradient,) = torch.autograd.grad(got.float().sum(), value)
    starts = torch.where(flag != 0, 1, 0)
    segment = starts.cumsum(1)
    held = torch.stack([(segment == segment[:, t : t + 1]).sum(1) for t in range(1000)], 1)
    assert_close(gradient, torch.where(flag != 0, held, 0).double(), "forward")


@every_lowering
def test_req04_running_argmax(lowering):
    value = torch.randn(2, 1000, 3, generator=generator(5))
    index = torch.arange(1000).reshape(1, -1, 1)
    top, at = sf.scan(sf.operators.RunningMax, value=value, index=index, lowering=lowering)
    truth = value.cummax(1)
    assert at.dtype == torch.int64
    assert_equal(top, truth.values)
    assert torch.equal(at, truth.indices)


# 6: any time axis


@every_lowering
@pytest.mark.parametrize("dim", range(-4, 4))
def test_req06_every_axis(dim, lowering):
    g = generator(6)
    a, b = (torch.randn(3, 4, 7, 5, generator=g, dtype=F64, requires_grad=True) for _ in range(2))
    got, final = sf.scan(sf.operators.Affine, a=a, b=b, dim=dim, return_final_state=True, lowering=lowering)
    moved = {"a": a.movedim(dim, 1), "b": b.movedim(dim, 1)}
    (truth,), (last,) = BY_NAME["Affine"].loop(moved)
    assert_close(got, truth.movedim(1, dim), "forward")
    assert final.shape == last.shape
    assert_close(final, last, "forward")
    c = torch.randn(got.shape, generator=g, dtype=F64)
    mine, loops = torch.autograd.grad(got, (a, b), c), torch.autograd.grad(truth, (a, b), c.movedim(dim, 1))
    for x, y in zip(mine, loops, strict=True):
        assert_close(x, y, "gradient")


@pytest.mark.parametrize("dim", [4, -5, 100])
def test_req06_an_axis_out_of_range_names_the_rank(dim):
    x = torch.randn(3, 4, 7, 5)
    with pytest.raises(ValueError, match=r"(?s)dim.*4") as caught:
        sf.scan(sf.operators.Affine, a=x, b=x, dim=dim)
    assert str(dim) in str(caught.value)


# 20: a decay of exactly zero in the exponent keeps everything


class LogAffine(sf.Operator):
    """h_t = exp(g_t) h_{t-1} + b_t"""

    g = sf.Element(identity=0.0)
    b = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return LogAffine(g=later.g + self.g, b=sf.exp(later.g) * self.b + later.b)

    def apply(self, h):
        return sf.exp(self.g) * h + self.b


@every_lowering
def test_req20_gates_of_exactly_one_are_exact(lowering):
    b = torch.randint(-4, 5, (2, 500, 3), generator=generator(20)).float()
    for got in (
        sf.scan(LogAffine, g=torch.zeros(2, 500, 3), b=b, lowering=lowering),
        sf.scan(sf.operators.Affine, a=torch.ones(2, 500, 3), b=b, lowering=lowering),
    ):
        assert_equal(got, b.double().cumsum(1))


@every_lowering
def test_req20_some_gates_of_exactly_one(lowering):
    g = generator(21)
    log_gate = torch.where(chance(g, (2, 500, 3), 0.3), 0.0, -0.1)
    b = torch.randn(2, 500, 3, generator=g)
    got = sf.scan(LogAffine, g=log_gate, b=b, lowering=lowering)
    (truth,), _ = BY_NAME["Affine"].loop({"a": log_gate.double().exp(), "b": b.double()})
    assert_close(got, truth, "forward")


# 22: sums are carried in float32


@every_lowering
def test_req22_a_bfloat16_sum_does_not_stall(lowering):
    one = torch.ones(1, 4096, 2, dtype=BF16)
    got, final = sf.scan(sf.operators.Affine, a=one, b=one, return_final_state=True, lowering=lowering)
    truth = torch.arange(1, 4097).to(BF16).reshape(1, -1, 1).expand(1, 4096, 2)
    assert_equal(got, truth)
    assert final.dtype == F32
    assert final.tolist() == [[4096, 4096]]
