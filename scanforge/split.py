"""The second lowering, `split`: time is cut into chunks that run side by side, as reduce-then-scan.

Three ordered-tile kernels, each a scan of its own: the aggregate of every chunk (the operator on itself),
the carry over the aggregates (few steps), and the recurrence in every chunk from its carry. Here `combine`
earns its keep. The steps that fill no chunk follow by themselves. The backward pass is the same with the
adjoint, from the last chunk to the first. Outputs without time are added to, launch by launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from scanforge import dtypes
from scanforge.emit.form import CHUNK_AXIS
from scanforge.ir.scan import before
from scanforge.pipeline import Chunked, Wanted, backward_aggregate, backward_kernel, forward_kernel
from scanforge.plan import Chunks, Held, Keep
from scanforge.tile import Tile
from scanforge.views import View
from scanforge.work import Views, Work, launch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Split:
    """How a call is split: the chunks, the spacing of kept states, dtype, and the plan of a held axis."""

    cut: Chunks
    spacing: int
    computed: torch.dtype
    held: Callable[[int], Held]  # of so many steps
    best: Tile | None = None  # of the recurrence itself, if one was found

    def run(
        self, make: Any, work: Work, *, rows: int = 0, keeps: bool = False, best: Tile | None = None
    ) -> None:
        """Launch a kernel over some work."""
        keep = Keep(self.spacing) if keeps and self.spacing else None
        launch(make, work, self.computed, self.held(work.steps), rows=rows, keep=keep, best=best)


def forward(text: str, scans: Chunked, work: Work, how: Split) -> None:
    """Run a recurrence; the views are in the order of processing."""
    cut, spacing = how.cut, how.spacing
    whole = cut.count * cut.length
    rows = whole // spacing if spacing else 0
    chunks = work.part(0, whole, 0, rows).chunked(cut.count)
    carries, ends = _like_starts(work, cut.count), _like_starts(work, cut.count)
    aggregates = _aggregates(scans, work, cut.count, how.computed)
    how.run(partial(forward_kernel, scans.aggregate), _reduce(scans, replace(chunks, kept={}), aggregates))
    how.run(partial(forward_kernel, scans.carry), _carry(work, aggregates, carries))
    inside = replace(chunks, starts=carries, ends=ends)
    how.run(partial(forward_kernel, text), inside, keeps=True, best=how.best)
    last = {n: v.row(cut.count - 1) for n, v in ends.items()}
    if not cut.rest:
        _copy(work.ends, last)
        return
    tail = work.part(whole, cut.rest, rows, cut.rest // spacing + cut.rest % spacing if spacing else 0)
    how.run(partial(forward_kernel, text), replace(tail, starts=last, rest=True), keeps=True)


def backward(text: str, wanted: Wanted, scans: Chunked, work: Work, how: Split) -> None:
    """Run the adjoint downwards; the views are in the primal's order of processing."""
    cut, spacing = how.cut, how.spacing
    whole = cut.count * cut.length
    rows = whole // spacing
    make = partial(backward_kernel, text, wanted)
    starts = work.starts
    if cut.rest:
        left = {n: v.like() for n, v in work.starts.items()}
        tail = work.part(whole, cut.rest, rows, cut.rest // spacing + cut.rest % spacing)
        how.run(make, replace(tail, ends=left), rows=spacing)
        starts = left
    chunks = work.part(0, whole, 0, rows).chunked(cut.count)
    carries, ends = _like_starts(work, cut.count), _like_starts(work, cut.count)
    if carries:
        aggregates = _aggregates(scans, work, cut.count, how.computed)
        reduce = _reduce(scans, chunks, aggregates)
        how.run(partial(backward_aggregate, text, wanted), reduce, rows=spacing)
        over = _carry(replace(work, starts=starts), aggregates, carries).flipped()
        how.run(partial(forward_kernel, scans.carry), over)
    inside = replace(chunks, starts=carries, ends=ends)
    how.run(make, inside, rows=spacing, best=how.best)
    _copy(work.ends, {n: v.row(0) for n, v in ends.items()})


def _carry(work: Work, aggregates: Views, carries: Views) -> Work:
    """The scan over the aggregates, whose ends nobody reads."""
    spare = {n: v.like() for n, v in work.starts.items()}
    return Work(work.axes, aggregates, {before(n): v for n, v in carries.items()}, work.starts, spare, {})


def _like_starts(work: Work, count: int) -> Views:
    """Room for states of every chunk: a state has the lanes that it has, and the chunks before them."""
    return {n: v.over(count).like() for n, v in work.starts.items()}


def _aggregates(scans: Chunked, work: Work, count: int, computed: torch.dtype) -> Views:
    """Room for one element of every chunk, in the types that are computed in."""
    first = next(iter((work.inputs | work.outputs).values()))
    kinds = {"float": computed, "int": dtypes.named(work.int_type()), "bool": torch.bool}
    made = {}
    for leaf, _, axes in scans.leaves:
        has = (True, *(a in axes for a in work.axes))
        like = View(
            first.tensor.new_empty((), dtype=kinds[leaf.kind]),
            0,
            (count, *first.shape[1:]),
            (0,) * len(has),
            has,
        )
        made[leaf.name] = like.like()
    return made


def _reduce(scans: Chunked, chunks: Work, aggregates: Views) -> Work:
    """The walk that composes each chunk's elements, from the identity."""
    starts, ends = {}, {}
    for leaf, name, _ in scans.leaves:
        room = aggregates[leaf.name]
        one = room.tensor.new_full((), leaf.identity)
        starts[name] = replace(room, tensor=one, offset=0, strides=(0,) * len(room.shape))  # one number
        ends[name] = room
    assert chunks.axes[0] == CHUNK_AXIS
    return replace(chunks, outputs={}, starts=starts, ends=ends)


def _copy(into: Views, views: Views) -> None:
    for name, view in views.items():
        own = [i for i, has in enumerate(view.has) if has]
        start = view.tensor.storage_offset() + view.offset
        source = view.tensor.as_strided([view.shape[i] for i in own], [view.strides[i] for i in own], start)
        into[name].take(source, own)
