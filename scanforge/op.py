"""The torch op: a scan as one node that autograd, the compiler and functorch understand.

In eager mode an autograd.Function stands around the op `scanforge::scan`, whose implementation runs
the planned code; under the compiler the op itself is called, with the same backward registered.
The backward of a scan is two scans, the states before each step and the adjoint. When no second
derivative is wanted, the states are those that the forward pass kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from scanforge import dtypes, pipeline
from scanforge.ir.scan import TIME, Scan, load
from scanforge.launch import Options, kept_states, output_dtypes, run, sizes_of, state_dtypes
from scanforge.plan import state_outputs

Tensor = torch.Tensor
SCHEMA = (
    "scan(str recurrence, Tensor[] inputs, Tensor[] initial, "
    "bool reverse, str lowering, ScalarType dtype, bool keep) -> Tensor[]"
)


@dataclass(frozen=True, slots=True)
class Call:
    """A call's constants: the recurrence as text, how many of the tensors are inputs, the options."""

    text: str
    inputs: int
    options: Options


def apply(
    text: str, inputs: Sequence[Tensor], initial: Sequence[Tensor], options: Options
) -> tuple[list[Tensor], list[Tensor]]:
    """(outputs, final states) of a recurrence, differentiable."""
    scan = load(text)
    call = Call(text, len(inputs), options)
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs, *initial))
    if not keep or torch.compiler.is_compiling():
        results = list(_call_op(call, [*inputs, *initial], keep))
    else:
        results = list(_ScanFunction.apply(call, *inputs, *initial))  # type: ignore[no-untyped-call]
    n, k = len(scan.outputs), len(scan.states)
    return results[:n], results[n : n + k]


def _call_op(call: Call, tensors: Sequence[Tensor], keep: bool) -> list[Tensor]:
    o = call.options
    results: list[Tensor] = library().scan(
        call.text,
        list(tensors[: call.inputs]),
        list(tensors[call.inputs :]),
        o.reverse,
        o.lowering,
        o.dtype,
        keep,
    )
    return results


