"""Which axes a recurrence's lanes can be cut along, and the groups that such a cut makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import prod

import torch

from scanforge import chunked_choice, pipeline
from scanforge.distributed.forms import Cut, Load
from scanforge.ir.scan import TIME, is_batch, load
from scanforge.launch import Options, output_dtypes
from scanforge.plan import kernel_plan
from scanforge.prepared import Prepared
from scanforge.shipped import FILLING, LINE

Tensor = torch.Tensor
COUNTS = (2, 4, 8, 16, 32)  # of groups


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


def cuttable(call: Prepared) -> tuple[list[str], str]:
    """The axes that a call's lanes can be cut along, and why not along others."""
    axes, reasons = [], []
    if 0 in (n for a, n in call.sizes.items() if a != TIME):
        return [], "it has no lanes"
    for axis in load(call.text).lanes:
        if call.packed is not None and is_batch(axis):
            reasons.append("packed sequences are one batch")
        elif reason := why_whole(call.text, axis):
            reasons.append(reason)
        else:
            axes.append(axis)
    return axes, "; ".join(reasons) or "it has one lane"


def cuts_of(call: Prepared, options: Options, steps: int, row: int = LINE) -> list[Cut]:
    """The cuts of a call of so many steps into groups whose rows in memory have that many bytes at least."""
    sizes, found, on_gpu = call.sizes | {TIME: steps}, [], options.backend == "triton"
    by_chunks = on_gpu and _by_chunks(call, options, sizes)
    for axis in cuttable(call)[0]:
        again = sum(b for dims, b in _read(call) if axis not in dims)
        for bounds in _bounds(sizes[axis], _unit(call, axis, row)):
            own = sizes | {axis: bounds[1]}
            if not on_gpu or (by_chunks and _by_chunks(call, options, own)):
                found.append(Cut(axis, bounds, again))
            elif not by_chunks:  # else a group is too narrow for the products that the whole call is
                found.append(Cut(axis, bounds, again, _cuts_time(call, options, own), _is_idle(call, own)))
    return found


def _bounds(size: int, unit: int) -> Iterator[tuple[int, ...]]:
    """Bounds of groups of equal length, but for the last one, each a multiple of a unit."""
    lengths = {-(-size // (count * unit)) * unit for count in COUNTS}
    for length in sorted(lengths, reverse=True):
        if 0 < length < size:
            yield (*range(0, size, length), size)


def _unit(call: Prepared, axis: str, row: int) -> int:
    """How many entries of an axis a row of memory takes, in the narrowest tensor over time."""
    sizes, most = call.sizes, 1
    for i, x in zip(load(call.text).inputs, call.inputs, strict=True):
        if axis in i.dims and TIME in i.dims:
            within = i.dims[i.dims.index(axis) + 1 :]
            one = prod(sizes[a] for a in within if a not in {"1", TIME}) * x.element_size()
            most = most if TIME in within else max(most, -(-row // max(one, 1)))
    return most


def _by_chunks(call: Prepared, options: Options, sizes: dict[str, int]) -> bool:
    """Whether a call of these sizes is matrix products, which read their inputs once."""
    return chunked_choice.form_of(call.text, sizes, options, packed=call.packed is not None) is not None


def _cuts_time(call: Prepared, options: Options, sizes: dict[str, int]) -> bool:
    """Whether kernels read the inputs twice: time is cut into chunks, whose elements come first."""
    inside = pipeline.inside_axes(call.text).axes
    plan = kernel_plan(load(call.text), sizes, options.lowering, inside).plan
    return plan.lowering == "split" and call.packed is None


def _is_idle(call: Prepared, sizes: dict[str, int]) -> bool:
    """Whether so few lanes leave a device idle: packed sequences are walked side by side, and never cut."""
    if call.packed is None:
        return False
    inside = pipeline.inside_axes(call.text).axes
    lanes = prod(n for a, n in sizes.items() if a != TIME and a not in inside)
    return lanes * (call.packed.numel() - 1) < FILLING


def load_of(call: Prepared, steps: Sequence[int]) -> Load:
    """What a call has to do on ranks of so many steps."""
    scan, bytes_of = load(call.text), _counter(call.sizes)
    outputs = zip(scan.outputs, output_dtypes(scan, call.inputs, call.dtype), strict=True)
    written = sum(bytes_of(o.dims, dtype) for o, dtype in outputs)
    return Load(tuple(steps), sum(b for _, b in _read(call)), written)


def _read(call: Prepared) -> list[tuple[tuple[str, ...], int]]:
    """The dims of every input, and the bytes of it that a step reads."""
    bytes_of = _counter(call.sizes)
    given = zip(load(call.text).inputs, call.inputs, strict=True)
    return [(i.dims, bytes_of(i.dims, x.dtype)) for i, x in given]


def _counter(sizes: dict[str, int]) -> Callable[[Sequence[str], torch.dtype], int]:
    def bytes_of(dims: Sequence[str], dtype: torch.dtype) -> int:
        own = [sizes[a] for a in dims if a not in {"1", TIME}]
        return prod(own) * dtype.itemsize if TIME in dims else 0

    return bytes_of
