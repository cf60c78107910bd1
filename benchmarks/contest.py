"""scanforge and its peers on one problem: each behind its gate, timed in turns, with the peak of memory.

Clocks are created once an implementation and sampled in rounds, so that a device which changes its pace
changes it for all of them. A failure is a row that says why, and what comes after it still runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks import baselines, gate, peers
from benchmarks.aims import ADD, OURS
from benchmarks.peers.cited import CITED
from benchmarks.peers.peer import BOUNDS, Peer
from benchmarks.problems import Calls, Problem
from benchmarks.record import rate
from benchmarks.session import FAILURES, Row, Session, lowering, told
from benchmarks.tables import BACKWARD, BOTH, FORWARD
from benchmarks.timing import summary

COPY = "copy"
ROUNDS = 5
COLD, REPLAYS, CALLS = 4, 3, 5  # samples a round, and the calls of a graph
SLOW = 10.0  # milliseconds
HOST_REPEATS = 7
MATRIX = "matrix"  # the section whose times are of replays: kernels of some hundred µs, not bound by bytes


@dataclass
class Entrant:
    """An implementation that may run, its calls once they are made, its errors once it has passed."""

    name: str
    make: Callable[[], Calls]
    bounds: dict[str, float]
    strict: bool  # fresh memory is NaN while it is gated
    calls: Calls | None = None


@dataclass(frozen=True)
class Once:
    """A clock that is read once, however often it is asked for."""

    clock: Any

    def sample(self, count: int) -> list[float]:
        return self.clock.sample(1)


class Contest:
    """All implementations of a problem."""

    def __init__(self, session: Session, problem: Problem) -> None:
        self.session, self.problem, self.clock = session, problem, session.clock

    def run(self) -> None:
        """Rows of all directions."""
        entrants = list(self.entrants())
        for direction in (FORWARD, BACKWARD, BOTH):
            passed = {e.name: row for e in entrants if (row := self.gated(e, direction))}
            if passed:
                self.timed(direction, {e.name: e for e in entrants if e.name in passed}, passed)

    def row(self, name: str, direction: str) -> Row:
        return {"implementation": name, **self.problem.at(), "direction": direction, "error": None}

    def entrants(self) -> Iterator[Entrant]:
        """Ours and the peers that can run; why each of the others cannot is a row."""
        yield Entrant(OURS, self.problem.ours, self.problem.bounds, strict=True)
        for peer in peers.of(self.problem):
            reason = self.session.left_out(peer.name) or peer.available() or peer.refuses(self.problem)
            if reason:
                self.session.results.add(self.row(peer.name, "all") | {"unavailable": reason})
            else:
                yield self.entrant(peer)

    def entrant(self, peer: Peer) -> Entrant:
        return Entrant(
            peer.name, lambda: peer.prepare(self.problem), BOUNDS[self.problem.dtype], strict=False
        )

    def gated(self, entrant: Entrant, direction: str) -> Row | None:
        """The row with its errors; nothing where it has no such direction, is wrong or fails."""
        row = self.row(entrant.name, direction)
        try:
            if entrant.calls is None:
                entrant.calls = entrant.make()
            if direction in entrant.calls.lacks:
                self.session.results.add(row | {"unavailable": entrant.calls.lacks[direction]})
                return None
            if direction not in entrant.calls.calls:
                return None
            with gate.poisoned(entrant.strict):
                made = entrant.calls.found(direction)
            found = self.problem.errors(direction, made, entrant.bounds)
        except FAILURES as failure:
            self.session.results.add(row | {"failed": told(failure)})
            self.session.settle()
            return None
        return row | {"error": found} | ({"lowering": lowering()} if entrant.name == OURS else {})

    def timed(self, direction: str, entrants: dict[str, Entrant], rows: dict[str, Row]) -> None:
        """Every entrant's times, in turns with a copy of 1 GiB and, forward, with an addition."""
        clocks: dict[str, dict[str, Any]] = {COPY: {"cold": self.clock.copying()}}
        if direction == FORWARD and self.problem.section != MATRIX:
            clocks[ADD] = self.clocks(self.addition())
            rows = {ADD: self.row(ADD, direction)} | rows
        for name, entrant in entrants.items():
            try:
                rows[name] |= self.beside(entrant, direction)
                clocks[name] = self.clocks_of(entrant, direction, rows[name])
            except FAILURES as failure:
                self.session.results.add(rows[name] | {"failed": told(failure)})
                self.session.settle()
        found, failed = in_turns(clocks)
        for name, reason in failed.items():
            self.session.results.add(rows[name] | {"failed": reason})
        pace = rate(2 * self.clock.COPIED, found.pop(COPY)["cold"]["median"])
        for name, times in found.items():
            self.session.results.add(rows[name] | self.measured(name, direction, times, pace))
        for peer in CITED:
            if (ms := peer.scaled(self.problem, direction, pace)) is not None:
                times = {"scaled": {"min": ms, "median": ms, "max": ms}}
                row = self.row(peer.name, direction) | {"cited": True}
                self.session.results.add(row | self.measured(peer.name, direction, times, pace))

    def beside(self, entrant: Entrant, direction: str) -> Row:
        """The host's time for a warm call, and the peak of memory where torch holds it."""
        call = entrant.calls.calls[direction]
        row = {"host": asdict(self.clock.called(call, HOST_REPEATS)[1])}
        return row if entrant.calls.wait else row | {"peak_bytes": self.clock.peak(call)}

    def clocks_of(self, entrant: Entrant, direction: str, row: Row) -> dict[str, Any]:
        """What can time it; a call that no graph takes is timed as launched, and its row says so."""
        call = entrant.calls.calls[direction]
        if entrant.calls.wait is not None:
            return {"streamed": self.clock.Streamed(call, entrant.calls.wait)}
        try:
            return self.clocks(call)
        except FAILURES as failure:
            row["not_replayed"] = told(failure)
            self.session.settle()
            return {"cold": self.clock.Cold(call)}

    def clocks(self, call: Callable[[], Any]) -> dict[str, Any]:
        """What takes long is timed once a round, and in no graph."""
        cold = self.clock.Cold(call)
        if cold.sample(1)[0] > SLOW:
            return {"cold": Once(cold)}
        return {"cold": cold, "replayed": self.clock.Replayed(call, CALLS)}

    def addition(self) -> Callable[[], Any]:
        x, y, room = baselines.addends(self.problem.cotangent.shape, self.problem.dtype, self.session.device)
        return lambda: torch.add(x, y, out=room)

    def measured(self, name: str, direction: str, times: dict[str, Any], pace: float) -> Row:
        """Times, the fraction of the copy that ran beside them, and what else bounds the work."""
        nbytes = self.problem.nbytes(direction) if name != ADD else 3 * self.problem.cotangent.nbytes
        chosen = "replayed" if self.problem.section == MATRIX else "cold"
        chosen = chosen if chosen in times else next(iter(times))
        median = times[chosen]["median"]
        row: Row = {"bytes": nbytes, **times, "clock": chosen, "copy_tb_s": pace}
        row |= {"fraction": rate(nbytes, median) / pace, "gb_s": 1e3 * rate(nbytes, median)}
        if name == ADD:
            return row
        floors = {"bytes": nbytes / pace / 1e9}
        if self.problem.products:
            flops = self.problem.flops(direction)
            row |= {"flops": flops, "tflop_s": rate(flops, median)}
            floors["products"] = flops / self.session.products_tflop_s / 1e9
        if self.problem.exponentials:
            passes = 2 if direction == BOTH else 1  # a backward pass makes the decays again
            floors["exponentials"] = passes * self.problem.exponentials / self.session.exponentials_per_ms
        bound = max(floors, key=lambda n: floors[n])
        return row | {"floor_ms": floors[bound], "bound": bound, "of_floor": floors[bound] / median}


def in_turns(clocks: dict[str, dict[str, Any]]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Each clock of each implementation sampled a few times a round: summaries over all, and failures."""
    counts = {"cold": COLD, "replayed": REPLAYS, "streamed": REPLAYS}
    found: dict[str, dict[str, list[float]]] = {n: {kind: [] for kind in some} for n, some in clocks.items()}
    failed: dict[str, str] = {}
    for _ in range(ROUNDS):
        for name in list(found):
            try:
                for kind, clock in clocks[name].items():
                    found[name][kind] += clock.sample(counts[kind])
            except FAILURES as failure:
                failed[name] = told(failure)
                del found[name]
    return {n: {kind: asdict(summary(x)) for kind, x in some.items()} for n, some in found.items()}, failed
