"""(scan, sizes, device) -> Plan: which lowering runs, and what is kept for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from scanforge.ir.scan import TIME, Scan
from scanforge.shipped import (
    BLOCK,
    BUDGET,
    CHUNK,
    FILLING,
    GROUPED,
    LONG,
    MANY_REGISTERS,
    MOST_ENTRIES,
    MOST_LEAVES,
    OF_STEP,
    OF_THREAD,
    PARALLEL_LANES,
    PARALLEL_STEPS,
    RINGED,
    SPACING,
    VALUES,
)
from scanforge.tile import Tile, at_most


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run, as data."""

    backend: str
    lowering: str
    why: str


def plan(scan: Scan, sizes: dict[str, int], lowering: str = "") -> Plan:
    """The plan of the reference backend; `lowering` forces one."""
    if lowering:
        return Plan("reference", lowering, "forced by lowering=")
    steps = sizes[TIME]
    lanes = prod(sizes[a] for a in scan.lanes)
    if not scan.states or steps < PARALLEL_STEPS:
        return Plan("reference", "loop", f"{steps} steps are few")
    if lanes > PARALLEL_LANES:
        return Plan("reference", "loop", f"{lanes} lanes fill a step's tensor operations")
    return Plan("reference", "parallel", f"{steps} steps of only {lanes} lanes")


def state_outputs(scan: Scan) -> dict[str, str]:
    """The states that an output of full axes hands out as they are: state -> output."""
    states = {s.name: s for s in scan.states}
    outputs = {o.name: o for o in scan.outputs}
    found: dict[str, str] = {}
    for output, variable in scan.readout.outputs:
        if variable in states and set(outputs[output].axes) == {TIME, *states[variable].axes}:
            found.setdefault(variable, output)
    return found


@dataclass(frozen=True, slots=True)
class Inside:
    """The axes that a step sums over and that therefore lie in one program; no axis for most recurrences.

    `held` if a thread can hold the entries of the only one, since none depends on a sum over them.
    """

    axes: tuple[str, ...] = ()
    held: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """How axes lie in a program: one in each thread's registers (`axis`), or some over its threads (`whole`).

    `rows`, `lanes`, `stages`, `warps` are the tile. A backward kernel walks `together` entries side by side.
    """

    axis: str = ""
    entries: int = 1
    together: int = 1
    whole: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    rows: int = 0
    lanes: int = 0
    stages: int = 0
    warps: int = 1

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes, either way."""
        return self.whole or ((self.axis,) if self.axis else ())

    def positions(self, axes: tuple[str, ...]) -> dict[str, int]:
        """Where the axes stand, by what a kernel calls a tensor's stride along them."""
        names = ["sn"] if self.axis else [f"sw{k}" for k in range(len(self.whole))]
        return {name: axes.index(a) for name, a in zip(names, self.axes, strict=True)}


def held_plan(
    inside: Inside, sizes: dict[str, int], steps: int, *, backward: bool, best: Tile | None = None
) -> Held:
    """The tile of a kernel with axes inside: the `best` one that was found, or the shipped one.

    The rows of a backward kernel are the spacing of what is kept, and are no choice.
    """
    held = _held_plan(inside, sizes, steps, backward=backward)
    if best is None or not held.axes or steps == 1:
        return held
    rows = held.rows if backward or held.whole else at_most(steps, best.rows)
    return replace(held, rows=rows, lanes=best.lanes, stages=best.stages, warps=best.warps or held.warps)


