"""`sf.tune`: try other tiles for a call on this machine's GPU, and keep the best one for later calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import torch

from scanforge import cache, replay, tuned
from scanforge.backend import choose
from scanforge.candidates import candidates, distance, shipped, ways
from scanforge.declare import Operator
from scanforge.errors import ArgumentError, BackendError
from scanforge.example import USUAL, Example, example
from scanforge.ir.scan import BATCH, TIME
from scanforge.plan import Choice
from scanforge.planned import Planned, planned
from scanforge.recurrence import Recurrence
from scanforge.shipped import CHUNK
from scanforge.timing import cold
from scanforge.tools import dtype_of
from scanforge.trial import Trial
from scanforge.tuned import Key, Record

Declared = type[Operator] | type[Recurrence]
Timer = Callable[[Callable[[], Any]], float]
GAIN = 0.98  # of the shipped plan's time: what gains less is no gain
TILES = 3  # that a choice is verified on, and some steps that fill none


@dataclass(frozen=True, slots=True)
class Tried:
    """A choice that was tried: its seconds, or why it may not win."""

    choice: Choice
    seconds: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass: the shipped choice, the others, which were tried, and what is known now, or was before."""

    way: str
    shipped: Choice
    others: tuple[Choice, ...]
    tried: tuple[Tried, ...] = ()
    record: Record | None = None
    before: bool = False

    def __str__(self) -> str:
        if self.record is None:
            lines = [f"{self.way}: {len(self.others)} candidates; shipped: {self.shipped}"]
            return "\n".join([*lines, *(f"  {c}" for c in self.others)])
        wrong = sum(t.seconds is None for t in self.tried)
        tried = f"{len(self.tried)} of {len(self.others)} candidates tried, {wrong} rejected"
        known = f"{self.record}, not tuned again" if self.before else tried
        return f"{self.way}: {self.record.sentence()}; {known}"


@dataclass(frozen=True, slots=True)
class Tuning:
    """What tuning a call has found, pass by pass; printed, it says so."""

    operator: str
    sizes: dict[str, int]
    passes: tuple[Pass, ...]

    def __str__(self) -> str:
        head = f"{self.operator}, {', '.join(f'{a}={n}' for a, n in self.sizes.items())}"
        return "\n".join([head, *(f"  {line}" for p in self.passes for line in str(p).splitlines())])


def tune(
    operator: Declared,
    *,
    dtype: torch.dtype | str = torch.float32,
    budget: float = 60.0,
    again: bool = False,
    dry_run: bool = False,
    timer: Timer | None = None,
    clock: Callable[[], float] = time.monotonic,
    show: bool = True,
    **sizes: int,
) -> Tuning:
    """Find the fastest tiles for calls of these sizes on this machine's GPU, and keep them for later calls.

    Each candidate is held against the shipped kernels and a float64 loop on small tensors before it is timed;
    tuning ends when none is left, or after `budget` seconds. What is found holds for calls of this operator
    and `dtype` with about as many steps and lanes: as near to the same power of two. It is kept on disk, and
    such calls are not tuned again unless `again` says so. `dry_run` lists the candidates and runs nothing.

    `timer` gives the seconds of a call in place of the GPU's clock, `clock` those that have passed; `show`
    draws a progress bar on a terminal. Raises BackendError without a GPU.

    Example:
        >>> import scanforge as sf
        >>> found = sf.tune(sf.operators.MinMax, b=8, t=2048, d=2048, dry_run=True)
        >>> [p.way for p in found.passes]
        ['forward', 'forward, keeping states', 'backward']
    """
    typed, call = dtype_of(operator, dtype), example(operator, None, sizes, USUAL)
    name, text, plan = call.declared.name, call.traced.text, planned(call.traced.text, call.sizes, typed)
    if not budget > 0:
        raise ArgumentError(f"{name}: budget={budget!r} is no time: write the seconds that tuning may take.")
    if not plan.forward:
        raise ArgumentError(f"{name} of these sizes launches nothing: write sizes above 0.")
    if plan.kernel.lowering == "chunked":
        raise ArgumentError(
            f"{name} of these sizes runs as matrix products over chunks, whose tiles are not tuned: leave it "
            "to the shipped plan, or write other sizes."
        )
    if dry_run:
        passes = [Pass(w, shipped(plan, w), tuple(candidates(text, w, plan))) for w in ways(text)]
        return Tuning(name, call.sizes, tuple(passes))
    device = _device(name, timer)
    with torch.inference_mode(False), torch.no_grad(), _Bar(budget, show=show) as bar:
        search = _Search(operator, call, plan, device, timer or cold, clock, budget)
        passes = search.passes(bar, again=again)
    replay.forget()
    return Tuning(name, call.sizes, tuple(passes))


