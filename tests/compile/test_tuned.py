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
from scanforge.tuned import BACKWARD, FORWARD, KEEPING, forcing
from scanforge.tuner import _Search
from tests.compile.ahead import SM90, build, compiled_as, noting, resources
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


FEW = {"MinMax": {"b": 4, "t": 512, "d": 256}, "RGLRU": {"b": 4, "t": 512, "d": 1024}}


@pytest.mark.parametrize("way", [FORWARD, KEEPING, BACKWARD])
@pytest.mark.parametrize("name", FEW)
def test_what_is_verified_is_what_is_timed(name, way):
    """The kernels of few steps are compiled for all of them too: no time goes into others."""
    operator = DECLARED[name]
    call = example(operator, None, FEW[name], USUAL)
    plan = planned(call.traced.text, call.sizes, torch.bfloat16)
    found = [c for c in candidates(call.traced.text, way, plan) if c.lowering == "ordered_tile"]
    with torch.no_grad(), noting() as noted:
        search = _Search(operator, call, plan, "cpu", lambda _: 0.0, lambda: 0.0, 1.0)
        for choice in found[:9:4]:
            kernels = []
            for trial in (search.full, search.verified(choice)):
                _ = trial.kept, trial.cotangents
                noted.clear()
                trial.run(way, choice)
                kernels.append({compiled_as(launch) for launch in noted})
            assert kernels[0] <= kernels[1], choice
