"""HGRN2 against the numbers of the originals: values, states and gradients at 1e-12."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import scanforge as sf
from models.hgrn2 import HGRN2Attention, LowerBounds
from models.hgrn2.recurrences import Form
from tests.models.golden import golden

GOLDEN = {"rtol": 1e-12, "atol": 1e-13}  # entries near 0 are sums that cancel
F64 = torch.float64


def cases(file: str) -> dict[str, dict[str, Tensor]]:
    """`{case: {array: tensor}}`"""
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in golden(file).items():
        case, name = key.split("/", 1)
        found.setdefault(case, {})[name] = value
    return found


ORIGINAL, PAPER = cases("hgrn2_original"), cases("hgrn2_paper")
CASES = {name: g for name, g in PAPER.items() if name != "paper"}


def loaded(g: dict[str, Tensor]) -> HGRN2Attention:
    """The layer with the file's `state_dict`, every name of it and no other."""
    config = SimpleNamespace(
        hidden_size=g["x"].shape[-1],
        num_heads=g["q"].shape[2],
        dropout=0.0,
        use_bitnet=False,
        hgrn2_lower_bound=g["lower_bound"].item(),
    )
    layer = HGRN2Attention(config).to(F64)
    layer.load_state_dict({n.removeprefix("param/"): x for n, x in g.items() if n.startswith("param/")})
    return layer


@pytest.mark.parametrize("g", ORIGINAL.values(), ids=ORIGINAL)
def test_attention_values_and_gradients(g):
    layer, x = loaded(g), g["x"].clone().requires_grad_()
    y, state = layer(x, return_state=True)
    torch.testing.assert_close(y, g["y"], **GOLDEN)
    torch.testing.assert_close(layer(x, 3), y, rtol=0, atol=0)
    torch.testing.assert_close(state["S"], g["states"][:, -1], **GOLDEN)
    (y * g["cot_y"]).sum().backward()
    torch.testing.assert_close(x.grad, g["grad_x"], **GOLDEN)
    for name, p in layer.named_parameters():
        torch.testing.assert_close(p.grad, g[f"grad_param/{name}"], **GOLDEN)


@pytest.mark.parametrize("g", ORIGINAL.values(), ids=ORIGINAL)
def test_attention_steps(g):
    layer = loaded(g)
    state = layer.initial_state(2)
    for t in range(g["x"].shape[1]):
        y_t, state = layer.step(g["x"][:, t], state)
        torch.testing.assert_close(y_t, g["y"][:, t], **GOLDEN)
        torch.testing.assert_close(state["S"], g["states"][:, t], **GOLDEN)


@pytest.mark.parametrize("g", CASES.values(), ids=CASES)
@pytest.mark.parametrize("lowering", ["loop", "parallel"])
def test_paper_recurrence(g, lowering):
    heads, k, v = *g["q"].shape[2:], g["v"].shape[-1]
    recurrence = Form(heads, k, v, scale=g["scale"].item()).recurrence
    given = {"q": "q_pre", "f": "f_pre", "v": "v", "lower": "lower_bound", "h0": "h0"}
    inputs = {name: g[key].clone().requires_grad_() for name, key in given.items()}
    tensors = {n: x for n, x in inputs.items() if n != "h0"}
    options = {"initial_state": inputs["h0"], "lowering": lowering}
    o, S = sf.scan(recurrence, **tensors, **options, return_final_state=True)
    torch.testing.assert_close(o, g["o"], **GOLDEN)
    torch.testing.assert_close(S, g["states"][:, -1], **GOLDEN)
    ((o * g["cot_o"]).sum() + (S * g["cot_last"]).sum()).backward()
    for name, key in given.items():
        torch.testing.assert_close(inputs[name].grad, g[f"grad_{key}"], **GOLDEN)


@pytest.mark.parametrize("g", CASES.values(), ids=CASES)
def test_paper_steps(g):
    recurrence, S = Form(2, 4, 4, scale=g["scale"].item()).recurrence, g["h0"]
    for t in range(g["v"].shape[1]):
        now = {"q": g["q_pre"][:, t], "f": g["f_pre"][:, t], "v": g["v"][:, t]}
        o, S = sf.step(recurrence, S, **now, lower=g["lower_bound"])
        torch.testing.assert_close(o, g["o"][:, t], **GOLDEN)
        torch.testing.assert_close(S, g["states"][:, t], **GOLDEN)


def test_lower_bounds():
    gamma = PAPER["paper"]["gamma"]
    bounds = LowerBounds(*gamma.shape).to(F64)
    assert not bounds.gamma.any()
    bounds.load_state_dict({"gamma": gamma})
    torch.testing.assert_close(bounds(), PAPER["paper"]["lower_bounds"], **GOLDEN)
    assert not bounds()[0].any()
    assert all((later > earlier).all() for earlier, later in pairwise(bounds()))
    torch.testing.assert_close(LowerBounds(24, 1)()[-1].item(), 0.958, rtol=1e-3, atol=0)
    assert LowerBounds(3, 2).to(torch.bfloat16)().dtype == torch.float32
