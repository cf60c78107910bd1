"""Packed sequences: their bounds, checked, and the reference's way through them, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from scanforge.declare import Declaration
from scanforge.errors import ArgumentError, DeviceError, ShapeError
from scanforge.ir.scan import TIME, Scan, is_batch
from scanforge.recurrence import Fused

Tensor = torch.Tensor
Run = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]


def check_bounds(
    declared: Declaration | Fused, cu_seqlens: Any, steps: int, batch: Sequence[int], device: torch.device
) -> Tensor:
    """The bounds of packed sequences: 0, then where each ends. A GPU's are not looked at: that would wait."""
    where = f"{declared.name}: cu_seqlens"
    write = "write cu_seqlens=torch.tensor([0, 5, 9]) for sequences of 5 and of 4 steps"
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dtype not in {torch.int32, torch.int64}:
        raise ArgumentError(f"{where} is no int32 or int64 tensor: {write}.")
    if cu_seqlens.ndim != 1 or cu_seqlens.numel() < 1:
        raise ShapeError(f"{where} has shape {tuple(cu_seqlens.shape)}, expected one dimension: {write}.")
    if cu_seqlens.device != device:
        raise DeviceError(
            f"{where} is on {cu_seqlens.device}, and the tensors are on {device}: write "
            f"cu_seqlens.to({str(device)!r})."
        )
    if not batch or any(n != 1 for n in batch):
        raise ShapeError(
            f"{where} packs sequences into a batch of one, and the batch is {tuple(batch)}: put them "
            f"behind each other in time, in tensors of shape (1, {steps}, ...)."
        )
    if not cu_seqlens.is_cuda:
        ends = cu_seqlens.tolist()
        if ends[0] != 0 or ends[-1] != steps or any(b < a for a, b in pairwise(ends)):
            raise ArgumentError(
                f"{where} is {ends}, expected numbers that rise from 0 to the {steps} steps of the tensors: "
                "write a 0, then where each sequence ends."
            )
    return cu_seqlens


def one_by_one(
    scan: Scan, run: Run, inputs: Sequence[Tensor], initial: Sequence[Tensor], bounds: Sequence[int]
) -> tuple[list[Tensor], list[Tensor]]:
    """A packed call as calls of its sequences: the meaning of packing, differentiable as they are.

    Tensors over time hold all sequences behind each other; what has the batch axis alone holds one row for
    each, or one for all.
    """
    parts = [
        run(
            [_part(i.dims, x, k, first, last) for i, x in zip(scan.inputs, inputs, strict=True)],
            [_row(scan.order(s.axes), x, k) for s, x in zip(scan.states, initial, strict=True)],
        )
        for k, (first, last) in enumerate(pairwise(bounds))
    ]
    outputs = [
        torch.cat(list(ys), o.dims.index(TIME)) if TIME in o.dims else torch.stack(list(ys)).sum(0)
        for o, *ys in zip(scan.outputs, *(p[0] for p in parts), strict=True)
    ]
    finals = [
        torch.cat(list(xs), _batch(scan.order(s.axes)))
        for s, *xs in zip(scan.states, *(p[1] for p in parts), strict=True)
    ]
    return outputs, finals


def _part(dims: Sequence[str], x: Tensor, k: int, first: int, last: int) -> Tensor:
    if TIME in dims:
        return x.narrow(dims.index(TIME), first, last - first)
    return _row(dims, x, k)


def _row(dims: Sequence[str], x: Tensor, k: int) -> Tensor:
    at = _batch(dims)
    return x.narrow(at, k, 1) if at >= 0 and x.shape[at] != 1 else x


def _batch(dims: Sequence[str]) -> int:
    """Where the batch axis is, -1 if there is none."""
    return next((i for i, d in enumerate(dims) if is_batch(d)), -1)
