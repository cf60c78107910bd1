"""Our recurrent blocks inside transformers' RecurrentGemma, against its own pure-torch path."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from models.mixer import set_backend
from models.rglru import RecurrentBlock, from_recurrent_gemma
from tests.models.protocol import refused

transformers = pytest.importorskip("transformers", reason="the converter's counterpart")
pytestmark = pytest.mark.slow
F64 = torch.float64
TOKENS = torch.randint(2, 31, (2, 20), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def wide_states(monkeypatch):
    """Theirs carries the state in fp32 whatever the weights are; for float64 to mean something, in fp64."""
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

    assert RecurrentGemmaRglru._rnn_scan.__defaults__ == (torch.float32,)
    monkeypatch.setattr(RecurrentGemmaRglru._rnn_scan, "__defaults__", (F64,))


def theirs(dtype: torch.dtype = F64, **config):
    """A small model of three blocks, two of them recurrent, with no weight at a special value."""
    torch.manual_seed(0)
    sizes = {
        "num_hidden_layers": 3, "vocab_size": 31, "hidden_size": 16, "intermediate_size": 48,
        "num_attention_heads": 2, "num_key_value_heads": 1, "attention_window_size": 8,
    }  # fmt: skip
    model = transformers.RecurrentGemmaForCausalLM(transformers.RecurrentGemmaConfig(**{**sizes, **config}))
    for p in model.parameters():
        p.data.add_(0.2 * torch.randn_like(p))
    return model.to(dtype).eval()


def both(dtype: torch.dtype = F64, **config):
    model = theirs(dtype, **config)
    return model, from_recurrent_gemma(copy.deepcopy(model))


def recurrent(model) -> list[nn.Module]:
    kinds = model.config.layers_block_type
    return [
        layer.temporal_block
        for kind, layer in zip(kinds, model.model.layers, strict=True)
        if kind == "linear_attention"
    ]


@pytest.mark.parametrize("activation", ["gelu_pytorch_tanh", "gelu"])
@pytest.mark.parametrize("width", [16, 24])
def test_a_block_equals_theirs_with_its_gradients(activation, width):
    model, ours = both(hidden_activation=activation, lru_width=width)
    x = torch.randn(2, 11, 16, dtype=F64).requires_grad_()
    places = torch.arange(11)[None]
    a, b = recurrent(model)[0], recurrent(ours)[0]
    assert isinstance(b.block, RecurrentBlock)
    want, got = (m(x, places, None, use_cache=False)[0] for m in (a, b))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    pairs = [
        (a.linear_x.weight, b.block.in_proj.weight),
        (a.linear_y.bias, b.block.gate_proj.bias),
        (a.conv_1d.weight, b.block.conv1d.weight),
        (a.rg_lru.recurrent_gate_weight, b.block.recurrent_gate_proj.weight),
        (a.rg_lru.input_gate_bias, b.block.input_gate_proj.bias),
        (a.linear_out.weight, b.block.out_proj.weight),
    ]
    grads = [
        torch.autograd.grad(y.square().sum(), [x, *(pair[i] for pair in pairs), decay])
        for i, (y, decay) in enumerate([(want, a.rg_lru.recurrent_param), (got, b.block.a_log)])
    ]
    torch.testing.assert_close(grads[1][:-1], grads[0][:-1], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(-grads[1][-1][:, 0], grads[0][-1], rtol=1e-10, atol=1e-10)


def test_steps_of_a_block_equal_theirs():
    model, ours = both()
    a, b = recurrent(model)[0], recurrent(ours)[0]
    x = torch.randn(3, 9, 16, dtype=F64)
    for first, end in [(0, 5), (5, 6), (6, 7), (7, 8), (8, 9)]:
        places = torch.arange(first, end)[None]
        want, got = (m(x[:, first:end], places, None, use_cache=True)[0] for m in (a, b))
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(b.state["lrnn_state"][..., 0], a.rg_lru.recurrent_states)
    torch.testing.assert_close(b.state["conv_state"], a.conv1d_state)


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("places", [range(3, 10), [0, 0, 0, 0, 1, 2, 3]], ids=["later", "repeated"])
def test_only_a_position_of_0_is_a_first_step(places, use_cache):
    model, ours = both(conv1d_width=1)  # theirs cuts no convolution
    x = torch.randn(2, 7, 16, dtype=F64)
    want, got = (
        recurrent(m)[0](x, torch.tensor([*places])[None], None, use_cache=use_cache)[0] for m in (model, ours)
    )
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("dtype", [F64, torch.float32])
def test_logits_equal_theirs(use_cache, dtype):
    model, ours = both(dtype)
    want, got = (m(TOKENS, use_cache=use_cache).logits for m in (model, ours))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_in_training_the_loss_and_its_gradients_equal_theirs():
    model, ours = both()
    losses = [m.train()(TOKENS, labels=TOKENS).loss for m in (model, ours)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for m in (model, ours):
        assert all(p.grad.isfinite().all() for p in m.parameters())
    grads = [m.model.embed_tokens.weight.grad for m in (model, ours)]
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("use_cache", [False, True])
def test_greedy_text_equals_theirs_and_every_prompt_starts_anew(use_cache):
    """Theirs is a fresh copy each time: its convolution sees the last prompt when the next is one token."""
    model, ours = both()
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "use_cache": use_cache}
    for prompt in (TOKENS[:, :6], TOKENS[:, 6:7], TOKENS[:1, 3:15]):
        want, got = (m.generate(prompt, **options) for m in (copy.deepcopy(model), ours))
        assert want.shape[1] == prompt.shape[1] + 12
        assert torch.equal(got, want)


@pytest.mark.parametrize("cuts", [[20], [7, 13], [1] * 20, [5, 1, 1, 13]], ids=str)
def test_chunks_of_a_prompt_are_one_run(cuts):
    _, ours = both()
    whole = ours(TOKENS, use_cache=False).logits
    cache, parts = transformers.DynamicCache(config=ours.config), []
    for part in TOKENS.split(cuts, 1):
        parts.append(ours(part, cache=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-5, atol=1e-5)


def test_padding_on_the_left_changes_no_text():
    _, ours = both()
    short = TOKENS[1:, 15:]
    want = ours.generate(short, max_new_tokens=8, do_sample=False, eos_token_id=None)
    rows = TOKENS.clone()
    real = torch.ones_like(rows)
    rows[1] = torch.cat([torch.zeros(15, dtype=torch.long), short[0]])
    real[1, :15] = 0
    got = ours.generate(rows, attention_mask=real, max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert torch.equal(got[1, 15:], want[0])


def test_documents_in_a_row_are_separate_runs():
    block = recurrent(both()[1])[0]
    x = torch.randn(1, 9, 16, dtype=F64)
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2]])
    parts = [block(p, torch.arange(p.shape[1])[None], use_cache=False)[0] for p in x.split([4, 2, 3], 1)]
    got = block(x, places, use_cache=False)[0]
    torch.testing.assert_close(got, torch.cat(parts, 1), rtol=1e-12, atol=1e-12)


def test_a_copy_of_a_model_that_has_run_and_the_backend_of_all_blocks():
    _, ours = both()
    want = ours(TOKENS).logits
    again = copy.deepcopy(ours)
    set_backend(again, "reference")
    assert {b.block.backend for b in recurrent(again)} == {"reference"}
    assert torch.equal(again(TOKENS).logits, want)


def test_half_precision_keeps_a_single_precision_state():
    model, ours = both(torch.bfloat16)
    want, got = (m(TOKENS, use_cache=True).logits.double() for m in (model, ours))
    assert (got - want).norm() / want.norm() < 3e-2
    assert recurrent(ours)[0].state["lrnn_state"].dtype == torch.float32


def test_what_is_refused():
    _, ours = both()
    refused(lambda: from_recurrent_gemma(ours), "RecurrentGemmaForCausalLM", "no recurrent blocks left")
    refused(lambda: from_recurrent_gemma(nn.Linear(2, 2)), "Linear", "no recurrent blocks")
    odd = theirs(hidden_activation="relu")
    refused(lambda: from_recurrent_gemma(odd), "hidden_activation='relu'", "'gelu_pytorch_tanh'")


def test_the_inner_model_alone_and_a_width_that_is_not_the_model_s():
    model = theirs(lru_width=24)
    inner = from_recurrent_gemma(copy.deepcopy(model.model))
    want, got = (m(TOKENS, use_cache=False).last_hidden_state for m in (model.model, inner))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    cache = transformers.DynamicCache(config=model.config)
    stepped = [inner(t, cache=cache, use_cache=True).last_hidden_state for t in TOKENS.split(1, 1)]
    torch.testing.assert_close(torch.cat(stepped, 1), want, rtol=1e-5, atol=1e-5)
