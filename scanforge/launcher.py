"""What is known of Triton's launchers, the functions by which a compiled kernel is launched again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Known:
    """An argument that is known when a replay runs: what its text calls it."""

    text: str


def unwrapped(run: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """What a launcher calls in turn, and with what, where it makes no memory of its own.

    The launcher is asked, with these arguments: which ones it passes on, in which order and with what beside
    them, differs between versions.
    """
    own = getattr(run, "__dict__", {})
    if "launch" not in own or own.get("global_scratch_size", 1) or own.get("profile_scratch_size", 1):
        return run, args
    passed: list[tuple[Any, ...]] = []
    asked = copy(run)
    asked.launch = lambda *found: passed.append(found)
    asked(*args)
    (found,) = passed
    return run.launch, found


def on_device(index: int, run: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    """Run where a GPU is the current one."""
    with torch.cuda.device(index):
        return run(*tensors)


def profiled() -> bool:
    """Whether a profiler of Triton's wants to be told of every launch, which a replay does not do."""
    knobs = sys.modules.get("triton.knobs")
    hooks = knobs and knobs.runtime.launch_enter_hook
    return bool(hooks and hooks.calls)
