"""No kernel of products over chunks reads a register that nothing has written (`registers.py`)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from scanforge import chunked_setting
from tests.compile.ahead import SM90, build
from tests.compile.registers import undefined
from tests.compile.test_chunked import launches
from tests.matrix_recurrences import Matrix

pytestmark = pytest.mark.compile
slow = pytest.mark.slow
BF16 = torch.bfloat16
TIED = Matrix(keys="tied")
FORMS = [TIED, *(Matrix(decay=d) for d in ("on values", "none", "log", "raw", "head's", "number"))]
SIZES = [
    *((64, 64), (100, 72), (128, 64), (128, 128), (32, 32), (64, 32)),
    *((32, 64), (33, 17), (48, 80), (16, 16), (512, 64), (256, 512)),
]


def kernels(matrix: Matrix, k: int, v: int):
    """All that both passes launch."""
    found = launches(matrix, BF16, {"b": 2, "t": 1000 if k % 8 else 2048, "h": 3, "k": k, "v": v})
    return found["forward"] + found["backward"]


@pytest.fixture(autouse=True)
def as_on_hopper(monkeypatch):
    monkeypatch.setattr(chunked_setting, "fenced", lambda _: True)


def gradients(launch) -> bool:
    return "ptr_given" in {p.name for p in launch.function.params}


@pytest.mark.parametrize(("k", "v"), SIZES[:2], ids=str)
def test_gradients_of_gates(k, v):
    for launch in filter(gradients, kernels(TIED, k, v)):
        assert not undefined(build(launch, SM90)), launch.function.__module__


@slow
@pytest.mark.parametrize(("k", "v"), SIZES, ids=str)
@pytest.mark.parametrize("matrix", FORMS, ids=str)
def test_every_kernel(matrix, k, v):
    for launch in kernels(matrix, k, v):
        assert not undefined(build(launch, SM90)), launch.function.__module__


def test_tiles_of_two_widths_have_some(monkeypatch):
    """What the plan stays clear of: keys 32 wide beside values 64 wide."""
    plan = chunked_setting.chunk_plan
    monkeypatch.setattr(
        chunked_setting, "chunk_plan", lambda *sizes: replace(plan(*sizes), gradients=(32, 64, 4))
    )
    assert any(undefined(build(launch, SM90)) for launch in filter(gradients, kernels(TIED, 64, 64)))
