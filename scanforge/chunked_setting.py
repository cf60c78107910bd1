"""What the launches of a call over chunks share: the form, the tiles, sizes, packed sequences."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from scanforge import dtypes
from scanforge.chunked_form import MatrixForm
from scanforge.chunked_plan import ChunkPlan, chunk_plan, fitted
from scanforge.emit.chunk_frame import ChunkForm
from scanforge.ir.scan import BATCH, TIME
from scanforge.prune import drop_dead
from scanforge.views import View
from scanforge.work import Bounds, Work

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Packing:
    """Packed sequences, each in chunks: where it begins, its length and first chunk; the owners of chunks."""

    begins: Tensor
    lengths: Tensor
    firsts: Tensor  # one more than there are sequences
    owners: Tensor

    @property
    def count(self) -> int:
        """Sequences."""
        return self.begins.numel()

    @classmethod
    def of(cls, bounds: Bounds, steps: int, length: int) -> Packing:
        """Chunks of so many steps. Where they end is not known here, so some may be empty."""
        ends = (-(-bounds.lengths // steps)).cumsum(0)
        count = bounds.lengths.numel()
        chunks = torch.arange(-(-length // steps) + count, device=ends.device)
        owners = torch.searchsorted(ends, chunks, right=True).clamp(max=count - 1)
        return cls(bounds.begins, bounds.lengths, torch.cat([ends.new_zeros(1), ends]), owners)


@dataclass(frozen=True, slots=True)
class Setting:
    """All that the launches of a call share."""

    text: str
    form: MatrixForm
    plan: ChunkPlan
    chunk: ChunkForm
    axes: tuple[str, ...]  # of views: time, then the lanes of the recurrence
    sizes: dict[str, int]  # a batch of packed sequences is one
    like: Tensor  # of the call's device
    packing: Packing | None = None

    @property
    def lanes(self) -> tuple[int, ...]:
        """The sizes of the lane axes."""
        return tuple(self.sizes[a] for a in self.form.lanes)

    @property
    def count(self) -> int:
        """How many lanes there are."""
        total = 1
        for n in self.lanes:
            total *= n
        return total

    @property
    def length(self) -> int:
        """Steps."""
        return self.sizes[TIME]

    @property
    def chunks(self) -> int:
        """Chunks; of packed sequences as many as there may be."""
        more = self.packing.count if self.packing else 0
        return self.plan.chunks(self.length) + more

    @property
    def walking(self) -> Setting:
        """The setting of walks, of which each packed sequence has its own."""
        if self.packing is None:
            return self
        return replace(self, sizes=self.sizes | {BATCH: self.packing.count})

    @property
    def dot(self) -> torch.dtype:
        """The type of the operands of products."""
        return dtypes.named(self.chunk.dot_type)

    @property
    def computed(self) -> torch.dtype:
        """The type that is summed in."""
        return dtypes.named(self.chunk.float_type)

    def timed(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The dims of a tensor over time, which holds all packed sequences behind each other."""
        found = set(axes)
        return tuple(a for a in self.axes if a in found and not (self.packing and a == BATCH))

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Room on the call's device."""
        return self.like.new_empty(shape, dtype=dtype)


FACTORS = {"query", "key", "value", "read"}  # of the state and its update
PRECISIONS = {"highest": "ieee", "high": "tf32x3", "medium": "tf32"}


def setting(
    text: str, form: MatrixForm, axes: tuple[str, ...], sizes: dict[str, int], shown: torch.dtype,
    computed: torch.dtype, work: Work,
) -> Setting:  # fmt: skip
    """The setting of a call whose outputs over time have the type `shown`.

    Operands of products have the type of what keys, queries and values are made of; decays and weights by
    head, and parameters, may be wider. In bfloat16 operands are rounded to it. In float16 they are float32,
    as tf32 is no less exact; float32 follows torch.set_float32_matmul_precision.
    """
    like = next(iter((work.inputs | work.starts).values())).tensor
    shown = dtypes.promoted(_factors(form, axes, work.inputs), shown)
    dot = shown if shown in {torch.bfloat16, torch.float64} else torch.float32
    dot = torch.float64 if computed == torch.float64 else dot
    precision = "tf32" if shown == torch.float16 else PRECISIONS[torch.get_float32_matmul_precision()]
    chunk = ChunkForm(
        len(form.lanes),
        dtypes.name(computed),
        work.int_type(),
        dtypes.name(dot),
        precision,
        nvidia=_nvidia(like),
        fenced=fenced(like),
        interpreted=os.environ.get("TRITON_INTERPRET") == "1",
        packed=work.bounds is not None,
    )
    plan = chunk_plan(sizes[form.key_axis], sizes[form.value_axis], dot, computed)
    if chunk.nvidia:
        plan = fitted(plan, torch.cuda.get_device_capability(like.device))
    if work.bounds is None:
        return Setting(text, form, plan, chunk, axes, sizes, like)
    packing = Packing.of(work.bounds, plan.steps, sizes[TIME])
    return Setting(text, form, plan, chunk, axes, sizes | {BATCH: 1}, like, packing)


def _factors(form: MatrixForm, axes: tuple[str, ...], inputs: Mapping[str, View]) -> list[torch.dtype]:
    """The types of what varies over time and along a side of the state, and is more than a decay."""
    sides = {form.key_axis, form.value_axis}
    found = []
    for program in filter(None, (form.gates, form.values, form.reader)):
        factors = tuple((n, v) for n, v in program.outputs if n in FACTORS)
        read = {a for line in drop_dead(replace(program, outputs=factors)).lines for a in line.args}
        read |= {v for _, v in factors}
        for name in {v.name for v in program.inputs} & read & inputs.keys():
            has = {a for a, there in zip(axes, inputs[name].has, strict=True) if there}
            if TIME in has and has & sides:
                found.append(inputs[name].tensor.dtype)
    return found


def fenced(like: Tensor) -> bool:
    """Whether tensor cores read shared memory by themselves: NVIDIA's, from Hopper on."""
    return _nvidia(like) and torch.cuda.get_device_capability(like.device) >= (9, 0)


def _nvidia(like: Tensor) -> bool:
    return like.is_cuda and torch.version.cuda is not None
