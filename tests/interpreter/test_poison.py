"""A NaN in generated kernels: it goes where the loop takes it, to no other channel, sequence or segment."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests import poison
from tests.catalogue import CASES, Case
from tests.kernels import every_lowering
from tests.kernels import outcome as outcome_of_case
from tests.recurrence_kernels import outcome as outcome_of_entry
from tests.recurrences import BY_NAME

pytestmark = pytest.mark.interpreter
SOME = [*CASES, *(BY_NAME[n] for n in ("RGLRU", "SelectiveSSM", "GatedMinMax"))]
NAN = float("nan")


@pytest.mark.parametrize("one", SOME, ids=lambda one: one.name)
@every_lowering
def test_a_nan_goes_no_further_than_in_the_loop(one, lowering):
    def run(one, tensors, initial):
        if isinstance(one, Case):
            return outcome_of_case(one, tensors, initial, poison.everything(one), lowering=lowering)
        return outcome_of_entry(one, tensors, initial, ("both",), lowering=lowering)

    poison.check(one, NAN, run, torch.float64, seeds=1)


@every_lowering
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_a_nan_passes_no_reset(lowering, reverse):
    poison.check_segments(backend="triton", lowering=lowering, reverse=reverse)


@every_lowering
def test_an_infinite_slope_passes_no_closed_gate(lowering):
    """max(min(1, x), 0) at a cotangent of infinity: the lower bound takes it, and steps before get 0."""
    poison.check_closed_gate(backend="triton", lowering=lowering)


@every_lowering
def test_padding_may_hold_anything(lowering):
    a, b = torch.full((1, 21, 3), 0.5, requires_grad=True), torch.ones(1, 21, 3, requires_grad=True)
    holes = [x.detach().clone() for x in (a, b)]
    for x in holes:
        x[:, 13:] = NAN
    lengths = torch.tensor([13])
    options = {"lengths": lengths, "backend": "triton", "lowering": lowering}
    clean = sf.scan(sf.Affine, a=a, b=b, **options)
    holes = [x.requires_grad_() for x in holes]
    found = sf.scan(sf.Affine, a=holes[0], b=holes[1], **options)
    assert torch.equal(found, clean)
    slopes = [torch.autograd.grad((y**2).sum(), x) for y, x in ((found, holes), (clean, (a, b)))]
    for x, y in zip(*slopes, strict=True):
        assert torch.equal(x, y)
