"""The clock of a dry run: the functions of `timing.py` for a CPU, by the clock on the wall, few times."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.timing import Times, summary

COPIED = 1 << 20


class Cold:
    """A call by the clock on the wall."""

    def __init__(self, call: Callable[[], Any], *_: Any) -> None:
        self.call = call

    def sample(self, count: int) -> list[float]:
        """Milliseconds, once however often it is asked for."""
        before = time.perf_counter()
        self.call()
        return [1e3 * (time.perf_counter() - before)]


Replayed = Streamed = Cold


def cold(call: Callable[[], Any], repeats: int = 2) -> Times:
    """Milliseconds of a call."""
    clock = Cold(call)
    return summary([x for _ in range(repeats) for x in clock.sample(1)])


def called(call: Callable[[], Any], repeats: int = 2) -> tuple[Times, Times]:
    return cold(call, repeats), cold(call, repeats)


def replayed(call: Callable[[], Any], calls: int = 1, replays: int = 2) -> Times:
    return cold(call, replays)


def copy_times() -> Times:
    source = torch.randn(COPIED // 4)
    target = torch.empty_like(source)
    return cold(lambda: target.copy_(source))


def copying() -> Cold:
    source = torch.randn(COPIED // 4)
    target = torch.empty_like(source)
    return Cold(lambda: target.copy_(source))


def product_times(size: int = 64) -> tuple[int, Times]:
    x = torch.randn(size, size)
    return 2 * size**3, cold(lambda: x @ x)


def peak(call: Callable[[], Any]) -> int:
    """Nobody counts a CPU's bytes here."""
    call()
    return 0
