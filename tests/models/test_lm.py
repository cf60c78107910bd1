"""A stack of mixers is a mixer, and a language model of it keeps the protocol over tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from models import RecurrentLM
from models.lm import ResidualLayer, ResidualStack
from tests.catalogue import chance, generator
from tests.models import protocol
from tests.models.average import Average
from tests.models.protocol import TIGHT, assert_states, check_token_pieces, refused, rows

F64 = torch.float64
VOCABULARY = 11


def stack() -> ResidualStack:
    parts = [(nn.LayerNorm(4), nn.RMSNorm(4), nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 4)))]
    plain = ResidualLayer(Average(4, expand=2), [nn.RMSNorm(4)], None, 0.0)
    return ResidualStack(4, [plain, *(ResidualLayer(Average(4), [a, b], f, 0.0) for a, b, f in parts)])


def build(**options) -> RecurrentLM:
    return RecurrentLM(VOCABULARY, 4, 2, lambda i: Average(4, expand=1 + i), **options)


def model(**options) -> RecurrentLM:
    return protocol.seeded(lambda: build(**options))()


def drawn(batch: int, steps: int, seed: int = 1) -> Tensor:
    return torch.randint(VOCABULARY, (batch, steps), generator=generator(seed))


EVERY = [
    protocol.check_chunks_and_steps, protocol.check_gradients_through_chunks,
    protocol.check_resets_are_separate_runs, protocol.check_packed_are_separate_runs, protocol.check_padding,
    protocol.check_short_sequences, protocol.check_gradcheck, protocol.check_state_errors,
]  # fmt: skip


@pytest.mark.parametrize("check", EVERY, ids=lambda c: c.__name__)
def test_a_stack_is_a_mixer(check):
    check(protocol.seeded(stack))


def test_req24_types_of_a_stack():
    protocol.check_state_types(protocol.seeded(stack), stack)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_req48_mixed_precision(dtype):
    lm, tokens = build(ffn="gated"), drawn(2, 9)
    with torch.autocast("cpu", dtype):
        logits, state = lm(tokens, return_state=True)
        last, _ = lm.step(tokens[:, 0], state)
    assert logits.dtype == last.dtype == dtype
    assert {s.dtype for s in protocol.tensors(state)} == {torch.float32}
    logits.float().logsumexp(-1).sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in lm.parameters())


def test_the_formula():
    lm = model(ffn="basic", norm="layernorm")
    assert len(lm.stack.layers) == lm.n_layers == 2
    tokens = drawn(2, 6)
    want = lm.embed.weight[tokens]
    for layer in lm.stack.layers:
        want = want + layer.mixer(layer.norm(want))
        want = want + layer.ffn(layer.ffn_norm(want))
    torch.testing.assert_close(lm(tokens), lm.norm(want) @ lm.embed.weight.T, **TIGHT)


@pytest.mark.parametrize("cuts", [[1] * 12, [7, 1, 4], [11, 1], [0, 6, 6], [5, 1, 1, 3, 2]])
def test_req37_chunks_and_steps_are_one_run(cuts):
    lm, tokens = model(), drawn(2, 12)
    whole, after = lm(tokens, return_state=True)
    assert torch.equal(lm(tokens), whole)
    check_token_pieces(lm, tokens, cuts, whole, after)


def test_resets_and_packed_sequences_are_separate_runs():
    lm, tokens, bounds = model(), drawn(1, 12), [0, 1, 1, 5, 12]
    packed, after = lm(tokens, cu_seqlens=torch.tensor(bounds), return_state=True)
    reset = torch.zeros(1, 12, dtype=torch.bool)
    reset[0, [1, 5]] = True
    torch.testing.assert_close(lm(tokens, reset=reset), packed, **TIGHT)
    for n, (first, end) in enumerate(pairwise(bounds)):
        alone, last = lm(tokens[:, first:end], return_state=True)
        torch.testing.assert_close(packed[:, first:end], alone, **TIGHT)
        assert_states(rows(after, lambda s, n=n: s[n : n + 1]), last)


def test_req38_padding_may_hold_any_token():
    lm, mask = model(), chance(generator(5), (3, 14), 0.6)
    tokens = drawn(3, 14)
    logits, after = lm(tokens.masked_fill(~mask, -100), mask=mask, return_state=True)
    assert not logits[~mask].any()
    logits.square().sum().backward()
    got = lm.embed.weight.grad.clone()
    lm.zero_grad()
    for b in range(3):
        alone, last = lm(tokens[b : b + 1, mask[b]], return_state=True)
        alone.square().sum().backward()
        torch.testing.assert_close(logits[b : b + 1, mask[b]], alone, **TIGHT)
        assert_states(rows(after, lambda s, b=b: s[b : b + 1]), last)
    torch.testing.assert_close(got, lm.embed.weight.grad, rtol=1e-11, atol=1e-12)


def test_the_head_is_the_embedding_unless_it_is_not_tied():
    tied, free = build(), build(tie_weights=False)
    assert tied.head.weight is tied.embed.weight
    assert len(list(free.parameters())) == len(list(tied.parameters())) + 1
    torch.manual_seed(0)
    wide = RecurrentLM(500, 64, 1, lambda _: Average(64), tie_weights=False, init_std=0.3)
    for weight in (wide.embed.weight, wide.head.weight):
        assert weight.std().item() == pytest.approx(0.3, rel=0.05)


def test_norms_and_their_eps():
    assert isinstance(build(norm="none").norm, nn.Identity)
    lm = build(norm="rmsnorm", norm_eps=1e-3, ffn="gated")
    norms = [lm.norm, *(n for layer in lm.stack.layers for n in (layer.norm, layer.ffn_norm))]
    assert {(type(n), n.eps) for n in norms} == {(nn.RMSNorm, 1e-3)}
    assert len(set(norms)) == 5


def test_dropout_is_of_what_is_added():
    lm, tokens = model(dropout=1.0, ffn="gated"), drawn(2, 5)
    lm.train()
    torch.testing.assert_close(lm(tokens), lm.norm(lm.embed(tokens)) @ lm.embed.weight.T, **TIGHT)
    assert not torch.equal(lm.eval()(tokens), lm.train()(tokens))


@pytest.mark.parametrize("act", ["relu", "relu^2", "gelu", "swish", "sigmoid", "selu"])
@pytest.mark.parametrize("ffn", ["gated", "basic"])
def test_feedforwards(ffn: str, act: str):
    lm, tokens = model(ffn=ffn, ffn_factor=1.5, ffn_act=act), drawn(2, 5)
    whole, state = lm(tokens), lm.initial_state(2)
    for t in range(5):
        logits, state = lm.step(tokens[:, t], state)
        torch.testing.assert_close(logits, whole[:, t], **TIGHT)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda: RecurrentLM(0, 4, 1, "rglru"), ("vocab_size=0",)),
        (lambda: RecurrentLM(5, 4, 0, "rglru"), ("n_layers=0",)),
        (lambda: RecurrentLM(5, 4, 1, "lstm"), ("mixer='lstm'", "'minmax'", "'hgrn2'")),
        (lambda: build(ffn="moe"), ("ffn='moe'", "'gated'", "'basic'")),
        (lambda: build(norm="batch"), ("norm='batch'", "'rmsnorm'")),
        (lambda: build(dropout=-0.1), ("dropout=-0.1", "[0, 1]")),
        (lambda: build(mixer_args={"expand": 2}), ("mixer_args", "by name")),
        (lambda: RecurrentLM(5, 4, 1, lambda _: Average(3)), ("layer 0", "d_model=3", "d_model=4")),
        (lambda: RecurrentLM(5, 4, 1, lambda _: nn.Linear(4, 4)), ("layer 0", "Linear", "Mixer")),
        (lambda: build()(drawn(2, 3).float()), ("float32", "int64")),
        (lambda: build()(drawn(2, 3)[0]), ("(3,)", "(B, T)")),
        (lambda: build()(drawn(2, 3), state=[]), ("state", "list of 2")),
        (lambda: build()(drawn(2, 3), state="no"), ("state", "str", "list of 2")),
        (lambda: build()(drawn(2, 3), mask=torch.ones(2, 4)), ("mask", "(2, 4)", "(2, 3)")),
        (lambda: build().step(drawn(2, 1), build().initial_state(2)), ("(2, 1)", "(B,)")),
    ],
)
def test_what_is_refused(run, words):
    refused(run, *words)
