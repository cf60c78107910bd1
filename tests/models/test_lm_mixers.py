"""RecurrentLM of every mixer by name: the protocol over tokens, gradients everywhere, generation."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from models import HGRN2, RGLRU, MinMaxNeuron, MultiScaleSSM, RecurrentBlock, RecurrentLM, SelectiveSSM
from models.mixer import set_backend, tensors
from models.named import MIXERS
from tests.catalogue import chance, generator
from tests.models.protocol import TIGHT, assert_states, check_token_pieces, refused, rows, seeded

VOCABULARY = 11
CLASSES = {
    "minmax": MinMaxNeuron, "ssm": SelectiveSSM, "multiscale": MultiScaleSSM, "rglru": RGLRU,
    "griffin": RecurrentBlock, "hgrn2": HGRN2,
}  # fmt: skip
ARGS = {
    "minmax": {"d_state": 5, "train_init": True},
    "ssm": {"d_state": 3},
    "multiscale": {"num_scales": 2, "state_size": 3},
    "rglru": {"expand": 2},
    "griffin": {"num_heads": 2},
    "hgrn2": {"num_heads": 2},
}


def build(name: str, **options) -> RecurrentLM:
    return RecurrentLM(VOCABULARY, 8, 2, name, mixer_args=ARGS[name], **{"ffn": "gated", **options})


@pytest.fixture(params=MIXERS)
def lm(request) -> RecurrentLM:
    return seeded(lambda: build(request.param, init_std=0.5))()


def drawn(batch: int, steps: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch, steps), generator=generator(1))


def test_every_name_is_tried():
    assert set(MIXERS) == set(CLASSES) == set(ARGS)


@pytest.mark.parametrize("name", MIXERS)
def test_a_name_is_its_class(name: str):
    for layer in build(name).stack.layers:
        assert type(layer.mixer) is CLASSES[name]
    alone = RecurrentLM(VOCABULARY, 8, 2, name)
    assert tuple(alone(drawn(2, 3)).shape) == (2, 3, VOCABULARY)
    with pytest.raises(TypeError, match="nonsense"):
        RecurrentLM(VOCABULARY, 8, 2, name, mixer_args={"nonsense": 1})


def test_req37_chunks_and_steps_are_one_run(lm: RecurrentLM):
    tokens = drawn(2, 17)
    whole, after = lm(tokens, return_state=True)
    for cuts in ([1] * 17, [7, 1, 9], [16, 1], [0, 4, 1, 1, 11]):
        check_token_pieces(lm, tokens, cuts, whole, after)


def test_resets_and_packed_sequences_are_separate_runs(lm: RecurrentLM):
    tokens, bounds = drawn(1, 12), [0, 1, 1, 5, 12]
    _, start = lm(drawn(1, 3), return_state=True)
    packed, after = lm(tokens, cu_seqlens=torch.tensor(bounds), return_state=True)
    reset = torch.zeros(1, 12, dtype=torch.bool)
    reset[0, [0, 1, 5]] = True
    torch.testing.assert_close(lm(tokens, state=start, reset=reset), packed, **TIGHT)
    for n, (first, end) in enumerate(pairwise(bounds)):
        alone, last = lm(tokens[:, first:end], return_state=True)
        torch.testing.assert_close(packed[:, first:end], alone, **TIGHT)
        assert_states(rows(after, lambda s, n=n: s[n : n + 1]), last)


def test_req38_padding(lm: RecurrentLM):
    mask, tokens = chance(generator(5), (3, 14), 0.6), drawn(3, 14)
    logits, after = lm(tokens.masked_fill(~mask, -100), mask=mask, return_state=True)
    assert not logits[~mask].any()
    logits.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in lm.parameters())
    for b in range(3):
        alone, last = lm(tokens[b : b + 1, mask[b]], return_state=True)
        torch.testing.assert_close(logits[b : b + 1, mask[b]], alone, **TIGHT)
        assert_states(rows(after, lambda s, b=b: s[b : b + 1]), last)


def test_every_parameter_gets_a_gradient(lm: RecurrentLM):
    lm(drawn(2, 9)).logsumexp(-1).cos().sum().backward()
    without = [
        n for n, p in lm.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())
    ]
    assert not without


def test_it_sees_no_later_token(lm: RecurrentLM):
    tokens = drawn(1, 9)
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % VOCABULARY
    a, b = lm(tokens), lm(changed)
    assert torch.equal(a[:, :5], b[:, :5])
    assert not torch.equal(a[:, 5], b[:, 5])


def test_greedy_tokens_are_the_likeliest(lm: RecurrentLM):
    got = lm.generate(drawn(2, 4), 6)
    for t in range(4, 10):
        assert torch.equal(got[:, t], lm(got[:, :t])[:, -1].argmax(-1))


@pytest.mark.parametrize("name", MIXERS)
def test_req24_state_of_a_16_bit_model(name: str):
    lm = build(name).to(torch.bfloat16)
    logits, state = lm(drawn(2, 5), return_state=True)
    assert logits.dtype == torch.bfloat16
    assert {s.dtype for s in tensors(state)} == {torch.float32}
    assert {s.dtype for s in tensors(lm.initial_state(2))} == {torch.float32}
    assert lm.step(drawn(2, 1)[:, 0], state)[0].dtype == torch.bfloat16
    assert lm.state_size == sum(s[:1].numel() for s in tensors(state))


def test_layers_of_hgrn2_share_their_lower_bounds_unless_one_is_given():
    first, second = (layer.mixer for layer in build("hgrn2").stack.layers)
    assert first.lower_bound is second.lower_bound
    assert (first.layer_idx, second.layer_idx) == (0, 1)
    given = RecurrentLM(VOCABULARY, 8, 2, "hgrn2", mixer_args={"num_heads": 2, "lower_bound": 0.5})
    assert not any("gamma" in n for n, _ in given.named_parameters())


def test_a_backend_is_for_every_mixer():
    lm = build("rglru")
    set_backend(lm, "reference")
    assert {layer.mixer.backend for layer in lm.stack.layers} == {"reference"}


def test_bad_arguments_of_mixers_name_them():
    refused(lambda: RecurrentLM(VOCABULARY, 8, 1, "hgrn2", mixer_args={"num_heads": 3}), "num_heads", "3")
    refused(lambda: RecurrentLM(VOCABULARY, 8, 1, "minmax", mixer_args={"d_state": 0}), "d_state", "0")
