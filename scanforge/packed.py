"""Packed sequences: their bounds, checked, and the reference's way through them, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch._C._functorch import is_batchedtensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from scanforge.declare import Declaration
from scanforge.errors import ArgumentError, DeviceError, ShapeError
from scanforge.ir.scan import BATCH, TIME, Scan, State
from scanforge.recurrence import Fused

Tensor = torch.Tensor
UNREAL = (FakeTensor, FunctionalTensor)  # have no numbers
Run = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]


def has_values(x: Tensor) -> bool:
    """Whether numbers can be looked at: for a GPU's one would wait, and in a trace or vmap there are none."""
    traced = torch.compiler.is_compiling() or is_batchedtensor(x) or isinstance(x, UNREAL)
    return not (x.is_cuda or x.is_meta or traced)


def check_bounds(
    declared: Declaration | Fused, cu_seqlens: Any, steps: int, batch: Sequence[int], device: torch.device
) -> Tensor:
    """The bounds of packed sequences: 0, then where each ends."""
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
    if is_batchedtensor(cu_seqlens):
        raise ArgumentError(
            f"{where} is mapped by vmap, and one call has one set of bounds: write in_dims=None for it, or "
            "pack the sequences of all of them into one call."
        )
    if has_values(cu_seqlens):
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
    each, or one for all. An output of the batch axis alone has a row for each sequence.
    """
    parts = [
        run(
            [_part(i.dims, x, k, first, last) for i, x in zip(scan.inputs, inputs, strict=True)],
            [_row(scan.order(s.axes), x, k) for s, x in zip(scan.states, initial, strict=True)],
        )
        for k, (first, last) in enumerate(pairwise(bounds))
    ]
    outputs = [
        torch.cat(list(ys), o.dims.index(TIME if TIME in o.dims else BATCH))
        if TIME in o.dims or BATCH in o.dims
        else torch.stack(list(ys)).sum(0)
        for o, *ys in zip(scan.outputs, *(p[0] for p in parts), strict=True)
    ]
    finals = [
        torch.cat(list(xs), scan.order(s.axes).index(BATCH))
        for s, *xs in zip(scan.states, *(p[1] for p in parts), strict=True)
    ]
    return outputs, finals


def _part(dims: Sequence[str], x: Tensor, k: int, first: int, last: int) -> Tensor:
    if TIME in dims:
        return x.narrow(dims.index(TIME), first, last - first)
    return _row(dims, x, k)


def _row(dims: Sequence[str], x: Tensor, k: int) -> Tensor:
    at = dims.index(BATCH) if BATCH in dims else -1
    return x.narrow(at, k, 1) if at >= 0 and x.shape[at] != 1 else x


def summed(dims: Sequence[str], x: Tensor, rows: int = 1) -> Tensor:
    """A tensor of these dims with that many rows: a sum over sequences if they share one and x has more."""
    if TIME in dims or BATCH not in dims or rows != 1:
        return x
    at = dims.index(BATCH)
    return x if x.shape[at] == 1 else x.sum(at, keepdim=True)


def states_before(
    scan: Scan, state: State, after: Tensor, initial: Tensor, bounds: Tensor, *, reverse: bool
) -> Tensor:
    """The state before each step of packed sequences, from those after each and those before the first."""
    at, steps = scan.order(state.axes).index(BATCH), torch.arange(after.shape[0], device=after.device)
    sequence = torch.searchsorted(bounds[1:], steps, right=True)  # of empty ones, none has a step
    first = steps == (bounds[1:][sequence] - 1 if reverse else bounds[sequence])
    entering = initial.to(after.dtype).index_select(at, sequence).movedim(at, 0).unsqueeze(at + 1)
    moved = torch.cat([after[1:], after[-1:]] if reverse else [after[:1], after[:-1]])
    return torch.where(first.view(-1, *[1] * (after.ndim - 1)), entering, moved)
