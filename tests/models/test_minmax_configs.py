"""Configurations: sizes and parameter counts of both versions, what a version decides, initialisations."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from math import sqrt

import pytest
import torch

from models.minmax import (
    BasicConvConfig,
    GatedConvConfig,
    MinMaxRNC,
    MinMaxRNCConfig,
    MinMaxRNCLMConfig,
    small_init_init_,
    wang_init_,
)
from tests.models.protocol import refused

WIDE = MinMaxRNCConfig(400, 3, 100, use_postlayers_ffn=True)
COUNTS = [
    ("small", "0.1.0", 95_032),
    ("medium", "0.1.0", 16_633_248),
    ("large", "0.1.0", 75_878_896),
    ("small", "0.3.0", 127_432),
    ("medium", "0.3.0", 20_827_552),
    ("large", "0.3.0", 88_598_512),
]
PRESETS = {
    "small": MinMaxRNCConfig.small,
    "medium": MinMaxRNCConfig.medium,
    "large": MinMaxRNCConfig.large,
}


def made(cfg):
    torch.manual_seed(0)
    return MinMaxRNC(cfg)


def assert_normal(weight, std):
    """As many numbers as here have this deviation up to 5 %, and some lie beyond a uniform law's end."""
    assert weight.std().item() == pytest.approx(std, rel=0.05)
    assert abs(weight.mean().item()) < 0.05 * std
    assert weight.abs().max() > 3 * std


def assert_torch_s(linear):
    """nn.Linear's own: uniform in ±1/√fan_in, weights and biases."""
    end = 1 / sqrt(linear.in_features)
    for p in (linear.weight, linear.bias):
        assert 0.9 * end < p.abs().max() <= end


@pytest.mark.parametrize(("size", "version", "count"), COUNTS)
def test_published_sizes_have_the_original_s_parameters(size, version, count):
    with torch.device("meta"):
        model = MinMaxRNC(PRESETS[size](version=version))
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == count


def test_the_presets_take_a_number_of_layers():
    made = [(c.d_model, c.n_layers, c.d_state) for c in (preset(n_layers=3) for preset in PRESETS.values())]
    assert made == [(90, 3, 40), (512, 3, 512), (728, 3, 1456)]
    assert [preset().n_layers for preset in PRESETS.values()] == [2, 8, 12]


def test_configurations_are_frozen():
    lm = MinMaxRNCLMConfig(WIDE)
    for cfg in (WIDE, lm, WIDE.layer_cfg, WIDE.layer_cfg.neuron, WIDE.layer_cfg.conv, WIDE.feedforward_cfg):
        with pytest.raises(FrozenInstanceError):
            setattr(cfg, fields(cfg)[0].name, 1)


def test_the_version_decides_what_is_not_written():
    new, old = WIDE.layer_cfg, replace(WIDE, version="0.1.0").layer_cfg
    assert (new.neuron.gate_form, old.neuron.gate_form) == ("sigmoid", "linear")
    assert (new.adds_conv, old.adds_conv) == (True, False)
    assert (new.conv, old.conv) == (BasicConvConfig(400, "scaled"), GatedConvConfig(400, 0.0))
    assert (new.feedforward.dropout, old.feedforward.dropout) == (0.1, 0.0)
    assert replace(WIDE, version="0.1.0", conv_type="basic").layer_cfg.conv == BasicConvConfig(400, "default")


@pytest.mark.parametrize("version", ["0.1.0", "0.3.0"])
def test_what_is_written_wins_over_the_version(version):
    cfg = MinMaxRNCConfig(
        8, 1, 4, version=version, gate="linear", neuron_input="conv+ffn", conv_type="gated",
        conv_init_val=2.0, ffn_dropout=0.3,
    )  # fmt: skip
    layer = cfg.layer_cfg
    assert layer.neuron.gate_form == "linear"
    assert layer.adds_conv
    assert layer.conv == GatedConvConfig(8, 2.0)
    assert layer.feedforward.dropout == 0.3
    assert replace(cfg, output_gate=False).layer_cfg.neuron.gate_form == "none"


def test_every_field_reaches_its_part():
    cfg = MinMaxRNCConfig(
        8, 3, 4, norm="rmsnorm", postlayers_norm="none", ffn_type="basic", ffn_proj_factor=2.0,
        ffn_act_fn="selu", ffn_init="basic", train_init=True, neuron_dropout=0.2, prelayers_dropout=0.4,
    )  # fmt: skip
    model = MinMaxRNC(cfg)
    first, second = model.layers[0], model.layers[1]
    assert isinstance(first.norm_neuron, torch.nn.RMSNorm)
    assert isinstance(model.postlayers_norm, torch.nn.Identity)
    assert (first.ffn.proj_up.out_features, first.ffn.cfg.act_fn, first.ffn.cfg.init) == (16, "selu", "basic")
    assert (first.ffn.dropout.p, second.ffn.dropout.p) == (0.4, 0.1)
    assert second.neuron.dropout.p == 0.2
    assert second.neuron._initial_state.requires_grad
    assert second.neuron.cfg._num_blocks == 3


