"""Programs of a ring in Triton's interpreter, which runs programs one after another: here each has a thread.

So they wait for each other as on a GPU. A program that fails ends the others, which would wait for ever.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from math import prod
from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter

from scanforge import kernel_choice, replay, tile, work
from scanforge.tile import Fixed, Tile

LANGUAGE = tl  # which Triton's interpreter looks for beside a kernel
BUILDER = interpreter.interpreter_builder
ALONE = threading.RLock()
LONGEST = 60  # seconds that the programs of a launch may take


class Own(threading.local):
    """The place in the grid of what a thread runs."""

    place: Any = None


def in_threads(run: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel of which all programs begin once the last one is asked for."""
    asked: list[Any] = []

    @wraps(run)
    def program(**arguments: Any) -> None:
        asked.append(BUILDER.grid_idx)
        if len(asked) == prod(BUILDER.grid_dim):
            _together(run, arguments, asked)
            asked.clear()

    program.__signature__ = inspect.signature(run)  # type: ignore[attr-defined]
    return program


def _together(run: Callable[..., Any], arguments: dict[str, Any], places: list[Any]) -> None:
    failures: list[BaseException] = []

    def one(place: Any) -> None:
        BUILDER.grid_idx = place
        try:
            run(**arguments)
        except (Exception, SystemExit) as failure:  # noqa: BLE001 - whichever it is, the others must end
            failures.append(failure)
            _stop(x for x in threads if x is not threading.current_thread())

    threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in places]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for x in threads:
            x.start()
        end = time.monotonic() + LONGEST
        for x in threads:
            x.join(max(0.0, end - time.monotonic()))
    finally:
        sys.setswitchinterval(before)
    waiting = [x for x in threads if x.is_alive()]
    _stop(waiting)
    assert not waiting, f"{len(waiting)} of {len(threads)} programs of a ring wait for ever"
    if failures:
        raise failures[0]


def _stop(threads: Iterable[threading.Thread]) -> None:
    """Raise SystemExit in them."""
    for x in threads:
        if x.ident is not None:
            stop, place = ctypes.py_object(SystemExit), ctypes.c_ulong(x.ident)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(place, stop)


def _alone(run: Callable[..., Any]) -> Callable[..., Any]:
    """For one thread at a time: what Triton's interpreter does to a function, and to its language, at a call.

    Python's parser counts how deep it is for all threads together, and a language half patched is none.
    """

    @wraps(run)
    def call(*values: Any) -> Any:
        with ALONE:
            return run(*values)

    return call


def allow(patch: pytest.MonkeyPatch, shape: Tile) -> None:
    """Let calls on the CPU have rings, and give those this shape, but for a backward kernel's R."""

    def shaped(steps: int, *others: Any) -> Tile | None:
        fixed: Fixed = next(x for x in others if isinstance(x, Fixed))
        made = replace(shape, rows=fixed.rows or max(shape.rows, fixed.least))
        return None if fixed.rest or steps < made.rows * made.groups * made.members else made

    own = Own()
    cls = type(BUILDER)
    patch.setattr(
        cls, "grid_idx", property(lambda _: own.place, lambda _, x: setattr(own, "place", x)), False
    )
    begin = interpreter.GridExecutor.__init__

    def init(self: Any, function: Any, names: list[str], *rest: Any, **others: Any) -> None:
        begin(self, in_threads(function) if "ptr_words" in names else function, names, *rest, **others)

    for place, name in ((interpreter.InterpretedFunction, "rewrite"), (interpreter, "_patch_lang")):
        patch.setattr(place, name, _alone(getattr(place, name)))
    patch.setattr(interpreter.GridExecutor, "__init__", init)
    patch.setattr(tile, "ring_tile", shaped)
    for module in (work, kernel_choice):
        patch.setattr(module, "at_once", lambda _: 64)
    replay.forget()
