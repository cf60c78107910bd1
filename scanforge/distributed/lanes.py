"""Which axes a recurrence's lanes can be cut along, and the groups that such a cut makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Self

import torch

from scanforge import chunked_choice, pipeline
from scanforge.distributed.forms import Cut, Load
from scanforge.ir.scan import TIME, is_batch, load
from scanforge.kernel_choice import kernel_choice
from scanforge.launch import Options, output_dtypes
from scanforge.prepared import Prepared
from scanforge.shipped import FILLING, LINE

COUNTS = (2, 4, 8, 16, 32)  # of groups


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a call its form depends on, beside the steps of the ranks: the same on all of them."""

    text: str
    lanes: tuple[tuple[str, int], ...]  # the sizes of all axes but time
    inputs: tuple[torch.dtype, ...]
    options: Options
    sequences: int  # that are packed; 0: none are

    @classmethod
    def of(cls, call: Prepared, options: Options) -> Self:
        """Of a call that kernels run with these options."""
        lanes = tuple((a, n) for a, n in call.sizes.items() if a != TIME)
        sequences = 0 if call.packed is None else call.packed.numel() - 1
        return cls(call.text, lanes, tuple(x.dtype for x in call.inputs), options, sequences)

    def sizes(self, steps: int, **others: int) -> dict[str, int]:
        """The sizes of axes, with so many steps, and others for some lanes."""
        return dict(self.lanes) | {TIME: steps} | others

    def read(self) -> list[tuple[tuple[str, ...], int]]:
        """The dims of every input, and the bytes of it that a step reads."""
        given = zip(load(self.text).inputs, self.inputs, strict=True)
        return [(i.dims, self.bytes_of(i.dims, dtype)) for i, dtype in given]

    def bytes_of(self, dims: Sequence[str], dtype: torch.dtype) -> int:
        """The bytes of a step, 0 of a tensor without time."""
        sizes = self.sizes(1)
        return prod(sizes[a] for a in dims if a != "1") * dtype.itemsize if TIME in dims else 0


@lru_cache(maxsize=1024)
def why_whole(text: str, axis: str) -> str:
    """Why the lanes cannot be cut along an axis: what needs all of it. Empty where they can."""
    scan = load(text)
    alone = next((s.name for s in scan.states if axis not in s.axes), "")
    if alone or not scan.states:
        return f"{alone or scan.name} has no {axis}"
    summed = next((o.name for o in scan.outputs if axis not in o.axes), "")
    if summed:
        return f"{summed} sums over {axis}"
    steps = any(axis in line.over for p in (scan.element, scan.readout) for line in p.lines)
    return f"a step sums over {axis}" if steps else ""


def cuttable(asked: Asked) -> tuple[list[str], str]:
    """The axes that a call's lanes can be cut along, and why not along others."""
    axes, reasons = [], []
    if 0 in dict(asked.lanes).values():
        return [], "it has no lanes"
    if asked.sequences and asked.options.lowering == "split":
        return [], "lowering='split' takes packed sequences one after another"
    for axis in load(asked.text).lanes:
        if asked.sequences and is_batch(axis):
            reasons.append("packed sequences are one batch")
        elif reason := why_whole(asked.text, axis):
            reasons.append(reason)
        else:
            axes.append(axis)
    return axes, "; ".join(reasons) or "it has one lane"


def cuts_of(asked: Asked, steps: int, row: int = LINE) -> list[Cut]:
    """The cuts of a call of so many steps into groups whose rows in memory have that many bytes at least."""
    sizes, found, on_gpu = asked.sizes(steps), [], asked.options.backend == "triton"
    by_chunks = on_gpu and _by_chunks(asked, sizes)
    for axis in cuttable(asked)[0]:
        again = sum(b for dims, b in asked.read() if axis not in dims)
        for bounds in _bounds(sizes[axis], _unit(asked, axis, row)):
            own = sizes | {axis: bounds[1]}
            if not on_gpu or (by_chunks and _by_chunks(asked, own)):
                found.append(Cut(axis, bounds, again))
            elif not by_chunks:  # else a group is too narrow for the products that the whole call is
                found.append(Cut(axis, bounds, again, _cuts_time(asked, own), _is_idle(asked, own)))
    return found


def _bounds(size: int, unit: int) -> Iterator[tuple[int, ...]]:
    """Bounds of groups of equal length, but for the last one, each a multiple of a unit."""
    lengths = {-(-size // (count * unit)) * unit for count in COUNTS}
    for length in sorted(lengths, reverse=True):
        if 0 < length < size:
            yield (*range(0, size, length), size)


def _unit(asked: Asked, axis: str, row: int) -> int:
    """How many entries of an axis a row of memory takes, in the narrowest tensor."""
    sizes, most = asked.sizes(1), 1
    for i, dtype in zip(load(asked.text).inputs, asked.inputs, strict=True):
        if axis in i.dims:
            within = i.dims[i.dims.index(axis) + 1 :]
            one = prod(sizes[a] for a in within if a != "1") * dtype.itemsize
            most = most if TIME in within else max(most, -(-row // one))
    return most


def _by_chunks(asked: Asked, sizes: dict[str, int]) -> bool:
    """Whether a call of these sizes is matrix products, which read their inputs once."""
    packed = asked.sequences > 0
    return chunked_choice.form_of(asked.text, sizes, asked.options, packed=packed) is not None


def _cuts_time(asked: Asked, sizes: dict[str, int]) -> bool:
    """Whether kernels read the inputs twice: time is cut into chunks, whose elements come first."""
    like = None if asked.sequences else torch.empty(0, device="meta")  # as on a GPU
    chosen, _ = kernel_choice(asked.text, sizes, asked.options, like)
    return chosen.plan.lowering == "split" and not asked.sequences


def _is_idle(asked: Asked, sizes: dict[str, int]) -> bool:
    """Whether so few lanes leave a device idle: packed sequences are walked side by side, and never cut."""
    inside = pipeline.inside_axes(asked.text).axes
    lanes = prod(n for a, n in sizes.items() if a != TIME and a not in inside)
    return 0 < lanes * asked.sequences < FILLING


def load_of(asked: Asked, steps: Sequence[int]) -> Load:
    """What a call has to do on ranks of so many steps."""
    scan = load(asked.text)
    like = [torch.empty(0, dtype=d, device="meta") for d in asked.inputs]
    outputs = zip(scan.outputs, output_dtypes(scan, like, asked.options.dtype), strict=True)
    written = sum(asked.bytes_of(o.dims, dtype) for o, dtype in outputs)
    return Load(tuple(steps), sum(b for _, b in asked.read()), written)
