"""RG-LRU against the numbers of lrnnx: its scan, and its layer with its state_dict and its cache."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import scanforge as sf
from models.rglru import RGLRU, RGLRUScan
from tests.models.golden import golden

F64 = torch.float64
TIGHT = {"rtol": 1e-12, "atol": 1e-13}


def cases(file: str) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in golden(file).items():
        case, name = key.split("/", 1)
        found.setdefault(case, {})[name] = value
    return found


SCANS, BLOCKS = cases("rglru_scan"), cases("rglru_block")
OPTIONS = {
    "block": {"d_model": 4},
    "block_expand2_bias": {"d_model": 3, "expand": 2, "bias": True},
    "block_noconvbias": {"d_model": 4, "conv_bias": False},
}
every_block = pytest.mark.parametrize("case", list(OPTIONS))


def parameters(g: dict[str, Tensor], kind: str = "param/") -> dict[str, Tensor]:
    return {name.removeprefix(kind): x for name, x in g.items() if name.startswith(kind)}


def loaded(case: str) -> RGLRU:
    layer = RGLRU(**OPTIONS[case], dtype=F64)
    layer.load_state_dict(parameters(BLOCKS[case]))
    return layer


def test_no_case_is_missing():
    assert [*BLOCKS] == [*OPTIONS]
    assert len(SCANS) == 4


@pytest.mark.parametrize("g", SCANS.values(), ids=SCANS)
def test_scan(g):
    """The declaration takes gates before their sigmoid, so the file's values go through its inverse."""
    u, delta, a = (g[name].clone().requires_grad_() for name in ("u", "delta", "a"))
    half = torch.zeros_like(u).transpose(1, 2)
    y, h = sf.scan(
        RGLRUScan,
        x=2 * u.transpose(1, 2),
        r=torch.logit(delta / 8).transpose(1, 2),
        i=half,
        gate=half + 1,
        a_log=torch.logit(a[:, 0]),
        return_final_state=True,
    )
    y = y.transpose(1, 2) / torch.nn.functional.gelu(torch.ones((), dtype=F64))
    torch.testing.assert_close(y, g["y"], **TIGHT)
    torch.testing.assert_close(h[..., None], g["last_state"], **TIGHT)
    loss = (y * g["cot_y"]).sum() + (h[..., None] * g["cot_last"]).sum()
    for name, got in zip(("u", "delta", "a"), torch.autograd.grad(loss, (u, delta, a)), strict=True):
        torch.testing.assert_close(got, g[f"grad_{name}"], rtol=1e-12, atol=1e-12)


@every_block
def test_layer_and_its_gradients(case):
    g, layer = BLOCKS[case], loaded(case)
    x = g["x"].clone().requires_grad_()
    y = layer(x)
    torch.testing.assert_close(y, g["y"], **TIGHT)
    (y * g["cot_y"]).sum().backward()
    torch.testing.assert_close(x.grad, g["grad_x"], **TIGHT)
    wanted = parameters(g, "grad_param/")
    assert wanted.keys() == dict(layer.named_parameters()).keys()
    for name, p in layer.named_parameters():
        torch.testing.assert_close(p.grad, wanted[name], **TIGHT)


@every_block
@pytest.mark.parametrize("cuts", [[1] * 10, [2, 4, 4], [6, 1, 1, 2], [10], [2, 1, 1, 1, 1, 4]], ids=str)
def test_the_cache_holds_what_went_into_the_convolution(case, cuts):
    """Prefill, steps and later chunks leave the states of pure stepping, and go on from them."""
    g, layer = BLOCKS[case], loaded(case)
    cache, at = layer.allocate_inference_cache(2, 10), 0
    for n in cuts:
        x = g["x"][:, at : at + n]
        with torch.no_grad():
            y = layer(x, inference_cache=cache) if n > 1 else layer.step(x, cache)[0]
        torch.testing.assert_close(y, g["y"][:, at : at + n], **TIGHT)
        at += n
        assert cache["seqlen_offset"] == at
        if f"conv_state_after{at}" in g:
            torch.testing.assert_close(cache["conv_state"], g[f"conv_state_after{at}"], **TIGHT)
            torch.testing.assert_close(cache["lrnn_state"], g[f"lrnn_state_after{at}"], **TIGHT)
