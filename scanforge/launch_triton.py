"""Launch ordered-tile kernels: lay out the lanes, choose tiles, allocate, call.

Tensors are read where they lie: an axis that a tensor lacks has stride 0, a scan from the right has a
negative time stride, and lane axes collapse where all tensors allow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from scanforge import dtypes
from scanforge.adjoint import adjoint
from scanforge.emit.ordered_tile import Form, Kernel
from scanforge.ir.scan import TIME, Scan, load
from scanforge.launch import Options, Result, output_dtypes, sizes_of
from scanforge.pipeline import Wanted, backward_kernel, forward_kernel, widen
from scanforge.plan import Tile, tile_plan

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lane axes as a kernel sees them: groups of axes that collapse, the innermost group last."""

    groups: tuple[tuple[int, ...], ...]  # positions among the scan's lane axes
    sizes: tuple[int, ...]

    @property
    def inner(self) -> int:
        """The lanes that programs share out in blocks."""
        return self.sizes[-1]

    @property
    def outer(self) -> tuple[int, ...]:
        """The sizes of the other groups."""
        return self.sizes[:-1]

    def strides(self, strides: Sequence[int]) -> list[int]:
        """A tensor's stride along each group: that of its last axis."""
        return [strides[group[-1]] if group else 0 for group in self.groups]


