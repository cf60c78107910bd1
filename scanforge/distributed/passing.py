"""The form `pass`: lanes go from rank to rank in groups.

A rank walks one group after another, each from the states that the rank before sends, and sends on those
that it ends with. The adjoint goes the other way, with the cotangents of these states.

Groups are views of the inputs, and their results parts of whole tensors, so that nothing is read or written
twice. A receive is posted before the launches of the group that comes first; no send is waited for until all
groups have been launched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch

from scanforge.distributed.forms import Cut
from scanforge.distributed.ranks import Message, Ranks, settle
from scanforge.distributed.slopes import Slopes
from scanforge.distributed.wire import Pack, specs
from scanforge.errors import ArgumentError
from scanforge.ir.scan import TIME, Scan, load
from scanforge.launch import Options
from scanforge.launch_triton import allocate
from scanforge.library import run_scan
from scanforge.op import Call, gradients
from scanforge.packed import summed
from scanforge.prepared import Prepared

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Passing:
    """How a rank runs its part; `options` are those of its kernels."""

    ranks: Ranks
    cut: Cut
    options: Options

    def results(self, call: Prepared) -> tuple[list[Tensor], list[Tensor]]:
        """Outputs and final states of this rank's steps; differentiable over all ranks."""
        shown = load(call.text).outputs
        given = [*call.inputs, *call.initial]
        keep = torch.is_grad_enabled() and any(x.requires_grad for x in given)
        run = Call(call.text, len(call.inputs), self.options, keep, call.packed)
        found: tuple[Tensor, ...] = _Passed.apply(self, run, *given)  # type: ignore[no-untyped-call]
        outputs, finals = list(found[: len(shown)]), list(found[len(shown) :])
        if call.packed is not None:
            outputs = [summed(o.dims, y) for o, y in zip(shown, outputs, strict=True)]
        return outputs, finals

    def groups(self) -> list[Group]:
        """The groups in the order in which they are walked."""
        return [Group(self.cut.axis, a, b - a) for a, b in pairwise(self.cut.bounds)]

    def arriving(self, ranks: Ranks, packs: Sequence[Pack], device: torch.device) -> Iterator[list[Tensor]]:
        """What the rank before sends for each group: the next receive is posted before one is handed out."""
        posted: list[Message] = []
        for k, pack in enumerate(packs):
            posted += [ranks.receive(x.size, device) for x in packs[len(posted) : k + 2]]
            yield pack.read(posted[k].wait())


