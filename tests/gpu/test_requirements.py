"""Faults reported in the field that a GPU shows best: requirements 18 to 22, 30, 31, 33, 47."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from triton.runtime.jit import JITFunction

import scanforge as sf
from tests.catalogue import BY_NAME, chance, draw, generator
from tests.kernels import LAYOUTS, check, every_lowering, everything, guarded, outcome
from tests.reference.compare import Loss, wide
from tests.reference.test_requirements_order import LogAffine
from tests.tolerances import assert_close, assert_equal

pytestmark = pytest.mark.gpu
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
AFFINE = BY_NAME["Affine"]


def affine(a, b, lowering=None, **options):
    return sf.scan(sf.operators.Affine, a=a, b=b, lowering=lowering, **options)


def assert_identical(got, other, what):
    for x, y in zip((*got.states, *got.finals), (*other.states, *other.finals), strict=True):
        assert_equal(x, y, what)
    for name, x in got.gradients.items():
        assert_equal(x, other.gradients[name], f"{what} {name}")


# 18, 19, 20: strong decay, no division by products, gates of exactly 1


@every_lowering
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_req18_strong_decay_stays_finite(dtype, lowering):
    g, shape = generator(18), (1, 1024, 64)
    sizes = torch.tensor([0.0, -1e-3, -1.0, -20.0, -80.0, -1e4])
    gate = sizes[torch.randint(6, shape, generator=g)]
    gate[:, 200:264] = -80.0
    b, h0 = torch.randn(shape, generator=g).to(dtype), torch.randn(1, 64, generator=g)
    given = (gate.to(dtype), b, h0)
    inputs = [guarded(x.cuda()).requires_grad_() for x in given]
    twins = [wide(x).requires_grad_() for x in given]
    h = sf.scan(LogAffine, g=inputs[0], b=inputs[1], initial_state=inputs[2], lowering=lowering)
    (truth,), _ = AFFINE.loop({"a": twins[0].exp(), "b": twins[1]}, (twins[2],))
    assert_close(h.cpu(), truth, "forward")
    c = torch.randint(-4, 5, shape, generator=g).double()
    slopes = torch.autograd.grad(h, inputs, c.to(dtype).cuda()), torch.autograd.grad(truth, twins, c)
    for name, x, y in zip(("g", "b", "h0"), *slopes, strict=True):
        assert x.isfinite().all()
        assert_close(x.cpu(), y, "gradient", name)


@every_lowering
def test_req19_a_product_that_underflows(lowering):
    a, b = torch.full((1, 64, 2), -10.0).exp().cuda(), torch.ones(1, 64, 2, device="cuda")
    h = affine(a, b, lowering).cpu()
    assert h[0, 0].tolist() == [1, 1]
    assert_close(h[:, 1:], torch.full((1, 63, 2), 1.0000454, dtype=F64), "forward")


@every_lowering
def test_req19_zero_and_negative_gates(lowering):
    g, shape = generator(19), (2, 301, 64)
    a = torch.where(chance(g, shape, 0.3), 0.0, 2 * torch.rand(shape, generator=g) - 1)
    leaves = {"a": a, "b": torch.randn(shape, generator=g)}
    start = (torch.randn(2, 64, generator=g),)
    check(AFFINE, leaves, start, everything(AFFINE), lowering=lowering, place=on_gpu)


@every_lowering
def test_req20_gates_of_exactly_one_are_exact(lowering):
    """exp(0) is 1, in the quick exponential too."""
    b = torch.randint(-4, 5, (1, 500, 64), generator=generator(20)).float().cuda()
    truth = b.double().cumsum(1)
    assert_equal(sf.scan(LogAffine, g=torch.zeros_like(b), b=b, lowering=lowering), truth)
    assert_equal(affine(torch.ones_like(b), b, lowering), truth)


# 21 and 22: states in float32


@every_lowering
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_req21_bfloat16_inputs_have_float32_states(scale, lowering):
    """T = 8192: every state within one unit of bfloat16, also beyond what float16 holds."""
    length = 8192
    a = torch.tensor([1.0, 1 - 2**-8]).to(BF16).repeat(1, length, 16)
    b = (torch.rand(1, length, 32, generator=generator(21)) * scale).to(BF16)
    inputs = [x.cuda().requires_grad_() for x in (a, b, torch.ones(1, 32))]
    h = affine(inputs[0], inputs[1], lowering, initial_state=inputs[2])
    twins = [wide(x.detach()).requires_grad_() for x in inputs]
    (truth,), _ = AFFINE.loop(dict(zip("ab", twins, strict=False)), (twins[2],))
    unit = 2.0 ** (truth.detach().abs().log2().floor() - 7)
    assert ((h.double() - truth).abs() <= unit).all()
    c = torch.ones_like(h)
    slopes = torch.autograd.grad(h, inputs, c), torch.autograd.grad(truth, twins, c.double())
    for name, x, y in zip(("a", "b", "h0"), *slopes, strict=True):
        assert_close(x, y, "gradient", name, BF16)


@every_lowering
def test_req22_a_bfloat16_sum_does_not_stall(lowering):
    """Rounded once, to the nearest: t + 1 in bfloat16."""
    one = torch.ones(1, 4096, 32, dtype=BF16, device="cuda")
    h, final = affine(one, one, lowering, return_final_state=True)
    assert_equal(h, torch.arange(1, 4097, device="cuda").to(BF16).reshape(1, -1, 1).expand(1, 4096, 32))
    assert final.dtype == F32
    assert (final == 4096).all()


@every_lowering
@pytest.mark.parametrize(("gate", "term"), [(F64, BF16), (F32, BF16), (BF16, F32), (F16, BF16)], ids=str)
def test_mixed_dtypes(gate, term, lowering):
    leaves, _ = draw(AFFINE, (2, 97, 64))
    _, initial = draw(AFFINE, (2, 97, 64), F32)
    leaves = {"a": leaves["a"].to(gate), "b": leaves["b"].to(term)}
    got = check(AFFINE, leaves, initial, Loss((0,), (0,)), lowering=lowering, place=on_gpu)
    assert {n: x.dtype for n, x in got.gradients.items()} == {"a": gate, "b": term, "initial h": F32}


# 30: strides beyond 32 bits with few elements, backward too


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_req30_strides_beyond_32_bits(axis):
    """A few numbers far apart in one large buffer: their offsets pass 2^31 elements."""
    shape = (2, 70, 3)
    far = 2**31 // (shape[axis] - 1) + 5
    strides = [far if i == axis else (1, 3, 256)[i] for i in range(3)]
    span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    if torch.cuda.mem_get_info()[0] < 4 * 2 * span:
        pytest.skip("not enough memory")
    torch.use_deterministic_algorithms(False)  # which would fill all of it
    leaves, initial = draw(AFFINE, shape, BF16)
    plain = outcome(AFFINE, leaves, initial, everything(AFFINE), place=on_gpu)

    def place(x):
        if x.ndim != 3:
            return x.cuda()
        return torch.empty(span, dtype=x.dtype, device="cuda").as_strided(shape, strides).copy_(x)

    got = outcome(AFFINE, leaves, initial, everything(AFFINE), place=place)
    assert_identical(got, plain, f"axis {axis}")
    torch.cuda.empty_cache()


@every_lowering
def test_req30_the_backward_pass_beyond_32_bits(lowering):
    """a = 1, and a loss of the last step and of one in the middle: db is 2 up to there, then 1."""
    steps, lanes = 2**21 + 3, 1100
    if torch.cuda.mem_get_info()[0] < 8 * 2 * steps * lanes:
        pytest.skip("not enough memory")
    torch.use_deterministic_algorithms(False)
    a = torch.ones(1, 1, 1, device="cuda", dtype=BF16).expand(1, steps, lanes)
    b = torch.zeros(1, steps, lanes, device="cuda", dtype=BF16, requires_grad=True)
    h = affine(a, b, lowering)
    middle = steps // 2
    (db,) = torch.autograd.grad(h[:, -1].sum() + h[:, middle].sum(), b)
    assert (db[:, : middle + 1] == 2).all()
    assert (db[:, middle + 1 :] == 1).all()
    del h, db, b
    torch.cuda.empty_cache()


# 31 and 33: where tensors lie


@every_lowering
@pytest.mark.parametrize("name", ["Affine", "RunningMax", "Kalman"])
def test_req31_tensors_of_any_strides(name, lowering):
    """Every tensor in a layout of its own: bit for bit as contiguous ones."""
    case = BY_NAME[name]
    leaves, initial = draw(case, (2, 133, 70), F32)
    plain = check(case, leaves, initial, everything(case), lowering=lowering, place=on_gpu)
    places = iter([*LAYOUTS.values(), guarded] * 4)
    got = outcome(
        case, leaves, initial, everything(case), lowering=lowering, place=lambda x: next(places)(x.cuda())
    )
    assert_identical(got, plain, "mixed layouts")


@every_lowering
def test_req33_nothing_is_read_past_the_end(lowering):
    """NaN behind every tensor, or 1e30: the same result."""
    case = BY_NAME["Matrix2x2"]
    for length in (1, 65, 127):
        leaves, initial = draw(case, (1, length, 35), F32)
        run = partial(outcome, case, leaves, initial, everything(case), lowering=lowering)
        results = [
            run(place=lambda x, guard=guard: guarded(x.cuda(), guard)) for guard in (float("nan"), 1e30)
        ]
        assert_identical(*results, f"T={length}")


@every_lowering
def test_req33_nothing_is_written_past_the_end(lowering, monkeypatch):
    """What scanforge allocates lies between guard values, which are whole afterwards."""
    wholes, plain = [], torch.Tensor.new_empty

    def new_empty(self, size, *, dtype=None, **rest):
        made = plain(self, size, dtype=dtype, **rest)
        whole = torch.full((made.numel() + 2 * 4096,), 77, dtype=made.dtype, device=made.device)
        wholes.append(whole)
        return whole[4096 : 4096 + made.numel()].view(made.shape)

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    monkeypatch.setattr(torch, "empty_like", lambda x, **_: new_empty(x, x.shape))
    case = BY_NAME["Affine"]
    leaves, initial = draw(case, (2, 101, 70), F32)
    check(case, leaves, initial, everything(case), lowering=lowering, place=on_gpu)
    assert len(wholes) >= 4
    for whole in wholes:
        assert (whole[:4096] == 77).all()
        assert (whole[-4096:] == 77).all()


def test_req31_no_hidden_copies_in_the_backward_pass():
    """Time-major views, and the cotangent of a sum: beside outputs, kept states and gradients, nothing."""
    shape = (512, 4, 1024)
    r, s = (torch.randn(shape, device="cuda").transpose(0, 1).requires_grad_() for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, one = torch.cuda.memory_allocated(), r.numel() * 4
    torch.autograd.grad(sf.scan(sf.operators.MinMax, r=r, s=s).sum(), (r, s))
    grown = torch.cuda.max_memory_allocated() - before
    assert grown < 3.5 * one, f"{grown / one:.2f} tensors: the states, two gradients, states kept"


# 47: the tensors' device


def test_req47_launches_are_inside_the_device_guard(monkeypatch):
    events: list[Any] = []
    guard, run = torch.cuda.device, JITFunction.run

    class Noted(guard):
        def __enter__(self):
            events.append("enter")
            super().__enter__()

        def __exit__(self, *found):
            events.append("exit")
            return super().__exit__(*found)

    def noted(self, *args, **kwargs):
        events.append("launch")
        return run(self, *args, **kwargs)

    monkeypatch.setattr(torch.cuda, "device", Noted)
    monkeypatch.setattr(JITFunction, "run", noted)
    a, b = (torch.rand(1, 40, 64, device="cuda", requires_grad=True) for _ in range(2))
    affine(a, b, "ordered_tile").sum().backward()
    launches = [i for i, event in enumerate(events) if event == "launch"]
    assert len(launches) >= 2
    for i in launches:
        assert events[i - 1 : i + 2] == ["enter", "launch", "exit"]


@every_lowering
def test_req47_a_device_that_is_not_the_current_one(lowering):
    """Forward, and backward, which runs on another thread."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    leaves, initial = draw(AFFINE, (2, 97, 64), F32)
    assert torch.cuda.current_device() == 0
    place = partial(torch.Tensor.to, device="cuda:1")
    check(AFFINE, leaves, initial, everything(AFFINE), lowering=lowering, place=place)
    with pytest.raises(ValueError, match="cuda:1"):
        affine(leaves["a"].to("cuda:0"), leaves["b"].to("cuda:1"))


def on_gpu(x):
    return guarded(x.cuda())
