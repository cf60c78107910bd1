"""scan over the ranks of a group: the call, and the sums of gradients that it makes on request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from scanforge.api import Declared, flag_option, memory_option, one_or_tuple, time_dim
from scanforge.call import named_only
from scanforge.compiled import outside
from scanforge.distributed.agreed import form_option
from scanforge.distributed.own import Own, own_call
from scanforge.distributed.ranks import Ranks, ranks_of
from scanforge.distributed.shard import Shard
from scanforge.ir.scan import TIME, load
from scanforge.recurrence import Fused, declared_of

Tensor = torch.Tensor


@outside
def scan(  # noqa: PLR0913 - options by keyword
    operator: Declared, /, *unnamed: Any, group: Any = None, initial_state: Any = None,
    return_final_state: bool = False, reverse: bool = False, reset: Tensor | None = None,
    reset_state: Any = None, cu_seqlens: Tensor | None = None, mask: Tensor | None = None,
    lengths: Tensor | None = None, reduce_gradients: bool = False, dim: int | None = None,
    memory: str | None = None, backend: str | None = None, lowering: str | None = None,
    form: str | None = None, **tensors: Tensor,
) -> Any:  # fmt: skip
    """`sf.scan` of one sequence whose steps lie on the ranks of a group, one stretch after another.

    Each rank passes its own steps, any number, 0 included, and gets their outputs; inputs without time are
    the same everywhere. Every rank of the group makes the call, and the backward pass through its results.
    `group` is a process group, a device mesh of one dimension, or None for all processes.

    `initial_state` is read on the first rank in the order of processing (the last one with `reverse`);
    elsewhere it may be left out, and gets zeros for its gradient. With `return_final_state` a rank gets the
    state after its own steps: on the last one in the order of processing that is the sequence's.
    `reset` and `mask` are of the rank's own steps; `lengths` and the bounds in `cu_seqlens` count the whole
    sequence's, the same on all ranks. What resets start from, `reset_state` or else the initial state, is
    the same on all ranks, too. An output without time is the sum over all ranks. Gradients of inputs without
    time, and of what resets start from, are of the rank's own steps, for DDP or FSDP2 to sum;
    `reduce_gradients` sums them here, and the initial state's. `form` forces how ranks go on from each other:
    "compose", each folding its steps into one element, or "pass", lanes in groups; `last_form` says which.

    Raises what `sf.scan` raises, GroupError for a missing rank, ArgumentError for a second derivative.
    Source: Blelloch, Prefix sums and their applications (1990), section 1.2.

    Example:
        >>> import torch, scanforge as sf, torch.distributed as dist
        >>> from scanforge import distributed
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> a, b = torch.tensor([[2.0, 3.0, 5.0]]), torch.tensor([[1.0, 10.0, 100.0]])
        >>> distributed.scan(sf.Affine, a=a, b=b)
        tensor([[  1.,  13., 165.]])
        >>> dist.destroy_process_group()
    """
    declared = declared_of(operator)
    named_only(declared, "scan", unnamed)
    wants_finals = flag_option(declared, "return_final_state", return_final_state)
    reduces, how = flag_option(declared, "reduce_gradients", reduce_gradients), form_option(declared, form)
    ranks = ranks_of(declared.name, group, reverse=flag_option(declared, "reverse", reverse))
    if reset is not None and reset_state is None and initial_state is not None:
        ranks = replace(ranks, alike="resets start from the initial state")  # on every rank
    states, kept = (initial_state, reset_state), memory_option(declared, memory)
    own = own_call(operator, tensors, states, time_dim(declared, dim), cu_seqlens, ranks)
    call = (_summed(own, ranks) if reduces else own).bounded(reset=reset, mask=mask, lengths=lengths)
    outputs, finals = Shard(ranks, kept, backend, lowering, how).results(call)
    shown = one_or_tuple(call.outputs(outputs))
    return (shown, one_or_tuple(call.states(finals))) if wants_finals else shown


def _summed(own: Own, ranks: Ranks) -> Own:
    """The call whose gradients of tensors without time, and of given states, are sums over the ranks."""
    if ranks.count == 1:
        return own
    call = own.call
    declared = call.declared.inputs if isinstance(call.declared, Fused) else ()
    alike = {i.name for i in declared if TIME not in i.axes}
    names = {n for leaf, real in call.traced.leaves if leaf in alike for n in real}
    shared = [k for k, i in enumerate(load(call.text).inputs) if i.name in names]
    k, n = len(shared), len(call.initial)
    taken = [call.inputs[i] for i in shared] + [*call.initial, *(call.entering or ())]
    tied: tuple[Tensor, ...] = _Summed.apply(ranks, *taken)  # type: ignore[no-untyped-call]
    inputs = list(call.inputs)
    for i, x in zip(shared, tied, strict=False):
        inputs[i] = x
    entering = None if call.entering is None else tied[k + n :]
    return replace(own, call=replace(call, inputs=tuple(inputs), initial=tied[k : k + n], entering=entering))


class _Summed(torch.autograd.Function):
    """Tensors that all ranks hold alike: the gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.ranks = ranks
        ctx.mark_non_differentiable(*(x for x in tensors if not x.is_floating_point()))
        return tuple(x.detach() for x in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad[1:]
        found = iter(ctx.ranks.sum_all([g for g, need in zip(cotangents, needs, strict=True) if need]))
        return None, *(next(found) if need else None for need in needs)
