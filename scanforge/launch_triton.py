"""Run a recurrence and its adjoint through kernels: allocate, choose the lowering, launch, sum what must be.

Tensors are read where they lie: an axis that a tensor lacks has stride 0, and a scan from the right has a
negative time stride.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from math import prod

import torch

from scanforge import chunked_back, chunked_choice, chunked_run, pipeline, split, tuned
from scanforge.ir.scan import BATCH, TIME, Scan, is_outer, load
from scanforge.kernel_choice import is_fresh, kernel_choice, like_of
from scanforge.launch import LastRun, Options, Result, output_dtypes, ran, sizes_of
from scanforge.packed_work import packed, packed_rows, shared
from scanforge.pipeline import Wanted
from scanforge.plan import Choice, Keep, held_plan, keep_plan, kernel_plan
from scanforge.refill import fenced, in_segments, room, states
from scanforge.tuned import BACKWARD, FORWARD, KEEPING
from scanforge.views import aligned
from scanforge.work import Work, launch

Tensor = torch.Tensor


def forward(
    text: str, tensors: Sequence[Tensor], initial: Sequence[Tensor], options: Options, keep: bool,
    bounds: Tensor | None = None, *, inplace: bool = False, into: Sequence[Tensor] = (),
) -> Result:  # fmt: skip
    """The recurrence of `text` on these inputs and initial states, as the reference's `run`.

    `bounds` are those of packed sequences, whose states have a row each. With `inplace` the final states are
    written into the initial ones; outputs are written `into` tensors of any strides, if there are some.
    """
    scan = load(text)
    sizes = _sizes(scan, tensors, initial, bounds)
    result = allocate(text, tensors, initial, options, keep, bounds, inplace=inplace, into=into)
    kept = keeping(text, tensors, sizes, options, bounds) if keep else None
    best = None if bounds is not None else tuned.choice(text, KEEPING if keep else FORWARD, sizes, tensors)
    if sizes[TIME] > 1 and not chunked_choice.form_of(text, sizes, options, packed=bounds is not None):
        tensors = _spread(scan, tensors, pipeline.held_axis(text), options.dtype)
    dims = {o.name: o.dims for o in scan.outputs}
    outputs = dict(zip(dims, result.outputs, strict=True))
    fresh = is_fresh(text, sizes, options, like_of(tensors, bounds), best)
    targets = _targets(dims, outputs, options.dtype, fresh=fresh)
    work = Work(
        scan.lanes,
        {
            i.name: aligned(scan, shared(i.dims, t, bounds), t, sizes)
            for i, t in zip(scan.inputs, tensors, strict=True)
        },
        {n: aligned(scan, shared(dims[n], t, bounds), t, sizes) for n, t in targets.items()},
        states(scan, scan.states, initial, sizes),
        states(scan, scan.states, result.finals, sizes),
        states(scan, scan.states, result.kept, sizes, over=True, alone=bounds is not None)
        if result.kept
        else {},
        fresh=fresh,
    )
    work = packed(work, sizes[TIME], bounds, kept, reverse=options.reverse)
    if not sizes[TIME]:
        _pass_through(result.finals, initial)
    elif prod(sizes.values()):
        _forward(text, scan, work.flipped() if options.reverse else work, sizes, options, kept, best)
    _settle(targets, outputs)
    return result


def _sizes(
    scan: Scan, tensors: Sequence[Tensor], initial: Sequence[Tensor], bounds: Tensor | None
) -> dict[str, int]:
    """The sizes of axes; the batch of packed sequences counts them."""
    sizes = sizes_of(scan, tensors, initial)
    return sizes if bounds is None else sizes | {BATCH: bounds.numel() - 1}


def _spread(scan: Scan, tensors: Sequence[Tensor], held: str, computed: torch.dtype) -> list[Tensor]:
    """Inputs of time and the held axis alone, which every lane reads: converted once, not by every lane."""
    alone = [
        bool(held) and {TIME, held} <= set(i.axes) and all(is_outer(a) or a == held for a in i.axes)
        for i in scan.inputs
    ]
    return [
        t.to(computed) if narrow and t.is_floating_point() else t
        for t, narrow in zip(tensors, alone, strict=True)
    ]


def _targets(
    dims: dict[str, tuple[str, ...]], outputs: dict[str, Tensor], computed: torch.dtype, *, fresh: bool,
    lanes: frozenset[str] = frozenset(),
) -> dict[str, Tensor]:  # fmt: skip
    """Where kernels write: sums over time in the dtype of the computation, 0 if they are added to.

    So are sums over some of the `lanes`, where there are any: torch then leaves them in place.
    """
    made = {}
    for n, x in outputs.items():
        dtype = computed if x.is_floating_point() else x.dtype
        timed = TIME in dims[n]
        whole = lanes <= {*dims[n]}
        if (timed and whole) or (x.dtype == dtype and (timed or fresh)):
            made[n] = x
        elif fresh or timed:
            made[n] = x.new_empty(x.shape, dtype=dtype)
        else:
            made[n] = x.new_zeros(x.shape, dtype=dtype)
    return made


def _settle(targets: dict[str, Tensor], outputs: dict[str, Tensor]) -> None:
    for n, target in targets.items():
        if target is not outputs[n]:
            outputs[n].copy_(target)


def _forward(
    text: str, scan: Scan, work: Work, sizes: dict[str, int], options: Options, keep: Keep | None,
    best: Choice | None,
) -> None:  # fmt: skip
    by_chunks = chunked_choice.choice(text, sizes, options, packed=work.bounds is not None)
    if by_chunks.form:
        ran(LastRun(scan.name, chunked_choice.plan_of(by_chunks)))
        return chunked_run.forward(text, work, sizes, options)
    inside = pipeline.inside_axes(text)
    chosen, composed = kernel_choice(text, sizes, options, like_of([work.first], work.bounds), best)
    spacing = keep.spacing if keep else 0
    ran(LastRun(scan.name, chosen.plan))
    held = partial(held_plan, inside, sizes, backward=False, best=chosen.tile)
    if chosen.chunks is None:
        inner = held(sizes[TIME])
        if keep is None and inner.axis and work.bounds is None:
            work, keep = fenced(scan, work, sizes, inner.axis)
        make = partial(pipeline.forward_kernel, text)
        launch(make, work, options.dtype, inner, keep=keep, composed=composed, best=chosen.tile)
    else:
        how = split.Split(chosen.chunks, spacing, options.dtype, held, chosen.tile)
        split.forward(text, pipeline.chunked(text), work, how)


def keeping(
    text: str, tensors: Sequence[Tensor], sizes: dict[str, int], options: Options, bounds: Tensor | None
) -> Keep:
    """What the forward pass of a call keeps, which the backward pass finds out again."""
    if chunked_choice.form_of(text, sizes, options, packed=bounds is not None):
        return Keep(max(sizes[TIME], 1))
    scan, inside = load(text), pipeline.inside_axes(text)
    plan = kernel_plan(scan, sizes, options.lowering, inside.axes)
    moved = 2 * sum(t.numel() * t.element_size() for t in tensors)
    dtypes = output_dtypes(scan, tensors, options.dtype)
    moved += sum(
        d.itemsize * prod(sizes[a] for a in o.axes) for o, d in zip(scan.outputs, dtypes, strict=True)
    )
    dense = plan.chunks is not None or bounds is not None
    return keep_plan(scan, sizes, inside, moved, options.memory, split=dense)


def allocate(
    text: str, tensors: Sequence[Tensor], initial: Sequence[Tensor], options: Options, keep: bool,
    bounds: Tensor | None = None, *, inplace: bool = False, into: Sequence[Tensor] = (),
) -> Result:  # fmt: skip
    """Empty tensors for all that a forward kernel writes; also the shapes of the compiler's fake tensors.

    Of an output of the batch axis alone each of packed sequences has a row.
    """
    scan = load(text)
    rows, sizes = _sizes(scan, tensors, initial, bounds), sizes_of(scan, tensors, initial)
    sizes |= {} if bounds is None else {BATCH: 1}
    outputs = list(into) or [
        tensors[0].new_empty(
            [1 if d == "1" else (sizes if TIME in o.dims else rows)[d] for d in o.dims], dtype=dtype
        )
        for o, dtype in zip(scan.outputs, output_dtypes(scan, tensors, options.dtype), strict=True)
    ]
    finals = list(initial)
    if not inplace:
        finals = [_dense(x0) for x0 in initial]
    by_chunks = keep and chunked_choice.form_of(text, sizes, options, packed=bounds is not None)
    if not keep or (by_chunks and bounds is None):  # whose backward pass begins with the initial states
        return Result(outputs, finals, [])
    plan = keeping(text, tensors, sizes, options, bounds)
    count = plan.rows(sizes[TIME]) if bounds is None else packed_rows(plan, sizes[TIME], bounds)
    if bounds is not None and by_chunks:
        count = bounds.numel() - 1
    axis, alone = pipeline.held_axis(text), bounds is not None
    kept = [room(scan, s, x0, count, axis, alone=alone) for s, x0 in zip(scan.states, initial, strict=True)]
    return Result(outputs, finals, kept)


def backward(  # noqa: PLR0913 - as the op's
    text: str, wanted: Wanted, tensors: Sequence[Tensor], kept: Sequence[Tensor],
    cotangents: Sequence[Tensor], seeds: Sequence[Tensor], options: Options, bounds: Tensor | None = None,
    *, into: Sequence[Tensor | None] = (),
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """The gradients of the wanted inputs in the scan's order, and the adjoint's final states.

    `kept` is what the forward pass kept; where that is nothing, each initial state as a first row. Gradients
    are written `into` tensors of any strides, where there are some.
    """
    scan = load(text)
    derived = pipeline.kernel_adjoint(text, wanted)
    sizes = _sizes(scan, tensors, (), None) | _sizes_of_states(scan, kept)
    sizes |= {} if bounds is None else {BATCH: bounds.numel() - 1}
    dims = {i.name: i.dims for i in (*scan.inputs, *derived.scan.inputs)}
    own = dict(zip((i.name for i in scan.inputs), tensors, strict=True))
    by_chunks = chunked_choice.form_of(text, sizes, options, packed=bounds is not None)
    held = "" if by_chunks else pipeline.held_axis(text)
    given = dict(zip(own, _spread(scan, tensors, held, options.dtype), strict=True))
    given |= dict(zip((n for _, n in derived.cotangents), cotangents, strict=True))
    keep = keeping(text, tensors, sizes, options, bounds)
    gradients = {g: _dense(own[i]) if x is None else x for (i, g), x in zip_longest(derived.gradients, into)}
    by_gradient = {g: dims[i] for i, g in derived.gradients}
    segments = keep.rows(sizes[TIME]) if keep.refill else 1
    best = None if bounds is not None else tuned.choice(text, BACKWARD, sizes, tensors)
    fresh = segments == 1 and is_fresh(text, sizes, options, like_of(tensors, bounds), best, wanted)
    lanes = frozenset(scan.lanes).difference(pipeline.inside_axes(text).axes if segments > 1 else scan.lanes)
    targets = _targets(by_gradient, gradients, options.dtype, fresh=fresh, lanes=lanes)
    ends = [_dense(x) for x in seeds]
    work = Work(
        scan.lanes,
        {n: aligned(scan, shared(dims[n], t, bounds), t, sizes) for n, t in given.items()},
        {g: aligned(scan, shared(by_gradient[g], t, bounds), t, sizes) for g, t in targets.items()},
        states(scan, derived.scan.states, seeds, sizes),
        states(scan, derived.scan.states, ends, sizes),
        states(scan, scan.states, kept, sizes, over=True, alone=bounds is not None),
        fresh=fresh,
    )
    work = packed(work, sizes[TIME], bounds, keep, reverse=options.reverse)
    if not sizes[TIME]:
        _pass_through(ends, seeds)
    elif prod(sizes.values()):
        flipped = work.flipped() if options.reverse else work
        _backward(text, wanted, flipped, sizes, kept, keep, options, best)
    else:
        for x in targets.values():
            x.zero_()
    _settle(targets, gradients)
    return list(gradients.values()), ends


def _dense(x: Tensor) -> Tensor:
    """Room for as much, contiguous."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _sizes_of_states(scan: Scan, kept: Sequence[Tensor]) -> dict[str, int]:
    """Axes that only states have."""
    return {
        a: n
        for s, x in zip(scan.states, kept, strict=True)
        for a, n in zip(scan.order(s.axes), x.shape[1:], strict=True)
    }


