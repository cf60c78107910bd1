"""(scan, sizes, device) -> Plan: which lowering runs, and what is kept for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from scanforge.ir.scan import TIME, Scan


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


PARALLEL_STEPS, PARALLEL_LANES = (
    64,
    1024,
)  # measured on two cores: beyond, a step is bound by bytes, not calls


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
class Tile:
    """An ordered-tile kernel's shape: R rows, BD lanes (one a thread), NS stages in flight.

    With G `groups` a tile has G·R rows, and G threads share a lane.
    """

    rows: int
    lanes: int
    stages: int
    groups: int = 1


# Measured on an H200 (docs/dev/lab-notes.md): what decides is the bytes in flight over the device.
IN_FLIGHT = {False: 6_300_000, True: 8_400_000}  # in bytes, by whether there are 16-bit inputs alone
MANY_IN_FLIGHT = 13_000_000  # forward, wider inputs, beyond twice the lanes that are at work
RESIDENT = 16_896  # lanes that are at work at one time: 128 on each of 132 processors
SHARED = 225_000  # bytes of shared memory of one processor


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

    `rows`, `lanes`, `stages`, `warps` are the tile. A backward kernel walks `group` entries together.
    """

    axis: str = ""
    entries: int = 1
    group: int = 1
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


MOST_ENTRIES = 32  # of a held axis: more do not fit the registers of a thread
VALUES = 128  # rows times entries whose inputs a forward kernel spreads at a time
BLOCK = 4096  # entries of whole axes times lanes, in one program
OF_STEP = 256  # the same of a single step
OF_THREAD = 16  # of these in one thread, while there are threads


def held_plan(inside: Inside, sizes: dict[str, int], steps: int, *, backward: bool) -> Held:
    """The tile of a kernel with axes inside; that of a held axis was measured (docs/dev/lab-notes.md)."""
    if not inside.axes:
        return Held()
    entries = sizes[inside.axes[0]]
    if steps == 1 and not backward:  # all is read and written once, so that what is contiguous decides
        return _block_plan(inside.axes, sizes, 1, backward=False, block=OF_STEP)
    if not inside.held or entries > MOST_ENTRIES:
        return _block_plan(inside.axes, sizes, steps, backward=backward)
    if backward:
        return Held(inside.axes[0], entries, 4, rows=_at_most(steps, 4), lanes=32, stages=3)
    rows = _at_most(steps, min(max(1, VALUES // _power(entries)), 16))
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
    rows = _at_most(steps, 4 if few else 2) if backward else 1
    return Held(whole=axes, sizes=whole, rows=rows, lanes=lanes, stages=2, warps=warps)


def _power(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def tile_plan(
    steps: int, inner: int, outer: int, itemsizes: tuple[int, ...], *, backward: bool, rows: int = 0,
    leaves: int = 0,
) -> Tile:  # fmt: skip
    """The tile for inputs of these sizes in bytes: large R, and as many stages as keep the device busy.

    `rows` forces R, which for a backward kernel is the spacing of what was kept. Where elements of
    so many `leaves` compose, groups of threads may share it.
    """
    widest, loaded, total = max(itemsizes), sum(itemsizes), inner * outer
    wide = inner >= 128 and total >= 128 * 128 and not (backward and widest > 2)
    lanes = 128 if wide else 64 if inner >= 64 else 32
    rows = rows or _forward_rows(steps, len(itemsizes), widest, lanes)
    groups = _groups(steps, total, rows) if 0 < leaves <= MOST_LEAVES else 1
    lanes //= groups if groups * lanes > 128 else 1
    at_work = min(total, RESIDENT)
    narrow, many = widest <= 2 or backward, total > 2 * RESIDENT
    in_flight = MANY_IN_FLIGHT if many and not narrow else IN_FLIGHT[narrow]
    whole = groups * rows
    stages = max(3, 1 + round(in_flight / (whole * at_work * loaded))) + (many and narrow)
    programs = -(-at_work // (lanes * (RESIDENT // 128)))  # on one processor
    fitting = SHARED // (whole * lanes * loaded * max(programs, 1))
    return Tile(rows, lanes, max(2, min(stages, fitting, 8 if whole <= 16 else 5)), groups)


def _groups(steps: int, lanes: int, rows: int) -> int:
    """How many threads share a lane: so many that every scheduler of the device has a few warps."""
    groups = 1
    while groups < MOST_GROUPS and 2 * groups * lanes <= THREADS and 2 * groups * rows <= steps:
        groups *= 2
    return groups


THREADS = 0  # of the device that groups fill
MOST_GROUPS = 4
MOST_LEAVES = 2  # that cost little to compose beside a step


def _forward_rows(steps: int, inputs: int, widest: int, lanes: int) -> int:
    """R of a forward kernel: rows are registers, so many inputs take fewer."""
    most = 64 if widest <= 2 else 2048 // lanes
    return _at_most(steps, most if inputs <= 2 else min(most, 16 if inputs <= 4 else 8))


def _at_most(steps: int, rows: int) -> int:
    """Rows, halved until the steps fill them."""
    while rows > max(steps, 1):
        rows //= 2
    return rows


@dataclass(frozen=True, slots=True)
class Chunks:
    """How time is cut: `count` chunks of `length` steps, and the rest."""

    count: int
    length: int
    rest: int


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """The plan of a kernel backend, and how time is cut, if it is."""

    plan: Plan
    chunks: Chunks | None


CHUNK = 64  # chunks are of whole tiles, of both directions
FILLING = 8192  # lanes that fill the device: below, time is split (measured on an H200)
LONG = 1024  # steps from which that pays


def kernel_plan(
    scan: Scan, sizes: dict[str, int], lowering: str = "", inside: tuple[str, ...] = ()
) -> KernelPlan:
    """Ordered tiles where the lanes fill the device, else time in chunks; `lowering` forces one."""
    steps, lanes = sizes[TIME], prod(sizes[a] for a in scan.lanes if a not in inside)
    worth = lanes < FILLING and steps >= LONG and bool(scan.states)
    chosen = lowering or ("split" if worth else "ordered_tile")
    few = f"{steps} steps are few" if steps < LONG else f"{lanes} lanes fill the device"
    why = f"{lanes} lanes do not fill the device" if worth else few
    if chosen == "split":
        chunks = chunk_plan(steps, lanes)
        return KernelPlan(Plan("triton", "split", "forced by lowering=" if lowering else why), chunks)
    return KernelPlan(Plan("triton", "ordered_tile", "forced by lowering=" if lowering else why), None)


def chunk_plan(steps: int, lanes: int) -> Chunks:
    """As many chunks as fill the device twice, of whole tiles; shorter ones where the steps are few."""
    wanted = max(2, -(-2 * FILLING // max(lanes, 1)))
    length = max(CHUNK, -(-steps // wanted) // CHUNK * CHUNK)
    if length > steps:
        length = _at_most(steps, CHUNK)
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


BUDGET = {"": 0.5, "low": 0.16}  # of the bytes of inputs, outputs and gradients, for states that are kept


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
    return _at_most(steps, 32 if registers <= 4 else 16 if registers <= 7 else 8)
