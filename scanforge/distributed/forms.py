"""(what ranks have to do, ways to cut the lanes) -> Form: how ranks go on from each other.

compose   every rank folds its steps into one element, all gather these, and each scans from what they make
          of the first state: a rank reads its inputs twice, and all work at one time
pass      a rank scans one group of lanes after another, and hands the states of each to the next rank, which
          scans that group meanwhile: all is read once, and R ranks take (G + R - 1) / G of a rank's own time
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from scanforge.shipped import CALL, COPIED, GATHERED, HOST, MESSAGE

COMPOSE, PASS = "compose", "pass"
FORMS = (COMPOSE, PASS)


@dataclass(frozen=True, slots=True)
class Cut:
    """Lanes in groups along one axis: where each begins, and the end."""

    axis: str
    bounds: tuple[int, ...]
    again: int = 0  # bytes a step of inputs without the axis, which every group reads
    twice: bool = False  # whether a group's kernels read their inputs twice
    idle: bool = False  # whether they leave the device idle, so that a group takes as long as all lanes

    @property
    def count(self) -> int:
        """How many groups."""
        return len(self.bounds) - 1

    def __str__(self) -> str:
        groups = "groups" if self.count > 1 else "group"
        return f"{self.count} {groups} of {self.axis}={self.bounds[1] - self.bounds[0]}"


@dataclass(frozen=True, slots=True)
class Load:
    """The steps of each rank, and the bytes of all lanes that a step reads and writes."""

    steps: tuple[int, ...]
    read: int
    written: int

    def composed(self) -> float:
        """Seconds that composing takes: of four calls, two read all inputs."""
        return max(self.steps) * (2 * self.read + self.written) / COPIED + 4 * CALL + GATHERED

    def passed(self, cut: Cut) -> float:
        """Seconds that passing on takes: one group goes through all ranks, the others follow the slowest."""
        share = 1 if cut.idle else (cut.bounds[1] - cut.bounds[0]) / cut.bounds[-1]
        read = cut.again + (self.read - cut.again) * share
        moved = read * (1 + cut.twice) + self.written * share
        each = [max(steps * moved / COPIED + CALL, HOST) for steps in self.steps]
        return sum(each) + (cut.count - 1) * max(each) + (len(each) - 1) * MESSAGE


@dataclass(frozen=True, slots=True)
class Form:
    """How ranks go on from each other, and why: `compose`, or `pass` with the groups of lanes."""

    name: str
    why: str
    cut: Cut | None = None

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


def form_plan(load: Load, cuts: Sequence[Cut], *, forced: bool = False) -> Form:
    """The quicker form, by the bytes that each moves; or `pass`, if that is forced, in the quickest cut."""
    best = min(cuts, key=load.passed)
    composed, passed = load.composed(), load.passed(best)
    if forced:
        return Form(PASS, f"forced by form=, in {best}", best)
    if composed <= passed:
        also = ", whose time is cut as well" if best.twice else ", which leave a device idle" * best.idle
        return Form(COMPOSE, f"it takes {_micro(composed)}, and passing on {_micro(passed)} in {best}{also}")
    return Form(PASS, f"{best} take {_micro(passed)}, and reading twice to compose {_micro(composed)}", best)


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs"


_LAST: ContextVar[Form | None] = ContextVar("last_form", default=None)


def planned(form: Form | None) -> None:
    """Note what a call does; None on one rank alone, which has nobody to go on from."""
    _LAST.set(form)


def last_form() -> Form | None:
    """How the ranks of the newest call of this thread went on from each other, and why; None on one alone.

    Example:
        >>> from scanforge import distributed
        >>> form = distributed.last_form()
        >>> form is None or form.name in ("compose", "pass")
        True
    """
    return _LAST.get()
