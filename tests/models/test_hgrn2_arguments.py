"""Arguments, attributes, defaults and refusals of HGRN2Attention and HGRN2; lower bounds; saving."""

from __future__ import annotations

import copy
import doctest
import importlib
import io
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from models.hgrn2 import HGRN2, BitLinear, HGRN2Attention, LowerBounds, share_lower_bounds
from models.mixer import tensors
from tests.models.protocol import refused

PARTS = ("attention", "bitlinear", "heads", "layer", "lower_bounds", "recurrences")


def config(**changes):
    made = {"hidden_size": 8, "num_heads": 2, "dropout": 0.25, "use_bitnet": False}
    return SimpleNamespace(**(made | changes))


def attention(**options):
    return HGRN2Attention(**({"hidden_size": 8, "num_heads": 2} | options))


def test_attributes_of_a_config():
    layer = HGRN2Attention(config(hgrn2_lower_bound=0.5, mode="decoder"))
    assert (layer.hidden_size, layer.num_heads, layer.head_dim, layer.total_dim) == (8, 2, 4, 8)
    assert (layer.lower_bound, layer.mode, layer.dropout.p) == (0.5, "decoder", 0.25)
    bare = HGRN2Attention(config())
    assert (bare.lower_bound, bare.mode) == (0.0, "encoder")
    names = ["forget_proj.bias", *(f"{n}_proj.weight" for n in ("forget", "g", "k", "out", "q", "v"))]
    assert sorted(layer.state_dict()) == sorted([*names, "norm.bias", "norm.weight"])
    assert isinstance(layer.norm, nn.LayerNorm)
    assert layer.norm.normalized_shape == (8,)
    assert isinstance(layer.dropout, nn.Dropout)


def test_keywords_say_what_a_config_says():
    options = {"dropout": 0.25, "use_bitnet": True, "lower_bound": 0.5, "mode": "decoder"}
    made = []
    for build in (
        lambda: HGRN2Attention(config(use_bitnet=True, hgrn2_lower_bound=0.5, mode="decoder")),
        lambda: attention(**options),
        lambda: HGRN2Attention(config(use_bitnet=True), lower_bound=0.5, mode="decoder"),
    ):
        torch.manual_seed(0)
        layer = build().eval()
        made.append(layer(torch.ones(1, 3, 8)))
        assert (layer.lower_bound, layer.mode, layer.dropout.p) == (0.5, "decoder", 0.25)
    assert all(torch.equal(y, made[0]) for y in made)


def test_mode_changes_nothing_and_the_layer_is_causal():
    layers = [HGRN2Attention(config(mode=mode)).eval() for mode in ("encoder", "decoder")]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(1, 6, 8)
    assert torch.equal(layers[0](x), layers[1](x))
    later = torch.cat([x[:, :3], torch.randn(1, 3, 8)], 1)
    assert torch.equal(layers[0](x)[:, :3], layers[0](later)[:, :3])


def test_dropout_is_before_the_output_projection():
    layer = attention(dropout=1.0, bias=True)
    x = torch.randn(1, 3, 8)
    assert torch.equal(layer(x), layer.out_proj.bias.expand(1, 3, 8))
    assert not torch.equal(layer.eval()(x), layer.out_proj.bias.expand(1, 3, 8))


def test_switches_of_bias_gate_norm_and_keys():
    plain = set(attention().state_dict())
    with_bias = set(attention(bias=True).state_dict()) - plain
    assert with_bias == {f"{n}_proj.bias" for n in ("q", "k", "v", "g", "out")}
    assert plain - set(attention(forget_bias=False).state_dict()) == {"forget_proj.bias"}
    assert plain - set(attention(output_gate="none").state_dict()) == {"g_proj.weight"}
    assert plain - set(attention(keys="tied").state_dict()) == {"k_proj.weight"}
    assert plain - set(attention(norm="rmsnorm").state_dict()) == {"norm.bias"}
    assert set(attention(conv_size=3).state_dict()) - plain == {
        f"{n}_conv1d.weight" for n in ("q", "k", "v", "forget")
    }