def _backward(
    text: str, wanted: Wanted, work: Work, sizes: dict[str, int], kept: Sequence[Tensor], keep: Keep,
    options: Options, best: Choice | None,
) -> None:  # fmt: skip
    name, inside = load(text).name, pipeline.inside_axes(text)
    by_chunks = chunked_choice.choice(text, sizes, options, packed=work.bounds is not None)
    if by_chunks.form:
        ran(LastRun(f"{name}.adjoint", chunked_choice.plan_of(by_chunks)))
        derived = pipeline.kernel_adjoint(text, wanted)
        return chunked_back.backward(text, derived, work, sizes, options)
    like = like_of([work.first], work.bounds)
    chosen, composed = kernel_choice(text, sizes, options, like, best, wanted)
    ran(LastRun(f"{name}.adjoint", chosen.plan))
    held = partial(held_plan, inside, sizes, backward=True, best=chosen.tile)
    if chosen.chunks is not None:
        scans = pipeline.chunked_adjoint(text, wanted)
        how = split.Split(chosen.chunks, keep.spacing, options.dtype, held, chosen.tile)
        split.backward(text, wanted, scans, work, how)
    elif keep.refill:
        in_segments(text, wanted, work, kept, keep, sizes, options.dtype, chosen.tile)
    else:
        make = partial(pipeline.backward_kernel, text, wanted)
        inner = held(sizes[TIME])
        launch(make, work, options.dtype, inner, rows=keep.spacing, composed=composed, best=chosen.tile)


def _pass_through(ends: Sequence[Tensor], starts: Sequence[Tensor]) -> None:
    """No steps: the states stay."""
    for end, start in zip(ends, starts, strict=True):
        end.copy_(start)