@dataclass(frozen=True, slots=True)
class Group:
    """Some lanes along an axis."""

    axis: str
    begin: int
    count: int

    def of(self, x: Tensor, dims: Sequence[str]) -> Tensor:
        """Its part of a tensor, a view; all of one without the axis."""
        return x.narrow(dims.index(self.axis), self.begin, self.count) if self.axis in dims else x

    def inputs(self, scan: Scan, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Its part of inputs."""
        return [self.of(x, i.dims) for i, x in zip(scan.inputs, tensors, strict=True)]

    def outputs(self, scan: Scan, tensors: Sequence[Tensor | None]) -> list[Any]:
        """Its part of outputs, or of their cotangents, where there are any."""
        return [None if x is None else self.of(x, o.dims) for o, x in zip(scan.outputs, tensors, strict=True)]

    def states(self, scan: Scan, tensors: Sequence[Tensor | None]) -> list[Any]:
        """Its part of states, or of their cotangents, where there are any."""
        return [
            None if x is None else self.of(x, scan.order(s.axes))
            for s, x in zip(scan.states, tensors, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Walked:
    """What the groups of a forward pass leave: final states, and what their backward passes begin with."""

    ends: list[list[Tensor]]
    starts: list[list[Tensor]]
    kept: list[list[Tensor]]


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Passing, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        scan, n = load(call.text), call.inputs
        inputs, initial = tensors[:n], tensors[n:]
        whole = allocate(call.text, inputs, initial, call.options, False, call.bounds).outputs
        walked = _walk(part, call, inputs, initial, whole)
        ctx.untimed = [TIME not in o.dims for o in scan.outputs]
        outputs = [part.ranks.sum(y) if alone else y for y, alone in zip(whole, ctx.untimed, strict=True)]
        results = (*outputs, *_together(scan, part.cut.axis, walked.ends))
        if call.keep:
            lists = [[*inputs], outputs, *walked.starts, *walked.kept]
            ctx.counts = [len(own) for own in lists]
            ctx.save_for_backward(*(x for own in lists for x in own))
        ctx.part, ctx.call, ctx.shapes = part, call, [x.shape for x in initial]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(x for x in results if not x.is_floating_point()))
        return results

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        part, call = ctx.part, ctx.call
        if torch.is_grad_enabled():  # a graph of this rank's part alone would be wrong, and look right
            raise ArgumentError(
                f"{part.ranks.name}: scanforge.distributed.scan has no second derivative: leave "
                "create_graph out, or gather the sequence and write sf.scan."
            )
        n, needs = len(ctx.untimed), ctx.needs_input_grad[2:]
        outputs = [
            part.ranks.sum(g) if alone and g is not None else g
            for g, alone in zip(cotangents[:n], ctx.untimed, strict=True)
        ]
        saved = [list(ctx.saved_tensors[a:b]) for a, b in pairwise(accumulate(ctx.counts, initial=0))]
        slopes, mus = _walk_back(part, call, saved, outputs, cotangents[n:], needs)
        if part.ranks.first:
            return None, None, *slopes, *mus
        mus = [  # what is given elsewhere is not read
            x.new_zeros(shape) if need else None
            for x, shape, need in zip(saved[2], ctx.shapes, needs[call.inputs :], strict=True)
        ]
        return None, None, *slopes, *mus


def _walk(
    part: Passing, call: Call, inputs: Sequence[Tensor], initial: Sequence[Tensor], whole: Sequence[Tensor]
) -> _Walked:
    """Write the outputs of all groups."""
    scan, ranks, o = load(call.text), part.ranks, call.options
    n, k = len(scan.outputs), len(scan.states)
    groups = part.groups()
    given = [group.states(scan, initial) for group in groups]
    packs = [Pack(specs(states)) for states in given]
    arriving = iter(given) if ranks.first else part.arriving(ranks, packs, inputs[0].device)
    sent, walked = [], _Walked([], [], [])
    for group, pack in zip(groups, packs, strict=True):
        starts, into = next(arriving), group.outputs(scan, whole)
        found = run_scan(
            call.text, group.inputs(scan, inputs), starts, o.reverse, o.lowering, o.backend, o.memory,
            o.dtype, call.keep, call.bounds, into,
        )  # fmt: skip
        for place, y in zip(into, found, strict=False):
            if y is not place:
                place.copy_(y)
        walked.ends.append(found[n : n + k])
        walked.starts.append(starts)
        walked.kept.append(found[n + k :])
        if not ranks.last:
            sent.append(ranks.send(pack.message(walked.ends[-1])))
    settle(sent)
    return walked


def _walk_back(
    part: Passing, call: Call, saved: list[list[Tensor]], outputs: Sequence[Tensor | None],
    finals: Sequence[Tensor | None], needs: Sequence[bool],
) -> tuple[list[Tensor | None], list[Tensor | None]]:  # fmt: skip
    """The gradients of inputs and of initial states, from the cotangents of outputs and final states."""
    scan, ranks, n = load(call.text), part.ranks.turned(), call.inputs
    groups, (inputs, whole, *rest) = part.groups(), saved
    starts, kept = rest[: len(groups)], rest[len(groups) :]
    floats = [k for k, s in enumerate(scan.states) if s.kind == "float"]
    packs = [Pack(specs([own[k] for k in floats])) for own in starts]
    arriving = part.arriving(ranks, packs, inputs[0].device) if floats and not ranks.first else None
    of_states = [k in floats and (need or not ranks.last) for k, need in enumerate(needs[n:])]
    sent, mus = [], []
    slopes = Slopes(scan, part.cut.axis, inputs, needs[:n], call.options.dtype)
    for k, (group, pack) in enumerate(zip(groups, packs, strict=True)):
        seeds = group.states(scan, finals)
        for at, x in zip(floats, next(arriving), strict=True) if arriving else ():
            seeds[at] = x if seeds[at] is None else seeds[at] + x
        values = [*group.inputs(scan, inputs), *starts[k], *group.outputs(scan, whole), *kept[k]]
        cotangents = [*group.outputs(scan, outputs), *seeds]
        places = slopes.places(group.begin, group.count)
        found = gradients(call, values, cotangents, [*needs[:n], *of_states], places)
        slopes.add(found[:n], places)
        mus.append(found[n:])
        if floats and not ranks.last:
            sent.append(ranks.send(pack.message([x for x in found[n:] if x is not None])))
    settle(sent)
    return slopes.found(), _together(scan, part.cut.axis, mus)


def _together(scan: Scan, axis: str, parts: Sequence[Sequence[Any]]) -> list[Any]:
    """The states of all groups, or their cotangents, where there are any."""
    return [
        None if xs[0] is None else torch.cat(xs, scan.order(s.axes).index(axis))
        for s, *xs in zip(scan.states, *parts, strict=True)
    ]