@pytest.mark.parametrize("decay", ["value", "key"])
def test_a_head_s_k_need_not_be_its_v(decay):
    layer = attention(decay=decay, expand_k=2, expand_v=0.5)
    _, state = layer(torch.randn(3, 5, 8), return_state=True)
    assert state["S"].shape == ((3, 2, 2, 8) if decay == "value" else (3, 2, 8, 2))
    assert layer.forget_proj.out_features == (4 if decay == "value" else 16)
    assert layer.total_dim == layer.norm.normalized_shape[0] == 4


def test_req40_heads_and_ratio_may_say_the_same():
    shapes = {
        tuple(HGRN2(64, **given).initial_state(1)["S"].shape)
        for given in ({"num_heads": 4}, {"expand_ratio": 16}, {"num_heads": 4, "expand_ratio": 16})
    }
    assert shapes == {(1, 4, 16, 16)}
    refused(lambda: HGRN2(64, num_heads=4, expand_ratio=32), "num_heads=4", "expand_ratio=32", "d_model=64")
    refused(lambda: HGRN2(64, num_heads=5), "num_heads=5", "d_model=64")
    refused(lambda: HGRN2(64, expand_ratio=24), "expand_ratio=24", "d_model=64")
    assert HGRN2(256).num_heads == 2
    assert HGRN2(48).expand_ratio == 48


@pytest.mark.parametrize("expand_k", [0.5, 1, 2])
@pytest.mark.parametrize("conv_size", [0, 4])
def test_req40_state_size_is_that_of_a_state(expand_k, conv_size):
    for layer in (
        HGRN2(16, 2, expand_k=expand_k, conv_size=conv_size),
        HGRN2Attention(hidden_size=16, num_heads=2, expand_k=expand_k, conv_size=conv_size),
    ):
        _, state = layer(torch.randn(1, 5, 16), return_state=True)
        assert layer.state_size == sum(s.numel() for s in tensors(state))
        assert state["S"].numel() == 2 * 8 * expand_k * 8


def test_the_paper_s_layer_has_the_published_names():
    layer = HGRN2(8, 2, conv_size=4, conv_bias=True, output_gate="silu", bias=True)
    linear = [f"{n}_proj.{p}" for n in ("q", "f", "i", "g", "o") for p in ("weight", "bias")]
    convolved = [f"{n}_conv1d.{p}" for n in ("q", "f", "i") for p in ("weight", "bias")]
    assert sorted(layer.state_dict()) == sorted([*linear, *convolved, "g_norm.weight"])
    assert not any(n.endswith("bias") for n in HGRN2(8, 2).state_dict())
    assert isinstance(layer.g_norm, nn.RMSNorm)


def test_initialisation_of_the_published_models():
    torch.manual_seed(0)
    layer = HGRN2(128, 2, bias=True, init_std=0.02)
    for name in ("q", "f", "i", "o"):
        projection = layer.get_submodule(f"{name}_proj")
        assert abs(projection.weight.std() - 0.02) < 5e-4
        assert abs(projection.weight.mean()) < 1e-3
        assert not projection.bias.any()
    assert HGRN2(128, 2).q_proj.weight.std() > 0.04  # torch's own, U(±128^-1/2)


def test_lower_bounds_as_numbers_tensors_and_parameters():
    number = attention(lower_bound=0.25)
    entries = attention(lower_bound=torch.full((8,), 0.25))
    learned = attention(lower_bound=nn.Parameter(torch.full((2, 4), 0.25)))
    for layer in (entries, learned):
        layer.load_state_dict(number.state_dict() | {"lower_bound": layer.lower_bound.detach()})
    x = torch.randn(2, 5, 8)
    assert torch.equal(number(x), entries(x))
    assert torch.equal(number(x), learned(x))
    learned(x).square().sum().backward()
    assert learned.lower_bound.grad.abs().min() > 0
    assert "lower_bound" in dict(learned.named_parameters())
    assert "lower_bound" in dict(entries.named_buffers())
    assert not any("lower_bound" in name for name in number.state_dict())


