"""The truth is checked too: steps against composed elements, golden numbers, and the ruler itself."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.catalogue import BY_NAME, CASES, draw
from tests.loops import STEPS
from tests.reference.compare import wide
from tests.tolerances import TOLERANCES, assert_close, assert_equal, err


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_composed_element_acts_like_its_steps(case, reverse):
    """The two loops share no formula but this law."""
    leaves, initial = draw(case, (2, 33, 3))
    states, _ = case.loop(leaves, initial, reverse)
    prefix = case.prefix_loop(leaves, reverse)
    for t in range(33):
        after = STEPS[case.name](*initial, **{name: x[:, t] for name, x in prefix.items()})
        for x, y in zip(after, states, strict=True):
            assert_close(wide(x).double(), wide(y[:, t]), "forward")


def test_min_max_has_the_golden_gradients_at_ties():
    golden = np.load(Path(__file__).parents[1] / "golden" / "minmax_scan.npz")
    r, s, x0, c = (torch.from_numpy(golden[f"ties_T8/{name}"]) for name in ("a", "b", "x0", "cotangent"))
    inputs = [x.requires_grad_() for x in (r, s, x0)]
    (states,), _ = BY_NAME["MinMax"].loop({"r": r, "s": s}, (x0,))
    found = torch.autograd.grad((states * c[:, 1:]).sum() + (x0 * c[:, 0]).sum(), inputs)
    for x, name in zip(found, ("a", "b", "x0"), strict=True):
        assert_equal(x, torch.from_numpy(golden[f"ties_T8/grad_{name}"]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_draws_are_what_the_case_says(case):
    for dtype in (torch.float64, torch.bfloat16):
        leaves, initial = draw(case, (2, 5, 3), dtype)
        floats = {name for name, x in leaves.items() if x.is_floating_point()}
        assert floats == set(case.float_leaves)
        assert all(leaves[name].dtype == dtype for name in floats)
        assert len(initial) == len(case.states)
        assert {n for n, x in zip(case.states, initial, strict=True) if x.is_floating_point()} == set(
            case.float_states
        )
    again, _ = draw(case, (2, 5, 3), torch.bfloat16)
    assert all(torch.equal(x, again[name]) for name, x in leaves.items())


class TestRuler:
    def test_relative(self):
        y = torch.tensor([3.0, 4.0])
        assert err(y + torch.tensor([0.0, 0.5]), y) == 0.1
        assert err(y, y) == 0

    def test_infinities_and_nan(self):
        y = torch.tensor([1.0, math.inf])
        assert err(y, y) == 0
        assert err(torch.tensor([1.0, -math.inf]), y) == math.inf
        assert math.isnan(err(torch.tensor([math.nan, math.inf]), y))
        assert math.isnan(err(torch.tensor([math.nan]), torch.tensor([math.nan])))

    def test_a_truth_of_zero_allows_nothing(self):
        zero = torch.zeros(3)
        assert err(zero, zero) == 0
        with pytest.raises(AssertionError):
            assert_close(zero + 1e-4, zero, "forward")

    def test_shape_counts(self):
        with pytest.raises(AssertionError, match="shape"):
            assert_close(torch.zeros(3), torch.zeros(3, 1), "forward")

    def test_nan_is_far_from_everything(self):
        with pytest.raises(AssertionError):
            assert_close(torch.tensor([math.nan]), torch.tensor([1.0]), "forward")

    def test_every_bound_has_a_reason(self):
        assert all(bound.reason and 0 < bound.value < 0.02 for bound in TOLERANCES.values())
