"""The regular-language example: its tasks are what they say, and MinMax keeps at ten times the length what
an SSM loses.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from examples import regular_languages as example
from tests.subprocesses import ROOT, run_warm

LONG = 10 * example.LENGTH


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_flip_flop_answers():
    text, answers = example.flip_flop(50, 40, draw())
    for row, right in zip(text.tolist(), answers.tolist(), strict=True):
        for t in range(40):
            assert right[t] == [x for x in row[: t + 1] if x in (example.A, example.B)][-1]
    assert set(text.flatten().tolist()) == set(example.LETTERS)


def test_alternating_answers():
    text, answers = example.alternating(50, 40, draw())
    for row, right in zip(text.tolist(), answers.tolist(), strict=True):
        for t in range(40):
            word = "".join("abcd"[x] for x in row[: t + 1])
            inside = re.fullmatch(r"[cd]*(a[cd]*b[cd]*)*", word)
            coming = re.fullmatch(r"[cd]*(a[cd]*b[cd]*)*a[cd]*", word)
            assert right[t] == (0 if inside else 1 if coming else 2), word
    assert torch.bincount(answers.flatten(), minlength=3).min() > 200


@pytest.mark.parametrize("length", [40, 400])
@pytest.mark.parametrize("task", example.TASKS.values(), ids=example.TASKS)
def test_a_longer_string_is_a_longer_wait(task, length):
    text, _ = task(500, length, draw())
    meant = (text < example.C).sum(1).double().mean().item()
    assert meant == pytest.approx(example.MEANT + (task is example.flip_flop), abs=0.4)


def trained(name: str, task: str, steps: int) -> torch.nn.Module:
    example.set_seed(0)
    model = example.MODELS[name]()
    example.train(model, example.TASKS[task], steps, f"{task}, {name}")
    return model


@pytest.mark.parametrize("task", example.TASKS)
def test_minmax_makes_no_mistake_at_ten_times_the_length(task: str):
    model = trained("MinMax", task, 250)
    for length in (example.LENGTH, LONG):
        assert example.ask(model, example.TASKS[task], length) == (1.0, 1.0)
    # Why: it moves among a few dozen states, all of which it has been in before the wait gets long.
    idle = torch.randint(2, (1, 4000), generator=draw()) + example.C
    idle[0, 0] = example.A
    early, late = model(idle)[0].detach().split(2000)
    gaps = torch.stack([(early - answer).abs().amax(-1).min() for answer in late])
    assert gaps.max() < 1e-5
    assert len(torch.unique((1e4 * early).round(), dim=0)) < 200


@pytest.mark.slow
@pytest.mark.parametrize("task", example.TASKS)
def test_the_ssm_learns_and_then_forgets(task: str):
    model = trained("SSM", task, 300)
    learned, _ = example.ask(model, example.TASKS[task], example.LENGTH)
    answers, strings = example.ask(model, example.TASKS[task], LONG)
    assert learned > 0.995
    assert answers < 0.9
    assert strings < 0.3


def test_it_runs_from_the_shell(tmp_path: Path):
    script = str(ROOT / "examples" / "regular_languages.py")
    printed = run_warm(script, "--steps", "2", "--models", "MinMax", "--out", "a/figure.png", cwd=tmp_path)
    assert (tmp_path / "a" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r"flip-flop +MinMax( +[\d.]+ / *[\d.]+){4}\nalternating +MinMax", printed)
