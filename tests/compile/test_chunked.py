"""The kernels of matrix products over chunks, compiled for GPUs that are not here, and their registers."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests.compile.ahead import GFX942, SM80, SM90, SM100, build, resources
from tests.compile.test_recurrences import noting
from tests.matrix_recurrences import Matrix

pytestmark = pytest.mark.compile
BF16, F32 = torch.bfloat16, torch.float32
SHAPES = {
    "128": {"b": 8, "t": 2048, "h": 16, "k": 128, "v": 128},
    "64": {"b": 8, "t": 2048, "h": 8, "k": 64, "v": 64},
    "256, 512": {"b": 8, "t": 2048, "h": 4, "k": 256, "v": 512},
}


def launched(matrix: Matrix, dtype: torch.dtype, sizes: dict[str, int]):
    """What a call would launch."""
    small = matrix.draw(dtype, **dict.fromkeys("bthkv", 1))
    axes = {n: getattr(matrix.recurrence(), n).axes for n in small}
    tensors = {n: torch.empty([sizes[a] for a in axes[n]], dtype=dtype) for n in small}
    with noting() as noted:
        sf.scan(matrix.recurrence(), **tensors, backend="triton", lowering="chunked")
    return list(noted)


@pytest.mark.parametrize("shape", SHAPES)
def test_shipped_tiles_do_not_spill(shape):
    for launch in launched(Matrix(keys="tied"), BF16, SHAPES[shape]):
        found = resources(build(launch, SM90))
        assert found.stack == 0, launch.function.__module__


@pytest.mark.parametrize("target", [SM80, SM100, GFX942], ids=lambda t: str(t.arch))
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bf16", "fp32"])
def test_every_target(target, dtype):
    for launch in launched(Matrix(), dtype, {"b": 2, "t": 128, "h": 2, "k": 64, "v": 32}):
        build(launch, target)
