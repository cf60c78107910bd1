"""Every kernel of the shipped operators, compiled for GPUs that are not here, and a guard on what comes out.

The ordered tile is quick because each tile is one load through the ring in shared memory, no value changes
its layout on the way to the step, and the step's values stay in registers.
"""

from __future__ import annotations

import pytest
import torch

from tests.catalogue import BY_NAME, CASES, Case
from tests.compile.ahead import (
    GFX942,
    SM80,
    SM90,
    SM100,
    Launch,
    build,
    conversions,
    launches,
    resources,
    ring_loads,
    tile_loads,
)
from tests.kernels import LOWERINGS

pytestmark = pytest.mark.compile
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
TARGETS = {"sm_80": SM80, "sm_90": SM90, "sm_100": SM100, "gfx942": GFX942}

# The shape whose tiles the lowering is tuned for: lanes that fill a device, and too few of them.
SHAPES = {"ordered_tile": (8, 2048, 2048), "split": (1, 65536, 1024)}

# Bytes of stack that are known, where a kernel has more values than registers on sm_90: worse is a fault.
SPILLS = {
    ("Kalman", F32, "ordered_tile", "backward"): 8,
    ("Kalman", F32, "split", "backward"): 8,
    **{("Affine", dtype, "split", "forward"): 8 for dtype in (F16, BF16, F32)},  # the carry over chunks
    ("MinMax", F64, "ordered_tile", "backward"): 216,
    ("MinMax", F64, "split", "backward"): 216,
    ("LogSumExp", F64, "ordered_tile", "backward"): 168,
    ("LogSumExp", F64, "split", "backward"): 480,  # composing a chunk's elements
}

every_operator = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_way = pytest.mark.parametrize("way", ["forward", "backward"])


def kernels(case: Case, dtype: torch.dtype, lowering: str, way: str) -> list[Launch]:
    forward, backward = launches(case, SHAPES[lowering], dtype, lowering)
    return forward if way == "forward" else backward


def check(case: Case, dtype: torch.dtype, lowering: str, way: str, target: str) -> None:
    """All kernels of one pass compile, and keep to the guard on NVIDIA's devices."""
    found = kernels(case, dtype, lowering, way)
    assert found
    for launch in found:
        kernel = build(launch, TARGETS[target])
        tiles = tile_loads(kernel)
        assert tiles, f"{launch}: no tile is loaded"
        if target == "gfx942":
            continue  # there is no ring on AMD's devices, and rows change their layout: right, not quick
        assert ring_loads(kernel) == tiles, f"{launch}: not every tile goes through the ring"
        assert conversions(kernel) == 0, f"{launch}: a value changes its layout"
        if target == "sm_90":
            used = resources(kernel)
            allowed = SPILLS.get((case.name, dtype, lowering, way), 0)
            assert used.stack <= allowed, f"{launch}: {used}, expected at most {allowed} bytes of stack"


@every_operator
@each_way
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_ordered_tiles_on_sm_90(case, dtype, way):
    check(case, dtype, "ordered_tile", way, "sm_90")


@each_way
@pytest.mark.parametrize("name", ["Affine", "RunningMax", "Kalman"])
@pytest.mark.parametrize("target", ["sm_80", "sm_100", "gfx942"])
def test_a_sample_on_other_devices(name, target, way):
    check(BY_NAME[name], F32, "ordered_tile", way, target)


@each_way
@pytest.mark.parametrize("lowering", [x for x in LOWERINGS if x != "ordered_tile"])
@pytest.mark.parametrize("name", ["Affine", "LogSumExp"])
def test_a_sample_of_other_lowerings(name, lowering, way):
    check(BY_NAME[name], F32, lowering, way, "sm_90")


@pytest.mark.slow
@every_operator
@each_way
@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64], ids=str)
@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_whole_matrix(case, dtype, lowering, target, way):
    check(case, dtype, lowering, way, target)


@each_way
@pytest.mark.parametrize("shape", [(2, 301, 70), (3, 65, 1), (2, 33, 2, 7)], ids=str)
def test_odd_shapes(shape, way):
    """Masked, with strides that are multiples of nothing: right, not quick, so that some may spill."""
    forward, backward = launches(BY_NAME["Matrix2x2"], shape, F32)
    for launch in forward if way == "forward" else backward:
        kernel = build(launch, SM90)
        assert launch.arguments["MASKED"]
        assert resources(kernel).stack <= 64, f"{launch}: {resources(kernel)}"


def test_the_guard_can_fail():
    """The same kernel with one stage has no ring, and with two lanes a thread it has conversions."""
    launch = kernels(BY_NAME["Affine"], F32, "ordered_tile", "forward")[0]
    unstaged = build(Launch(launch.function, launch.arguments | {"NS": 1}, launch.options), SM90)
    assert ring_loads(unstaged) < tile_loads(unstaged)
    crowded = build(Launch(launch.function, launch.arguments, {"num_warps": 2}), SM90)
    assert conversions(crowded) > 0


@each_way
def test_nan_passes_through_min_and_max(way):
    """The interpreter's min and max pass NaN on anyway, so the machine's are looked at."""
    for launch in kernels(BY_NAME["MinMax"], F32, "ordered_tile", way):
        text = build(launch, SM90).asm["ptx"]
        assert "min.NaN.f32" in text
        assert "min.f32" not in text
        assert "max.f32" not in text
