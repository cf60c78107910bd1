"""Every shipped operator's kernels on a GPU, forward and backward, against the loop in float64."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests.catalogue import BY_NAME, draw
from tests.kernels import LOWERINGS, check, every_lowering, every_operator, everything, guarded, outcome
from tests.reference.compare import Loss, cotangent, many
from tests.tolerances import assert_close, assert_equal

pytestmark = pytest.mark.gpu
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
LENGTHS = (1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 131)


def on_gpu(x):
    return guarded(x.cuda())


@every_operator
@every_lowering
class TestEveryOperator:
    @pytest.mark.parametrize("length", LENGTHS)
    def test_lengths(self, case, lowering, length):
        """Around every tile and chunk, and a prime; 70 lanes, so that masks stand."""
        leaves, initial = draw(case, (2, length, 70), F32, seed=length)
        check(case, leaves, initial, everything(case), lowering=lowering, place=on_gpu)

    @pytest.mark.parametrize("length", [96, 131])
    def test_bf16_without_masks(self, case, lowering, length):
        leaves, initial = draw(case, (2, length, 128), BF16, seed=length)
        check(case, leaves, initial, everything(case), lowering=lowering, place=on_gpu)

    def test_in_reverse(self, case, lowering):
        leaves, initial = draw(case, (2, 133, 70), F32)
        check(case, leaves, initial, everything(case), reverse=True, lowering=lowering, place=on_gpu)

    def test_twenty_runs_give_the_same_bits(self, case, lowering):
        leaves, initial = draw(case, (2, 129, 70), F32)
        first = outcome(case, leaves, initial, everything(case), lowering=lowering, place=on_gpu)
        for _ in range(20):
            again = outcome(case, leaves, initial, everything(case), lowering=lowering, place=on_gpu)
            for name, x in again.gradients.items():
                assert_equal(x, first.gradients[name], f"{case.name} gradient of {name}")


@pytest.mark.parametrize("name", ["Affine", "MinMax", "LogSumExp"])
@pytest.mark.parametrize("dtype", [F16, F64], ids=str)
@every_lowering
def test_req05_other_dtypes(name, dtype, lowering):
    leaves, initial = draw(BY_NAME[name], (2, 97, 64), dtype)
    check(BY_NAME[name], leaves, initial, everything(BY_NAME[name]), lowering=lowering, place=on_gpu)


@every_lowering
@pytest.mark.parametrize("gate", [1.0, -1.0, 0.9999])
def test_req13_gates_of_modulus_one(gate, lowering):
    """A gate that forgets nothing carries each gradient to the first step."""
    a = torch.full((1, 261, 64), gate, device="cuda", dtype=F64, requires_grad=True)
    b = torch.randn(1, 261, 64, device="cuda", dtype=F64, requires_grad=True)
    states = sf.scan(sf.operators.Affine, a=a, b=b, lowering=lowering)
    (grad,) = torch.autograd.grad(states[:, -1].sum(), b)
    steps = torch.arange(260, -1, -1, device="cuda", dtype=F64)
    assert_close(grad, (gate**steps)[None, :, None].expand_as(grad), "long")


@pytest.mark.parametrize("length", [1, 2, 3, 7, 100, 1000, 4095, 4097, 65537])
def test_req26_any_length(length):
    case = BY_NAME["Affine"]
    leaves, initial = draw(case, (2, length, 3), F32)
    leaves["a"] = leaves["a"] * 0.9
    check(case, leaves, initial, Loss((0,), (0,)), place=on_gpu)


@pytest.mark.parametrize("lanes", [1, 3, 17, 31, 33, 96, 100, 192, 257])
def test_req28_any_number_of_lanes(lanes):
    case = BY_NAME["MinMax"]
    leaves, initial = draw(case, (2, 37, lanes), F32)
    check(case, leaves, initial, everything(case), place=on_gpu)


def test_req30_offsets_beyond_32_bits():
    """2.1e9 elements: the last rows, and those on either side of 2**31, equal a scan of a slice."""
    steps, lanes = 1_048_577, 2048
    if torch.cuda.mem_get_info()[0] < 5 * 2 * steps * lanes:
        pytest.skip("not enough memory")
    a = torch.full((1, 1, lanes), 0.5, device="cuda", dtype=BF16).expand(1, steps, lanes)
    b = torch.zeros(1, steps, lanes, device="cuda", dtype=BF16)
    rows = [0, steps // 2, steps - 4, steps - 1]
    b[:, rows] = torch.randn(1, len(rows), lanes, device="cuda").to(BF16)
    for lowering in LOWERINGS:
        states = sf.scan(sf.operators.Affine, a=a, b=b, lowering=lowering)
        for row in rows[1:]:
            start = max(row - 40, 0)
            near = sf.scan(sf.operators.Affine, a=a[:, start : row + 1], b=b[:, start : row + 1])
            assert torch.equal(states[:, row], near[:, -1])
        del states


def test_req31_views_are_read_in_place():
    """Slices of a fused projection: equal bits, and no copy beside the outputs."""
    fused = torch.randn(4, 256, 3 * 512, device="cuda", dtype=BF16)
    r, s = fused[..., :512], fused[..., 512:1024]
    whole = sf.scan(sf.operators.MinMax, r=r.contiguous(), s=s.contiguous())
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    states = sf.scan(sf.operators.MinMax, r=r, s=s)
    grown = torch.cuda.max_memory_allocated() - before
    assert torch.equal(states, whole)
    assert grown < 1.1 * states.nbytes + (1 << 20)


@every_lowering
def test_a_sum_sends_a_gradient_of_stride_0(lowering):
    case = BY_NAME["MinMax"]
    leaves, _ = draw(case, (2, 100, 64), F32)
    grads = []
    for backend in ("reference", "triton"):
        tensors = {n: x.cuda().requires_grad_() for n, x in leaves.items()}
        options = {"lowering": lowering} if backend == "triton" else {}
        sf.scan(case.operator, **tensors, backend=backend, **options).sum().backward()
        grads.append([x.grad for x in tensors.values()])
    for x, y in zip(*grads, strict=True):
        assert_equal(x, y)


@pytest.mark.parametrize("name", ["Affine", "Kalman"])
@every_lowering
def test_second_derivatives(name, lowering):
    case = BY_NAME[name]
    leaves, _ = draw(case, (1, 40, 8), F64)
    found = []
    for backend in ("reference", "triton"):
        options = {"lowering": lowering} if backend == "triton" else {}
        tensors = {n: x.cuda().requires_grad_() for n, x in leaves.items()}
        states = many(sf.scan(case.operator, **tensors, backend=backend, **options))
        loss = sum((x * cotangent(x, 1).to(x)).sum() for x in states)
        first = torch.autograd.grad(loss, list(tensors.values()), create_graph=True)
        found.append(torch.autograd.grad(sum((g**2).sum() for g in first), list(tensors.values())))
    for x, y in zip(*found, strict=True):
        assert_close(x, y, "long")


def test_on_a_stream_of_its_own():
    a, b = (torch.rand(2, 300, 256, device="cuda") for _ in range(2))
    expected = sf.scan(sf.operators.Affine, a=a, b=b)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        states = sf.scan(sf.operators.Affine, a=a, b=b)
    stream.synchronize()
    assert torch.equal(states, expected)


def test_what_ran_is_told():
    a, b = (torch.rand(8, 64, 2048, device="cuda") for _ in range(2))
    sf.scan(sf.operators.Affine, a=a, b=b)
    ran = sf.last_run()
    assert (ran.plan.backend, ran.plan.lowering) == ("triton", "ordered_tile")


@every_lowering
def test_nan_stays_in_its_lane_and_in_its_future(lowering):
    r, s = (torch.randn(2, 150, 64, device="cuda") for _ in range(2))
    r[1, 70, 5] = float("nan")
    got = sf.scan(sf.operators.MinMax, r=r, s=s, lowering=lowering)
    want = sf.scan(sf.operators.MinMax, r=r, s=s, backend="reference", lowering="loop")
    assert got.isnan().any()
    assert_equal(got, want)
