"""One kernel launch: its views by name, how they become arguments, and the sums that follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Any, Self

import torch

from scanforge import dtypes, tape
from scanforge.emit.form import CHUNK_AXIS, Form, Kernel
from scanforge.ir.scan import BATCH
from scanforge.plan import Held, Keep
from scanforge.shipped import AT_ONCE, LEFT, LINE, OF_PROCESSOR, OF_RING, REGISTERS
from scanforge.sums import Sum, Sums, settle
from scanforge.tile import Composed, Fixed, Tile, at_most, bucket, fitting_tile
from scanforge.views import Lanes, View, across_time, lay_out

Tensor = torch.Tensor
Views = dict[str, View]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Packed sequences: where each begins, how long it is, and where its rows of kept states begin."""

    begins: Tensor
    lengths: Tensor
    places: Tensor


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel reads and writes: views over time, and views of states over lanes alone."""

    axes: tuple[str, ...]  # the lane axes, as the dimensions of all views stand
    inputs: Views
    outputs: Views
    starts: Views
    ends: Views
    kept: Views  # over tiles instead of time
    bounds: Bounds | None = None
    fresh: bool = False  # outputs without time hold nothing yet
    rest: bool = False  # what other launches left: the kernel is the same for any number of steps
    sums: Sums | None = None  # outputs without time to which other launches add, until they are settled

    def over_time(self, change: Callable[[View], View], kept: Callable[[View], View]) -> Self:
        """The same work with its views over time changed."""
        inputs = {n: change(v) for n, v in self.inputs.items()}
        outputs = {n: change(v) for n, v in self.outputs.items()}
        return replace(self, inputs=inputs, outputs=outputs, kept={n: kept(v) for n, v in self.kept.items()})

    def part(self, start: int, count: int, rows: int, kept_rows: int) -> Self:
        """Some steps of time, and the rows of what is kept for them."""
        return self.over_time(lambda v: v.steps(start, count), lambda v: v.steps(rows, kept_rows))

    def chunked(self, count: int) -> Self:
        """All of its time in chunks."""
        cut = self.over_time(lambda v: v.chunks(count), lambda v: v.chunks(count))
        return replace(cut, axes=(CHUNK_AXIS, *self.axes))

    def flipped(self) -> Self:
        """Right to left; what is kept stays in the order of processing."""
        return self.over_time(View.flipped, lambda v: v)

    def at(self, cut: int, spacing: int, *, down: bool) -> tuple[Self, Self]:
        """Its time in two, in the order of walking: the second part goes on from where the first one ends."""
        rows, left = (cut // spacing, self.steps - cut) if spacing else (0, self.steps - cut)
        kept = left // spacing + left % spacing if spacing else 0
        middle = {n: v.like() for n, v in self.starts.items()}
        parts = [self.part(0, cut, 0, rows), replace(self.part(cut, left, rows, kept), rest=True)]
        one, two = reversed(parts) if down else parts
        return replace(one, ends=middle), replace(two, starts=middle)

    def over_lanes(self, lanes: Lanes) -> bool:
        """Whether every output over time has an entry for every lane of a program."""
        inner = lanes.groups[-1]
        return all(any(v.has[1 + i] for i in inner) for v in self.outputs.values() if v.has[0])

    def along_time(self, lanes: Lanes) -> tuple[str, ...]:
        """The outputs whose time is contiguous, where a program's lanes are not."""
        apart = {n: abs(lanes.strides(v.strides[1:])[-1]) > 1 for n, v in self.outputs.items()}
        return tuple(n for n, v in self.outputs.items() if v.has[0] and v.strides[0] == 1 and apart[n])

    def over_time_by_name(self) -> Views:
        """The views over time, by their names in a kernel."""
        return {f"in_{n}": v for n, v in self.inputs.items()} | {
            f"out_{n}": v for n, v in self.outputs.items()
        }

    @property
    def first(self) -> torch.Tensor:
        """One of its tensors."""
        return next(iter((self.inputs | self.starts).values())).tensor

    @property
    def steps(self) -> int:
        """The length of time."""
        return next(iter((self.inputs | self.outputs).values())).shape[0]

    def shape(self) -> tuple[int, ...]:
        """The sizes of the lane axes."""
        return next(iter((self.inputs | self.outputs).values())).shape[1:]

    def lanes(self, held: Held) -> Lanes:
        """The layout of the lane axes."""
        over_time = [*self.inputs.values(), *self.outputs.values(), *self.kept.values()]
        states = [*self.starts.values(), *self.ends.values()]
        strides = [v.strides[1:] for v in over_time] + [v.strides for v in states]
        apart = frozenset(self.axes.index(a) for a in held.axes)
        return lay_out(
            self.shape(), strides, apart=apart, first=self.axes.index(BATCH) if self.bounds else None
        )

    def int_type(self) -> str:
        """The type that ints are computed in."""
        found = [v.tensor.dtype for v in self.inputs.values()]
        ints = [d for d in found if not d.is_floating_point and d != torch.bool]
        return dtypes.name(dtypes.computed_int(dtypes.promoted(ints, torch.int64)))


