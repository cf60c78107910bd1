"""MinMaxLayer: both wirings written out, and the protocol."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from models.minmax import FeedForwardConfig, MinMaxLayer, MinMaxRNCConfig
from tests.models import protocol
from tests.models.protocol import TIGHT, drawn, refused

TINY = MinMaxRNCConfig(3, 1, 2, train_init=True)
VARIANTS = {
    "0.3.0": TINY,
    "0.1.0": replace(TINY, version="0.1.0", ffn_act_fn="swish"),
    "rmsnorm": replace(TINY, norm="rmsnorm", conv_type="gated", output_gate=False, ffn_act_fn="gelu"),
    "none": replace(TINY, norm="none", ffn_type="basic", ffn_act_fn="selu", neuron_input="ffn"),
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def build(variant):
    return lambda: MinMaxLayer(VARIANTS[variant].layer_cfg, first=True)


def made(variant):
    return protocol.seeded(build(variant))


@every_variant
def test_the_wiring_written_out(variant):
    layer = made(variant)()
    u = drawn(layer, 2, 9)
    c = layer.conv(layer.norm_conv(u))
    f = layer.ffn(layer.norm_ffn(u + c))
    read = u + c + f if variant in ("0.3.0", "rmsnorm") else u + f
    torch.testing.assert_close(layer(u), u + layer.neuron(layer.norm_neuron(read)), **TIGHT)


@every_variant
def test_req37_chunks_and_steps(variant):
    protocol.check_chunks_and_steps(made(variant))


@every_variant
def test_gradients_through_chunks(variant):
    protocol.check_gradients_through_chunks(made(variant))


@every_variant
def test_resets_are_separate_runs(variant):
    protocol.check_resets_are_separate_runs(made(variant))


@every_variant
def test_packed_are_separate_runs(variant):
    protocol.check_packed_are_separate_runs(made(variant))


@every_variant
def test_req38_padding(variant):
    protocol.check_padding(made(variant))


@every_variant
def test_req27_short_sequences(variant):
    protocol.check_short_sequences(made(variant))


@every_variant
def test_req24_req40_state_types(variant):
    protocol.check_state_types(made(variant), build(variant))


@pytest.mark.parametrize("variant", ["0.1.0", "rmsnorm", "none"])
def test_gradcheck(variant):
    protocol.check_gradcheck(made(variant), steps=3)


def test_state_errors():
    protocol.check_state_errors(made("0.3.0"))
    layer = made("0.3.0")()
    x = drawn(layer, 2, 4)
    refused(lambda: layer(x, state={"conv": torch.zeros(2, 3)}), "MinMaxLayer", "['conv']", "'neuron'")


def test_the_original_s_calling_form():
    layer = made("0.3.0")()
    u = drawn(layer, 3, 7)
    flat = {"conv": torch.zeros(3).double(), "neuron": layer.neuron._initial_state}
    out, state = layer(u, flat)
    assert torch.equal(out, layer(u))
    assert {name: tuple(x.shape) for name, x in state.items()} == {"conv": (3, 3), "neuron": (3, 2)}
    again, _ = layer(u, layer.initial_state)
    assert torch.equal(again, out)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_req48_the_residual_stream_stays_fp32_under_autocast(dtype):
    layer = build("0.3.0")()
    x = drawn(layer, 2, 9, torch.float32).requires_grad_()
    with torch.autocast("cpu", dtype):
        y, state = layer(x, return_state=True)
    assert {y.dtype, *(s.dtype for s in state.values())} == {torch.float32}
    y.sum().backward()
    assert x.grad.dtype == torch.float32
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


def test_the_first_layer_has_a_dropout_of_its_own():
    cfg = replace(TINY, ffn_dropout=0.25, prelayers_dropout=0.5).layer_cfg
    assert MinMaxLayer(cfg, first=True).ffn.dropout.p == 0.5
    assert MinMaxLayer(cfg, first=False).ffn.dropout.p == 0.25


def test_a_feedforward_without_width_gets_the_layer_s():
    cfg = replace(TINY.layer_cfg, feedforward=FeedForwardConfig(1))
    assert MinMaxLayer(cfg).ffn.proj_up.in_features == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"feedforward": None}, ("feedforward=None", "FeedForwardConfig")),
        ({"d_model": 4}, ("neuron.d_model=3", "d_model=4")),
        ({"feedforward": FeedForwardConfig(1, 5)}, ("feedforward.embedding_dim=5", "d_model=3")),
        ({"feedforward": FeedForwardConfig(1, 3, 2)}, ("feedforward.embedding_dim_out=2", "d_model=3")),
        ({"norm": "batchnorm"}, ("norm='batchnorm'", "'layernorm', 'rmsnorm', 'none'")),
        ({"first_in_dropout": 2}, ("first_in_dropout=2", "[0, 1]")),
        ({"neuron_input": "conv"}, ("neuron_input='conv'", "'conv+ffn', 'ffn'")),
        ({"version": None}, ("version=None", "'0.1.0', '0.3.0'")),
    ],
)
def test_bad_configurations(changes, words):
    refused(lambda: replace(TINY.layer_cfg, **changes), "MinMaxLayerConfig", *words)
