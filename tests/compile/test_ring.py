"""Kernels of rings, compiled for GPUs that are not here: quick as others, and two of them on a processor."""

from __future__ import annotations

import pytest
import torch

from scanforge.shipped import OF_PROCESSOR, REGISTERS
from tests.catalogue import BY_NAME
from tests.compile import ahead
from tests.compile.test_kernels import TARGETS

pytestmark = pytest.mark.compile
BF16, F32 = torch.bfloat16, torch.float32
SHAPE = (1, 65536, 1024)
SHARED = 233_472 - OF_PROCESSOR * 1024  # bytes of one processor, sm_90, but for the driver's own

slow = pytest.mark.slow
CASES = [
    pytest.param(name, dtype, way, target, marks=() if name == "Affine" and quick else slow)
    for name in ("Affine", "MinMax", "MaxPlus", "LogSumExp")
    for dtype in (BF16, F32)
    for way in ("forward", "backward")
    for target, quick in (("sm_90", True), ("sm_80", False), ("sm_100", False))
]


@pytest.mark.parametrize(("name", "dtype", "way", "target"), CASES, ids=str)
def test_kernels(name, dtype, way, target):
    found = ahead.launches(BY_NAME[name], SHAPE, dtype)[way == "backward"]
    ring = [x for x in found if "ptr_words" in x.arguments]
    assert len(ring) == len(found) == 1 or (name, way) == ("LogSumExp", "backward"), found
    for launch in ring:
        assert launch.options["launch_cooperative_grid"]
        kernel = ahead.build(launch, TARGETS[target])
        assert ahead.ring_loads(kernel) == ahead.tile_loads(kernel) > 0
        assert ahead.conversions(kernel) == 0
        assert "bra again" in kernel.asm["ptx"]
        if target == "sm_90":
            used = ahead.resources(kernel)
            threads = 32 * kernel.metadata.num_warps
            assert used.stack == 0
            assert OF_PROCESSOR * threads * -(-used.registers // 8) * 8 <= REGISTERS
            assert OF_PROCESSOR * kernel.metadata.shared <= SHARED