def lay_out(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> Lanes:
    """Innermost is the axis that most tensors are contiguous along; neighbours collapse if they can."""
    axes = [i for i, size in enumerate(shape) if size != 1]
    axes.sort(key=lambda i: (sum(s[i] == 1 for s in strides), -sum(s[i] for s in strides)))
    groups: list[list[int]] = []
    for axis in axes:
        if groups and all(s[groups[-1][-1]] == s[axis] * shape[axis] for s in strides):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    found = tuple(tuple(group) for group in groups) or ((),)
    return Lanes(found, tuple(prod(shape[i] for i in group) for group in found))


def aligned(scan: Scan, dims: Sequence[str], tensor: Tensor, sizes: dict[str, int]) -> Tensor:
    """A view with the scan's axes in order and in full, stride 0 for those that the tensor lacks."""
    present = [d for d in dims if d != "1"]
    named = tensor.squeeze([i for i, d in enumerate(dims) if d == "1"]) if "1" in dims else tensor
    ordered = named.permute([present.index(a) for a in scan.axes if a in present])
    shaped = ordered[tuple(slice(None) if a in present else None for a in scan.axes)]
    return shaped.expand([sizes[a] for a in scan.axes])


@dataclass(frozen=True, slots=True)
class Work:
    """One launch: tensors over time with the scan's axes in order, the others over lanes alone."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    starts: dict[str, Tensor]
    ends: dict[str, Tensor]
    kept: dict[str, Tensor]  # [rows, lanes]
    reverse: bool

    def lanes(self) -> Lanes:
        """The layout of the lane axes."""
        over_time = [*self.inputs.values(), *self.outputs.values(), *self.kept.values()]
        flat = [*self.starts.values(), *self.ends.values()]
        strides = [t.stride()[1:] for t in over_time] + [t.stride() for t in flat]
        return lay_out(over_time[0].shape[1:], strides)


def forward_rows(steps: int, spacing: int) -> int:
    """How many states are kept: before each tile of the backward kernel, and each row of the rest."""
    return steps // spacing + steps % spacing


def run_forward(text: str, work: Work, spacing: int, computed: torch.dtype) -> None:
    """Fill the outputs, the ends, and with a spacing what is kept."""
    lanes, tensors = work.lanes(), list(work.inputs.values())
    items = tuple(t.element_size() for t in tensors)
    tile = tile_plan(tensors[0].shape[0], lanes.inner, prod(lanes.outer), items, backward=False)
    rows = max(tile.rows, spacing)
    form = Form(rows, len(lanes.outer), dtypes.name(computed), int_type(tensors), spacing)
    kernel, function = forward_kernel(text, form)
    _launch(function, kernel, work, Tile(rows, tile.lanes, tile.stages), lanes)


def run_backward(text: str, wanted: Wanted, work: Work, spacing: int, computed: torch.dtype) -> None:
    """Fill the gradients and the ends, from the cotangents and what the forward kernel kept."""
    lanes, tensors = work.lanes(), list(work.inputs.values())
    items = tuple(t.element_size() for t in tensors)
    tile = tile_plan(tensors[0].shape[0], lanes.inner, prod(lanes.outer), items, backward=True)
    form = Form(spacing, len(lanes.outer), dtypes.name(computed), int_type(tensors))
    kernel, function = backward_kernel(text, wanted, form)
    _launch(function, kernel, work, Tile(spacing, tile.lanes, tile.stages), lanes)


def _launch(function: Any, kernel: Kernel, work: Work, tile: Tile, lanes: Lanes) -> None:
    inputs = {f"in_{n}": work.inputs[n] for n in kernel.inputs}
    outputs = {f"out_{n}": work.outputs[n] for n in kernel.outputs}
    flat = {f"start_{n}": work.starts[n] for n in kernel.starts} | {
        f"end_{n}": work.ends[n] for n in kernel.ends
    }
    kept = {f"kept_{n}": work.kept[n] for n in kernel.kept}
    over_time = inputs | outputs
    first = next(iter(over_time.values()))
    steps = first.shape[0]
    lane_strides = {n: lanes.strides(t.stride()[1:]) for n, t in (over_time | kept).items()}
    lane_strides |= {n: lanes.strides(t.stride()) for n, t in flat.items()}
    names = [*over_time, *flat, *kept]
    pointers = [t[steps - 1 :] if work.reverse else t for t in over_time.values()]
    constants = {f"{n}_st": -t.stride(0) if work.reverse else t.stride(0) for n, t in over_time.items()}
    constants |= {f"{n}_sd": lane_strides[n][-1] for n in names}
    blocks = -(-lanes.inner // tile.lanes)
    with _device(first):
        function[(blocks * prod(lanes.outer),)](
            *pointers, *flat.values(), *kept.values(),
            steps, lanes.inner, *lanes.outer, *(t.stride(0) for t in kept.values()),
            *(s for n in names for s in lane_strides[n][:-1]), **constants,
            BD=tile.lanes, NS=tile.stages, MASKED=lanes.inner % tile.lanes != 0, FENCE=_fence(first),
            num_warps=max(1, tile.lanes // 32),
        )  # fmt: skip


def _fence(tensor: Tensor) -> bool:
    """The warp fence is inline assembly of NVIDIA's."""
    return tensor.is_cuda and torch.version.cuda is not None


def _device(tensor: Tensor) -> AbstractContextManager[Any]:
    """Launches go to the tensors' device, whichever is current."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def int_type(tensors: Sequence[Tensor]) -> str:
    """The type that ints are computed in."""
    ints = [t.dtype for t in tensors if not t.is_floating_point() and t.dtype != torch.bool]
    return dtypes.name(dtypes.computed_int(dtypes.promoted(ints, torch.int64)))


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
        dict(zip(names, initial, strict=True)),
        dict(zip(names, result.finals, strict=True)),
        dict(zip(names, result.kept, strict=True)) if keep else {},
        options.reverse,
    )
    if not sizes[TIME]:
        for final, x0 in zip(result.finals, initial, strict=True):
            final.copy_(x0)
    elif prod(sizes.values()):
        run_forward(text, work, _spacing(sizes[TIME]) if keep else 0, options.dtype)
    for place in rooms.values():
        place.settle(scan)
    return result


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
    rows = forward_rows(sizes[TIME], _spacing(sizes[TIME])) if keep else 0
    return Result(outputs, finals, [x0.new_empty((rows, *x0.shape)) for x0 in initial] if keep else [])


def _spacing(steps: int) -> int:
    """The rows of the backward kernel's tile: what is kept follows it."""
    return tile_plan(steps, 1, 1, (4,), backward=True).rows


def backward(
    text: str, wanted: Wanted, tensors: Sequence[Tensor], kept: Sequence[Tensor],
    cotangents: Sequence[Tensor], seeds: Sequence[Tensor], options: Options,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """The gradients of the wanted inputs in the scan's order, and the adjoint's final states."""
    scan = load(text)
    derived = adjoint(widen(scan), wanted.inputs, wanted.present, wanted.initial)
    sizes = sizes_of(scan, tensors, ())
    dims = {i.name: i.dims for i in scan.inputs} | {n: scan.outputs[0].dims for _, n in derived.cotangents}
    given = dict(zip((i.name for i in scan.inputs), tensors, strict=True))
    given |= dict(zip((n for _, n in derived.cotangents), cotangents, strict=True))
    gradients = {
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
        {n: _view(scan, place, sizes) for n, place in gradients.items()},
        dict(zip(mus, seeds, strict=True)),
        dict(zip(mus, ends, strict=True)),
        dict(zip((s.name for s in scan.states), kept, strict=True)),
        options.reverse,
    )
    if not sizes[TIME]:
        for end, seed in zip(ends, seeds, strict=True):
            end.copy_(seed)
    elif prod(sizes.values()):
        run_backward(text, wanted, work, _spacing(sizes[TIME]), options.dtype)
    for place in gradients.values():
        place.settle(scan)
    return [place.target for place in gradients.values()], ends


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


def _view(scan: Scan, place: Room, sizes: dict[str, int]) -> Tensor:
    return aligned(scan, place.dims if place.whole is place.target else scan.axes, place.whole, sizes)
