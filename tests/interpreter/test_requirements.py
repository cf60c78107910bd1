"""Faults reported in the field, on generated kernels: requirements 5, 15, 16, 18 to 22, 26 to 28, 44, 47."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

import scanforge as sf
from tests.catalogue import BY_NAME, chance, draw, generator
from tests.kernels import check, every_lowering, every_operator, everything, guarded, outcome
from tests.reference.compare import Loss, expected, many, wide
from tests.reference.test_requirements_order import LogAffine
from tests.tolerances import assert_close, assert_equal

pytestmark = pytest.mark.interpreter
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
AFFINE = BY_NAME["Affine"]


def affine(a, b, lowering, **options):
    return sf.scan(sf.operators.Affine, a=a, b=b, backend="triton", lowering=lowering, **options)


# 5: every float type on every backend


@every_lowering
@pytest.mark.parametrize("name", ["Affine", "MinMax", "ComplexAffine", "LogSumExp"])
@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64], ids=str)
def test_req05_every_float_type(name, dtype, lowering):
    case = BY_NAME[name]
    leaves, initial = draw(case, (1, 75, 3), dtype)
    check(case, leaves, initial, Loss((0,), (0,)), lowering=lowering)


# 15 and 16: the numbers by hand


@every_lowering
def test_req15_final_state_by_hand(lowering):
    a = torch.tensor([[2.0, 3.0, 5.0]], requires_grad=True)
    b = torch.tensor([[1.0, 10.0, 100.0]], requires_grad=True)
    h0 = torch.tensor([7.0], requires_grad=True)
    h, final = affine(a, b, lowering, initial_state=h0, return_final_state=True)
    final.sum().backward()
    assert h.tolist() == [[15, 55, 375]]
    assert [x.grad.tolist() for x in (a, b, h0)] == [[[7 * 15, 15 * 5, 55]], [[15, 5, 1]], [30]]
    assert affine(a, b, lowering, reverse=True).tolist() == [[621, 310, 100]]


@every_lowering
def test_req16_ties_by_hand(lowering):
    r = torch.ones(1, 2, requires_grad=True)
    s = torch.full((1, 2), -1.0, requires_grad=True)
    h0 = torch.ones(1, requires_grad=True)
    _, final = sf.scan(
        sf.operators.MinMax, r=r, s=s, initial_state=h0, return_final_state=True, backend="triton",
        lowering=lowering,
    )  # fmt: skip
    final.sum().backward()
    assert [x.grad.tolist() for x in (r, s, h0)] == [[[0.25, 0.5]], [[0, 0]], [0.25]]


# 18 and 19: strong decay, and gates of 0


def log_gates(kind: str, shape, g) -> torch.Tensor:
    if kind == "all -80":
        return torch.full(shape, -80.0)
    return torch.tensor([0.0, -1e-3, -1.0, -20.0, -80.0, -1e4])[torch.randint(6, shape, generator=g)]


@every_lowering
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("kind", ["mixed", "all -80"])
def test_req18_strong_decay_stays_finite(kind, dtype, lowering):
    g, shape = generator(18), (1, 150, 3)
    gate = log_gates(kind, shape, g).to(dtype)
    b = torch.randn(shape, generator=g).to(dtype)
    h0 = torch.randn(1, 3, generator=g)
    inputs = [guarded(x).requires_grad_() for x in (gate, b, h0)]
    twins = [wide(x).requires_grad_() for x in (gate, b, h0)]
    h = sf.scan(
        LogAffine, g=inputs[0], b=inputs[1], initial_state=inputs[2], backend="triton", lowering=lowering
    )
    (truth,), _ = AFFINE.loop({"a": twins[0].exp(), "b": twins[1]}, (twins[2],))
    assert_close(h, truth, "forward")
    c = torch.randint(-4, 5, shape, generator=g).double()
    slopes = torch.autograd.grad(h, inputs, c.to(dtype)), torch.autograd.grad(truth, twins, c)
    for name, x, y in zip(("g", "b", "h0"), *slopes, strict=True):
        assert x.isfinite().all()
        assert_close(x, y, "gradient", name)


@every_lowering
def test_req19_a_product_that_underflows(lowering):
    """a = exp(-10) for 64 steps: its product underflows at step 11, and no division by it is made."""
    a, b = torch.full((1, 64, 2), -10.0).exp(), torch.ones(1, 64, 2)
    h = affine(a, b, lowering)
    assert h[0, 0].tolist() == [1, 1]
    assert_close(h[:, 1:], torch.full((1, 63, 2), 1.0000454, dtype=F64), "forward")


@every_lowering
def test_req19_zero_and_negative_gates(lowering):
    g, shape = generator(19), (2, 70, 3)
    a = torch.where(chance(g, shape, 0.3), 0.0, 2 * torch.rand(shape, generator=g) - 1)
    b = torch.randn(shape, generator=g)
    check(AFFINE, {"a": a, "b": b}, (torch.randn(2, 3, generator=g),), everything(AFFINE), lowering=lowering)


# 20: gates of exactly one


@every_lowering
def test_req20_gates_of_exactly_one_are_exact(lowering):
    b = torch.randint(-4, 5, (1, 500, 2), generator=generator(20)).float()
    zero, one = torch.zeros(1, 500, 2), torch.ones(1, 500, 2)
    assert_equal(sf.scan(LogAffine, g=zero, b=b, backend="triton", lowering=lowering), b.double().cumsum(1))
    assert_equal(affine(one, b, lowering), b.double().cumsum(1))


@every_lowering
def test_req20_some_gates_of_exactly_one(lowering):
    g = generator(21)
    gate = torch.where(chance(g, (1, 500, 2), 0.3), 0.0, -0.1)
    b = torch.randn(1, 500, 2, generator=g)
    h = sf.scan(LogAffine, g=gate, b=b, backend="triton", lowering=lowering)
    (truth,), _ = AFFINE.loop({"a": gate.double().exp(), "b": b.double()})
    assert_close(h, truth, "forward")


# 21 and 22: states are carried and kept in float32


@every_lowering
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_req21_bfloat16_inputs_have_float32_states(scale, lowering):
    """Sums that grow to 350 (times 1e4: beyond what float16 holds): within one unit of bfloat16."""
    length = 700
    a = torch.tensor([1.0, 1 - 2**-8]).to(BF16).expand(1, length, 2).contiguous()
    b = (torch.rand(1, length, 2, generator=generator(21)) * scale).to(BF16)
    h0 = torch.ones(1, 2)
    got = outcome(AFFINE, {"a": a, "b": b}, (h0,), Loss((0,), ()), lowering=lowering)
    truth = expected(AFFINE, {"a": a, "b": b}, (h0,), Loss((0,), ()))
    unit = 2.0 ** (truth.states[0].abs().log2().floor() - 7)
    assert ((got.states[0].double() - truth.states[0]).abs() <= unit).all()
    assert got.finals[0].dtype == F32
    assert_close(got.finals[0], truth.finals[0], "gradient")
    for name in ("b", "initial h"):
        assert_close(got.gradients[name], truth.gradients[name], "gradient", name)


@every_lowering
def test_req22_a_bfloat16_sum_does_not_stall(lowering):
    """In bfloat16 it would stop at 256. (The interpreter cuts bfloat16 off where a GPU rounds.)"""
    one = torch.ones(1, 1500, 2, dtype=BF16)
    h, final = affine(one, one, lowering, return_final_state=True)
    truth = torch.arange(1.0, 1501.0).reshape(1, -1, 1)
    unit = 2.0 ** (truth.log2().floor() - 7)
    assert ((h.float() - truth).abs() < unit).all()
    assert final.dtype == F32
    assert final.tolist() == [[1500, 1500]]


# 26, 27, 28: any length, any number of lanes


@every_lowering
@pytest.mark.parametrize("length", [1, 2, 3, 7, 100, 1000])
def test_req26_any_length(length, lowering):
    leaves, initial = draw(AFFINE, (1, length, 2), seed=length)
    check(AFFINE, leaves, initial, Loss((0,), (0,)), lowering=lowering)


@every_operator
@every_lowering
@pytest.mark.usefixtures("own_tiles")
def test_req27_short_sequences(case, lowering):
    """T = 0: outputs are empty, the states pass, and so do their gradients."""
    for length in (0, 1, 2, 6, 8, 11, 17):
        leaves, initial = draw(case, (1, length, 3), F32, seed=length)
        got = check(case, leaves, initial, everything(case), lowering=lowering)
        if not length:
            for x, x0 in zip(got.finals, initial, strict=True):
                assert_equal(x, x0)


@every_lowering
@pytest.mark.parametrize("lanes", [1, 3, 17, 31, 33, 96, 100, 192, 257])
def test_req28_any_number_of_lanes(lanes, lowering):
    for name in ("Affine", "RunningMax"):
        case = BY_NAME[name]
        leaves, initial = draw(case, (1, 9, lanes), F32)
        check(case, leaves, initial, everything(case), lowering=lowering)


# 44: kernels are known by their content


def made_inside(c: float):
    """A new class at every call."""

    class Fading(sf.Operator):
        b = sf.Element(identity=0.0)
        weight = sf.Element(identity=1.0)
        h = sf.State()

        def combine(self, later):
            return Fading(b=later.weight * self.b + later.b, weight=self.weight * later.weight)

        def apply(self, h):
            return self.weight * h + self.b + 0.0 * c

    return Fading


@every_lowering
def test_req44_the_same_source_is_one_kernel(lowering, tmp_path, monkeypatch):
    """An operator that is made anew at every call: its kernels are written once."""
    monkeypatch.setenv("SCANFORGE_CACHE", str(tmp_path / "kernels"))
    counts = []
    for _ in range(20):
        b = torch.ones(1, 37, 3, requires_grad=True)
        sf.scan(
            made_inside(0.125 if lowering == "split" else 0.25), b=b, weight=torch.full((1, 1, 1), 0.5),
            backend="triton", lowering=lowering,
        ).sum().backward()  # fmt: skip
        counts.append(len(list((tmp_path / "kernels").glob("*.py"))))
    assert counts[0] >= 2  # forward and backward
    assert set(counts) == {counts[0]}


@every_lowering
def test_req44_what_ran_can_be_asked(lowering):
    a, b = (torch.ones(1, 37, 3, requires_grad=True) for _ in range(2))
    h = affine(a, b, lowering)
    assert (sf.last_run().plan.backend, sf.last_run().plan.lowering) == ("triton", lowering)
    h.sum().backward()
    assert (sf.last_run().plan.backend, sf.last_run().plan.lowering) == ("triton", lowering)


# 47: kernels are launched on the tensors' device


@every_lowering
def test_req47_launches_are_inside_the_device_guard(lowering, monkeypatch):
    """Tensors that say they are on a GPU: every launch, forward and backward, is inside torch.cuda.device."""
    from triton.runtime.interpreter import GridExecutor

    events = []

    @contextmanager
    def guard(device):
        events.append(("enter", str(device)))
        yield
        events.append(("exit", str(device)))

    launch = GridExecutor.__call__

    def noted(self, *args, **kwargs):
        events.append("launch")
        return launch(self, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", noted)
    monkeypatch.setattr(torch.cuda, "device", guard)
    monkeypatch.setattr(torch.version, "cuda", None)  # so that no inline assembly is asked for
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    a, b = (torch.ones(1, 37, 3, requires_grad=True) for _ in range(2))
    affine(a, b, lowering).sum().backward()
    entered, left = ("enter", "cpu"), ("exit", "cpu")
    assert events.count("launch") >= 2
    assert events == [entered, "launch", left] * events.count("launch")


def test_req47_two_devices_are_an_error():
    a, b = torch.ones(1, 3, 2), torch.ones(1, 3, 2, device="meta")
    with pytest.raises(ValueError, match="meta"):
        many(affine(a, b, None))
