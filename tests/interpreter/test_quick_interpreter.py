"""What the tests run kernels with computes what Triton's own interpreter computes, bit for bit."""

from __future__ import annotations

import inspect

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from tests.catalogue import BY_NAME, draw
from tests.interpreter.test_chunked import results
from tests.kernels import everything, outcome
from tests.matrix_recurrences import Matrix
from tests.quick_interpreter import OWN, REPLACED, tritons_own
from tests.recurrence_kernels import assert_identical
from tests.recurrence_kernels import outcome as fused_outcome
from tests.recurrences import BY_NAME as RECURRENCES
from tests.recurrences import draw as draw_fused
from tests.tolerances import assert_equal

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]
F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


def test_it_is_what_runs():
    for owner, name, function in REPLACED.values():
        assert inspect.getattr_static(owner, name) is function


@pytest.mark.parametrize(
    ("name", "dtype", "lowering"),
    [
        ("Kalman", F32, "split"),
        ("RunningMax", BF16, "ordered_tile"),
        ("LastFlagged", F64, "split"),
        ("LogSumExp", F16, "ordered_tile"),
    ],
)
def test_an_operators_kernels(monkeypatch, name, dtype, lowering):
    case = BY_NAME[name]
    leaves, initial = draw(case, (2, 19, 3), dtype)
    got = outcome(case, leaves, initial, everything(case), lowering=lowering)
    tritons_own(monkeypatch)
    truth = outcome(case, leaves, initial, everything(case), lowering=lowering)
    pairs = zip((*got.states, *got.finals), (*truth.states, *truth.finals), strict=True)
    for x, y in (*pairs, *((x, truth.gradients[n]) for n, x in got.gradients.items())):
        assert_equal(x, y)


@pytest.mark.parametrize("name", ["Mamba", "RGLRU"])
def test_a_recurrences_kernels(monkeypatch, name):
    entry = RECURRENCES[name]
    tensors, initial = draw_fused(entry, F32, t=9)
    got = fused_outcome(entry, tensors, initial)
    tritons_own(monkeypatch)
    assert_identical(got, fused_outcome(entry, tensors, initial), name)


def test_products_over_chunks(monkeypatch):
    matrix = Matrix(decay="bounded", read="gated")
    tensors = matrix.draw(BF16, b=1, h=1, t=34)
    options = {"backend": "triton", "lowering": "chunked"}
    got = results(matrix.recurrence(), tensors, None, **options)
    tritons_own(monkeypatch)
    for what, x in results(matrix.recurrence(), tensors, None, **options).items():
        assert torch.equal(x, got[what]), what


@triton.jit
def many_types(x_ptr, flag_ptr, y_ptr, count, N: tl.constexpr):
    """Promotions, scalars beside blocks, broadcasts between axes, and shapes made anew."""
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    flag = tl.load(flag_ptr + i)
    wide = i.to(tl.int64) * 3 - i
    narrow = x.to(tl.float16)
    square = x[:, None] * x[None, :] + i[None, :]
    total = tl.sum(square, 1) / (1 + tl.max(x, 0))
    y = tl.where(flag & (wide % 3 != 1), -total + wide, narrow * 2.0 + narrow / (narrow * narrow + 3))
    y += tl.where(i < count, x, (i.to(tl.uint8) | 5) >> 1) + wide // 2
    for k in range(2):
        if k == 1:
            seven = 7
            y = 1.5 - y / 3 + (seven.to(tl.int64) - i) % 4 * (3 * wide - 2**31) - (True + i) / 2
        else:
            half = 0.5
            y = half.to(tl.float64) * y + 0.3 * i + 2 // (i + 1)
    left, right = tl.split(tl.reshape(y, (N // 2, 2)))
    tl.store(y_ptr + i, tl.reshape(tl.join(right, left), (N,)), mask=~(i == count))


@triton.jit
def wrong_shapes(y_ptr, N: tl.constexpr):
    tl.store(y_ptr + tl.arange(0, N), tl.zeros((N, 2), tl.float32) + tl.zeros((N, N), tl.float32))


@triton.jit
def wrong_size(y_ptr, N: tl.constexpr):
    tl.store(y_ptr, tl.sum(tl.zeros((N + 1,), tl.float32), 0))


@pytest.mark.parametrize("dtype", [F32, F64, torch.int32, torch.int16], ids=str)
def test_types_and_shapes(monkeypatch, dtype):
    x, flag = torch.arange(8).sub(3).to(dtype), torch.arange(8) % 3 == 0

    def run() -> torch.Tensor:
        y = torch.full((8,), -1.0, dtype=F64)
        many_types[(1,)](x, flag, y, 5, N=8)
        return y

    first, again = run(), run()
    tritons_own(monkeypatch)
    assert_equal(first, run())
    assert_equal(again, first)


@pytest.mark.parametrize("kernel", [wrong_shapes, wrong_size])
def test_errors(monkeypatch, kernel):
    def said() -> str:
        with pytest.raises(interpreter.InterpreterError) as found:
            kernel[(1,)](torch.zeros(8), N=8)
        return str(found.value)

    first = said(), said()
    tritons_own(monkeypatch)
    assert first == (said(), said())


NAMES = "int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64"


@pytest.mark.parametrize("name", NAMES.split())
def test_numpys_types(name):
    one = getattr(tl, name)
    for type in (
        one,
        tl.pointer_type(one),
        tl.block_type(one, [4]),
        tl.block_type(tl.pointer_type(one), [4]),
    ):
        for _ in range(2):
            assert interpreter._get_np_dtype(type) == OWN["np_dtype"](type)
    assert one == tl.dtype(one.name)
    assert str(tl.block_type(one, [2, 4])).endswith(f", {one.name}>")
    assert one not in (tl.block_type(one, [4]), one.name, None)
