"""The kernels of matrix products over chunks, compiled for GPUs that are not here, and their registers."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import scanforge as sf
from scanforge import chunked_setting
from scanforge.chunked_plan import fitted
from tests.compile.ahead import GFX942, SM80, SM90, SM100, build, resources
from tests.compile.test_recurrences import different, noting
from tests.matrix_recurrences import Matrix

pytestmark = pytest.mark.compile
slow = pytest.mark.slow
BF16, F32 = torch.bfloat16, torch.float32
SHAPES = {
    "128": {"b": 8, "t": 2048, "h": 16, "k": 128, "v": 128},
    "64": {"b": 8, "t": 2048, "h": 8, "k": 64, "v": 64},
    "256, 512": {"b": 8, "t": 2048, "h": 4, "k": 256, "v": 512},
    "long": {"b": 1, "t": 32768, "h": 16, "k": 128, "v": 128},
    "small": {"b": 2, "t": 128, "h": 2, "k": 64, "v": 32},
}
each_way = pytest.mark.parametrize("way", ["forward", "backward"])


@cache
def launched(matrix: Matrix, dtype: torch.dtype, shape: str, *, reset: bool = False):
    """The same of a shape by name, once for all tests."""
    return launches(matrix, dtype, SHAPES[shape], reset=reset)


def launches(matrix: Matrix, dtype: torch.dtype, sizes: dict[str, int], *, reset: bool = False):
    """The kernels that the forward and the backward pass of a call launch, all gradients wanted."""
    small = matrix.draw(dtype, **dict.fromkeys("bthkv", 1))
    axes = {n: getattr(matrix.recurrence(), n).axes for n in small}
    tensors = {n: torch.empty([sizes[a] for a in axes[n]], dtype=dtype).requires_grad_() for n in small}
    with noting() as noted:
        starts = torch.zeros(sizes["b"], sizes["t"], dtype=torch.bool) if reset else None
        y = sf.scan(matrix.recurrence(), **tensors, reset=starts, backend="triton", lowering="chunked")
        forward = len(noted)
        torch.autograd.grad(y, list(tensors.values()), torch.empty_like(y))
    return {"forward": different(noted[:forward]), "backward": different(noted[forward:])}


@each_way
@pytest.mark.parametrize("shape", ["128", *(pytest.param(s, marks=slow) for s in ("64", "256, 512", "long"))])
def test_shipped_tiles_do_not_spill(shape, way):
    kernels = launched(Matrix(keys="tied"), BF16, shape)[way]
    groups = {"forward": 2, "backward": 3}[way] if shape == "long" else 0  # those of groups of chunks
    assert len(kernels) == {"forward": 3, "backward": 6}[way] + groups
    for launch in kernels[2:] if way == "backward" else kernels:  # both begin with the operands
        kernel = build(launch, SM90)
        assert resources(kernel).stack == 0, launch.function.__module__
        assert kernel.metadata.shared <= 232_448


@pytest.mark.parametrize("shape", ["128", *(pytest.param(s, marks=slow) for s in ("64", "long"))])
def test_one_walk_of_lanes_that_decay_as_a_whole(shape):
    """Groups of chunks: three kernels. Beside a state of 128 by 128 some of a softplus lies elsewhere."""
    kernels = launched(Matrix(decay="head's"), BF16, shape)["forward"]
    assert len(kernels) == {"128": 1, "64": 3, "long": 3}[shape]
    for launch in kernels:
        assert resources(build(launch, SM90)).stack <= (0 if shape == "64" else 64), (
            launch.function.__module__
        )


@slow
@each_way
@pytest.mark.parametrize("decay", ["bounded", "head's"])
@pytest.mark.parametrize(("capability", "shared"), [((8, 6), 101_376), ((8, 0), 166_912)], ids=str)
def test_tiles_fit_into_less_shared_memory(monkeypatch, capability, shared, decay, way):
    """What stays within Ampere's and Ada's. Kernels for sm_80 are theirs too."""
    plan = chunked_setting.chunk_plan
    monkeypatch.setattr(chunked_setting, "chunk_plan", lambda *sizes: fitted(plan(*sizes), capability))
    launched.cache_clear()
    kernels = [build(x, SM80) for x in launched(Matrix(decay=decay), BF16, "128")[way]]
    launched.cache_clear()
    assert max(k.metadata.shared for k in kernels) <= shared


@slow
@each_way
@pytest.mark.parametrize("target", [SM80, SM100, GFX942], ids=lambda t: str(t.arch))
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bf16", "fp32"])
def test_every_target(target, dtype, way):
    for launch in launched(Matrix(), dtype, "small")[way]:
        build(launch, target)


@each_way
def test_resets(way):
    """Nothing more is launched: they are masks."""
    kernels = launched(Matrix(), BF16, "small", reset=True)[way]
    assert len(kernels) == {"forward": 3, "backward": 6}[way]
    for launch in kernels:
        build(launch, SM90)


@each_way
def test_a_decay_on_values(way):
    """The same kernels; what is contracted is a gradient, so that a forward pass has those kernels too."""
    kernels = launched(Matrix(decay="on values"), BF16, "small")[way]
    assert len(kernels) == {"forward": 5, "backward": 6}[way]
    for launch in kernels:
        build(launch, SM90)
