"""MinMax against the numbers of the network it comes from: forward bit for bit, gradients of the loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import scanforge as sf
from tests.reference.compare import LOWERINGS
from tests.tolerances import assert_close, assert_equal

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "minmax_scan.npz")
CASES = [str(name) for name in GOLDEN["cases"]]

every_case = pytest.mark.parametrize("case", CASES)
every_lowering = pytest.mark.parametrize("lowering", LOWERINGS)


def golden(case: str, name: str) -> torch.Tensor:
    return torch.from_numpy(GOLDEN[f"{case}/{name}"])


def test_no_case_is_missing():
    assert len(CASES) == 9


@every_case
@every_lowering
def test_states(case, lowering):
    r, s, x0 = (golden(case, name) for name in ("a", "b", "x0"))
    states, final = sf.scan(
        sf.operators.MinMax, r=r, s=s, initial_state=x0, return_final_state=True, lowering=lowering
    )
    assert_equal(states, golden(case, "states")[:, 1:], case)
    assert_equal(final, golden(case, "states")[:, -1], case)


@every_case
def test_prefixes(case):
    prefix = sf.prefixes(sf.operators.MinMax, r=golden(case, "a"), s=golden(case, "b"))
    assert_equal(prefix.r, golden(case, "a_prefix"), case)
    assert_equal(prefix.s, golden(case, "b_prefix"), case)


@every_case
@every_lowering
def test_gradients_of_the_sequential_recurrence(case, lowering):
    """At ties too (ties_T8), where the gradients of the composed prefixes are others."""
    r, s, x0 = (golden(case, name).requires_grad_() for name in ("a", "b", "x0"))
    states = sf.scan(sf.operators.MinMax, r=r, s=s, initial_state=x0, lowering=lowering)
    cotangent = golden(case, "cotangent")
    loss = (states * cotangent[:, 1:]).sum() + (x0 * cotangent[:, 0]).sum()
    for name, got in zip(("a", "b", "x0"), torch.autograd.grad(loss, (r, s, x0)), strict=True):
        assert_close(got, golden(case, f"grad_{name}"), "gradient", f"{case} {name}")
