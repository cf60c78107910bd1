"""The cases of `grid.py`: each recurrence on each shape, in the order of its worth."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from benchmarks import ahead, bare, gated, matrix, peers
from benchmarks.cases import Row
from benchmarks.contest import Contest
from benchmarks.layers import MAMBA, RG_LRU
from benchmarks.problems import Calls, Problem
from benchmarks.session import Session
from benchmarks.steps import CALLED, StepContest
from benchmarks.tables import BACKWARD, BOTH, FORWARD
from tests.recurrences import Entry

MOST_ELEMENTS = 2**27  # of what processes that compile ahead hold each; larger inputs take the same kernels


@dataclass(frozen=True)
class ProblemCase:
    """A problem by name, and how to make it, at its size or small."""

    name: str
    make: Callable[[str, bool], Problem]  # device, tiny
    elements: int  # of one input

    def run(self, session: Session, *, tiny: bool = False) -> None:
        Contest(session, self.make(session.device, tiny)).run()

    def makers(self, pattern: str) -> Iterator[Callable[[], ahead.Call]]:
        """The calls that launch what it needs, ours and those of the peers that a pattern names."""
        if self.elements > MOST_ELEMENTS:
            return
        problem = self.make("cuda", False)
        found = [p for p in peers.of(problem) if fnmatch.fnmatch(p.name, pattern) and not p.available()]
        made = [(problem.ours, False)]
        made += [(partial(p.prepare, problem), p.whole) for p in found if not p.refuses(problem)]
        for make, whole in made:
            for direction in (FORWARD, BACKWARD, BOTH):
                call = partial(_call, make, direction)
                yield ahead.Whole(call) if whole else call


@dataclass(frozen=True)
class StepCase:
    """One step of a recurrence."""

    contest: StepContest

    @property
    def name(self) -> str:
        return f"{CALLED[self.contest.entry.name]} b={self.contest.batch}"

    def run(self, session: Session, *, tiny: bool = False) -> None:
        self.contest.run(session, tiny=tiny)

    def makers(self, pattern: str) -> Iterator[Callable[[], ahead.Call]]:
        made = self.contest.prepare("cuda")
        yield from (lambda: made.step, made.empty)


Case = ProblemCase | StepCase


def cases() -> list[Case]:
    """All of them, the most telling first."""
    found: list[Case] = [_matrix("HGRN2", matrix.hgrn2, size) for size in matrix.SIZES]
    found += [_matrix("scalar decay", matrix.scalar_decay, size) for size in matrix.SIZES]
    found += [_bare(row, "bare") for row in bare.rows()]
    found += [_gated(RG_LRU, size) for size in gated.RG_LRU_SIZES]
    found += [_gated(MAMBA, size) for size in gated.MAMBA_SIZES]
    found += [
        StepCase(StepContest(entry, b)) for b, entry in ((64, RG_LRU), (64, MAMBA), (1, RG_LRU), (1, MAMBA))
    ]
    return found + [_bare(row, "series") for row in bare.series()]


def _matrix(name: str, make: Callable[..., Problem], size: tuple[int, ...]) -> Case:
    def made(device: str, tiny: bool) -> Problem:
        return make(_small(size, matrix.TINY) if tiny else size, device, None if tiny else "chunked")

    return ProblemCase(f"{name} {_shape(size)}", made, math.prod(size[:4]))


def _bare(row: Row, section: str) -> Case:
    def made(device: str, tiny: bool) -> Problem:
        at = replace(row, size=_small(row.size, bare.TINY)) if tiny else row
        return bare.prepare(at, device, section)

    return ProblemCase(f"{row} {section}", made, math.prod(row.size))


def _gated(entry: Entry, size: tuple[int, ...]) -> Case:
    def made(device: str, tiny: bool) -> Problem:
        return gated.prepare(entry, _small(size, gated.TINY) if tiny else size, device)

    return ProblemCase(f"{gated.CALLED[entry.name]} {_shape(size)}", made, math.prod(size[:3]))


def _small(size: tuple[int, ...], most: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(min(n, m) for n, m in zip(size, most, strict=False))


def _shape(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))


def _call(make: Callable[[], Calls], direction: str) -> ahead.Call:
    return make().calls[direction]