Make = Callable[[Form], tuple[Kernel, Any]]


def launch(
    make: Make, work: Work, computed: torch.dtype, held: Held, *, rows: int = 0, keep: Keep | None = None,
    composed: Composed | None = None, best: Tile | None = None,
) -> None:  # fmt: skip
    """Choose the tile, make the kernel, call it. What was found `best` is for lanes that are contiguous.

    `rows` forces a backward kernel's R, as what was kept decides it. Unless the work is fresh, outputs
    without time are added to what is there, since a call may be several launches. Where elements compose,
    groups of threads may share a tile; they walk whole tiles, and what is left is a launch without groups.
    """
    lanes = work.lanes(held)
    if held.axes or work.bounds or not work.over_lanes(lanes):
        composed = None
    along = work.along_time(lanes)
    spacing = least = keep.spacing if keep and not keep.refill else 0
    if along and not (rows or held.axes) and len(work.inputs) <= 2:  # whole lines; of more inputs, registers
        widest = max(v.tensor.element_size() for v in work.outputs.values())
        least = max(least, at_most(work.steps, LINE // widest))
    fixed = Fixed(rows, least, work.rest, at_once(work.first) if composed and composed.ring else 0)
    tile = _tile(work, lanes, held, fixed, composed, None if along else best)
    left = work.steps % (tile.rows * tile.groups * tile.members) if tile.groups > 1 else 0
    if left:
        one, two = work.at(work.steps - left, rows or spacing, down=bool(rows))
        for part in (one, replace(two, fresh=False)):
            more = composed if part.steps > left else None
            launch(make, part, computed, held, rows=rows, keep=keep, composed=more, best=best)
        return
    if keep and keep.refill:  # a segment is of whole tiles
        tile = replace(tile, rows=min(tile.rows, keep.spacing))
    kernel, function = make(_form(work, lanes, held, tile, computed, keep, rows))
    if not held.whole and any(r.timed and not r.inner for r in kernel.outputs):
        tile = replace(tile, lanes=32)  # a warp adds up its lanes
    found = {n: Sum.of(v, lanes, tile, computed, fresh=work.fresh) for n, v in work.outputs.items()}
    placed = replace(work, outputs={n: s.view for n, s in found.items()})
    apart = {n: s.member for n, s in found.items()}
    call(function, kernel, placed, tile, lanes, held, computed, apart)
    settle(found, work.sums)


def _form(
    work: Work, lanes: Lanes, held: Held, tile: Tile, computed: torch.dtype, keep: Keep | None, rows: int
) -> Form:
    """What the kernel's text is specialised for."""
    inner = {work.axes[i] for i in lanes.groups[-1]} or {*work.axes} - {*held.axes}
    whole_tiles = work.bounds is None and work.steps % tile.rows == 0
    return Form(
        rows=tile.rows,
        outer=len(lanes.outer),
        float_type=dtypes.name(computed),
        int_type=work.int_type(),
        inner=tuple(sorted(inner)),
        grid=tuple(tuple(work.axes[i] for i in group) for group in lanes.groups[:-1]),
        held=held.axis,
        entries=held.entries,
        together=held.together,
        whole=held.whole,
        sizes=held.sizes,
        spacing=keep.spacing if keep else 0,
        sparse=keep is not None and keep.refill > 0,
        single=work.steps == 1 and not (rows or work.rest) and work.bounds is None,
        ragged=tile.groups == 1 and not (held.axis and whole_tiles),
        nvidia=_nvidia(work.first),
        packed=work.bounds is not None,
        groups=tile.groups,
        relay=tile.relay,
        members=tile.members,
        along=() if held.whole else work.along_time(lanes),
        across=across_time(work.over_time_by_name(), lanes, held.positions(work.axes)),
    )


def _tile(
    work: Work, lanes: Lanes, held: Held, fixed: Fixed, composed: Composed | None, best: Tile | None
) -> Tile:
    """A tile that holds whole spacings of what is kept."""
    inner = lanes.groups[-1]
    items = tuple(
        v.tensor.element_size() for v in work.inputs.values() if v.has[0] and any(v.has[1 + i] for i in inner)
    )
    if held.whole:
        return Tile(fixed.rows or held.rows, held.lanes, held.stages)
    if held.axis:
        return Tile(fixed.rows or max(held.rows, fixed.least), held.lanes, held.stages)
    chunk = CHUNK_AXIS in work.axes  # the first; similar numbers of chunks have the same kernel
    shared = zip(lanes.sizes, lanes.groups, strict=True)
    *outer, inner_lanes = (bucket(n) if chunk and 0 in group else n for n, group in shared)
    return fitting_tile(work.steps, inner_lanes, prod(outer), items or (4,), fixed, composed, best)


def call(
    function: Any, kernel: Kernel, work: Work, tile: Tile, lanes: Lanes, held: Held, computed: torch.dtype,
    apart: Mapping[str, int] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Turn views into the kernel's arguments, in the order of its signature."""
    of = {"in": work.inputs, "out": work.outputs, "start": work.starts, "end": work.ends, "kept": work.kept}
    tensors = kernel.tensors()
    views = {t: of[t.partition("_")[0]][room.name] for t, room in tensors}
    rooms = dict(tensors)
    over_lanes = {
        t: v.strides if t.startswith(("start_", "end_")) else v.strides[1:] for t, v in views.items()
    }
    strides = {t: lanes.strides(s) for t, s in over_lanes.items()}
    constants: dict[str, int] = {f"sd_{t}": s[-1] for t, s in strides.items()}
    timed = [t for t, r in tensors if r.timed and t.startswith(("in_", "out_"))]
    constants |= {f"st_{t}": views[t].strides[0] for t in timed}
    if held.axis:
        at = work.axes.index(held.axis)
        constants |= {f"sn_{t}": s[at] for t, s in over_lanes.items() if rooms[t].held}
    for k, (axis, size) in enumerate(zip(held.whole, held.sizes, strict=True)):
        at = work.axes.index(axis)
        constants |= {f"sw{k}_{t}": s[at] for t, s in over_lanes.items() if rooms[t].whole[k]}
        constants |= {f"W{k}": size, f"B{k}": 1 << max(size - 1, 0).bit_length()}
    first = next(iter(views.values())).tensor
    b = work.bounds
    bounds = (b.begins, b.lengths, b.places) if b else ()
    blocks = -(-lanes.inner // tile.lanes)
    programs = blocks * prod(lanes.outer)
    constants |= {
        "BD": tile.lanes * tile.groups, "NS": tile.stages, "MASKED": lanes.inner % tile.lanes != 0,
        "FENCE": _fence(first, computed),
        "num_warps": held.warps if held.whole else max(1, tile.lanes * tile.groups // 32),
    }  # fmt: skip
    args = [
        *(v.pointer() for v in views.values()),
        work.steps, lanes.inner, *lanes.outer, *(work.kept[r.name].strides[0] for r in kernel.kept),
        *bounds, *_ring(first, kernel, programs * tile.members * tile.lanes, apart),
        *(s for found in strides.values() for s in found[:-1]),
    ]  # fmt: skip
    if tile.members > 1:  # all are at work at one time
        constants["launch_cooperative_grid"] = True
        constants["maxnreg"] = min(255, REGISTERS // (OF_PROCESSOR * tile.lanes * tile.groups))
    with on_device(first):
        tape.launch(function, (programs * tile.members,), args, constants, tile)


def _ring(like: torch.Tensor, kernel: Kernel, count: int, apart: Mapping[str, int]) -> list[Any]:
    """Room for what the programs of a ring say, two sets of words of no round yet; where their parts lie."""
    if not kernel.said:
        return []
    words = like.new_zeros(2 * count * kernel.said, dtype=torch.int64)
    return [words, *(apart[r.name] for r in kernel.outputs if not r.timed)]


def at_once(tensor: torch.Tensor) -> int:
    """How many programs of a ring are at work at one time where the tensor is; 0: they could not wait."""
    if tensor.is_meta:  # where launches are listed, not made
        return AT_ONCE
    if not _nvidia(tensor):
        return 0
    device = torch.cuda.get_device_properties(tensor.device)
    each = min(device.shared_memory_per_multiprocessor // OF_RING, OF_PROCESSOR)
    return max(device.multi_processor_count - LEFT, 0) * int(each)


def _fence(tensor: torch.Tensor, computed: torch.dtype) -> bool:
    """Warp fences and shuffles are inline assembly of NVIDIA's, on 32 bits."""
    return _nvidia(tensor) and computed == torch.float32


def _nvidia(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and torch.version.cuda is not None


def on_device(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Launches go to the tensors' device, whichever is current."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
