"""What is compared before it is timed: the steps at which nothing is large."""

from __future__ import annotations

import torch

from scanforge.timing import _apart


def test_a_step_with_a_large_number_is_not_compared():
    """The others of it may be sums in which large terms cancel."""
    truth = torch.randn(2, 5, 3, dtype=torch.float64)
    truth[0, 3, 1] = 1e31
    x = truth.clone()
    x[:, 3] += 1e28
    assert _apart(x, truth, 1) == 0
    assert _apart(x, truth, None) == 0
    x[1, 2, 0] += 1
    assert _apart(x, truth, 1) > 0.05


def test_nan_is_apart_where_the_truth_is_none():
    truth = torch.ones(2, 4)
    x = truth.clone()
    x[1, 2] = float("nan")
    assert not _apart(x, truth, 1) <= 1
    assert _apart(truth, x, 1) == 0


def test_without_time_all_is_compared_or_nothing():
    truth = torch.ones(4, dtype=torch.complex128)
    assert _apart(truth * 1.5, truth, None) == 0.5
    truth[2] = 1e31
    assert _apart(truth * 1.5, truth, None) == 0
