"""The second lowering, `split`: time is cut into chunks that run side by side, as reduce-then-scan.

Three ordered-tile kernels, each a scan of its own: the aggregate of every chunk (the operator on itself),
the carry over the aggregates (few steps), and the recurrence in every chunk from its carry. Here `combine`
earns its keep. The steps that fill no chunk follow by themselves. The backward pass is the same with the
adjoint, from the last chunk to the first.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from scanforge import dtypes
from scanforge.ir.scan import before
from scanforge.pipeline import Chunked, Wanted, backward_aggregate, backward_kernel, forward_kernel
from scanforge.plan import Chunks
from scanforge.views import View
from scanforge.work import Views, Work, launch

Tensor = torch.Tensor


def forward(text: str, scans: Chunked, work: Work, cut: Chunks, spacing: int, computed: torch.dtype) -> None:
    """Run a recurrence; the views are in the order of processing."""
    whole = cut.count * cut.length
    rows = whole // spacing if spacing else 0
    chunks = work.part(0, whole, 0, rows).chunked(cut.count)
    carries = _like_starts(work, cut.count)
    ends = _like_starts(work, cut.count)
    aggregates = _aggregates(scans, work, cut.count, computed)
    reduce = _reduce(scans, replace(chunks, kept={}), aggregates)
    launch(partial(forward_kernel, scans.aggregate), reduce, computed)
    launch(partial(forward_kernel, scans.carry), _carry(work, aggregates, carries), computed)
    inside = replace(chunks, starts=_views(carries), ends=_views(ends))
    launch(partial(forward_kernel, text), inside, computed, spacing=spacing)
    last = {n: t[-1] for n, t in ends.items()}
    if not cut.rest:
        _copy(work.ends, last)
        return
    tail = work.part(whole, cut.rest, rows, cut.rest // spacing + cut.rest % spacing if spacing else 0)
    launch(partial(forward_kernel, text), replace(tail, starts=_views(last)), computed, spacing=spacing)


def backward(
    text: str, wanted: Wanted, scans: Chunked, work: Work, cut: Chunks, spacing: int, computed: torch.dtype
) -> None:
    """Run the adjoint downwards; the views are in the primal's order of processing."""
    whole = cut.count * cut.length
    rows = whole // spacing
    make = partial(backward_kernel, text, wanted)
    starts = {n: v.tensor for n, v in work.starts.items()}
    if cut.rest:
        left = _like_starts(work, 1)
        tail = work.part(whole, cut.rest, rows, cut.rest // spacing + cut.rest % spacing)
        launch(make, replace(tail, ends={n: View.of(t[0]) for n, t in left.items()}), computed, rows=spacing)
        starts = {n: t[0] for n, t in left.items()}
    chunks = work.part(0, whole, 0, rows).chunked(cut.count)
    carries, ends = _like_starts(work, cut.count), _like_starts(work, cut.count)
    if carries:
        aggregates = _aggregates(scans, work, cut.count, computed)
        reduce = _reduce(scans, chunks, aggregates)
        launch(partial(backward_aggregate, text, wanted), reduce, computed, rows=spacing)
        over = _carry(replace(work, starts=_views(starts)), aggregates, carries).flipped()
        launch(partial(forward_kernel, scans.carry), over, computed)
    inside = replace(chunks, starts=_views(carries), ends=_views(ends))
    launch(make, inside, computed, rows=spacing)
    _copy(work.ends, {n: t[0] for n, t in ends.items()})


def _carry(work: Work, aggregates: dict[str, Tensor], carries: dict[str, Tensor]) -> Work:
    """The scan over the aggregates, whose ends nobody reads."""
    spare = {n: View.of(t[0]) for n, t in _like_starts(work, 1).items()}
    return Work(
        _views(aggregates), {before(n): View.of(t) for n, t in carries.items()}, work.starts, spare, {}
    )


def _views(tensors: dict[str, Tensor]) -> Views:
    return {n: View.of(t) for n, t in tensors.items()}


def _like_starts(work: Work, count: int) -> dict[str, Tensor]:
    """Room for states of every chunk."""
    return {n: v.tensor.new_empty((count, *v.shape)) for n, v in work.starts.items()}


def _aggregates(scans: Chunked, work: Work, count: int, computed: torch.dtype) -> dict[str, Tensor]:
    """Room for one element of every chunk, in the types that are computed in."""
    first = next(iter((work.inputs | work.outputs).values()))
    kinds = {"float": computed, "int": dtypes.named(work.int_type()), "bool": torch.bool}
    shape = (count, *first.shape[1:])
    return {x.name: first.tensor.new_empty(shape, dtype=kinds[x.kind]) for x, _ in scans.leaves}


def _reduce(scans: Chunked, chunks: Work, aggregates: dict[str, Tensor]) -> Work:
    """The walk that composes each chunk's elements, from the identity."""
    starts, ends = {}, {}
    for leaf, name in scans.leaves:
        room = aggregates[leaf.name]
        starts[name] = View.of(room.new_full((), leaf.identity).expand(room.shape))  # one number, stride 0
        ends[name] = View.of(room)
    return replace(chunks, outputs={}, starts=starts, ends=ends)


def _copy(into: Views, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        into[name].tensor.copy_(tensor)
