"""Neither a replay nor its recording holds a tensor longer than the call does: segments come and go."""

from __future__ import annotations

import re
from weakref import ref

import pytest
import torch

import scanforge as sf
from scanforge import plan, replay_text, tape
from tests.kernels import Tiles
from tests.recurrences import BY_NAME, draw

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]


def most_alive(text: str) -> int:
    """How many tensors that the function makes are there at one time."""
    alive, most = set[str](), 0
    for line in text.splitlines()[1:]:
        if gone := re.fullmatch(r" +del (.*)", line):
            alive -= set(gone[1].split(", "))
        elif made := re.match(r" +(t\d+(?:, t\d+)*) = ", line):
            alive |= set(made[1].split(", "))
            most = max(most, len(alive))
    return most


def trained(monkeypatch, steps: int, times: int) -> None:
    """Both passes of an expanded state in segments of one chunk, some times over."""
    Tiles(4, 4, chunk=8).force(monkeypatch)
    monkeypatch.setitem(plan.BUDGET, "low", 0.0)
    tensors, _ = draw(BY_NAME["Mamba"], torch.float32, b=1, t=steps, d=2, n=2)
    for _ in range(times):
        given = {n: x.clone().requires_grad_() for n, x in tensors.items()}
        y = sf.scan(BY_NAME["Mamba"].recurrence, **given, backend="triton", memory="low")
        y.sum().backward()


def test_as_many_tensors_for_many_segments_as_for_few(monkeypatch):
    texts: list[str] = []
    function = replay_text._Writer.function

    def noted(writer):
        made = function(writer)
        texts.append(made.__doc__)
        return made

    monkeypatch.setattr(replay_text._Writer, "function", noted)
    most = []
    for steps in (24, 48):
        del texts[:]
        trained(monkeypatch, steps, times=3)
        backward = max(texts, key=len)
        most.append((most_alive(backward), len(re.findall(r"\bt\d+ = ", backward))))
    (few, made_for_few), (many, made_for_many) = most
    assert made_for_many > made_for_few, "no more segments"
    assert few == many < made_for_few


def test_a_recording_holds_as_many_for_many_segments_as_for_few(monkeypatch):
    add, noted, most = tape.Recorder._add, [], 0

    def counted(recorder, x, root):
        nonlocal most
        noted.append(ref(x))
        most = max(most, sum(r() is not None for r in noted))
        return add(recorder, x, root)

    monkeypatch.setattr(tape.Recorder, "_add", counted)
    counts = []
    for steps in (24, 48):
        most = 0
        del noted[:]
        trained(monkeypatch, steps, times=2)
        counts.append((most, len(noted)))
    (few, noted_for_few), (many, noted_for_many) = counts
    assert noted_for_many > noted_for_few, "no more segments"
    assert few == many < noted_for_few
