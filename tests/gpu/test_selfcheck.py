"""Requirement 25 on a GPU: what ships is right, and a kernel that is swapped for a broken one is found."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from models.hgrn2 import FreeKeys, TiedKeys
from models.rglru.recurrence import RGLRUScan
from models.ssm import Euler
from scanforge import selfcheck
from tests import spoilt

pytestmark = pytest.mark.gpu
OPERATORS = [getattr(sf.operators, n) for n in sf.operators.__all__]
FORMS = selfcheck.FORMS["triton"]


@pytest.mark.parametrize(
    "declared", [*OPERATORS, RGLRUScan, Euler, TiedKeys, FreeKeys], ids=lambda d: d.__name__
)
def test_req25_right_kernels_pass(declared):
    gpu = torch.device("cuda")
    rows = selfcheck.run([declared], "triton", gpu)
    assert [row.form for row in rows] == [form for form in FORMS if selfcheck.applies(declared, form)]
    assert {"ordered_tile", "split", None} <= {row.form.lowering for row in rows}
    assert all(row.ok for row in rows), rows


@pytest.mark.parametrize("form", [*FORMS[:2], FORMS[-1]], ids=lambda form: form.lowering)
@pytest.mark.parametrize("operator", [sf.operators.Affine, sf.operators.MinMax], ids=lambda o: o.__name__)
def test_req25_a_broken_kernel_is_found(operator, form):
    with spoilt.code(lambda source: spoilt.spoilt(source, "step")):
        assert not selfcheck.compare(operator, form, "triton", torch.device("cuda")).ok


def test_req25_a_broken_backward_kernel_is_found():
    def change(source: str) -> str:
        return spoilt.spoilt(source, "step") if "mu_" in source else source

    with spoilt.code(change):
        row = selfcheck.compare(sf.operators.Affine, FORMS[0], "triton", torch.device("cuda"))
    assert row.values <= selfcheck.BOUNDS[torch.float32][0]
    assert row.gradients > 1e-3


def test_the_machine_is_named():
    text = selfcheck.machine(torch.device("cuda", 0))
    assert torch.cuda.get_device_name(0) in text
    assert "capability" in text
