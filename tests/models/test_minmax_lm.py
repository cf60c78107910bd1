"""MinMaxRNC_LM: the original's logits, tied and own heads, decoding, boundaries, and what is refused."""

from __future__ import annotations

import pytest
import torch

from models.minmax import MinMaxRNC_LM, MinMaxRNCConfig, MinMaxRNCLMConfig
from tests.catalogue import generator
from tests.models.golden import golden
from tests.models.protocol import TIGHT, assert_states, refused

GOLDEN = golden("minmax_rnc_v010")
TINY = MinMaxRNCConfig(6, 2, 5, train_init=True)


def made(cfg=None):
    torch.manual_seed(0)
    return MinMaxRNC_LM(13, cfg or MinMaxRNCLMConfig(TINY)).double().eval()


def tokens(*shape):
    return torch.randint(13, shape, generator=generator(1))


@pytest.mark.parametrize("tied", [True, False])
def test_golden_logits_from_a_state_dict_of_the_original(tied):
    cfg = MinMaxRNCLMConfig(MinMaxRNCConfig(6, 1, 4, version="0.1.0"), tie_weights=tied)
    model = made(cfg)
    head = "v010_lm/param/"
    given = {key.removeprefix(head): x for key, x in GOLDEN.items() if key.startswith(head)}
    model.load_state_dict(given | {"lm_head.weight": given["token_emb.weight"]})
    logits, (state,) = model(GOLDEN["v010_lm/tokens"], 3, None, True)
    torch.testing.assert_close(logits, GOLDEN["v010_lm/logits"], rtol=1e-12, atol=1e-13)
    for part in ("conv", "neuron"):
        torch.testing.assert_close(state[part], GOLDEN[f"v010_lm/state0/{part}"], rtol=1e-12, atol=1e-13)


def test_the_head_is_the_embedding_or_its_own():
    tied = made()
    own = made(MinMaxRNCLMConfig(TINY, tie_weights=False))
    assert tied.lm_head.weight is tied.token_emb.weight
    assert own.lm_head.weight is not own.token_emb.weight
    assert set(tied.state_dict()) == set(own.state_dict())
    wide = made(MinMaxRNCLMConfig(MinMaxRNCConfig(400, 1, 5), tie_weights=False))
    for weight in (wide.token_emb.weight, wide.lm_head.weight):
        assert weight.std().item() == pytest.approx((2 / 2000) ** 0.5, rel=0.05)
    assert not torch.equal(wide.token_emb.weight, wide.lm_head.weight)
    assert wide.lm_head.bias is None


def test_req37_prefill_steps_and_chunks_are_one_run():
    model, ids = made(), tokens(2, 20)
    whole, after = model(ids, return_state=True)
    logits, state = model(ids[:, :9], return_state=True)
    parts = [logits]
    for t in range(9, 12):
        logits_t, state = model.step(ids[:, t], state)
        parts.append(logits_t[:, None])
    logits, state = model(ids[:, 12:], unroll_steps=3, state=state, return_state=True)
    torch.testing.assert_close(torch.cat([*parts, logits], 1), whole, **TIGHT)
    assert_states(state, after)
    torch.testing.assert_close(model.step(ids[:, 0], model.initial_state(2))[0], whole[:, 0], **TIGHT)


def test_req38_padding_holds_any_number():
    model, ids = made(), tokens(2, 10)
    mask = torch.arange(10) >= torch.tensor([[0], [4]])
    logits, state = model(ids.masked_fill(~mask, -100), mask=mask, return_state=True)
    assert not logits[~mask].any()
    for b in range(2):
        alone, last = model(ids[b : b + 1, mask[b]], return_state=True)
        torch.testing.assert_close(logits[b : b + 1, mask[b]], alone, **TIGHT)
        assert_states([{k: x[b : b + 1] for k, x in layer.items()} for layer in state], last)


def test_documents_packed_or_reset_are_separate_runs():
    model, ids = made(), tokens(1, 12)
    alone = torch.cat([model(ids[:, :5]), model(ids[:, 5:])], 1)
    reset = (torch.arange(12) == 5)[None]
    torch.testing.assert_close(model(ids, reset=reset), alone, **TIGHT)
    torch.testing.assert_close(model(ids, 4, cu_seqlens=torch.tensor([0, 5, 12])), alone, **TIGHT)


def test_it_learns_to_repeat():
    torch.manual_seed(0)
    model = MinMaxRNC_LM(5, MinMaxRNCLMConfig(MinMaxRNCConfig(16, 1, 16, ffn_dropout=0.0)))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    ids = torch.arange(41)[None] % 5
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 1.5
    assert losses[-1] < 0.1


def test_reset_draws_the_vocabulary_once_more():
    for tie in (True, False):
        model = made(MinMaxRNCLMConfig(TINY, tie_weights=tie))
        kept, old = model.token_emb.weight, model.token_emb.weight.detach().clone()
        model.reset()
        assert model.token_emb.weight is kept
        assert not torch.equal(kept, old)
        assert (model.lm_head.weight is kept) == tie


def test_what_is_written_beside_the_backbone_wins():
    model = made(MinMaxRNCLMConfig(TINY, output_gate=False, conv_type="gated", ffn_dropout=0.7))
    layer = model.layers[1]
    assert layer.neuron.o_g is None
    assert hasattr(layer.conv, "g")
    assert layer.ffn.dropout.p == 0.7
    plain = MinMaxRNCLMConfig(TINY)
    assert plain.backbone_cfg == TINY


def test_head_dropout():
    model = made(MinMaxRNCLMConfig(TINY, head_dropout=1.0))
    assert model(tokens(1, 4)).any()
    assert not model.train()(tokens(1, 4)).any()


def test_req48_autocast():
    model, ids = made().float(), tokens(2, 6)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids)
    assert logits.dtype == torch.bfloat16
    logits.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_it_continues_a_prompt_through_its_state():
    model, ids = made(), tokens(2, 7)
    for _ in range(5):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)
    assert torch.equal(model.generate(tokens(2, 7), 5), ids)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: MinMaxRNC_LM(0, MinMaxRNCLMConfig(TINY)), ("vocab_size=0", "at least 1")),
        (lambda: MinMaxRNCLMConfig(TINY, head_dropout=3), ("head_dropout=3", "[0, 1]")),
        (lambda: MinMaxRNCLMConfig(TINY, conv_type="wide"), ("conv_type='wide'", "'gated', 'basic'")),
        (lambda: MinMaxRNCLMConfig(TINY, ffn_dropout=-1), ("ffn_dropout=-1", "[0, 1]")),
        (lambda: made()(tokens(4)), ("tokens", "(4,)", "(B, T)")),
        (lambda: made()(torch.zeros(2, 4)), ("tokens", "torch.float32", "int64")),
        (lambda: made().step(tokens(2, 1), None), ("token", "(2, 1)", "(B,)")),
        (lambda: made()(tokens(2, 4), state=made().initial_state(3)), ("state", "(3, 6)", "(2, 6)")),
        (lambda: made()(tokens(2, 4), mask=torch.ones(2, 5)), ("mask", "(2, 5)", "(2, 4)")),
    ],
)
def test_what_is_refused(call, words):
    refused(call, *words)
