"""Candidates of tuning, compiled for a GPU that is not here: what is forced is what is launched."""

from __future__ import annotations

from random import Random

import pytest
import torch

import scanforge as sf
from scanforge import replay
from scanforge.candidates import candidates
from scanforge.example import USUAL, example
from scanforge.planned import planned
from scanforge.tuned import BACKWARD, KEEPING, forcing
from tests.compile.ahead import SM90, build, noting, resources
from tests.recurrences import BY_NAME

pytestmark = pytest.mark.compile
SIZES = {"b": 8, "t": 2048, "d": 2048}
DECLARED = {"MinMax": sf.operators.MinMax, "RGLRU": BY_NAME["RGLRU"].recurrence}


def launched(name: str, choices):
    """What forward and backward pass launch."""
    call = example(DECLARED[name], None, SIZES, USUAL)
    tensors = {
        n: torch.empty(x.shape, dtype=torch.bfloat16).requires_grad_() for n, x in call.tensors.items()
    }
    replay.forget()
    with noting() as noted, forcing(choices):
        y = sf.scan(DECLARED[name], **tensors)
        forward = len(noted)
        torch.autograd.grad(y, list(tensors.values()), torch.empty_like(y))
    return {KEEPING: noted[:forward], BACKWARD: noted[forward:]}


@pytest.mark.parametrize("count", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", [KEEPING, BACKWARD])
@pytest.mark.parametrize("name", DECLARED)
def test_candidates(name, way, count):
    call = example(DECLARED[name], None, SIZES, USUAL)
    found = candidates(call.traced.text, way, planned(call.traced.text, call.sizes, torch.bfloat16))
    tried = [c for c in found if c.lowering == "ordered_tile"]
    for choice in Random(f"{name} {way}").sample(tried, count):
        launch, *_ = launched(name, {way: choice})[way]
        tile = choice.tile
        assert launch.arguments["BD"] == tile.lanes * tile.groups
        assert launch.arguments["NS"] == tile.stages
        kernel = build(launch, SM90)
        assert kernel.metadata.shared <= 232_448, choice
        assert resources(kernel).registers <= 255
