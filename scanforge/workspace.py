"""Rooms that kernels alone look at, in few pieces of memory: those that are never in use together overlap.

A piece is there from the first use of any of its rooms to the last one, so rooms share one only as long as
the most that a call holds at a time is no more than if each were on its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from scanforge.lean import touched
from scanforge.tape import EMPTY, Launch, Op, Seen, Tape, indices

ALIGNED = 512  # bytes, as the allocators of GPUs have it


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that are in use from one step to another, that one included."""

    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Some memory, and where in it each tensor lies, in bytes."""

    room: Room
    offsets: dict[int, int]


@dataclass(slots=True)
class _Memory:
    """What is made here: by which step, which ones look at it, and whether they are kernels alone."""

    size: int
    made: int
    for_kernels: bool
    uses: list[int] = field(default_factory=list)

    def room(self, *, late: bool = False) -> Room:
        """From where it is made; or, where it is made late, from its first use."""
        return Room(self.size, self.uses[0] if late else self.made, max([self.made, *self.uses]))


def pieces(tape: Tape) -> list[Piece]:
    """What holds the rooms of a tape, each piece two or more."""
    found = _memory(tape)
    bound = most(m.room() for m in found.values())
    late = {i: m.room(late=True) for i, m in found.items() if m.for_kernels and m.uses}
    others = [m.room() for i, m in found.items() if i not in late]
    groups: list[Piece] = []
    alone = dict(late)
    for i in sorted(late, key=lambda i: (late[i].last, late[i].first)):
        del alone[i]
        for k, group in enumerate(groups):
            wider = _piece(late, [*group.offsets, i])
            tried = [*groups[:k], wider, *groups[k + 1 :]]
            if most([*others, *alone.values(), *(g.room for g in tried)]) <= bound:
                groups = tried
                break
        else:
            groups.append(_piece(late, [i]))
    return [g for g in groups if len(g.offsets) > 1]


def _piece(rooms: dict[int, Room], group: Sequence[int]) -> Piece:
    own = [rooms[i] for i in group]
    offsets, size = packed(own)
    room = Room(size, min(r.first for r in own), max(r.last for r in own))
    return Piece(room, dict(zip(group, offsets, strict=True)))


def packed(rooms: Sequence[Room]) -> tuple[list[int], int]:
    """An offset for each room, and the size of all: the largest first, each as low as it can lie."""
    placed: list[tuple[int, Room]] = []
    offsets = [0] * len(rooms)
    for k in sorted(range(len(rooms)), key=lambda k: (-rooms[k].size, k)):
        room, low = rooms[k], 0
        for start, other in sorted(placed, key=lambda p: p[0]):
            together = room.first <= other.last and other.first <= room.last
            if together and start < low + room.size and low < start + other.size:
                low = start + other.size
        offsets[k] = low
        placed.append((low, room))
    return offsets, max((start + room.size for start, room in placed), default=0)


def most(rooms: Iterable[Room]) -> int:
    """The most bytes that are in use at a time."""
    changes = [change for r in rooms for change in ((r.first, r.size), (r.last + 1, -r.size))]
    return max(accumulate(size for _, size in sorted(changes)), default=0)


def _memory(tape: Tape) -> dict[int, _Memory]:
    """All memory that the steps of a tape make, by the tensor that it is first."""
    found: dict[int, _Memory] = {}
    for k, step in enumerate(tape.steps):
        by_address = isinstance(step, Launch) and step.compiled is not None
        for i in touched(tape, step) & found.keys():
            found[i].uses.append(k)
            found[i].for_kernels &= by_address
        if isinstance(step, Op):
            made = [i for i in step.made if tape.roots[i] == i >= tape.given and i not in found]
            found |= {i: _Memory(_bytes(tape.tensors[i]), k, step.name in EMPTY) for i in made}
    for i in {tape.roots[i] for i in indices(tape.returned)} & found.keys():
        found[i].uses.append(len(tape.steps))
        found[i].for_kernels = False
    return found


def _bytes(seen: Seen) -> int:
    """From the first entry to the last, as allocators round it."""
    last = sum((n - 1) * t for n, t in zip(seen.shape, seen.strides, strict=True))
    return 0 if 0 in seen.shape else -(-seen.dtype.itemsize * (last + 1) // ALIGNED) * ALIGNED
