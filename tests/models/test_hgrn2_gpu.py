"""HGRN2 on a GPU: the declarations within the tolerance table, the layers as good as on the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import scanforge as sf
from models.hgrn2 import HGRN2, HGRN2Attention, share_lower_bounds
from models.hgrn2.recurrences import Form
from tests.catalogue import generator
from tests.models.on_gpu import check_as_good_as_on_the_reference, check_steps_and_chunks
from tests.tolerances import assert_close

pytestmark = pytest.mark.gpu
BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
FORMS = {
    "paper": Form(3, 24, 40, scale=None),
    "free": Form(3, 16, 16, keys="free", activation="sigmoid"),
    "value": Form(3, 24, 40, decay="value", keys="free", activation="none"),
}


def inputs(form: Form, steps: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Numbers of 16 bits at most, so that every dtype computes with the same."""
    sizes = {"q": form.k, "k": form.k, "v": form.v, "f": form.decaying[1]}
    if form.keys == "tied":
        del sizes["k"]
    made = {n: torch.randn(2, steps, form.heads, w, generator=generator(w)) for n, w in sizes.items()}
    made["lower"] = torch.rand(form.decaying, generator=generator(1))
    return {n: x.to(BF16).to("cuda", dtype).requires_grad_() for n, x in made.items()}


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("steps", [1, 300])
def test_req24_declarations_are_within_the_table(form, dtype, steps):
    made = {}
    for kind, backend in ((F64, "reference"), (dtype, "triton")):
        given = inputs(form, steps, kind)
        o, S = sf.scan(form.recurrence, **given, return_final_state=True, backend=backend)
        weights = [torch.randn(y.shape, generator=generator(9)).to(BF16).to(o.device) for y in (o, S)]
        sum((w.to(y.dtype) * y).sum() for w, y in zip(weights, (o, S), strict=True)).backward()
        made[kind] = (o, S, {n: x.grad for n, x in given.items()})
    (o, S, slopes), (want_o, want_S, want) = made[dtype], made[F64]
    assert_close(o, want_o, "forward", "o")
    chunked = sf.last_run().plan.lowering == "chunked"  # whose products round what makes the state
    assert_close(S, want_S, "forward", "S", dtype=dtype if chunked else None)
    for name, slope in slopes.items():
        assert_close(slope, want[name], "gradient", name)


def stacked() -> HGRN2:
    layers = [HGRN2(48, 2, conv_size=4, expand_v=1.5) for _ in range(3)]
    share_lower_bounds(layers)
    return layers[-1]


LAYERS = {
    "paper": stacked,
    "original": lambda: HGRN2Attention(hidden_size=48, num_heads=2, lower_bound=0.3),
    "bidirectional": lambda: HGRN2Attention(hidden_size=48, num_heads=2, bidirectional=True),
}


@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_layers_are_as_good_as_on_the_reference(build, dtype):
    check_as_good_as_on_the_reference(build, dtype)


@pytest.mark.parametrize("build", [stacked, LAYERS["original"]])
def test_req37_steps_and_chunks_on_a_gpu(build):
    check_steps_and_chunks(build)
