"""One kernel launch: its views by name, and how they become arguments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Self

import torch

from scanforge import dtypes
from scanforge.emit.ordered_tile import Form, Kernel
from scanforge.plan import Tile, tile_plan
from scanforge.views import Lanes, View, lay_out

Views = dict[str, View]


@dataclass(frozen=True, slots=True)
class Work:
    """What a kernel reads and writes: views over time, and views of states over lanes alone."""

    inputs: Views
    outputs: Views
    starts: Views
    ends: Views
    kept: Views  # over tiles instead of time

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
        return self.over_time(lambda v: v.chunks(count), lambda v: v.chunks(count))

    def flipped(self) -> Self:
        """Right to left; what is kept stays in the order of processing."""
        return self.over_time(View.flipped, lambda v: v)

    @property
    def steps(self) -> int:
        """The length of time."""
        return next(iter((self.inputs | self.outputs).values())).shape[0]

    def lanes(self) -> Lanes:
        """The layout of the lane axes."""
        over_time = [*self.inputs.values(), *self.outputs.values(), *self.kept.values()]
        states = [*self.starts.values(), *self.ends.values()]
        strides = [v.strides[1:] for v in over_time] + [v.strides for v in states]
        return lay_out(over_time[0].shape[1:], strides)

    def int_type(self) -> str:
        """The type that ints are computed in."""
        found = [v.tensor.dtype for v in self.inputs.values()]
        ints = [d for d in found if not d.is_floating_point and d != torch.bool]
        return dtypes.name(dtypes.computed_int(dtypes.promoted(ints, torch.int64)))


def launch(
    make: Callable[[Form], tuple[Kernel, Any]],
    work: Work,
    computed: torch.dtype,
    *,
    rows: int = 0,
    spacing: int = 0,
) -> None:
    """Choose the tile, make the kernel, call it. `rows` forces R, as what was kept decides it."""
    lanes = work.lanes()
    items = tuple(v.tensor.element_size() for v in work.inputs.values())
    plan = partial(tile_plan, work.steps, lanes.inner, prod(lanes.outer), items, backward=bool(rows))
    tile = plan(rows=rows)
    if spacing > tile.rows:  # a tile holds whole spacings
        tile = plan(rows=spacing)
    form = Form(tile.rows, len(lanes.outer), dtypes.name(computed), work.int_type(), spacing)
    kernel, function = make(form)
    call(function, kernel, work, tile, lanes)


def call(function: Any, kernel: Kernel, work: Work, tile: Tile, lanes: Lanes) -> None:
    """Turn views into the kernel's arguments, in the order of its signature."""
    over_time = {f"in_{n}": work.inputs[n] for n in kernel.inputs}
    over_time |= {f"out_{n}": work.outputs[n] for n in kernel.outputs}
    states = {f"start_{n}": work.starts[n] for n in kernel.starts}
    states |= {f"end_{n}": work.ends[n] for n in kernel.ends}
    kept = {f"kept_{n}": work.kept[n] for n in kernel.kept}
    views = over_time | states | kept
    strides = {n: lanes.strides(v.strides if n in states else v.strides[1:]) for n, v in views.items()}
    constants = {f"st_{n}": v.strides[0] for n, v in over_time.items()}
    constants |= {f"sd_{n}": s[-1] for n, s in strides.items()}
    first = next(iter(views.values())).tensor
    blocks = -(-lanes.inner // tile.lanes)
    with _device(first):
        function[(blocks * prod(lanes.outer),)](
            *(v.pointer() for v in views.values()),
            work.steps, lanes.inner, *lanes.outer, *(v.strides[0] for v in kept.values()),
            *(s for found in strides.values() for s in found[:-1]), **constants,
            BD=tile.lanes, NS=tile.stages, MASKED=lanes.inner % tile.lanes != 0, FENCE=_fence(first),
            num_warps=max(1, tile.lanes // 32),
        )  # fmt: skip


def _fence(tensor: torch.Tensor) -> bool:
    """The warp fence is inline assembly of NVIDIA's."""
    return tensor.is_cuda and torch.version.cuda is not None


def _device(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Launches go to the tensors' device, whichever is current."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
