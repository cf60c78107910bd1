"""A kernel without a file, where none can be written: Triton compiles what is in memory."""

from __future__ import annotations

import os

import pytest
import torch

from scanforge import cache, pipeline
from tests.catalogue import BY_NAME
from tests.compile.ahead import SM90, build, launches

pytestmark = pytest.mark.compile


def test_no_place_for_kernels(monkeypatch):
    monkeypatch.setenv("SCANFORGE_CACHE", os.devnull + "/kept")
    for cached in (cache.load_kernel_module, pipeline.forward_kernel, pipeline.backward_kernel):
        cached.cache_clear()
    forward, _ = launches(BY_NAME["MinMax"], (3, 32, 64), torch.float32, "ordered_tile")
    (launch,) = forward
    assert not os.path.exists(launch.function.fn.__code__.co_filename)
    assert "min" in build(launch, SM90).asm["ptx"]
