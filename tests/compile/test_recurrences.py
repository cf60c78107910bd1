"""The kernels of fused recurrences, compiled for GPUs that are not here, and a guard on what comes out."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

import scanforge as sf
from tests.compile.ahead import (
    GFX942,
    SM80,
    SM90,
    SM100,
    Launch,
    build,
    conversions,
    noting,
    resources,
    ring_loads,
    tile_loads,
)
from tests.recurrences import BY_NAME

pytestmark = pytest.mark.compile
BF16, F32 = torch.bfloat16, torch.float32
TARGETS = {"sm_80": SM80, "sm_90": SM90, "sm_100": SM100, "gfx942": GFX942}
SIZES = {
    "RGLRU": {"b": 8, "t": 2048, "d": 2048},
    "Mamba": {"b": 8, "t": 2048, "d": 2048, "n": 16},
    "HGRN2": {"b": 8, "t": 2048, "h": 8, "k": 16, "v": 64},
    "LinearAttention": {"b": 8, "t": 2048, "h": 8, "k": 16, "v": 64},
}
LONG = {"Mamba", "HGRN2"}  # to compile: for sm_90 alone, the others are slow
STACK = {"forward": 0, "backward": 0}  # bytes of stack on sm_90: worse is a fault


@lru_cache(maxsize=32)
def launches(name: str, dtype: torch.dtype, lowering: str) -> dict[str, list[Launch]]:
    """The different kernels that the forward and the backward pass of a call launch, all gradients wanted."""
    entry = BY_NAME[name]

    tensors = {
        n: torch.empty(part.shape(SIZES[name]), dtype=dtype).requires_grad_()
        for n, part in entry.inputs.items()
    }
    with noting() as noted:
        y = sf.scan(entry.recurrence, **tensors, lowering=lowering)
        forward = len(noted)
        torch.autograd.grad(y, list(tensors.values()), torch.empty_like(y))
    return {"forward": different(noted[:forward]), "backward": different(noted[forward:])}


def different(noted: list[Launch]) -> list[Launch]:
    """One launch of each kernel."""
    return list({launch.function.__module__: launch for launch in noted}.values())


def check(name: str, way: str, target: str, dtype: torch.dtype = BF16, lowering: str = "ordered_tile"):
    """All kernels of one pass compile; on sm_90 their values stay in registers. Returns them."""
    found = [build(launch, TARGETS[target]) for launch in launches(name, dtype, lowering)[way]]
    assert found
    if target == "sm_90":
        for kernel, launch in zip(found, launches(name, dtype, lowering)[way], strict=True):
            used = resources(kernel)
            assert used.stack <= STACK[way], f"{launch}: {used}, expected at most {STACK[way]} of stack"
    return found


each_way = pytest.mark.parametrize("way", ["forward", "backward"])
EACH = [
    pytest.param(name, target, marks=[pytest.mark.slow] if name in LONG and target != "sm_90" else [])
    for name in SIZES
    for target in TARGETS
]


@each_way
@pytest.mark.parametrize(("name", "target"), EACH)
def test_kernels_compile(name, target, way):
    check(name, way, target)


@each_way
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_rg_lru_moves_no_value_between_threads(dtype, way):
    """Each tile is one load through the ring in shared memory, and no value changes its layout."""
    for kernel in check("RGLRU", way, "sm_90", dtype):
        assert conversions(kernel) == 0
        assert ring_loads(kernel) == tile_loads(kernel) > 0


@each_way
@pytest.mark.parametrize(("name", "target"), [("RGLRU", "sm_90"), ("LinearAttention", "sm_90")])
def test_split_kernels_compile(name, target, way):
    """Three kernels a pass: the aggregate of a chunk, the carry over chunks, the walk."""
    assert len(check(name, way, target, lowering="split")) == 3


@pytest.mark.slow
@each_way
@pytest.mark.parametrize("name", ["Mamba", "HGRN2"])
def test_split_kernels_of_expanded_states_compile(name, way):
    check(name, way, "sm_90", lowering="split")


def test_a_step_compiles():
    """One kernel, whose state is written in place."""
    entry = BY_NAME["Mamba"]
    sizes = SIZES["Mamba"] | {"b": 64}
    row = {n: torch.empty(part.shape(sizes, without="t"), dtype=BF16) for n, part in entry.inputs.items()}
    state = torch.zeros(64, 2048, 16)

    with noting() as noted, torch.no_grad():
        sf.step(entry.recurrence, state, **row, inplace=True)
    (launch,) = noted
    assert resources(build(launch, SM90)).stack == 0
