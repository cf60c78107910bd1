"""What `sf.source` shows of kernels is what a call launches, kernel by kernel, and needs no Triton."""

from __future__ import annotations

import linecache

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import scanforge as sf
from scanforge import listing
from scanforge.example import USUAL, example
from tests.catalogue import CASES
from tests.compile.ahead import Launch, noting
from tests.matrix_recurrences import EVERY, Matrix
from tests.recurrences import BY_NAME
from tests.subprocesses import ROOT, run_python

pytestmark = pytest.mark.compile
F32, BF16 = torch.float32, torch.bfloat16
SIZES = [
    {"b": 8, "t": 2048, "d": 2048},
    {"b": 8, "t": 512, "d": 64},
    {"b": 1, "t": 32768, "d": 64},  # split
    {"b": 1, "t": 8000, "d": 512},  # a ring, and a rest
    {"b": 1, "t": 100, "d": 32},  # groups of threads, and a rest
]
OPERATORS = {"Affine", "ComplexAffine", "LastFlagged"}
MATRIX = {"b": 2, "t": 130, "h": 2, "g": 2, "k": 32, "v": 16}


def text(launch: Launch) -> str:
    return "".join(linecache.getlines(launch.function.fn.__code__.co_filename))


def tensors(operator, sizes: dict[str, int], dtype: torch.dtype) -> dict[str, Tensor]:
    found = example(operator, None, sizes, USUAL).tensors
    return {
        n: torch.empty(x.shape, dtype=dtype if x.is_floating_point() else x.dtype) for n, x in found.items()
    }


def launched(
    operator, sizes: dict[str, int], dtype: torch.dtype, lowering: str | None
) -> dict[str, list[str]]:
    """The texts of what a real call launches: forward without gradients, then backward with all."""
    given = tensors(operator, sizes, dtype)
    with noting() as noted:
        sf.scan(operator, **given, lowering=lowering)
        forward = [text(x) for x in noted]
        learnt = {n: x.requires_grad_(x.is_floating_point()) for n, x in given.items()}
        shown, final = sf.scan(operator, **learnt, lowering=lowering, return_final_state=True)
        read = [y for y in (*many(shown), *many(final)) if y.requires_grad]
        begin = len(noted)
        wanted = [x for x in learnt.values() if x.requires_grad]
        if read:
            torch.autograd.grad(read, wanted, [torch.empty_like(y) for y in read])
    return {"forward": forward, "backward": [text(x) for x in noted[begin:]]}


def many(x) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def compare(operator, sizes: dict[str, int], dtype: torch.dtype = F32, lowering: str | None = None) -> None:
    before, traced = sf.last_run(), example(operator, None, sizes, USUAL)
    for way, texts in launched(operator, sizes, dtype, lowering).items():
        last = sf.last_run()
        found = listing.launches(traced.traced.text, way, traced.sizes, dtype, lowering or "")
        assert [x.text for x in found] == texts, way
        assert sf.last_run() is last is not before


@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: " ".join(map(str, s.values())))
@pytest.mark.parametrize("case", [c for c in CASES if c.name in OPERATORS], ids=lambda c: c.name)
def test_operators(case, sizes):
    compare(case.operator, sizes)


@pytest.mark.parametrize("name", ["RGLRU", "Mamba", "LinearAttention"])
@pytest.mark.parametrize("lowering", [None, "ordered_tile", "split"])
def test_recurrences(name, lowering):
    whole = {"b": 8, "t": 2048, "d": 256, "n": 16, "h": 4, "k": 16, "v": 16}
    axes = {a for part in BY_NAME[name].inputs.values() for a in part.axes.split()}
    compare(BY_NAME[name].recurrence, {a: n for a, n in whole.items() if a in axes}, BF16, lowering)


@pytest.mark.parametrize("matrix", dict.fromkeys(EVERY), ids=str)
def test_products_over_chunks(matrix: Matrix):
    axes = {a for x in matrix.draw(F32) for a in getattr(matrix.recurrence(), x).axes}
    compare(matrix.recurrence(), {a: n for a, n in MATRIX.items() if a in axes}, BF16)


def test_tensors_of_a_device(monkeypatch):
    """Where there is a GPU, tensors without memory are of it."""
    monkeypatch.setattr(listing, "memoryless", lambda: (FakeTensorMode(), "cpu"))
    compare(Matrix(decay="on values").recurrence(), {a: MATRIX[a] for a in "bthkv"}, BF16)
    compare(sf.Affine, SIZES[2])


SOURCES = """
import sys
import scanforge as sf
from examples.gallery.gla import GLA
for lowering in ("ordered_tile", "split", "chunked"):
    for which in ("forward", "backward"):
        print(sf.source(GLA, which, backend="triton", lowering=lowering))
"""


def test_it_takes_no_triton(capsys):
    exec(SOURCES, {})
    printed = capsys.readouterr().out
    assert printed.count("@triton.jit") > 30
    assert run_python("-c", f'import sys\nsys.modules["triton"] = None\n{SOURCES}', cwd=ROOT) == printed


def test_where_nothing_is_launched():
    class Count(sf.Operator):
        n = sf.Element(identity=0, kind="int")
        total = sf.State(kind="int")

        def combine(self, later):
            return Count(n=self.n + later.n)

        def apply(self, total):
            return total + self.n

    assert sf.source(Count, "backward", backend="triton") == '"""Count, backward: no kernel is launched."""\n'
