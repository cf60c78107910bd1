"""The walk of lanes that decay as a whole, which makes its operands itself, against the loop in float64."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from scanforge import chunked_plan, chunked_work
from scanforge.chunked_setting import Setting
from tests.catalogue import generator
from tests.interpreter.test_chunked import BF16, CUT, F32, F64, check, results, run
from tests.matrix_recurrences import Matrix

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]
slow = pytest.mark.slow
HEADS = Matrix(decay="head's")


class Signed(sf.Recurrence):
    """A decay by head that may be anything."""

    q, k = sf.Input("b t h k"), sf.Input("b t h k")
    v, a = sf.Input("b t h v"), sf.Input("b t h")
    S = sf.State("b h k v")

    def element(self):
        return sf.Affine(a=self.a, b=self.k * self.v)

    def readout(self):
        return sf.sum(self.q * self.S, "k")


def drawn(dtype, t=150, k=20, v=33, h=1):
    """Queries, keys and values, and decays of both signs, some of them 0, 1, -1 and above 1."""
    g = generator(7)
    x = {
        n: torch.randn(1, t, h, c, generator=g, dtype=F64).to(dtype)
        for n, c in (("q", k), ("k", k), ("v", v))
    }
    a = 0.5 + torch.rand(1, t, h, generator=g, dtype=F64)
    a = torch.where(torch.rand(1, t, h, generator=g) < 0.2, -a, a)
    for step, number in ((5, 0.0), (40, 0.0), (41, 0.0), (63, 0.0), (64, -1.0), (100, 1.0)):
        a[:, step : step + 1] = number
    return x | {"a": a.to(dtype)}


@pytest.fixture
def launched(monkeypatch):
    """The texts of the kernels that run."""
    found, run = [], chunked_work.run

    def noted(call, source, *rest):
        found.append(source)
        run(call, source, *rest)

    monkeypatch.setattr(chunked_work, "run", noted)
    return found


@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=str)
def test_req19_zeros_and_signs(dtype):
    """In bfloat16 they are counted beside the logarithms."""
    initial = torch.randn(1, 1, 20, 33, dtype=F32, generator=generator(1)).to(F64 if dtype == F64 else F32)
    check(Signed, drawn(dtype), initial, "long" if dtype == F64 else "forward")


def test_req18_strong_decays_by_head(launched):
    """exp(-1e4) between mild ones: what is behind it is as exact as without."""
    x = HEADS.draw(BF16, b=1, h=2, t=150, k=16, v=16)
    x["f"][:, ::7] = 1e4
    check(HEADS, x)
    assert "the walk up over chunks" in launched[0]  # and nothing before it


@pytest.mark.parametrize(
    "decay", ["head's constant", *(pytest.param(d, marks=slow) for d in ("head's", "none"))]
)
@pytest.mark.parametrize(("k", "v"), [(130, 70), pytest.param(256, 20, marks=slow)], ids=str)
def test_keys_in_blocks(decay, k, v):
    matrix = Matrix(decay=decay)
    got, truth = run(matrix, matrix.draw(BF16, b=1, h=1, t=70, k=k, v=v))
    for what in ("outputs", "finals"):
        assert (got[what].double() - truth[what]).norm() <= CUT * truth[what].norm(), what


@pytest.mark.parametrize(
    ("dtype", "reverse"),
    [(F64, True), (BF16, False), *(pytest.param(d, d == BF16, marks=slow) for d in (F64, BF16))],
    ids=str,
)
def test_groups(monkeypatch, launched, dtype, reverse):
    monkeypatch.setattr(chunked_plan, "LEAST", 1)
    initial = torch.randn(1, 1, 20, 33, dtype=F64, generator=generator(1))
    check(Signed, drawn(dtype, t=140), initial, reverse=reverse)
    assert "the states that groups begin with" in launched[1]


@pytest.mark.parametrize("reverse", [False, pytest.param(True, marks=slow)], ids=["forward", "reverse"])
def test_packed(reverse):
    ends = torch.tensor([0, 0, 5, 6, 75, 150, 150])
    initial = torch.randn(6, 1, 20, 33, dtype=F64, generator=generator(1))
    check(Signed, drawn(F64), initial, reverse=reverse, cu_seqlens=ends)


def test_a_decay_may_be_wider_than_what_is_multiplied(launched):
    """A decay, and a weight, in fp32 beside keys and values in bfloat16: products are of bfloat16."""
    x = drawn(BF16)
    x["a"] = x["a"].to(F32) * 0.99
    wide = {n: y.to(F64) for n, y in x.items()}
    got = results(Signed, x, None, backend="triton", lowering="chunked")
    assert all("DOT = tl.constexpr(tl.bfloat16)" in s for s in launched)
    truth = results(Signed, wide, None, backend="reference", lowering="loop")
    for what, y in truth.items():
        assert (got[what].double() - y).norm() <= CUT * y.norm(), what


def test_keys_in_fp32_are_multiplied_in_fp32(launched):
    x = drawn(BF16)
    sf.scan(Signed, **(x | {"k": x["k"].float()}), backend="triton", lowering="chunked")
    assert all("DOT = tl.constexpr(tl.float32)" in s for s in launched)


@pytest.mark.parametrize("dtype", [pytest.param(F32, marks=slow), BF16], ids=str)
def test_nan_stays_in_its_head_and_after_its_step(dtype):
    x = drawn(dtype, h=2)
    x["a"][:, 70, 1] = torch.nan
    y = sf.scan(Signed, **x, backend="triton", lowering="chunked")
    clean = sf.scan(Signed, **(x | {"a": x["a"].nan_to_num(0.5)}), backend="triton", lowering="chunked")
    assert torch.equal(y[:, :, 0], clean[:, :, 0])
    assert torch.equal(y[:, :64, 1], clean[:, :64, 1])  # the chunks before
    assert y[:, 71:, 1].isnan().all()


def test_what_memory_held_before_is_of_no_matter(monkeypatch):
    """Columns that fill no block are in no tensor, and the gradient of a decay sums over columns."""
    dtypes = {BF16: torch.nan, F32: torch.nan, torch.int32: 0}
    monkeypatch.setattr(
        Setting, "empty", lambda self, *shape, dtype: self.like.new_full(shape, dtypes[dtype], dtype=dtype)
    )
    x = HEADS.draw(BF16, b=1, h=1, t=70, k=20, v=33)  # of mild decays: no chunk is flagged
    for y in results(HEADS.recurrence(), x, None, backend="triton", lowering="chunked").values():
        assert y.isfinite().all()
