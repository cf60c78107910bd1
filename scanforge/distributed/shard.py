"""One rank's shard: an ordinary scan from the state that the ranks before it leave, differentiable over all.

Behind the scan stands a node that hands results through, and on the way back adds to the final states'
cotangents what the ranks processed after it send. A shard that is cut into chunks is a scan over a batch of
them, and has such cotangents for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from scanforge import dtypes, pipeline
from scanforge.affine import offset
from scanforge.api import chosen_options, run_prepared
from scanforge.distributed import chunks
from scanforge.distributed.agreed import agreed
from scanforge.distributed.carry import entering
from scanforge.distributed.forms import planned
from scanforge.distributed.passing import Passing
from scanforge.distributed.ranks import Ranks
from scanforge.errors import ArgumentError
from scanforge.ir.scan import TIME, load
from scanforge.launch import Options
from scanforge.prepared import Prepared

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Shard:
    """How a rank runs what is its own."""

    ranks: Ranks
    memory: str
    backend: str | None
    lowering: str | None
    form: str = ""  # empty: the plan's choice

    def run(self, call: Prepared, reverse: bool) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs and final states of a call on this rank alone."""
        options = Options(reverse, "", call.dtype, memory=self.memory)
        return run_prepared(call, options, self.backend, self.lowering)

    def freely(self, call: Prepared, reverse: bool) -> tuple[list[Tensor], list[Tensor]]:
        """The same where the plan may choose: for what is not the caller's own scan."""
        return replace(self, lowering=None).run(call, reverse)

    def options(self, call: Prepared) -> Options:
        """What is chosen for the caller's own scan."""
        options = Options(self.ranks.reverse, "", call.dtype, memory=self.memory)
        return chosen_options(call, options, self.backend, self.lowering)

    def results(self, call: Prepared) -> tuple[list[Tensor], list[Tensor]]:
        """The same from the state that the ranks before it leave; differentiable over all of them."""
        planned(None)
        if self.ranks.count == 1:
            return self.run(call, self.ranks.reverse)
        some = replace(call, sizes=call.sizes | {TIME: max(1, call.sizes[TIME])})  # a rank may have no steps
        form = agreed(call, self.options(some), self.ranks, self.form)
        planned(form)
        if form.cut is not None:
            return Passing(self.ranks, form.cut, self.options(call)).results(call)
        count = chunks.chunk_count(call, self.backend, self.lowering)
        part = _Part(self, count, pending=[])
        tied = _Settled.apply(part.pending, *call.inputs, *call.initial)  # type: ignore[no-untyped-call]
        n = len(call.inputs)
        call = replace(call, inputs=tied[:n], initial=tied[n:])
        given = entering(call, self.freely, self.ranks, count=count)
        starts = given.states
        if count > 1:
            before = given.before_chunks(starts, self.freely, self.ranks.reverse)
            starts = tuple(part.led_by(x0, x) for x0, x in zip(given.states, before, strict=True))
        outputs, ends = part.run(replace(call, initial=starts))
        given.settle()
        bare = replace(call, inputs=(), initial=())
        joined = _Joined.apply(  # type: ignore[no-untyped-call]
            part, bare, *outputs, *ends, *call.inputs, *starts, *call.initial
        )
        n = len(outputs)
        return list(joined[:n]), list(joined[n : n + len(ends)])