def test_layers_are_copied_pickled_and_loaded():
    stack = nn.ModuleList(HGRN2(8, 2, conv_size=2) for _ in range(2))
    share_lower_bounds(stack)
    file = io.BytesIO()
    torch.save(stack, file)
    file.seek(0)
    x = torch.randn(1, 4, 8)
    for other in (copy.deepcopy(stack), torch.load(file, weights_only=False)):
        assert other[0].lower_bound is other[1].lower_bound
        assert torch.equal(other[1](x), stack[1](x))


REFUSED = {
    "heads": (lambda: HGRN2Attention(config(num_heads=3)), ("num_heads=3", "hidden_size=8")),
    "missing": (lambda: HGRN2Attention(num_heads=2), ("hidden_size is missing", "hidden_size=...")),
    "absent": (lambda: HGRN2Attention(SimpleNamespace(hidden_size=8)), ("num_heads is missing",)),
    "twice": (lambda: HGRN2Attention(config(), num_heads=4), ("num_heads=4", "num_heads=2")),
    "negative": (lambda: attention(hidden_size=-8), ("hidden_size=-8", "at least 1")),
    "dropout": (lambda: attention(dropout=1.5), ("dropout=1.5", "[0, 1]")),
    "mode": (lambda: attention(mode="both"), ("mode='both'", "'encoder', 'decoder'")),
    "bound": (lambda: attention(lower_bound=1.5), ("lower_bound=1.5", "[0, 1]")),
    "entry": (lambda: attention(lower_bound=torch.full((8,), -0.5)), ("lower_bound=-0.5", "[0, 1]")),
    "entries": (lambda: attention(lower_bound=torch.zeros(3)), ("(3,)", "8 entries", "(2, 4)")),
    "d": (lambda: attention(lower_bound=LowerBounds(2, 6)), ("d=6", "expected 8")),
    "layer": (lambda: HGRN2(8, 2, lower_bound=LowerBounds(2, 8), layer_idx=2), ("layer_idx=2", "[0, 1]")),
    "decay": (lambda: attention(decay="rows"), ("decay='rows'", "'key', 'value'")),
    "keys": (lambda: attention(keys="some"), ("keys='some'", "'tied', 'free'")),
    "q": (lambda: attention(q_activation="relu"), ("q_activation='relu'", "'silu', 'sigmoid'")),
    "norm": (lambda: HGRN2(8, 2, norm="batch"), ("HGRN2", "norm='batch'", "'rmsnorm'")),
    "gate": (lambda: HGRN2(8, 2, output_gate="relu"), ("output_gate='relu'", "'silu'")),
    "expand": (lambda: HGRN2(8, 2, expand_k=0.3), ("expand_k=0.3", "1/4")),
    "nothing": (lambda: HGRN2(8, 2, expand_v=0), ("expand_v=0", "at least 1")),
    "square": (lambda: attention(keys="tied", expand_v=0.5), ("k=4", "v=2", "keys='free'")),
    "size": (lambda: HGRN2(0), ("d_model=0",)),
    "conv": (lambda: HGRN2(8, 2, conv_size=-1), ("conv_size=-1", "at least 1")),
    "std": (lambda: HGRN2(8, 2, init_std=-1.0), ("init_std=-1.0",)),
    "stack": (lambda: share_lower_bounds([HGRN2(8, 2), HGRN2(8, 4)]), ("(2, 4)", "(4, 2)", "one stack")),
    "none": (lambda: share_lower_bounds([]), ("[]", "one stack")),
    "token": (lambda: HGRN2(8, 2).step(torch.ones(1, 3), None), ("(1, 3)", "(B, 8)")),
    "state": (lambda: HGRN2(8, 2).step(torch.ones(1, 8), None), ("NoneType", "'S'", "initial_state")),
    "count": (lambda: LowerBounds(0, 8), ("n_layers=0",)),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(make, words):
    refused(make, *words)


@pytest.mark.parametrize("part", PARTS)
def test_examples(part):
    assert doctest.testmod(importlib.import_module(f"models.hgrn2.{part}")).failed == 0


def test_bitlinear_is_the_option():
    layer = attention(use_bitnet=True)
    assert all(isinstance(m, BitLinear) for n, m in layer.named_children() if n.endswith("proj"))
    assert set(layer.state_dict()) == set(attention().state_dict())
    assert type(attention(use_bitnet=True, bitnet_forget=False).forget_proj) is nn.Linear
