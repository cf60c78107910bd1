"""Run a recurrence and its adjoint through kernels: allocate, choose the lowering, launch, sum what must be.

Tensors are read where they lie: an axis that a tensor lacks has stride 0, and a scan from the right has a
negative time stride.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch

from scanforge import pipeline, split
from scanforge.ir.scan import TIME, Scan, load
from scanforge.launch import LastRun, Options, Result, output_dtypes, ran, sizes_of
from scanforge.pipeline import Wanted
from scanforge.plan import KernelPlan, kept_rows, kernel_plan, spacing_of
from scanforge.views import View, aligned
from scanforge.work import Work, launch

Tensor = torch.Tensor


def forward(
    text: str, tensors: Sequence[Tensor], initial: Sequence[Tensor], options: Options, keep: bool
) -> Result:
    """The recurrence of `text` on these inputs and initial states, as the reference's `run`."""
    scan = load(text)
    sizes = sizes_of(scan, tensors, initial)
    result = allocate(scan, tensors, initial, options, keep)
    rooms = {
        o.name: room(scan, o.dims, t, sizes, options.dtype)
        for o, t in zip(scan.outputs, result.outputs, strict=True)
    }
    names = [s.name for s in scan.states]
    work = Work(
        {i.name: aligned(scan, i.dims, t, sizes) for i, t in zip(scan.inputs, tensors, strict=True)},
        {n: _view(scan, place, sizes) for n, place in rooms.items()},
        {n: View.of(t) for n, t in zip(names, initial, strict=True)},
        {n: View.of(t) for n, t in zip(names, result.finals, strict=True)},
        {n: View.of(t) for n, t in zip(names, result.kept, strict=True)} if keep else {},
    )
    if not sizes[TIME]:
        _pass_through(result.finals, initial)
    elif prod(sizes.values()):
        _forward(text, scan, work.flipped() if options.reverse else work, sizes, options, keep)
    for place in rooms.values():
        place.settle(scan)
    return result


def _forward(text: str, scan: Scan, work: Work, sizes: dict[str, int], options: Options, keep: bool) -> None:
    chosen = kernel_plan(scan, sizes, options.lowering)
    spacing = spacing_of(scan, sizes[TIME]) if keep else 0
    ran(LastRun(scan.name, chosen.plan))
    if chosen.chunks is None:
        launch(partial(pipeline.forward_kernel, text), work, options.dtype, spacing=spacing)
    else:
        split.forward(text, pipeline.chunked(text), work, chosen.chunks, spacing, options.dtype)


def allocate(
    scan: Scan, tensors: Sequence[Tensor], initial: Sequence[Tensor], options: Options, keep: bool
) -> Result:
    """Empty tensors for all that a forward kernel writes; also the shapes of the compiler's fake tensors."""
    sizes = sizes_of(scan, tensors, initial)
    outputs = [
        tensors[0].new_empty([1 if d == "1" else sizes[d] for d in o.dims], dtype=dtype)
        for o, dtype in zip(scan.outputs, output_dtypes(scan, tensors, options.dtype), strict=True)
    ]
    finals = [torch.empty_like(x0, memory_format=torch.contiguous_format) for x0 in initial]
    rows = kept_rows(scan, sizes[TIME]) if keep else 0
    return Result(outputs, finals, [x0.new_empty((rows, *x0.shape)) for x0 in initial] if keep else [])


def backward(
    text: str, wanted: Wanted, tensors: Sequence[Tensor], kept: Sequence[Tensor],
    cotangents: Sequence[Tensor], seeds: Sequence[Tensor], options: Options,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """The gradients of the wanted inputs in the scan's order, and the adjoint's final states."""
    scan = load(text)
    derived = pipeline.wide_adjoint(text, wanted)
    sizes = sizes_of(scan, tensors, ())
    dims = {i.name: i.dims for i in scan.inputs} | {n: scan.outputs[0].dims for _, n in derived.cotangents}
    given = dict(zip((i.name for i in scan.inputs), tensors, strict=True))
    given |= dict(zip((n for _, n in derived.cotangents), cotangents, strict=True))
    rooms = {
        g: room(
            scan,
            dims[i],
            torch.empty_like(given[i], memory_format=torch.contiguous_format),
            sizes,
            options.dtype,
        )
        for i, g in derived.gradients
    }
    mus = [s.name for s in derived.scan.states]
    ends = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in seeds]
    work = Work(
        {n: aligned(scan, dims[n], t, sizes) for n, t in given.items()},
        {n: _view(scan, place, sizes) for n, place in rooms.items()},
        {n: View.of(t) for n, t in zip(mus, seeds, strict=True)},
        {n: View.of(t) for n, t in zip(mus, ends, strict=True)},
        {s.name: View.of(t) for s, t in zip(scan.states, kept, strict=True)},
    )
    if not sizes[TIME]:
        _pass_through(ends, seeds)
    elif prod(sizes.values()):
        spacing = spacing_of(scan, sizes[TIME])
        flipped = work.flipped() if options.reverse else work
        _backward(text, wanted, flipped, kernel_plan(derived.scan, sizes, options.lowering), spacing, options)
    for place in rooms.values():
        place.settle(scan)
    return [place.target for place in rooms.values()], ends


def _backward(
    text: str, wanted: Wanted, work: Work, chosen: KernelPlan, spacing: int, options: Options
) -> None:
    ran(LastRun(f"{load(text).name}.adjoint", chosen.plan))
    if chosen.chunks is None:
        launch(partial(pipeline.backward_kernel, text, wanted), work, options.dtype, rows=spacing)
    else:
        scans = pipeline.chunked_adjoint(text, wanted)
        split.backward(text, wanted, scans, work, chosen.chunks, spacing, options.dtype)


def _pass_through(ends: Sequence[Tensor], starts: Sequence[Tensor]) -> None:
    """No steps: the states stay."""
    for end, start in zip(ends, starts, strict=True):
        end.copy_(start)


@dataclass(frozen=True, slots=True)
class Room:
    """Where a kernel writes an output: in place if it has all axes, else whole, to be summed afterwards."""

    dims: tuple[str, ...]
    target: Tensor
    whole: Tensor

    def settle(self, scan: Scan) -> None:
        """Sum over the axes that the output lacks."""
        if self.whole is self.target:
            return
        lacking = [i for i, axis in enumerate(scan.axes) if axis not in self.dims]
        left = [axis for axis in scan.axes if axis in self.dims]
        summed = self.whole.sum(lacking).permute([left.index(d) for d in self.dims if d != "1"])
        self.target.copy_(summed[tuple(None if d == "1" else slice(None) for d in self.dims)])


def room(
    scan: Scan, dims: tuple[str, ...], target: Tensor, sizes: dict[str, int], computed: torch.dtype
) -> Room:
    """The target itself, or a whole tensor in the computed dtype beside it."""
    if set(dims) == set(scan.axes):
        return Room(dims, target, target)
    return Room(dims, target, target.new_empty([sizes[a] for a in scan.axes], dtype=computed))


def _view(scan: Scan, place: Room, sizes: dict[str, int]) -> View:
    return aligned(scan, place.dims if place.whole is place.target else scan.axes, place.whole, sizes)
