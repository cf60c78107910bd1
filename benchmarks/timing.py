"""Times on a CUDA device, in milliseconds: of its own work alone, and as called from Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

import torch

CALLS, REPLAYS = 10, 30
REPEATS = 20
FLUSH = 256 << 20  # bytes written between calls: several times any L2
SPIN, LONGEST_SPIN = 1 << 21, 1 << 28  # clocks that the host has for its launches: 1 to 150 ms
COPIED = 1 << 30


@dataclass(frozen=True)
class Times:
    """Of one call, over several."""

    min: float
    median: float
    max: float


def summary(times: list[float]) -> Times:
    return Times(min(times), median(times), max(times))


def captured(call: Callable[[], Any], calls: int = CALLS) -> torch.cuda.CUDAGraph:
    """A graph of so many calls, captured on the current stream, which must not be the default one.

    A backward pass runs on its forward pass's stream, so both belong on this one.
    """
    call()  # compiled and loaded before capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(calls):
            call()
    return graph


class Replayed:
    """The device's time for one call among others: replays of a graph of several, back to back.

    A call's launch, ramp and drain are hidden behind its neighbours.
    """

    def __init__(self, call: Callable[[], Any], calls: int = CALLS) -> None:
        self.call = call  # it may hold what the graph reads
        self.graph, self.calls = captured(call, calls), calls

    def sample(self, count: int) -> list[float]:
        """Milliseconds of a call, in so many replays after one that is not counted."""
        self.graph.replay()
        marks = [_mark()]
        for _ in range(count):
            self.graph.replay()
            marks.append(_mark())
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / self.calls for a, b in pairwise(marks)]


class Cold:
    """The device's time for one call that finds L2 cold: between events around its launches, after a flush.

    The device spins while the host launches, so that it never waits for the host: the call's ramp and drain
    count, as in Triton's do_bench. A round whose first event has passed before its last launch is made is
    thrown away, and those after it spin longer.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call, self.spin = call, SPIN
        self.flush = _flushed()
        for _ in range(3):
            call()
        torch.cuda.synchronize()

    def sample(self, count: int) -> list[float]:
        """Milliseconds of so many calls."""
        times: list[float] = []
        while len(times) < count:
            torch.cuda._sleep(self.spin)
            self.flush.zero_()
            start = _mark()
            self.call()
            end = _mark()
            late = start.query()
            torch.cuda.synchronize()
            if not late:
                times.append(start.elapsed_time(end))
            elif self.spin < LONGEST_SPIN:
                self.spin *= 2
            else:
                raise RuntimeError(
                    f"The host did not launch the call within {self.spin} clocks of the device."
                )
        return times


class Streamed:
    """The time of one call among others on a stream of its own library's: by the clock on the wall.

    Calls are made back to back and the last one is waited for. L2 is not flushed.
    """

    def __init__(self, call: Callable[[], Any], wait: Callable[[Any], None], calls: int = CALLS) -> None:
        self.call, self.wait, self.calls = call, wait, calls
        wait(call())

    def sample(self, count: int) -> list[float]:
        """Milliseconds of a call, so many times."""
        torch.cuda.synchronize()
        times = []
        for _ in range(count):
            before = time.perf_counter()
            for _ in range(self.calls):
                last = self.call()
            self.wait(last)
            times.append(1e3 * (time.perf_counter() - before) / self.calls)
        return times


def replayed(call: Callable[[], Any], calls: int = CALLS, replays: int = REPLAYS) -> Times:
    return summary(Replayed(call, calls).sample(replays))


def cold(call: Callable[[], Any], repeats: int = REPEATS) -> Times:
    return summary(Cold(call).sample(repeats))


def called(call: Callable[[], Any], repeats: int = REPEATS) -> tuple[Times, Times]:
    """(device, host) times of a call from Python, as Triton's do_bench takes them.

    L2 is flushed before each call, and the events stand around the call, so that gaps between its launches
    count where the host is slower than the device. The host's time is until the call returns.
    """
    flush = _flushed()
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    pairs, host = [], []
    for _ in range(repeats):
        flush.zero_()
        start = _mark()
        before = time.perf_counter()
        call()
        host.append(1e3 * (time.perf_counter() - before))
        pairs.append((start, _mark()))
    torch.cuda.synchronize()
    return summary([a.elapsed_time(b) for a, b in pairs]), summary(host)


def copy_times() -> Times:
    """Of copying 1 GiB from one place of the device's memory to another.

    Not in a graph: as a graph's node a copy runs at two thirds of the pace of the kernel that torch launches.
    """
    source = torch.randn(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    return called(lambda: target.copy_(source))[0]


def copying() -> Cold:
    """The clock of `copy_times`, to be read in turns with others."""
    source = torch.randn(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    return Cold(lambda: target.copy_(source))


def product_times(size: int = 8192) -> tuple[int, Times]:
    """Floating-point operations and times of a product of two square bf16 matrices."""
    x, y = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3, cold(lambda: x @ y)


def peak(call: Callable[[], Any]) -> int:
    """The most bytes that a warm call holds beside what was there before it: its results count."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kept = call()
    torch.cuda.synchronize()
    del kept
    return torch.cuda.max_memory_allocated() - before


@cache
def _flushed() -> torch.Tensor:
    """What is written to flush L2, one for all clocks."""
    return torch.empty(FLUSH, dtype=torch.int8, device="cuda")


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
