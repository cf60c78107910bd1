"""Generated code with one sign or one choice turned round: what a self-check must find."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from scanforge import chunked_work, pipeline, replay

SWAPS = {
    " + ": " - ",
    " * ": " + ",
    "minimum(": "maximum(",
    " != ": " == ",
    " > ": " <= ",
    " <= ": " > ",
    "tl.where(v0,": "tl.where(v0 == 0,",
}
CACHED = (
    pipeline.executable, pipeline.forward_kernel, pipeline.backward_kernel, pipeline.backward_aggregate,
    chunked_work.kernel,
)  # fmt: skip


def spoilt(source: str, function: str) -> str:
    """The text with the first operation of `function` exchanged, past its first line and docstring."""
    found = re.search(rf'^def {function}\(.*?\n(?:    """.*?"""\n)?', source, re.MULTILINE)
    assert found, f"there is no {function} in\n{source}"
    head, body = source[: found.end()], source[found.end() :]
    end = body.find("\n\n\n")
    body, rest = body[:end], body[end:]
    places = {body.find(old): old for old in SWAPS if old in body}
    assert places, f"nothing to exchange in\n{body}"
    at = min(places)
    return head + body[:at] + SWAPS[places[at]] + body[at + len(places[at]) :] + rest


@contextmanager
def code(change: Callable[[str], str], loader: str = "load_kernel") -> Iterator[None]:
    """What is generated meanwhile goes through `change` before it is loaded."""
    load = getattr(pipeline, loader)
    with loading(lambda source: load(change(source)), loader):
        yield


@contextmanager
def loading(
    load: Callable[[str], Any], loader: str = "load_kernel", places: Sequence[ModuleType] = (pipeline,)
) -> Iterator[None]:
    """What is generated meanwhile comes from `load`, each for the first time."""
    with pytest.MonkeyPatch.context() as patch:
        for place in places:
            patch.setattr(place, loader, load)
        _forget()
        try:
            yield
        finally:
            _forget()


def _forget() -> None:
    for cached in CACHED:
        cached.cache_clear()
    replay.forget()
