"""The method of a recurrence that is being traced: what sf.previous and sf.segment_start refer to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Method:
    """A method under trace: the states before the step by the name of the state after it; the start flag."""

    name: str
    start: Any  # a bool Value, true at the first step of a segment
    before: dict[str, Any] = field(default_factory=dict)
    asked_start: bool = False


_CURRENT: ContextVar[Method | None] = ContextVar("method", default=None)


@contextmanager
def tracing(method: Method) -> Iterator[Method]:
    """Inside, `current()` is this method."""
    token = _CURRENT.set(method)
    try:
        yield method
    finally:
        _CURRENT.reset(token)


def current() -> Method | None:
    """The method under trace, None outside a recurrence."""
    return _CURRENT.get()
