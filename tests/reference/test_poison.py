"""NaN and infinities in the reference: they go where the loop takes them, to no other channel or sequence."""

from __future__ import annotations

import pytest
import torch

from tests import poison
from tests.catalogue import Case
from tests.reference import compare, fused
from tests.reference.compare import LOWERINGS


@pytest.mark.parametrize("value", ["NaN", "inf", pytest.param("-inf", marks=pytest.mark.slow)])
@pytest.mark.parametrize("one", poison.EVERY, ids=lambda one: one.name)
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_they_go_no_further_than_in_the_loop(one, value, lowering):
    def run(one, tensors, initial):
        if isinstance(one, Case):
            return compare.actual(one, tensors, initial, poison.everything(one), lowering=lowering)
        return fused.actual(one, tensors, initial, ("both",), lowering=lowering)

    poison.check(one, poison.VALUES[value], run, torch.float64, seeds=2)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("lowering", LOWERINGS)
def test_a_nan_passes_no_reset(lowering, reverse):
    poison.check_segments(lowering=lowering, reverse=reverse)


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_an_infinite_slope_passes_no_closed_gate(lowering):
    """The lower bound takes it, and steps before get 0, as in the loop."""
    poison.check_closed_gate(lowering=lowering)
