"""One rank's part of a call: which steps it has, and what cuts time there, whatever rank that was said on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from scanforge.api import Declared
from scanforge.boundaries import checked, cut, first_real
from scanforge.distributed.ranks import Ranks
from scanforge.ir.scan import TIME, is_batch
from scanforge.packed import check_bounds
from scanforge.prepared import Prepared, prepare
from scanforge.segments import flag_axes

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Own:
    """A call on this rank's steps. `bounds` are those of packed sequences in the whole sequence."""

    call: Prepared
    ranks: Ranks
    bounds: Tensor | None = None

    def bounded(self, *, reset: Any, mask: Any, lengths: Any) -> Prepared:
        """The call with its padding and its resets, as the whole sequence has them here."""
        call = self.call
        begin, total = 0, None
        if lengths is not None or call.asks_start:
            begin, total = self.ranks.span(call.sizes[TIME], call.device)
        starts, real = checked(call, reset=reset, mask=mask, lengths=lengths, begin=begin, total=total)
        if starts is not None and self.ranks.reverse:
            starts = self._between(starts.expand(*starts.shape[:-1], call.sizes[TIME]))
        begins = None
        if call.asks_start:
            assert total is not None
            begins = self._segment_start(starts, real, begin, total)
        if starts is not None and call.entering is None:  # given on some ranks, it is a message of one form
            call = replace(call, entering=tuple(call.initial))
        return cut(call, starts, real, begins)

    def _between(self, starts: Tensor) -> Tensor:
        """From the right, a boundary before step t makes step t - 1 the first, on whatever rank that is."""
        rows = starts.shape[:-1]
        first = starts[..., :1] if starts.shape[-1] else starts.new_zeros(*rows, 1)
        filled = torch.full_like(first, bool(starts.shape[-1]))
        after = torch.zeros_like(first)
        for flag, has in self._before(first, filled):
            after = torch.where(has, flag, after)
        return torch.cat([starts, after], -1)[..., 1:]

    def _segment_start(self, starts: Tensor | None, real: Tensor | None, begin: int, total: int) -> Tensor:
        """True at the first step of every segment that is no padding, in the order of processing."""
        call, reverse = self.call, self.ranks.reverse
        steps = torch.arange(begin, begin + call.sizes[TIME], device=call.device)
        edges = torch.tensor([0, total], device=call.device)
        edges = edges if self.bounds is None else torch.cat([edges, self.bounds])
        shape = [call.sizes[a] for a in flag_axes(call.scan)]
        found = torch.isin(steps + 1 if reverse else steps, edges).expand(shape)
        found = found if starts is None else found | starts
        if real is None:
            return found
        at = -1 if reverse else 0
        entered = torch.zeros(*shape[:-1], 1, dtype=torch.bool, device=call.device)
        for edge, seen in self._before(*_summary(found, real.expand(shape), reverse)):
            entered = seen | (entered & ~edge)
        if found.shape[-1]:
            first = found.narrow(-1, at % found.shape[-1], 1) | ~entered
            rest = found[..., :-1] if reverse else found[..., 1:]
            found = torch.cat([rest, first] if reverse else [first, rest], -1)
        return first_real(found, real, reverse)

    def _before(self, first: Tensor, second: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Two flags of equal shape of every rank before this one, in the order of processing."""
        both = torch.stack([first, second]).to(torch.uint8)
        found = self.ranks.gather(both).wait()[: self.ranks.place]
        return [(x[0] != 0, x[1] != 0) for x in found]


def _summary(found: Tensor, real: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """Whether a segment begins here, and whether the last one that is here has had a real step: (..., 1)."""
    if reverse:
        found, real = found.flip(-1), real.flip(-1)
    begun = found.long().cumsum(-1)
    last = begun[..., -1:] if found.shape[-1] else torch.zeros_like(begun.sum(-1, keepdim=True))
    return found.any(-1, keepdim=True), (real & (begun == last)).any(-1, keepdim=True)


def own_call(
    operator: Declared,
    tensors: dict[str, Tensor],
    states: tuple[Any, Any],
    dim: int,
    cu_seqlens: Any,
    ranks: Ranks,
) -> Own:
    """The call on this rank's steps, its packed sequences cut to them, with initial and reset `states`."""
    if cu_seqlens is None:
        return Own(prepare(operator, tensors, *states, dim=dim), ranks)
    alone = prepare(operator, tensors, None, dim=dim)
    batch = [n for a, n in alone.sizes.items() if is_batch(a)]
    begin, total = ranks.span(alone.sizes[TIME], alone.device)
    bounds = check_bounds(alone.declared, cu_seqlens, total, batch, alone.device)
    mine = (bounds - begin).clamp(0, alone.sizes[TIME])
    return Own(prepare(operator, tensors, *states, dim=dim, cu_seqlens=mine), ranks, bounds)
