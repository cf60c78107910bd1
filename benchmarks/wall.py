"""The clock of a dry run: the functions of `timing.py` for a CPU, by the clock on the wall, few times."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.timing import Times, summary

COPIED = 1 << 20


def cold(call: Callable[[], Any], repeats: int = 2) -> Times:
    """Milliseconds of a call."""
    times = []
    for _ in range(repeats):
        before = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - before))
    return summary(times)


def called(call: Callable[[], Any], repeats: int = 2) -> tuple[Times, Times]:
    return cold(call, repeats), cold(call, repeats)


def replayed(call: Callable[[], Any], calls: int = 1, replays: int = 2) -> Times:
    return cold(call, replays)


def copy_times() -> Times:
    source = torch.randn(COPIED // 4)
    target = torch.empty_like(source)
    return cold(lambda: target.copy_(source))
