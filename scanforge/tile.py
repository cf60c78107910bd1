"""(steps, lanes, bytes) -> Tile: the shape of an ordered-tile kernel, by the table of what is shipped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import log2

from scanforge.shipped import (
    EXCHANGED,
    FEW_ROWS,
    FILLING,
    FORWARD_ROWS,
    GROUP_ROWS,
    GROUPED,
    IN_FLIGHT,
    MANY_IN_FLIGHT,
    MANY_STEPS,
    MOST_LEAVES,
    MOST_MEMBERS,
    OF_RING,
    RESIDENT,
    SHARED,
)


@dataclass(frozen=True, slots=True)
class Tile:
    """An ordered-tile kernel's shape: R rows, BD lanes (one a thread), NS stages in flight.

    With G `groups` a tile has G·R rows, and G threads share a lane; two may be a relay (emit.groups). A
    program that holds axes whole has so many `warps`; others have as many as their lanes need. In a ring so
    many programs are `members`, each with a tile of every round (emit.ring).
    """

    rows: int
    lanes: int
    stages: int
    groups: int = 1
    relay: bool = False
    warps: int = 0
    members: int = 1

    def __str__(self) -> str:
        more = f" G={self.groups}{' in relay' * self.relay}" * (self.groups > 1) + f" {self.warps} warps" * (
            self.warps > 0
        )
        more += f" S={self.members}" * (self.members > 1)
        return f"R={self.rows} BD={self.lanes} NS={self.stages}{more}"

    def staged(self, itemsizes: tuple[int, ...]) -> int:
        """The bytes of shared memory that tiles of such inputs take, all stages together."""
        return self.rows * self.groups * self.lanes * self.stages * sum(itemsizes)


@dataclass(frozen=True, slots=True)
class Composed:
    """What groups of threads compose: so many numbers, beside a step that has special functions or not.

    In a `ring` programs share the lanes too.
    """

    leaves: int
    special: bool
    ring: bool = False


def tile_plan(
    steps: int, inner: int, outer: int, itemsizes: tuple[int, ...], *, backward: bool, rows: int = 0,
    composed: Composed | None = None,
) -> Tile:  # fmt: skip
    """The tile for inputs of these sizes in bytes: large R, and as many stages as keep the device busy.

    `rows` forces R, which for a backward kernel is the spacing of what was kept. Groups of threads may share
    a tile where elements compose.
    """
    widest, loaded, total = max(itemsizes), sum(itemsizes), inner * outer
    wide = inner >= 128 and total >= 128 * 128 and not (backward and widest > 2)
    lanes = 128 if wide else 64 if inner >= 64 else 32
    forced, rows = rows, rows or _forward_rows(steps, len(itemsizes), widest, lanes)
    relay = backward and widest <= 2 and composed is not None and _hands_on(steps, total, rows)
    groups = 2 if relay else _groups(steps, total, rows, composed, backward=backward)
    if groups > 1:
        lanes = min(lanes, 64 if total >= FILLING else 32)
        rows = forced or min(rows, GROUP_ROWS)
    whole, at_work = groups * rows, min(total, RESIDENT)
    narrow, many = widest <= 2 or backward, total > 2 * RESIDENT
    in_flight = MANY_IN_FLIGHT if many and not narrow else IN_FLIGHT[narrow]
    more = (many and narrow) or (groups > 1 and not backward) or relay
    stages = max(3, 1 + round(in_flight / (whole * at_work * loaded))) + more
    programs = -(-at_work // (lanes * (RESIDENT // 128)))  # on one processor
    fitting = SHARED // (whole * lanes * loaded * max(programs, 1))
    return Tile(rows, lanes, max(2, min(stages, fitting, 8 if whole <= 16 else 5)), groups, relay)


@dataclass(frozen=True, slots=True)
class Fixed:
    """What a launch leaves no choice of: a backward kernel's R, or how many rows a forward tile has at least.

    `rest` if the steps are what other launches left, whose number must not matter. For a ring, so
    many programs are at work `at_once`.
    """

    rows: int = 0
    least: int = 0
    rest: bool = False
    at_once: int = 0


def fitting_tile(
    steps: int, inner: int, outer: int, itemsizes: tuple[int, ...], fixed: Fixed, composed: Composed | None,
    best: Tile | None = None,
) -> Tile:  # fmt: skip
    """The tile for a launch, of whole spacings of what is kept: the `best` one that was found, if it fits."""
    down = fixed.rows > 0
    tuned = best and not fixed.at_once and _fitted(best, steps, itemsizes, fixed, composed)
    if tuned:
        return tuned
    ring = ring_tile(steps, inner, outer, itemsizes, fixed, composed) if fixed.at_once and composed else None
    if ring:
        return ring
    choose = partial(tile_plan, steps, inner, outer, itemsizes, backward=down, composed=composed)
    if fixed.rest and not down:
        return choose(rows=max(FEW_ROWS, fixed.least))
    tile = choose(rows=fixed.rows)
    return tile if tile.rows >= fixed.least else choose(rows=fixed.least)


def ring_tile(
    steps: int, inner: int, outer: int, itemsizes: tuple[int, ...], fixed: Fixed, composed: Composed
) -> Tile | None:
    """The tile of programs that share their lanes, as many as are at work at one time; None: too few steps.

    What they wait for is each other, so that rows in registers count. A step that takes many of these has
    half the threads.
    """
    light = len(itemsizes) <= 2 and max(itemsizes) <= 2 and not composed.special
    rows = fixed.rows or max(fixed.least, 2 * GROUP_ROWS if light else GROUP_ROWS)
    groups = 4 if fixed.rows or rows * len(itemsizes) > 64 else 8
    room = OF_RING - EXCHANGED * 32 * groups
    stages = min(3, 1 + room // Tile(rows, 32, 1, groups).staged(itemsizes))
    programs = -(-inner // 32) * outer
    members, most = 1, min(fixed.at_once // programs, MOST_MEMBERS, steps // (2 * rows * groups))
    while 2 * members <= most:
        members *= 2
    if fixed.rest or stages < 2 or members < 2:
        return None
    return Tile(rows, 32, stages, groups, members=members)


def _fitted(
    best: Tile, steps: int, itemsizes: tuple[int, ...], fixed: Fixed, composed: Composed | None
) -> Tile | None:
    """The tile that was found, with the rows that this launch must have and the stages that then fit."""
    rows = fixed.rows or max(at_most(steps, best.rows), fixed.least)
    groups = best.groups if composed and best.groups * rows <= steps else 1
    one = Tile(rows, best.lanes, 1, groups, best.relay and groups > 1)
    stages = min(best.stages, SHARED // one.staged(itemsizes))
    return None if fixed.rest or stages < 2 else replace(one, stages=stages)


def _groups(steps: int, lanes: int, rows: int, composed: Composed | None, *, backward: bool) -> int:
    """How many threads share a lane, so that every scheduler of the device has a few warps.

    Composing costs: it pays beside special functions, whose answers a lone warp waits for, and where a thread
    a lane would leave processors idle. A backward step needs many registers.
    """
    if composed is None or composed.leaves > MOST_LEAVES or not GROUPED <= lanes <= RESIDENT:
        return 1
    if lanes >= FILLING and not composed.special:
        return 1
    most = 2 if backward and lanes >= FILLING else 4
    groups, least = 1, 2 * max(rows, GROUP_ROWS)
    while groups < most and 2 * groups * lanes <= 2 * RESIDENT and groups * least <= steps:
        groups *= 2
    return groups


def _hands_on(steps: int, lanes: int, rows: int) -> bool:
    """Whether two groups of a backward kernel are a relay: while all their threads are at work at one time.

    That costs less than composing, and wider inputs are bound by their bytes.
    """
    return FILLING <= lanes <= RESIDENT // 2 and 2 * rows <= steps


def _forward_rows(steps: int, inputs: int, widest: int, lanes: int) -> int:
    """R of a forward kernel: rows are registers, so many inputs take fewer."""
    most = FORWARD_ROWS[widest <= 2, lanes][0 if inputs <= 2 else 1 if inputs <= 4 else 2]
    return most if steps >= MANY_STEPS else at_most(steps, min(most, FEW_ROWS))


def bucket(n: int) -> int:
    """The power of two that is nearest by ratio: what is chosen by it is the same for similar numbers."""
    return 1 << round(log2(n)) if n > 0 else 0


def at_most(steps: int, rows: int) -> int:
    """Rows, halved until the steps fill them."""
    while rows > max(steps, 1):
        rows //= 2
    return rows
