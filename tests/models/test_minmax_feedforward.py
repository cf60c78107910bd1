"""The feedforward blocks: widths, the six activations from their formulas, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from models.minmax import FeedForward, FeedForwardConfig, GatedFeedForward, create_feedforward
from tests.catalogue import generator
from tests.models.protocol import F64, TIGHT, refused

FORMULAS = {
    "relu": lambda x: torch.where(x > 0, x, 0.0),
    "relu^2": lambda x: torch.where(x > 0, x * x, 0.0),
    "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    "swish": lambda x: x / (1 + torch.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "selu": lambda x: 1.0507009873554805 * torch.where(x > 0, x, 1.6732632423543772 * torch.expm1(x)),
}


@pytest.mark.parametrize("act", FORMULAS)
@pytest.mark.parametrize("kind", ["gated", "basic"])
def test_the_formula(kind, act):
    block = create_feedforward(FeedForwardConfig(2, 5, act_fn=act, ffn_type=kind, init="basic")).double()
    assert type(block) is (GatedFeedForward if kind == "gated" else FeedForward)
    x = torch.randn(2, 7, 5, generator=generator(0), dtype=F64)
    up = x @ block.proj_up.weight.T + block.proj_up.bias
    hidden = FORMULAS[act](up[..., :8]) * up[..., 8:] if kind == "gated" else FORMULAS[act](up)
    want = hidden @ block.proj_down.weight.T + block.proj_down.bias
    torch.testing.assert_close(block(x), want, **TIGHT)


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        ({"embedding_dim": 90}, 118),  # 117 is rounded up to a multiple of 2
        ({"embedding_dim": 728}, 948),
        ({"embedding_dim": 90, "round_proj_up_dim_up": False}, 116),
        ({"embedding_dim": 90, "round_proj_up_to_multiple_of": 64}, 128),
        ({"embedding_dim": 10, "proj_factor": 4}, 40),
        ({"embedding_dim": 3, "proj_factor": 0.1}, 2),
    ],
)
def test_the_hidden_width(options, hidden):
    gated, basic = (
        create_feedforward(FeedForwardConfig(1, ffn_type=kind, **options)) for kind in ("gated", "basic")
    )
    assert gated.proj_up.out_features == 2 * hidden
    assert basic.proj_up.out_features == basic.proj_down.in_features == hidden


def test_another_width_may_come_out_without_biases():
    block = FeedForward(FeedForwardConfig(1, 6, embedding_dim_out=4, bias=False))
    assert block(torch.zeros(2, 6)).shape == (2, 4)
    assert [name for name, _ in block.named_parameters()] == ["proj_up.weight", "proj_down.weight"]


def test_dropout_comes_after_the_way_down():
    block = FeedForward(FeedForwardConfig(1, 6, dropout=1.0)).train()
    block.proj_down.bias.data.fill_(1.0)
    x = torch.randn(2, 6, generator=generator(0))
    assert not block(x).any()
    assert block.eval()(x).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"_num_blocks": 0}, ("_num_blocks=0", "at least 1")),
        ({"embedding_dim": 0}, ("embedding_dim=0", "at least 1")),
        ({"embedding_dim_out": -2}, ("embedding_dim_out=-2", "at least 1")),
        ({"round_proj_up_to_multiple_of": 0}, ("round_proj_up_to_multiple_of=0",)),
        ({"act_fn": "tanh"}, ("act_fn='tanh'", "'relu^2'", "'selu'")),
        ({"ffn_type": "plain"}, ("ffn_type='plain'", "'gated', 'basic'")),
        ({"init": "default"}, ("init='default'", "'scaled', 'basic'")),
        ({"dropout": -0.1}, ("dropout=-0.1", "[0, 1]")),
        ({"version": "1"}, ("version='1'", "'0.1.0', '0.3.0'")),
        ({"proj_factor": -1}, ("proj_factor=-1", "larger")),
    ],
)
def test_what_is_refused(options, words):
    refused(lambda: FeedForwardConfig(**{"_num_blocks": 1, "embedding_dim": 4, **options}), *words)


def test_a_block_needs_its_width():
    refused(lambda: create_feedforward(FeedForwardConfig(1)), "GatedFeedForward", "embedding_dim=-1")
