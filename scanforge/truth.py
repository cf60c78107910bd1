"""A call's truth: the sequential loop in float64, its gradients, and how far from them a backend is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from scanforge.api import scan
from scanforge.boundaries import bounded
from scanforge.declare import Operator
from scanforge.ir.scan import BATCH, TIME
from scanforge.prepared import Prepared, prepare
from scanforge.recurrence import Fused, Recurrence, declared_of
from scanforge.sequential import sequential

Tensor = torch.Tensor
Declared = type[Operator] | type[Recurrence]
Results = tuple[list[Tensor], list[Tensor]]  # values, gradients
Run = Callable[[dict[str, Tensor], Sequence[Tensor]], list[Tensor]]  # tensors, states -> results


def lost(
    declared: Declared, tensors: dict[str, Tensor], initial: Sequence[Tensor], device: torch.device,
    backend: str, lowering: str | None = None, memory: str | None = None, **cuts: Any,
) -> tuple[float, float]:  # fmt: skip
    """How far values and gradients of a call are from the sequential loop in float64, relative to its size.

    `cuts` are reverse, reset, mask, lengths and cu_seqlens. The gradients are those of all float tensors and
    initial states.
    """
    options = {"backend": backend, "lowering": lowering, "memory": memory, **cuts}
    return apart(
        found(declared, tensors, initial, device, **options), true(declared, tensors, initial, **cuts)
    )


def true(
    declared: Declared, tensors: dict[str, Tensor], initial: Sequence[Tensor], **cuts: Any
) -> Results:  # fmt: skip
    """Values and gradients of the sequential loop in float64."""
    return with_gradients(looped(declared, **cuts), tensors, initial, torch.Tensor.double)


def found(
    declared: Declared, tensors: dict[str, Tensor], initial: Sequence[Tensor], device: torch.device,
    **options: Any,
) -> Results:  # fmt: skip
    """Values and gradients of `scan` with these options, on a device."""

    def run(named: dict[str, Any], start: Sequence[Tensor]) -> list[Tensor]:
        placed: dict[str, Any] = {n: x.to(device) if isinstance(x, Tensor) else x for n, x in options.items()}
        given = scan(declared, initial_state=as_given(start), return_final_state=True, **named, **placed)
        return [x for part in given for x in (part if isinstance(part, tuple) else (part,))]

    return with_gradients(run, tensors, initial, lambda x: x.to(device))


def apart(got: Results, truth: Results) -> tuple[float, float]:
    """The largest relative distance among values, and among gradients."""
    values, gradients = (max(map(distance, xs, ys), default=0.0) for xs, ys in zip(got, truth, strict=True))
    return values, gradients


def looped(declared: Declared, dtype: torch.dtype = torch.float64, **cuts: Any) -> Run:
    """The sequential loop of tensors and initial states, in this dtype."""
    options = {n: x for n, x in cuts.items() if n != "cu_seqlens"}

    def run(named: dict[str, Tensor], start: Sequence[Tensor]) -> list[Tensor]:
        if cuts.get("cu_seqlens") is not None:
            return _packed(declared, named, start, cuts["cu_seqlens"].tolist(), dtype, options)
        call, outputs, finals = _walked(declared, named, start, dtype, options)
        return [*call.outputs(outputs), *call.states(finals)]

    return run


def _walked(
    declared: Declared, named: dict[str, Tensor], start: Sequence[Tensor], dtype: torch.dtype,
    options: Mapping[str, Any],
) -> tuple[Prepared, list[Tensor], list[Tensor]]:  # fmt: skip
    call = bounded(prepare(declared, named, as_given(start)), **{"reverse": False, **options})
    reverse = bool(options.get("reverse"))
    return call, *sequential(call.text, call.inputs, call.initial, reverse=reverse, dtype=dtype)


def _packed(
    declared: Declared, named: dict[str, Tensor], start: Sequence[Tensor], ends: list[int],
    dtype: torch.dtype, options: Mapping[str, Any],
) -> list[Tensor]:  # fmt: skip
    """Each sequence by itself, a call of its own: what packing means."""
    found, axes = declared_of(declared), {}
    if isinstance(found, Fused):
        axes = {i.name: i.axes for i in found.inputs}
    shown, ended = [], []
    for k, (first, last) in enumerate(pairwise(ends)):
        here = {TIME: (ends[-1], first, last - first), BATCH: (len(ends) - 1, k, 1)}
        own = {n: _cut(x, axes.get(n, (BATCH, TIME)), here) for n, x in named.items()}
        cuts = {n: _cut(x, (BATCH, TIME), here) if isinstance(x, Tensor) else x for n, x in options.items()}
        states = [_cut(x, _axes_of(found, n), here) for n, x in enumerate(start)]
        call, outputs, finals = _walked(declared, own, states, dtype, cuts)
        shown.append(call.outputs(outputs))
        ended.append(call.states(finals))
    by_name = {o.name: o.dims for o in call.scan.outputs}
    dims = [by_name[names[0]] for names in call.traced.outputs]
    joined = [_joined(list(ys), d) for ys, d in zip(zip(*shown, strict=True), dims, strict=True)]
    at = [_axes_of(found, n).index(BATCH) for n in range(len(found.states))]
    return [*joined, *(torch.cat(xs, k) for xs, k in zip(zip(*ended, strict=True), at, strict=True))]


def _axes_of(found: Any, state: int) -> tuple[str, ...]:
    axes: tuple[str, ...] = found.states[state].axes if isinstance(found, Fused) else (BATCH,)
    return axes


def _cut(x: Tensor, axes: Sequence[str], here: Mapping[str, tuple[int, int, int]]) -> Tensor:
    """The part of one sequence, along time or else along the batch; what has size 1 is shared by all."""
    axis = next((a for a in (TIME, BATCH) if a in axes), None)
    if axis is None:
        return x
    whole, at, count = here[axis]
    return x.narrow(axes.index(axis), at, count) if x.shape[axes.index(axis)] == whole else x


def _joined(parts: list[Tensor], dims: Sequence[str]) -> Tensor:
    """Behind each other in time; without time, summed over all sequences as over a batch of one."""
    return torch.cat(parts, dims.index(TIME)) if TIME in dims else torch.stack(parts).sum(0)


def with_gradients(
    run: Run,
    tensors: dict[str, Tensor],
    initial: Sequence[Tensor],
    place: Callable[[Tensor], Tensor],
) -> Results:
    """What `run` returns on these tensors, floats where `place` puts them, and the gradients of one sum."""

    def leaf(x: Tensor) -> Tensor:
        moved = place(x).detach() if x.is_floating_point() else x.to(place(torch.zeros(())).device)
        return moved.requires_grad_(x.is_floating_point())

    named, start = {n: leaf(x) for n, x in tensors.items()}, [leaf(x) for x in initial]
    results = run(named, start)
    random, read = torch.Generator().manual_seed(1), []
    for x in (x for x in results if x.is_floating_point()):
        cotangent = (torch.randint(-16, 17, x.shape, generator=random) / 8).to(x)
        read += [(x, cotangent)] if x.requires_grad else []
    wanted = [x for x in (*named.values(), *start) if x.requires_grad]
    if not read:  # no result depends on any of them
        return [x.detach() for x in results], [torch.zeros_like(x) for x in wanted]
    outputs, cotangents = zip(*read, strict=True)
    slopes = torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True, materialize_grads=True)
    return [x.detach() for x in results], list(slopes)


def distance(x: Tensor, truth: Tensor) -> float:
    """The norm of the difference over that of the truth; equal infinities are no difference."""
    if x.shape != truth.shape:
        return float("inf")
    x, truth = x.double().cpu(), truth.double().cpu()
    apart = torch.where(x == truth, 0.0, x - truth).norm()
    size = torch.where(truth.isfinite(), truth, 0.0).norm()
    return float(apart / size if size else apart)


def as_given(states: Sequence[Tensor]) -> Any:
    """States as a call takes them."""
    return states[0] if len(states) == 1 else tuple(states) or None
