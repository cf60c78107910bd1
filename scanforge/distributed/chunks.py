"""A rank's stretch in chunks that run side by side: time cut once, for the other ranks and for the device.

Few lanes do not fill a device, so their time is split, and the elements that the chunks compose to are the
same that other ranks want to know of: one pass over the inputs serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from scanforge import pipeline
from scanforge.backend import choose
from scanforge.batched import batched
from scanforge.ir.scan import TIME, load
from scanforge.plan import kernel_plan
from scanforge.prepared import Prepared

Tensor = torch.Tensor


def chunk_count(call: Prepared, backend: str | None, lowering: str | None) -> int:
    """How many chunks of equal length a kernel's plan asks for, or a few less; 1 where it asks for none."""
    steps = call.sizes[TIME]
    if call.packed is not None or choose(backend, call.device, call.declared.name) != "triton":
        return 1
    axes = pipeline.inside_axes(call.text).axes
    cut = kernel_plan(load(call.text), call.sizes, lowering or "", axes).chunks
    wanted = 1 if cut is None or not steps else cut.count
    found = next((n for n in range(min(wanted, steps), 1, -1) if steps % n == 0), 1)
    return found if 2 * found >= wanted else 1


def in_chunks(call: Prepared, count: int) -> Prepared:
    """The call of `count` chunks, a batch axis before all others; its initial states are to be given."""
    scan = load(call.text)
    timed = tuple(TIME in i.dims for i in scan.inputs)
    text = batched(call.text, timed)
    axis = load(text).states[0].axes[0]
    inputs = [
        apart(x, i.dims, count) if has else x
        for i, x, has in zip(scan.inputs, call.inputs, timed, strict=True)
    ]
    sizes = call.sizes | {TIME: call.sizes[TIME] // count, axis: count}
    return replace(call, text=text, inputs=tuple(inputs), initial=(), sizes=sizes)


def apart(x: Tensor, dims: Sequence[str], count: int) -> Tensor:
    """A tensor over time as its chunks, (count, ...)."""
    at = dims.index(TIME)
    cut: Tensor = x.unflatten(at, (count, x.shape[at] // count))
    return cut.movedim(at, 0)


def whole(text: str, outputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of chunks as those of the recurrence of `text` over all of them."""
    made = []
    for o, y in zip(load(text).outputs, outputs, strict=True):
        at = o.dims.index(TIME) if TIME in o.dims else -1
        made.append(y.movedim(0, at).flatten(at, at + 1) if at >= 0 else y.sum(0))
    return made
