"""A replay holds no tensor longer than the call that it repeats: segments come and go."""

from __future__ import annotations

import re

import pytest
import torch

import scanforge as sf
from scanforge import plan, replay_text
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


def test_as_many_tensors_for_many_segments_as_for_few(monkeypatch):
    texts: list[str] = []
    function = replay_text._Writer.function

    def noted(writer):
        made = function(writer)
        texts.append(made.__doc__)
        return made

    monkeypatch.setattr(replay_text._Writer, "function", noted)
    Tiles(4, 4, chunk=8).force(monkeypatch)
    monkeypatch.setitem(plan.BUDGET, "low", 0.0)  # segments of one chunk
    most = []
    for steps in (24, 48):
        tensors, _ = draw(BY_NAME["Mamba"], torch.float32, b=1, t=steps, d=2, n=2)
        del texts[:]
        for _ in range(3):
            given = {n: x.clone().requires_grad_() for n, x in tensors.items()}
            y = sf.scan(BY_NAME["Mamba"].recurrence, **given, backend="triton", memory="low")
            y.sum().backward()
        backward = max(texts, key=len)
        most.append((most_alive(backward), backward.count("empty_strided")))
    (few, made_for_few), (many, made_for_many) = most
    assert made_for_many > made_for_few, "no more segments"
    assert few == many < made_for_few
