"""Tokens that a model makes are those that its logits call for, one step after another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from models import RecurrentLM, TransformerLM, generate
from models.generation import choose
from tests.models.average import Average
from tests.models.protocol import refused, seeded

VOCABULARY = 11
MODELS = {
    "recurrent": lambda: RecurrentLM(VOCABULARY, 4, 2, lambda _: Average(4), init_std=1.0),
    "transformer": lambda: TransformerLM(VOCABULARY, 8, 2, 2, 12),
}


@pytest.fixture(params=MODELS)
def model(request) -> nn.Module:
    return seeded(MODELS[request.param])()


def drawn(batch: int, steps: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch, steps), generator=torch.Generator().manual_seed(1))


def last(model: nn.Module, tokens: Tensor) -> Tensor:
    out = model(tokens)
    return (out["logits"] if isinstance(out, dict) else out)[:, -1]


@pytest.mark.parametrize("steps", [1, 5])
def test_greedy_tokens_are_the_likeliest(model, steps):
    prompt = drawn(3, steps)
    got = model.generate(prompt, 8)
    assert torch.equal(got[:, :steps], prompt)
    for t in range(steps, steps + 8):
        assert torch.equal(got[:, t], last(model, got[:, :t]).argmax(-1))
    assert torch.equal(generate(model, prompt, 8), got)


def test_drawn_tokens_follow_the_seed_and_nothing_else(model):
    prompt = drawn(3, 4)

    def run(seed):
        return generate(model, prompt, 12, temperature=1.0, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(run(0), run(0))
    assert not torch.equal(run(0), run(1))


def test_only_the_top_k_are_drawn(model):
    got = generate(model, drawn(5, 2), 20, temperature=5.0, top_k=3)
    for t in range(2, 22):
        best = last(model, got[:, :t]).topk(3).indices
        assert (best == got[:, t : t + 1]).any(-1).all()
    assert torch.equal(generate(model, got, 4, temperature=2.0, top_k=1), generate(model, got, 4))


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, None), (0.5, None), (2.0, 3), (1.0, 50)])
def test_draws_have_the_frequencies_of_the_softmax(temperature, top_k):
    logits = torch.tensor([2.0, 0.0, 1.0, -1.0, 0.5])
    drawn = choose(logits.expand(40000, 5), temperature, top_k, torch.Generator().manual_seed(0))
    kept = torch.zeros(5)
    if top_k == 3:
        kept[[1, 3]] = float("-inf")
    want = (logits / temperature + kept).softmax(-1)
    got = torch.bincount(drawn, minlength=5) / 40000
    torch.testing.assert_close(got, want, rtol=0, atol=0.012)


def test_the_model_is_left_as_it_was(model):
    before = {n: p.clone() for n, p in model.named_parameters()}
    for training in (True, False):
        model.train(training)
        tokens = generate(model, drawn(2, 3), 2)
        assert model.training is training
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert not tokens.requires_grad
    with pytest.raises(IndexError):
        generate(_Broken(), drawn(1, 2), 2)


class _Broken(nn.Module):
    vocab_size = VOCABULARY

    def forward(self, tokens, state=None, return_state=False):
        raise IndexError


def test_dropout_is_off_while_it_generates():
    lm = RecurrentLM(VOCABULARY, 4, 2, lambda _: Average(4), dropout=0.9, init_std=1.0).train()
    assert len({tuple(generate(lm, drawn(1, 3), 10)[0].tolist()) for _ in range(5)}) == 1


def test_no_more_tokens_and_an_empty_batch(model):
    prompt = drawn(2, 3)
    assert torch.equal(generate(model, prompt, 0), prompt)
    assert tuple(generate(model, prompt[:0], 4).shape) == (0, 7)


def test_it_reads_the_prompt_once_and_then_steps(model, monkeypatch):
    lengths = []
    forward, step = model.forward, model.step
    monkeypatch.setattr(model, "forward", lambda x, **o: lengths.append(x.shape[1]) or forward(x, **o))
    monkeypatch.setattr(model, "step", lambda x, s: lengths.append("step") or step(x, s))
    generate(model, drawn(2, 5), 4)
    assert [n for n in lengths if n != 1] == [5, "step", "step", "step"]


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        (drawn(2, 0), {"n": 1}, ("prompt", "(2, 0)", "at least one token")),
        (drawn(2, 3)[0], {"n": 1}, ("prompt", "(3,)", "(B, T)")),
        (drawn(2, 3).float(), {"n": 1}, ("prompt", "float32")),
        (drawn(2, 3) + 9, {"n": 1}, ("[0, 11)", "vocab_size=11")),
        (drawn(2, 3) - 9, {"n": 1}, ("[0, 11)",)),
        (drawn(2, 3), {"n": -1}, ("n=-1", "at least 0")),
        (drawn(2, 3), {"n": 1, "temperature": -0.5}, ("temperature=-0.5",)),
        (drawn(2, 3), {"n": 1, "temperature": float("nan")}, ("temperature=nan",)),
        (drawn(2, 3), {"n": 1, "temperature": 1.0, "top_k": 0}, ("top_k=0", "at least 1")),
    ],
)
def test_what_is_refused(model, prompt, options, words):
    refused(lambda: generate(model, prompt, **options), *words)
