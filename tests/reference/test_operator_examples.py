"""Every example in the docstrings of the shipped operators runs and prints what it says."""

from __future__ import annotations

import doctest

from scanforge import operators


def test_examples():
    result = doctest.testmod(operators)
    assert result.failed == 0
    assert result.attempted >= 3 * len(operators.__all__)
