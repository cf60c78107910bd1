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


IN_FLIGHT = 7_500_000  # bytes over the device: where the H200 runs best (6.5 to 8.5 MB)
SHARED = 225_000  # bytes of shared memory of one SM
PROCESSORS = 132


def tile_plan(steps: int, inner: int, outer: int, itemsizes: tuple[int, ...], *, backward: bool) -> Tile:
    """The tile for loads of these sizes in bytes: large R, and as many stages as keep the device busy."""
    widest, loaded = max(itemsizes), sum(itemsizes)
    lanes = 128 if inner >= 128 and inner * outer >= 128 * 128 else 64 if inner >= 64 else 32
    rows = 16 if backward or widest > 2 or len(itemsizes) > 3 else 64
    while rows > max(steps, 2):
        rows //= 2
    programs = -(-inner // lanes) * outer
    per_stage = rows * inner * outer * loaded
    shared = rows * lanes * loaded * -(-programs // PROCESSORS)
    stages = 1 + min(-(-IN_FLIGHT // per_stage), SHARED // shared)
    return Tile(rows, lanes, max(2, min(stages, 8)))


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


def kernel_plan(scan: Scan, sizes: dict[str, int], lowering: str = "") -> KernelPlan:
    """Ordered tiles where the lanes fill the device, else time in chunks; `lowering` forces one."""
    steps, lanes = sizes[TIME], prod(sizes[a] for a in scan.lanes)
    chunks = chunk_plan(steps, lanes)
    worth = lanes < FILLING and steps >= 1024 and bool(scan.states)
    chosen = lowering or ("split" if worth else "ordered_tile")
    why = "forced by lowering=" if lowering else f"{lanes} lanes {'do not ' if worth else ''}fill the device"
    if chosen == "split" and chunks is not None:
        return KernelPlan(Plan("triton", "split", why), chunks)
    return KernelPlan(Plan("triton", "ordered_tile", why), None)


def chunk_plan(steps: int, lanes: int) -> Chunks | None:
    """As many chunks as fill the device twice, of whole tiles; None if there is not one whole chunk."""
    wanted = max(2, -(-2 * FILLING // max(lanes, 1)))
    length = max(CHUNK, -(-steps // wanted) // CHUNK * CHUNK)
    count = steps // length
    return Chunks(count, length, steps - count * length) if count else None


def spacing_of(steps: int) -> int:
    """A state is kept for every tile of the backward kernel: so many rows."""
    return tile_plan(steps, 1, 1, (4,), backward=True).rows


def kept_rows(steps: int) -> int:
    """How many states are kept: before each tile of the backward kernel, and each row of the rest."""
    spacing = spacing_of(steps)
    return steps // spacing + steps % spacing