@dataclass(frozen=True, slots=True)
class _Part:
    """A shard in `count` chunks; states of chunks have an axis more, the first.

    `pending` are the exchanges of a backward pass that nothing here had to wait for.
    """

    shard: Shard
    count: int
    pending: list[Callable[[], None]]

    @property
    def ranks(self) -> Ranks:
        """The ranks, as the recurrence passes them."""
        return self.shard.ranks

    def run(self, call: Prepared) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs, and the states after every chunk; `call.initial` are those before every chunk."""
        if self.count == 1:
            return self.shard.run(call, self.ranks.reverse)
        cut = chunks.in_chunks(call, self.count)
        outputs, ends = self.shard.freely(replace(cut, initial=call.initial), self.ranks.reverse)
        return chunks.whole(call.text, outputs), ends

    def led_by(self, x0: Tensor, states: Tensor) -> Tensor:
        """The states before every chunk; that of the first processed is x0, which may need a gradient."""
        rest = states[:-1] if self.ranks.reverse else states[1:]
        return torch.cat([rest, x0[None]] if self.ranks.reverse else [x0[None], rest])

    def last(self, ends: Tensor) -> Tensor:
        """The state after the last chunk processed."""
        return ends if self.count == 1 else ends[0 if self.ranks.reverse else -1]

    def cotangents(
        self, call: Prepared, outputs: Sequence[Tensor], finals: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        """The cotangents of the states after every chunk, with what all later steps send to them.

        `call.initial` are the states before every chunk, `finals` the cotangents of those after the last.
        """
        primal, shard, turned = load(call.text), self.shard, self.ranks.turned()
        shown = {o.name: g for o, g in zip(primal.outputs, outputs, strict=True) if o.kind == "float"}
        wanted = pipeline.Wanted(frozenset(), frozenset(shown), True)
        kinds = tuple(dtypes.name(x.dtype) for x in call.inputs)
        text, derived = pipeline.backward(call.text, wanted, kinds)
        own = dict(zip((s.name for s in primal.states), finals, strict=True))
        seeds = [own[state].to(call.dtype) for state, _ in derived.initial]
        if not seeds:
            return {}
        given = dict(zip((i.name for i in primal.inputs), call.inputs, strict=True))
        given |= {name: shown[output] for output, name in derived.cotangents}
        if derived.states_before:
            before = replace(call, text=pipeline.states_before(call.text))
            states = dict(zip(own, self.run(before)[0], strict=True))
            given |= {name: states[state] for state, name in derived.states_before}
        inputs = tuple(given[i.name] for i in derived.scan.inputs)
        mus = [mu for _, mu in derived.initial]
        after = {offset(mu, mus): x for mu, x in zip(mus, seeds, strict=True)}
        adjoint = replace(call, text=text, inputs=inputs, initial=tuple(seeds))
        carried = entering(adjoint, shard.freely, turned, after, self.count)
        totals = seeds if turned.first else [x + y for x, y in zip(seeds, carried.states, strict=True)]
        if self.count > 1:
            totals = carried.before_chunks(totals, shard.freely, turned.reverse)
        self.pending.append(carried.settle)
        return {state: x for (state, _), x in zip(derived.initial, totals, strict=True)}


class _Settled(torch.autograd.Function):
    """Stands before a shard: its backward pass has been launched when what is pending is waited for."""

    @staticmethod
    def forward(ctx: Any, pending: list[Callable[[], None]], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.pending = pending
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in tensors if not x.is_floating_point()))
        return tuple(x.detach() for x in tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        while ctx.pending:
            ctx.pending.pop()()
        return None, *cotangents


class _Joined(torch.autograd.Function):
    """Hands a shard's results through, and in the backward pass exchanges what crosses its border."""

    @staticmethod
    def forward(ctx: Any, part: _Part, call: Prepared, *tensors: Tensor) -> tuple[Tensor, ...]:
        scan = load(call.text)
        n, k = len(scan.outputs), len(scan.states)
        ctx.part, ctx.call = part, call
        ctx.save_for_backward(*tensors[n + k :])
        ctx.untimed = [TIME not in o.dims for o in scan.outputs]
        sums = zip(tensors[:n], ctx.untimed, strict=True)
        results = [part.ranks.sum(y) if untimed else y.detach() for y, untimed in sums]
        results += [part.last(x).detach() for x in tensors[n : n + k]]
        ctx.mark_non_differentiable(*(x for x in results if not x.is_floating_point()))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
        part, scan = ctx.part, load(ctx.call.text)
        if torch.is_grad_enabled():  # a graph of this rank's part alone would be wrong, and look right
            raise ArgumentError(
                f"{part.ranks.name}: scanforge.distributed.scan has no second derivative: leave "
                "create_graph out, or gather the sequence and write sf.scan."
            )
        n, k = len(scan.outputs), len(scan.states)
        saved = ctx.saved_tensors
        call = replace(ctx.call, inputs=tuple(saved[: -2 * k]), initial=tuple(saved[-2 * k : -k]))
        outputs = [
            part.ranks.sum(g) if untimed and g.is_floating_point() else g
            for g, untimed in zip(cotangents[:n], ctx.untimed, strict=True)
        ]
        total = part.cotangents(call, outputs, cotangents[n:])
        ends = [total.get(s.name) for s in scan.states]
        starts: list[Tensor | None] = [None] * k
        if not part.ranks.first:  # what is given there is not read
            needs = ctx.needs_input_grad[-k:]
            starts = [
                torch.zeros_like(x) if need else None for x, need in zip(saved[-k:], needs, strict=True)
            ]
        return None, None, *outputs, *ends, *[None] * (len(saved) - k), *starts