def _held_plan(inside: Inside, sizes: dict[str, int], steps: int, *, backward: bool) -> Held:
    if not inside.axes:
        return Held()
    entries = sizes[inside.axes[0]]
    if steps == 1 and not backward:  # all is read and written once, so that what is contiguous decides
        return _block_plan(inside.axes, sizes, 1, backward=False, block=OF_STEP)
    if not inside.held or entries > MOST_ENTRIES:
        return _block_plan(inside.axes, sizes, steps, backward=backward)
    if backward:
        return Held(inside.axes[0], entries, 4, rows=at_most(steps, 4), lanes=32, stages=3)
    rows = at_most(steps, min(max(1, VALUES // _power(entries)), 16))
    return Held(inside.axes[0], entries, entries, rows=rows, lanes=64, stages=3, warps=2)


def _block_plan(
    axes: tuple[str, ...], sizes: dict[str, int], steps: int, *, backward: bool, block: int = BLOCK
) -> Held:
    whole = tuple(sizes[a] for a in axes)
    entries = prod(map(_power, whole))
    most = OF_THREAD // 2 if backward else OF_THREAD  # a backward kernel holds several rows
    lanes = max(1, min(64, block // (2 if backward else 1) // entries))
    warps = max(1, min(8, entries * lanes // (32 * most)))
    few = entries * lanes // (32 * warps) <= most
    rows = at_most(steps, 4 if few else 2) if backward else 1
    return Held(whole=axes, sizes=whole, rows=rows, lanes=lanes, stages=2, warps=warps)


def _power(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


@dataclass(frozen=True, slots=True)
class Chunks:
    """How time is cut: `count` chunks of `length` steps, and the rest."""

    count: int
    length: int
    rest: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What was found to run best in place of the shipped plan: lowering, steps of a chunk, tile.

    No choice changes what a forward pass keeps, nor where: a backward pass may be chosen without it.
    """

    lowering: str
    chunk: int
    tile: Tile

    def __str__(self) -> str:
        return (
            f"{self.lowering} chunks of {self.chunk} {self.tile}"
            if self.chunk
            else f"{self.lowering} {self.tile}"
        )


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """The plan of a kernel backend, how time is cut, if it is, and the tile, if it is not the shipped one."""

    plan: Plan
    chunks: Chunks | None
    tile: Tile | None = None


def kernel_plan(
    scan: Scan,
    sizes: dict[str, int],
    lowering: str = "",
    inside: tuple[str, ...] = (),
    best: Choice | None = None,
    *,
    said: int = 0,
) -> KernelPlan:
    """Ordered tiles where the lanes fill the device, else time in chunks, or what was found to be `best`.

    `lowering` forces one. With axes inside, what is kept depends on it, and it is no choice. `said` is how
    many numbers the programs of a ring would tell each other of a lane; 0: there can be none.
    """
    steps, lanes = sizes[TIME], prod(sizes[a] for a in scan.lanes if a not in inside)
    worth = lanes < _filling(scan, inside) and steps >= LONG and bool(scan.states)
    few = f"{steps} steps are few" if steps < LONG else f"{lanes} lanes fill the device"
    why = f"{lanes} lanes do not fill the device" if worth else few
    ring = 0 < said <= MOST_LEAVES and lanes >= RINGED and not inside
    chosen = lowering or ("ordered_tile" if not worth else "ring" if ring else "split")
    if best and not (lowering or inside) and (best.lowering != "ring" or ring):
        chosen, why = best.lowering, "tuned"
    tuned = best if best and best.lowering == chosen else None
    chunks = chunk_plan(steps, lanes, tuned.chunk if tuned else 0) if chosen == "split" else None
    named = Plan("triton", chosen, "forced by lowering=" if lowering else why)
    return KernelPlan(named, chunks, tuned.tile if tuned else None)


def _filling(scan: Scan, inside: tuple[str, ...]) -> int:
    """From how many lanes on time is not split: where groups of threads share a lane, half as many."""
    return GROUPED if composes(scan) and len(scan.operator.leaves) <= MOST_LEAVES and not inside else FILLING


def composes(scan: Scan) -> bool:
    """Whether groups of threads can share a tile: they hand floats to each other."""
    return {x.kind for x in scan.operator.leaves} | {s.kind for s in scan.states} == {"float"}


def chunk_plan(steps: int, lanes: int, length: int = 0) -> Chunks:
    """As many chunks as fill the device twice, of whole tiles; shorter ones where the steps are few.

    `length` is that of a chunk, if it was found by tuning.
    """
    wanted = max(2, -(-2 * FILLING // max(lanes, 1)))
    length = length or max(CHUNK, -(-steps // wanted) // CHUNK * CHUNK)
    if length > steps:
        length = at_most(steps, CHUNK)
    count = steps // length
    return Chunks(count, length, steps - count * length)


@dataclass(frozen=True, slots=True)
class Keep:
    """The states that a forward pass keeps: before every `spacing` steps.

    With `refill` a backward pass runs forward again from each, over that segment of time, to have the states
    before every `refill` steps of it; else it starts its tiles from them, and those of the steps that fill no
    tile are all kept.
    """

    spacing: int
    refill: int = 0

    def rows(self, steps: int) -> int:
        """How many states that are."""
        if self.refill:
            return -(-steps // self.spacing)
        return steps // self.spacing + steps % self.spacing


def keep_plan(
    scan: Scan, sizes: dict[str, int], inside: Inside, moved: int, memory: str, *, split: bool
) -> Keep:
    """What is kept. `moved` are the bytes of inputs, outputs and gradients of the call.

    Expanded states are many times the inputs: they are kept before long segments alone.
    """
    steps = sizes[TIME]
    if not inside.axes:
        return Keep(spacing_of(scan, steps))
    refill = held_plan(inside, sizes, steps, backward=True).rows
    if split:
        return Keep(refill)
    one = sum(4 * prod(sizes[a] for a in s.axes) for s in scan.states)
    room = BUDGET[memory] * moved
    segment = CHUNK
    while segment < steps and one * (2 * segment // refill - (-steps // (2 * segment))) <= room:
        segment *= 2
    return Keep(segment, refill)


def spacing_of(scan: Scan, steps: int) -> int:
    """A state is kept for every tile of the backward kernel: its R, by the registers that a row takes."""
    registers = len(scan.inputs) + 2 * len(scan.states)  # inputs, cotangents, states run again
    return at_most(steps, next((r for most, r in SPACING if registers <= most), MANY_REGISTERS))
