"""Packed sequences as a kernel's work: the batch axis counts them, and each walks its own part of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from scanforge.ir.scan import BATCH
from scanforge.plan import Keep
from scanforge.views import View
from scanforge.work import Bounds, Views, Work

Tensor = torch.Tensor


def shared(dims: Sequence[str], tensor: Tensor, bounds: Tensor | None) -> tuple[str, ...]:
    """The dims of a tensor of a call; what has one row for all packed sequences lacks their axis."""
    if bounds is None:
        return tuple(dims)
    return tuple("1" if d == BATCH and tensor.shape[k] == 1 else d for k, d in enumerate(dims))


def packed_rows(keep: Keep, steps: int, bounds: Tensor) -> int:
    """Rows of kept states that are enough for any lengths: to look at them would wait for the GPU."""
    return min(steps, steps // keep.spacing + (bounds.numel() - 1) * (keep.spacing - 1))


def packed(work: Work, steps: int, bounds: Tensor | None, keep: Keep | None, *, reverse: bool) -> Work:
    """The work, whose tensors over time hold all sequences behind each other."""
    if bounds is None:
        return work
    at = work.axes.index(BATCH)
    ends = bounds.to(torch.int64)
    lengths = ends[1:] - ends[:-1]
    spacing = keep.spacing if keep else 1
    rows = lengths // spacing + lengths % spacing
    begins = (steps - ends[1:] if reverse else ends[:-1]).contiguous()
    return replace(
        work,
        inputs=_placed(work.inputs, at),
        outputs=_placed(work.outputs, at),
        kept=_placed(work.kept, at),
        bounds=Bounds(begins, lengths, rows.cumsum(0) - rows),
    )


def _placed(views: Views, at: int) -> Views:
    """A tensor over time has every sequence: where it lies is read from the bounds."""
    return {n: _with(v, at + 1) if v.has[0] else v for n, v in views.items()}


def _with(view: View, at: int) -> View:
    return replace(view, has=(*view.has[:at], True, *view.has[at + 1 :]))
