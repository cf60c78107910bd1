"""What the ranks with earlier steps hold, differentiable: for layers that look back without a recurrence."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from scanforge.compiled import outside
from scanforge.distributed.ranks import Ranks, ranks_of

Tensor = torch.Tensor


@outside
def place(group: Any = None) -> int:
    """How many ranks of a group hold steps before this one's. `group` is that of `scan`."""
    return ranks_of("place", group, reverse=False).place


@outside
def before(x: Tensor, group: Any = None) -> Tensor:
    """The x of every rank with earlier steps, (place, *x.shape); x is of equal shape on all ranks.

    It exchanges, and in the backward pass again, where a rank's x gets the sum of all later ranks'
    cotangents for it: so every rank of the group calls it, and runs the backward pass through the result,
    the first rank's empty one too. `group` is that of `scan`. Raises GroupError where a rank is missing,
    ArgumentError for a group that is none.

    Example:
        >>> import torch, torch.distributed as dist
        >>> from scanforge import distributed
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> distributed.before(torch.tensor([2.0, 3.0])).shape
        torch.Size([0, 2])
        >>> dist.destroy_process_group()
    """
    ranks = ranks_of("before", group, reverse=False)
    found: Tensor = _Before.apply(ranks, x)  # type: ignore[no-untyped-call]
    return found


class _Before(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, x: Tensor) -> Tensor:
        ctx.ranks = ranks
        return torch.stack(ranks.gather(x.contiguous()).wait())[: ranks.place]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[None, Tensor]:
        ranks = ctx.ranks
        whole = cotangent.new_zeros(ranks.count, *cotangent.shape[1:])
        whole[: ranks.place] = cotangent
        return None, ranks.sum(whole)[ranks.rank]