def _device(name: str, timer: Timer | None) -> str:
    """Where kernels are tried. Raises BackendError if they cannot run, or what is kept would be lost."""
    gpu = torch.cuda.is_available()
    if timer is None and not gpu:
        raise BackendError(
            f"{name}: tuning times kernels on a GPU, and torch sees none here: run it on a machine with one, "
            "or write --dry-run (dry_run=True) to list what it would try."
        )
    device = "cuda" if gpu else "cpu"
    choose("triton", torch.device(device), name)
    cache.folder()
    return device


class _Bar:
    """The seconds of a budget, as a progress bar."""

    def __init__(self, budget: float, *, show: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self.bar = Progress(*columns, console=console, disable=not (show and console.is_terminal))
        self.task = self.bar.add_task("", total=budget)

    def __enter__(self) -> _Bar:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def says(self, text: str, passed: float) -> None:
        self.bar.update(self.task, description=text, completed=passed)


class _Search:
    """Tries choices for the passes of a call until its time is over."""

    def __init__(
        self, operator: Declared, call: Example, plan: Planned, device: str, timer: Timer,
        clock: Callable[[], float], budget: float,
    ) -> None:  # fmt: skip
        self.operator, self.call, self.plan, self.device = operator, call, plan, device
        self.timer, self.clock, self.budget = timer, clock, budget
        self.start = clock()
        self.full = Trial(operator, call, plan.dtype, device)
        self.small: dict[int, Trial] = {}

    def passed(self) -> float:
        return self.clock() - self.start

    def key(self, way: str) -> Key:
        inputs, device = self.full.call.inputs, torch.device(self.device)
        dtypes = [x.dtype for x in inputs]
        return tuned.key(self.full.call.text, way, self.call.sizes, dtypes, tuned.device_name(device))

    def passes(self, bar: _Bar, *, again: bool) -> list[Pass]:
        """All passes, each with an equal part of the time that is left."""
        found, every = [], ways(self.full.call.text)
        for k, way in enumerate(every):
            until = self.passed() + (self.budget - self.passed()) / (len(every) - k)
            first, others = shipped(self.plan, way), candidates(self.full.call.text, way, self.plan)
            known = None if again else tuned.record(self.key(way))
            tried, record = ([], known) if known else self.search(way, first, others, until, bar)
            if not known:
                tuned.store(self.key(way), record)
            found.append(Pass(way, first, tuple(others), tuple(tried), record, known is not None))
        return found

    def search(
        self, way: str, first: Choice, others: list[Choice], until: float, bar: _Bar
    ) -> tuple[list[Tried], Record]:
        """Try choices, always the one that is nearest to the best so far."""
        own = self.timer(lambda: self.full.run(way, None))
        best, near, fastest, tried, left = None, first, own, [], list(others)
        while left and self.passed() < until:
            choice = min(left, key=lambda c: distance(c, near))
            left.remove(choice)
            tried.append(self.attempt(way, choice))
            seconds = tried[-1].seconds
            if seconds is not None and seconds < min(fastest, GAIN * own):
                best, near, fastest = choice, choice, seconds
            bar.says(f"{way}: {len(tried)} of {len(others)}, best {1e3 * fastest:.4g} ms", self.passed())
        name = tuned.device_name(torch.device(self.device))
        return tried, Record(best, date.today().isoformat(), name, fastest, own)

    def attempt(self, way: str, choice: Choice) -> Tried:
        """Verify a choice on few steps, then time it."""
        from triton.runtime.errors import TritonError

        try:
            wrong = self.verified(choice).wrong(way, choice)
            return Tried(choice, None if wrong else self.timer(lambda: self.full.run(way, choice)), wrong)
        except TritonError as error:  # it takes more shared memory or registers than there are
            return Tried(choice, None, str(error))

    def verified(self, choice: Choice) -> Trial:
        """The call with so few steps and rows of the batch that a float64 loop takes no time.

        Time has whole tiles, or whole chunks, and steps that fill none. Channels are as many, so that the
        kernel is the very one that is timed, unless a program holds axes: then it depends on the steps.
        """
        whole = choice.tile.rows * choice.tile.groups
        piece = max(whole, min(choice.chunk, 2 * CHUNK))
        steps = min(TILES * piece + piece // 2 + 1, self.call.sizes[TIME])
        if steps not in self.small:
            few = {a: min(2, n) for a, n in self.call.sizes.items() if a == BATCH}
            sizes = self.call.sizes | few | {TIME: steps}
            small = example(self.operator, None, sizes, USUAL)
            self.small[steps] = Trial(self.operator, small, self.plan.dtype, self.device)
        return self.small[steps]