class _ScanFunction(torch.autograd.Function):
    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(_call_op(call, tensors, keep=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        call, *tensors = inputs
        scan = load(call.text)
        shown = len(scan.outputs) + len(scan.states)
        ctx.call = call
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(x for x in output if not x.is_floating_point()),
            *(x for x in output[shown:] if x.is_floating_point()),
        )
        ctx.save_for_backward(*tensors, *output[: len(scan.outputs)], *output[shown:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        gradients = _gradients(
            ctx.call, list(ctx.saved_tensors), list(cotangents), list(ctx.needs_input_grad[1:])
        )
        return (None, *gradients)


def _gradients(
    call: Call, saved: list[Tensor], cotangents: list[Tensor | None], needs: list[bool]
) -> list[Tensor | None]:
    """The gradients of inputs and initial states, through the adjoint scan run the other way."""
    scan = load(call.text)
    n, k = call.inputs, len(scan.states)
    inputs, initial, results = saved[:n], saved[n : n + k], saved[n + k :]
    seeds = dict(zip((o.name for o in scan.outputs), cotangents, strict=False))
    finals = dict(zip((s.name for s in scan.states), cotangents[len(scan.outputs) :], strict=False))
    wanted = frozenset(i.name for i, need in zip(scan.inputs, needs, strict=False) if need)
    present = frozenset(name for name, g in seeds.items() if g is not None)
    names = tuple(dtypes.name(t.dtype) for t in inputs)
    text, derived = pipeline.backward(call.text, wanted, present, any(needs[n:]), names)
    given: dict[str, Tensor] = dict(zip((i.name for i in scan.inputs), inputs, strict=True))
    if derived.states_before:
        states = _states_before(call, scan, inputs, initial, results)
        given |= {name: states[state] for state, name in derived.states_before}
    given |= {name: g for output, name in derived.cotangents if (g := seeds[output]) is not None}
    order = {mu: state for state, mu in derived.initial}
    start = [_seed(finals.get(order[s.name]), initial, scan, order[s.name]) for s in derived.scan.states]
    options = replace(call.options, reverse=not call.options.reverse)
    outputs, ends = apply(text, [given[i.name] for i in derived.scan.inputs], start, options)
    found = dict(zip((i for i, _ in derived.gradients), outputs, strict=True))
    mu = dict(zip((order[s.name] for s in derived.scan.states), ends, strict=True))
    by_input = [found.get(i.name) for i in scan.inputs]
    by_state = [mu.get(s.name) if need else None for s, need in zip(scan.states, needs[n:], strict=True)]
    return [*by_input, *by_state]


def _seed(cotangent: Tensor | None, initial: Sequence[Tensor], scan: Scan, state: str) -> Tensor:
    """The adjoint's initial state: the final state's cotangent."""
    x0 = initial[[s.name for s in scan.states].index(state)]
    return torch.zeros_like(x0) if cotangent is None else cotangent.to(x0.dtype)


def _states_before(
    call: Call, scan: Scan, inputs: list[Tensor], initial: list[Tensor], results: list[Tensor]
) -> dict[str, Tensor]:
    """The state before each step, bit for bit the forward pass's; differentiable in grad mode."""
    if torch.is_grad_enabled():
        outputs, _ = apply(pipeline.states(call.text), inputs, initial, call.options)
        return dict(zip((s.name for s in scan.states), outputs, strict=True))
    found = output_dtypes(scan, inputs, call.options.dtype)
    kept = dict(zip(kept_states(scan, found, call.options.dtype), results[len(scan.outputs) :], strict=True))
    shown = dict(zip((o.name for o in scan.outputs), results, strict=False))
    held = state_outputs(scan)
    states = {}
    for s, x0 in zip(scan.states, initial, strict=True):
        after = kept[s.name] if s.name in kept else _in_scan_order(scan, shown[held[s.name]], held[s.name])
        first = x0[None].to(after.dtype)
        parts = (after[1:], first) if call.options.reverse else (first, after[:-1])
        states[s.name] = torch.cat(parts) if after.shape[0] else after
    return states


def _in_scan_order(scan: Scan, tensor: Tensor, output: str) -> Tensor:
    dims = next(o.dims for o in scan.outputs if o.name == output)
    return tensor.permute([dims.index(a) for a in scan.axes])


def _run(
    recurrence: str,
    inputs: list[Tensor],
    initial: list[Tensor],
    reverse: bool,
    lowering: str,
    dtype: torch.dtype,
    keep: bool,
) -> list[Tensor]:
    result = run(recurrence, inputs, initial, Options(reverse, lowering, dtype), keep)
    return [*result.outputs, *result.finals, *result.kept]


def _fake(
    recurrence: str,
    inputs: list[Tensor],
    initial: list[Tensor],
    reverse: bool,
    lowering: str,
    dtype: torch.dtype,
    keep: bool,
) -> list[Tensor]:
    """Shapes and dtypes alone."""
    scan = load(recurrence)
    sizes = sizes_of(scan, inputs, initial)
    found = output_dtypes(scan, inputs, dtype)
    shown = [
        inputs[0].new_empty([1 if d == "1" else sizes[d] for d in o.dims], dtype=d_out)
        for o, d_out in zip(scan.outputs, found, strict=True)
    ]
    carried = dict(
        zip(
            (s.name for s in scan.states),
            zip(initial, state_dtypes(scan, inputs, dtype), strict=True),
            strict=True,
        )
    )
    finals = [x0.new_empty(x0.shape, dtype=d) for x0, d in carried.values()]
    names = kept_states(scan, found, dtype) if keep else []
    kept = [carried[n][0].new_empty((sizes[TIME], *carried[n][0].shape), dtype=carried[n][1]) for n in names]
    return [*shown, *finals, *kept]


def _setup_op(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    text, tensors, initial, reverse, lowering, dtype, keep = inputs
    scan = load(text)
    ctx.call = Call(text, len(tensors), Options(reverse, lowering, dtype))
    ctx.needs = [t.requires_grad for t in (*tensors, *initial)]
    ctx.kept = keep
    ctx.save_for_backward(
        *tensors, *initial, *output[: len(scan.outputs)], *output[len(scan.outputs) + len(scan.states) :]
    )


def _backward_op(ctx: Any, cotangents: list[Tensor | None]) -> tuple[Any, ...]:
    gradients = _gradients(ctx.call, list(ctx.saved_tensors), cotangents, ctx.needs)
    n = ctx.call.inputs
    return None, gradients[:n], gradients[n:], None, None, None, None


@cache
def library() -> Any:
    """The op's namespace; defined at first use, so that importing scanforge does no work."""
    lib = torch.library.Library("scanforge", "DEF")
    lib.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
    lib.impl("scan", _run, "CompositeExplicitAutograd")
    torch.library.register_fake("scanforge::scan", _fake, lib=lib)
    torch.library.register_autograd("scanforge::scan", _backward_op, setup_context=_setup_op, lib=lib)
    _LIBRARIES.append(lib)
    return torch.ops.scanforge


_LIBRARIES: list[torch.library.Library] = []  # a library's ops live as long as it does
