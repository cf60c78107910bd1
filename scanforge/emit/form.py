"""What the text of a kernel is specialised for, and how a launcher calls it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scanforge.ir.scan import TIME, Output, Scan, State

CASTS = {"float": "{0}.to(FLOAT)", "int": "{0}.to(INT)", "bool": "{0}"}  # of what was loaded

CHUNK_AXIS = "chunk"  # of time cut into chunks: what has time, and every state, has it


@dataclass(frozen=True, slots=True)
class Form:
    """What the text of a kernel is specialised for."""

    rows: int  # R, a power of two; of each group
    outer: int  # groups of lane axes beside the innermost
    float_type: str  # float32 | float64
    int_type: str
    inner: tuple[str, ...] = ()  # the axes whose entries are threads
    grid: tuple[tuple[str, ...], ...] = ()  # the axes of each outer group
    held: str = ""  # the axis whose entries one thread holds
    entries: int = 1  # of the held axis
    together: int = 1  # entries that a backward kernel walks side by side
    whole: tuple[str, ...] = ()  # axes that lie in a program whole, as dimensions of its tensors
    sizes: tuple[int, ...] = ()  # of these
    spacing: int = 0  # a forward kernel keeps the states before every so many rows; 0: none
    sparse: bool = False  # and none for the rows that fill no tile: the spacing is of many tiles
    single: bool = False  # of one step: no loop
    ragged: bool = True  # there may be rows that fill no tile
    nvidia: bool = False  # inline assembly may stand in it
    packed: bool = False  # the outermost group is of packed sequences
    groups: int = 1  # threads that share a lane, each with its own rows of a tile
    relay: bool = False  # two groups, of which one hands its states to the other
    members: int = 1  # programs that share a lane in groups, each with every so-manieth tile
    along: tuple[str, ...] = ()  # outputs whose time is contiguous, and lanes are not
    across: frozenset[str] = frozenset()  # arguments that change with the length of time: strides, addresses

    def apart(self, room: Room) -> bool:
        """Whether threads read entries of their own: of their lane, or of their rows."""
        return room.inner or self.groups > 1


@dataclass(frozen=True, slots=True)
class Room:
    """A tensor as a kernel sees it: which of the three kinds of axes it has."""

    name: str
    kind: str
    timed: bool
    inner: bool
    held: bool
    whole: tuple[bool, ...] = ()  # of each whole axis


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's text and how to call it: its tensors in order."""

    source: str
    inputs: tuple[Room, ...]
    outputs: tuple[Room, ...]
    starts: tuple[Room, ...]  # the states before the first step
    ends: tuple[Room, ...]
    kept: tuple[Room, ...]  # over tiles instead of time; written by forward, read by backward
    said: int = 0  # numbers that a program of a ring says in a round, for each of its lanes

    def tensors(self) -> list[tuple[str, Room]]:
        """All of them with their names in the kernel, in the order of its arguments."""
        groups = (
            ("in", self.inputs),
            ("out", self.outputs),
            ("start", self.starts),
            ("end", self.ends),
            ("kept", self.kept),
        )
        return [(f"{prefix}_{room.name}", room) for prefix, rooms in groups for room in rooms]


def room(form: Form, name: str, kind: str, axes: Iterable[str]) -> Room:
    """The place of a tensor with these axes."""
    own = set(axes)
    timed = TIME in own
    if timed:
        own.add(CHUNK_AXIS)
    held = bool(form.held) and form.held in own
    return Room(name, kind, timed, bool(own & set(form.inner)), held, tuple(a in own for a in form.whole))


def state_room(form: Form, state: State) -> Room:
    """The place of a state's tensors."""
    return room(form, state.name, state.kind, (*state.axes, CHUNK_AXIS))


def output_room(form: Form, output: Output) -> Room:
    """The place of an output."""
    return room(form, output.name, output.kind, output.axes)


def input_rooms(form: Form, scans: Iterable[Scan], names: Iterable[str]) -> tuple[Room, ...]:
    """The places of inputs, looked up in the scans that read them."""
    known = {i.name: i for scan in scans for i in scan.inputs}
    return tuple(room(form, n, known[n].kind, known[n].axes) for n in names)


def shape_of(form: Form, scan: Scan, primal: Scan | None) -> tuple[Kernel, tuple[Room, ...]]:
    """A kernel's tensors, its text still empty, and the states of the primal that it runs again.

    A backward kernel (`primal` is given) runs forward again where its scan, the adjoint, reads the state
    before the step; then it reads the primal's inputs too.
    """
    again = {i.name for i in scan.inputs if i.role == "state_before"} if primal else set()
    read = [i.name for i in scan.inputs if i.name not in again]
    rerun = primal if primal and again else None
    read += [i.name for i in rerun.inputs if i.name not in read] if rerun else []
    seen = tuple(state_room(form, s) for s in (rerun.states if rerun else ()))
    own = tuple(state_room(form, s) for s in scan.states)
    inputs = input_rooms(form, [scan, *([primal] if primal else [])], read)
    outputs = tuple(output_room(form, o) for o in scan.outputs)
    kept = seen if primal else own if form.spacing else ()
    return Kernel("", inputs, outputs, own, own, kept), seen


def kept_at(form: Form) -> list[str]:
    """Where the state before the step `now` is kept, and the condition that it is."""
    spacing = form.spacing
    if form.sparse:
        return [f"at = (now // {spacing}).to(tl.int64)", f"if now % {spacing} == 0:"]
    return [
        f"whole = T // {spacing} * {spacing}",
        f"at = tl.where(now < whole, now // {spacing}, T // {spacing} + now - whole).to(tl.int64)",
        f"if (now >= whole) | (now % {spacing} == 0):",
    ]
