"""Requirement 25: the self-check of generated kernels, right ones and broken ones."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from models.rglru.recurrence import RGLRUScan
from scanforge import selfcheck
from tests import spoilt
from tests.reference.test_shell import shell  # noqa: F401 - a fixture

pytestmark = pytest.mark.interpreter
CPU = torch.device("cpu")
OPERATORS = [getattr(sf.operators, n) for n in sf.operators.__all__]


@pytest.mark.usefixtures("own_tiles")
def test_req25_right_kernels_pass(capsys):
    rows = selfcheck.run([*OPERATORS[::3], RGLRUScan], "triton", CPU)
    assert all(row.ok for row in rows)
    assert "triton on cpu in its interpreter: ok" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("operator", "lowering"),
    [(o, k % 2) for k, o in enumerate(OPERATORS)],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_req25_a_broken_kernel_is_found(operator, lowering):
    """One operation of one step turned round."""
    form = selfcheck.FORMS["interpreter"][lowering]
    with spoilt.code(lambda source: spoilt.spoilt(source, "step")):
        assert not selfcheck.compare(operator, form, "triton", CPU).ok


@pytest.mark.parametrize("broken", [True, False])
def test_req25_the_command_exits_1_where_a_kernel_is_wrong(shell, broken):  # noqa: F811
    def change(source: str) -> str:
        return spoilt.spoilt(source, "step") if broken and "mu_" not in source else source

    with spoilt.code(change):
        code, out, _ = shell("selfcheck", "scanforge.operators:MinMax", "--backend", "triton")
    assert code == broken
    assert ("MinMax (ordered_tile, float32, 5 steps) is WRONG" in out.replace("\n", " ")) == broken
    assert ("triton on cpu in its interpreter: ok" in out) != broken


@pytest.mark.parametrize("operator", [sf.operators.Affine, sf.operators.Kalman, RGLRUScan])
def test_req25_a_broken_backward_kernel_is_found(operator):
    """Values are right."""

    def change(source: str) -> str:
        return spoilt.spoilt(source, "step") if "mu_" in source else source

    with spoilt.code(change):
        row = selfcheck.compare(operator, selfcheck.FORMS["interpreter"][0], "triton", CPU)
    assert row.values <= selfcheck.BOUNDS[torch.float32][0]
    assert row.gradients > 1e-3
