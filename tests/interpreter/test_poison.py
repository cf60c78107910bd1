"""A NaN in generated kernels: it goes where the loop takes it, to no other channel, sequence or segment."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests import poison
from tests.catalogue import CASES, Case
from tests.kernels import LOWERINGS, every_lowering
from tests.kernels import outcome as outcome_of_case
from tests.recurrence_declarations import HGRN2
from tests.recurrence_kernels import outcome as outcome_of_entry
from tests.recurrences import BY_NAME, draw

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]
SOME = [*CASES, *(BY_NAME[n] for n in ("RGLRU", "SelectiveSSM", "GatedMinMax"))]
NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "lowering"),
    [(one, LOWERINGS[k % 2]) for k, one in enumerate(SOME)],
    ids=lambda x: getattr(x, "name", x),
)
def test_a_nan_goes_no_further_than_in_the_loop(one, lowering):
    def run(one, tensors, initial):
        if isinstance(one, Case):
            return outcome_of_case(one, tensors, initial, poison.everything(one), lowering=lowering)
        return outcome_of_entry(one, tensors, initial, ("both",), lowering=lowering)

    poison.check(one, NAN, run, torch.float64, seeds=1)


@every_lowering
@pytest.mark.parametrize("reverse", [False, pytest.param(True, marks=pytest.mark.slow)])
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["q", "f", "v"])
def test_in_products_over_chunks_a_nan_stays_in_its_head_and_sequence(name):
    tensors, _ = draw(BY_NAME["HGRN2"], torch.float64, t=20)
    holes = tensors | {name: tensors[name].clone()}
    holes[name][0, 11, 0, 1] = NAN
    found = []
    for given in (tensors, holes):
        leaves = {n: x.detach().requires_grad_() for n, x in given.items()}
        y = sf.scan(HGRN2, **leaves, backend="triton", lowering="chunked")
        found.append((y, *torch.autograd.grad((y**2).sum(), [leaves[n] for n in ("q", "f", "v")])))
    for x, y in zip(*found, strict=True):
        assert y[0, :, 0].isnan().any()
        assert torch.equal(x[1], y[1])
        assert torch.equal(x[0, :, 1], y[0, :, 1])


@pytest.mark.parametrize(
    ("name", "value"), [("q", NAN), ("q", float("inf")), ("f", NAN), ("v", NAN), ("v", float("inf"))]
)
def test_in_products_over_chunks_a_nan_stays_in_its_channels(name, value):
    """The chunk's other steps may be reached, before it too; other keys, values and heads as in the loop."""
    tensors, _ = draw(BY_NAME["HGRN2"], torch.float64, t=20, b=1)
    poison.check_channels(name, tensors, (0, 11, 0, 1), value)