def test_initialisations_of_the_newer_version():
    model = made(replace(WIDE, output_gate=True))
    layer = model.layers[1]
    assert_normal(layer.neuron.s.weight, sqrt(2 / (5 * 400)))
    assert_normal(layer.neuron.r.weight, sqrt(2 / (5 * 400)))
    assert_normal(layer.neuron.o_g.weight, sqrt(2 / (5 * 400)))
    assert_normal(layer.neuron.o.weight, 2 / (3 * sqrt(100)))
    assert_normal(layer.conv.conv_fn.weight, sqrt(2 / (5 * 800)))
    for ffn in (layer.ffn, model.postlayers_ffn):
        assert_normal(ffn.proj_up.weight, sqrt(2 / (5 * 400)))
        assert_normal(ffn.proj_down.weight, 2 / (3 * sqrt(520)))
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith("bias"))


def test_initialisations_of_the_older_version():
    model = made(replace(WIDE, version="0.1.0", conv_type="basic"))
    layer = model.layers[1]
    assert_normal(layer.neuron.s.weight, sqrt(2 / (5 * 400)))
    assert_normal(layer.neuron.r.weight, sqrt(2 / (5 * 400)))
    assert_normal(layer.neuron.o.weight, 2 / (3 * sqrt(400)))
    assert_normal(layer.ffn.proj_down.weight, 2 / (3 * sqrt(400)))
    assert_torch_s(layer.neuron.o_g)
    assert_torch_s(layer.conv.conv_fn)
    assert not any(getattr(layer.neuron, name).bias.any() for name in "rso")


def test_initialisations_of_the_bounds():
    kaiming = made(replace(WIDE, s_r_init="kaiming")).layers[0].neuron
    asymmetric = made(replace(WIDE, s_r_init="asymmetric")).layers[0].neuron
    for linear in (kaiming.s, kaiming.r, asymmetric.s):
        assert 0.9 / 20 < linear.weight.abs().max() <= 1 / 20
        assert linear.weight.std().item() == pytest.approx(1 / 20 / sqrt(3), rel=0.05)
    assert_normal(asymmetric.r.weight, sqrt(2 / (5 * 400)))
    assert torch.equal(asymmetric.s.bias.detach(), torch.ones(100))
    assert not any(linear.bias.any() for linear in (kaiming.s, kaiming.r, asymmetric.r))


def test_a_basic_feedforward_initialisation_is_torch_s():
    ffn = made(replace(WIDE, ffn_init="basic")).layers[0].ffn
    assert_torch_s(ffn.proj_up)
    assert_torch_s(ffn.proj_down)


def test_the_initialisers_fill_in_place_and_return():
    torch.manual_seed(0)
    weight = torch.empty(300, 300)
    assert small_init_init_(weight, 50) is weight
    assert_normal(weight, sqrt(2 / 250))
    assert wang_init_(weight, 50, 7) is weight
    assert_normal(weight, 2 / (7 * sqrt(50)))
    refused(lambda: small_init_init_(weight, 0), "small_init_init_", "dim=0")
    refused(lambda: wang_init_(weight, 5, 0), "wang_init_", "num_blocks=0")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d_model": 0}, ("d_model=0", "at least 1")),
        ({"n_layers": -2}, ("n_layers=-2", "at least 1")),
        ({"d_state": 2.0}, ("d_state=2.0", "at least 1")),
        ({"norm": "group"}, ("norm='group'", "'rmsnorm'")),
        ({"postlayers_norm": "group"}, ("postlayers_norm='group'", "'rmsnorm'")),
        ({"ffn_type": "glu"}, ("ffn_type='glu'", "'gated', 'basic'")),
        ({"ffn_act_fn": "silu"}, ("ffn_act_fn='silu'", "'swish'")),
        ({"ffn_init": "default"}, ("ffn_init='default'", "'scaled', 'basic'")),
        ({"s_r_init": "xavier"}, ("s_r_init='xavier'", "'asymmetric'")),
        ({"conv_type": "depthwise"}, ("conv_type='depthwise'", "'gated', 'basic'")),
        ({"gate": "none"}, ("gate='none'", "'sigmoid', 'linear'")),
        ({"neuron_input": "all"}, ("neuron_input='all'", "'conv+ffn', 'ffn'")),
        ({"ffn_dropout": 1.1}, ("ffn_dropout=1.1", "[0, 1]")),
        ({"neuron_dropout": -1}, ("neuron_dropout=-1", "[0, 1]")),
        ({"prelayers_dropout": 7}, ("prelayers_dropout=7", "[0, 1]")),
        ({"version": "0.4"}, ("version='0.4'", "'0.1.0', '0.3.0'")),
    ],
)
def test_bad_configurations(changes, words):
    refused(lambda: replace(WIDE, **changes), "MinMaxRNCConfig", *words)
