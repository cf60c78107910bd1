"""The page of `scanforge report` holds times where there is a GPU."""

from __future__ import annotations

import pytest
import torch

from scanforge import timing, tools
from scanforge.example import USUAL, example
from tests.recurrence_declarations import HGRN2, RGLRU, SelectiveSSM

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("declared", [RGLRU, SelectiveSSM, HGRN2], ids=lambda x: x.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_are_compared_and_times_are_plausible(declared, dtype):
    """Forward alone takes less than both; each is of a plausible size."""
    timed = timing.measured(declared, example(declared, None, {}, USUAL), dtype, "cuda")
    forward, both = timed.rows
    assert 0 < forward.seconds < both.seconds < 1
    assert 0 < timed.copy.seconds < 0.01
    assert torch.cuda.get_device_name() in timed.where


def test_the_page_has_them():
    pytest.importorskip("pygments")
    page, ok = tools.report(RGLRU, b=2, t=256, d=128, dtype="bf16")
    assert ok
    assert '<h2 id="timing">' in page
    assert "forward and backward" in page
