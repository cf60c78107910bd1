"""The language example runs, measures what it says, and its models learn more than byte frequencies."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from examples import train_languages as example
from tests.subprocesses import ROOT, run_warm

CPU = torch.device("cpu")


def test_it_runs_from_the_shell(tmp_path: Path):
    script = str(ROOT / "examples" / "train_languages.py")
    printed = run_warm(
        script, "--steps", "2", "--models", "MinMax,HGRN2", "--out", "some/figure.png", cwd=tmp_path
    )
    assert (tmp_path / "some" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert printed.count("bits per byte; order-0 entropy") == 2
    assert printed.count("    def ") == 2


def test_the_entropy_is_that_of_the_frequencies():
    text = torch.tensor([1] * 4 + [7] * 2 + [9, 11])
    assert example.Corpus(text, text).entropy == pytest.approx(1.75)
    assert example.Corpus(text, text[:4]).entropy == 0


def test_what_judges_is_not_trained_on():
    corpus = example.load()
    train, test = (bytes(x.tolist()) for x in (corpus.train, corpus.test))
    assert b"PYTHON SOFTWARE FOUNDATION LICENSE" in train
    assert len(train) > 5 * len(test) > 500_000
    passages = [test[first : first + 300] for first in range(0, len(test) - 300, len(test) // 50)]
    # Modules quote each other: wave.py, aifc.py and sunau.py share a docstring.
    assert sum(passage in train for passage in passages) <= len(passages) / 20


class Uniform(nn.Module):
    """Logits that say nothing, and a state that counts what was read"""

    def forward(self, tokens, state=None, return_state=False):
        seen = tokens.shape[1] + (state or 0)
        logits = torch.zeros(*tokens.shape, 256)
        return (logits, seen) if return_state else logits


def test_a_model_that_knows_nothing_takes_eight_bits():
    text = torch.randint(256, (5000,))
    assert example.bits_per_byte(Uniform(), text, CPU) == pytest.approx(8)


@pytest.mark.parametrize("name", example.MODELS)
def test_reading_in_two_chunks_is_reading_at_once(name: str):
    torch.manual_seed(0)
    model, text = example.MODELS[name]().eval(), example.load().test[:4000]
    got = example.bits_per_byte(model, text, CPU, rows=2, length=64)
    begins = torch.linspace(0, len(text) - 65, 2).long()
    logs = [model(text[b : b + 64][None])[0].log_softmax(-1) for b in begins.tolist()]
    right = [
        log[torch.arange(64), text[b + 1 : b + 65]] for b, log in zip(begins.tolist(), logs, strict=True)
    ]
    assert got == pytest.approx(-torch.stack(right).mean().item() / math.log(2), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", example.MODELS)
def test_bits_per_byte_fall_well_below_order_0(name: str):
    example.set_seed(0)
    corpus = example.load()
    curve = example.train(example.MODELS[name](), corpus, 120, name)
    assert [step for step, _ in curve] == [*range(0, 120, 10), 120]
    assert curve[0][1] > 7
    assert curve[-1][1] < 0.75 * corpus.entropy
