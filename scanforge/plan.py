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
    """An ordered-tile kernel's shape: R rows, BD lanes (one a thread), NS stages in flight."""

    rows: int
    lanes: int
    stages: int


# Measured on an H200 (docs/dev/lab-notes.md): what decides is the bytes in flight over the device.
IN_FLIGHT = {False: 6_300_000, True: 8_400_000}  # in bytes, by whether there are 16-bit inputs alone
RESIDENT = 16_896  # lanes that are at work at one time: 128 on each of 132 processors
SHARED = 225_000  # bytes of shared memory of one processor


def tile_plan(
    steps: int, inner: int, outer: int, itemsizes: tuple[int, ...], *, backward: bool, rows: int = 0
) -> Tile:
    """The tile for inputs of these sizes in bytes: large R, and as many stages as keep the device busy.

    `rows` forces R, which for a backward kernel is the spacing of what was kept.
    """
    widest, loaded, total = max(itemsizes), sum(itemsizes), inner * outer
    wide = inner >= 128 and total >= 128 * 128 and not (backward and widest > 2)
    lanes = 128 if wide else 64 if inner >= 64 else 32
    rows = rows or _forward_rows(steps, len(itemsizes), widest, lanes)
    at_work = min(total, RESIDENT)
    wanted = IN_FLIGHT[widest <= 2 or backward] / (rows * at_work * loaded)
    stages = max(3, 1 + round(wanted)) + (total > 2 * RESIDENT)
    programs = -(-at_work // (lanes * (RESIDENT // 128)))  # on one processor
    fitting = SHARED // (rows * lanes * loaded * max(programs, 1))
    return Tile(rows, lanes, max(2, min(stages, fitting, 8 if rows <= 16 else 5)))


def _forward_rows(steps: int, inputs: int, widest: int, lanes: int) -> int:
    """R of a forward kernel: rows are registers, so many inputs take fewer."""
    most = 64 if widest <= 2 else 2048 // lanes
    return _at_most(steps, most if inputs <= 2 else min(most, 16 if inputs <= 4 else 8))


def _at_most(steps: int, rows: int) -> int:
    while rows > max(steps, 2):
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
    """The plan of a kernel backend, with how time is cut, if it is."""

    plan: Plan
    chunks: Chunks | None


CHUNK = 64  # chunks are of whole tiles, of both directions
FILLING = 8192  # lanes that fill the device: below, time is split (measured on an H200)
LONG = 1024  # steps from which that pays


def kernel_plan(scan: Scan, sizes: dict[str, int], lowering: str = "") -> KernelPlan:
    """Ordered tiles where the lanes fill the device, else time in chunks; `lowering` forces one."""
    steps, lanes = sizes[TIME], prod(sizes[a] for a in scan.lanes)
    chunks = chunk_plan(steps, lanes)
    worth = lanes < FILLING and steps >= LONG and bool(scan.states)
    chosen = lowering or ("split" if worth else "ordered_tile")
    few = f"{steps} steps are few" if steps < LONG else f"{lanes} lanes fill the device"
    why = "forced by lowering=" if lowering else f"{lanes} lanes do not fill the device" if worth else few
    if chosen == "split" and chunks is not None:
        return KernelPlan(Plan("triton", "split", why), chunks)
    return KernelPlan(Plan("triton", "ordered_tile", why), None)


def chunk_plan(steps: int, lanes: int) -> Chunks | None:
    """As many chunks as fill the device twice, of whole tiles; None if there is not one whole chunk."""
    wanted = max(2, -(-2 * FILLING // max(lanes, 1)))
    length = max(CHUNK, -(-steps // wanted) // CHUNK * CHUNK)
    count = steps // length
    return Chunks(count, length, steps - count * length) if count else None


def spacing_of(scan: Scan, steps: int) -> int:
    """A state is kept for every tile of the backward kernel: its R, by the registers that a row takes."""
    registers = len(scan.inputs) + 2 * len(scan.states)  # inputs, cotangents, states run again
    return _at_most(steps, 32 if registers <= 4 else 16 if registers <= 7 else 8)


def kept_rows(scan: Scan, steps: int) -> int:
    """How many states are kept: before each tile of the backward kernel, and each row of the rest."""
    spacing = spacing_of(scan, steps)
    return steps // spacing + steps % spacing
