"""Which steps are the first of their sequence, where some calls go on from a state."""

from __future__ import annotations

import torch
from torch.nn import functional as F

import scanforge as sf

from ..segments import Segments

Tensor = torch.Tensor


def first_steps(batch: int, steps: int, started: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """(first (B, T) bool, started after the last step (N, 1)).

    `started` (N, 1) is 0 where a sequence has had no real step since it began, and 1 where it has. A step is
    the first of its sequence if it is real and none before it is, back to the last reset or, where the
    sequence has not started, to its begin in this call.
    """
    if segments.group is not None:
        started, segments = _entering(batch, steps, started, segments)
    had = started[:, 0] != 0
    if not steps:
        return torch.zeros(batch, 0, dtype=torch.bool, device=started.device), started
    row, begins, ends = _sequences(batch, steps, segments, started.device)
    time = torch.arange(steps, device=started.device).expand(batch, steps)
    begin = time == begins[row]
    fresh = begin & ~had[row]
    if segments.reset is not None:
        begin, fresh = begin | segments.reset, fresh | segments.reset
    real = torch.ones_like(begin) if segments.mask is None else segments.mask
    count = F.pad(real.long().cumsum(1), (1, 0))  # [B, T + 1]: real steps before each bound
    last = torch.where(begin, time, 0).cummax(1).values  # the last boundary at or before t
    none_since = count[:, :-1] == count.gather(1, last)
    first = real & none_since & fresh.gather(1, last)

    line = torch.arange(batch, device=started.device)
    line = line if segments.cu_seqlens is None else torch.zeros_like(ends)
    at = last[line, (ends - 1).clamp(min=0)]
    now = (count[line, ends] > count[line, at]) | ~fresh[line, at]
    return first, torch.where(ends > begins, now, had)[:, None].to(started.dtype)


def _entering(batch: int, steps: int, started: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
    """`started` as the ranks with earlier steps leave it, and the boundaries of this rank's steps alone.

    Each rank sends what it makes of 0 and of 1.
    """
    own = segments.own(steps, started.device)
    given = [started] * 2 if segments.first else [torch.zeros_like(started), torch.ones_like(started)]
    made = torch.stack([first_steps(batch, steps, each, own)[1] for each in given])
    for of_none, of_some in sf.distributed.before(made, segments.group):
        started = torch.where(started != 0, of_some, of_none)
    return started, own


def _sequences(
    batch: int, steps: int, segments: Segments, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Which sequence each step (B, T) belongs to, and where the sequences (N,) begin and end."""
    if segments.cu_seqlens is None:
        begins = torch.zeros(batch, dtype=torch.long, device=device)
        row = torch.arange(batch, device=device)[:, None].expand(batch, steps)
        return row, begins, begins + steps
    bounds = segments.cu_seqlens.long()
    row = torch.searchsorted(bounds[1:], torch.arange(steps, device=device), right=True)
    return row[None], bounds[:-1], bounds[1:]
