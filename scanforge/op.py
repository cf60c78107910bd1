"""A scan in autograd.

In eager mode an autograd.Function stands around the op `scanforge::scan`; under the compiler the op itself is
called, with the same backward registered. The backward of a scan is two scans, the states before each step
and the adjoint, run the other way. When no second derivative is wanted, the reference takes the states that
the forward pass kept, and a GPU runs both scans in one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import torch

from scanforge import dtypes, pipeline
from scanforge.adjoint import Adjoint
from scanforge.batched import batched
from scanforge.ir.scan import BATCH, Scan, load
from scanforge.launch import Options, kept_states, output_dtypes
from scanforge.library import are_open, define, run_backward, run_scan
from scanforge.packed import states_before as packed_states_before
from scanforge.packed import summed
from scanforge.plan import state_outputs
from scanforge.tangent import tangent
from scanforge.tape import Recorder, recording

Tensor = torch.Tensor
_VIEWS = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


@dataclass(frozen=True, slots=True)
class Call:
    """A call's constants: the recurrence as text, how many of the tensors are inputs, the options."""

    text: str
    inputs: int
    options: Options
    keep: bool  # what the backward pass needs
    bounds: Tensor | None = None  # of packed sequences


def apply(
    text: str,
    inputs: Sequence[Tensor],
    initial: Sequence[Tensor],
    options: Options,
    bounds: Tensor | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """(outputs, final states) of a recurrence, differentiable; `bounds` are of packed sequences, on a GPU."""
    scan = load(text)
    given = (*inputs, *initial)
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    keep = keep and not (options.backend == "triton" and are_open(given))
    call = Call(text, len(inputs), options, keep, bounds)
    recorder = recording()
    if recorder is not None:
        results = _recorded(recorder, replace(call, keep=recorder.gradient), given)
    elif torch.compiler.is_compiling() and not _transformed():
        results = _call_op(call, given)
    else:
        results = list(_ScanFunction.apply(call, *given))  # type: ignore[no-untyped-call]
    n, k = len(scan.outputs), len(scan.states)
    return results[:n], results[n : n + k]


def _recorded(recorder: Recorder, call: Call, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The results of a call whose replays have autograd around them, if there are gradients."""
    scan = load(call.text)
    recorder.cut([*tensors, *([] if call.bounds is None else [call.bounds])])
    recorder.notes.append(call)
    recorder.cut(results := _call_op(call, tensors), len(scan.outputs) + len(scan.states))
    return results


def _transformed() -> bool:
    """Whether torch.func transforms what runs here: its rules hang on the autograd.Function."""
    return bool(torch._C._are_functorch_transforms_active())


def _call_op(call: Call, tensors: Sequence[Tensor]) -> list[Tensor]:
    o, n = call.options, call.inputs
    run = run_scan if recording() else library().scan
    results: list[Tensor] = run(
        call.text, list(tensors[:n]), list(tensors[n:]), o.reverse, o.lowering, o.backend, o.memory, o.dtype,
        call.keep, call.bounds,
    )  # fmt: skip
    return results


class _ScanFunction(torch.autograd.Function):
    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        # the op's own views are no views of the caller's, who may write into the outputs
        with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(_VIEWS):
            return tuple(_call_op(call, tensors))

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
        ctx.save_for_forward(*tensors, *output[: len(scan.outputs)], *output[shown:])

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Call, *tensors: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        first = [x if d is None else x.movedim(d, 0) for x, d in zip(tensors, in_dims[1:], strict=True)]
        flags = tuple(d is not None for d in in_dims[1:])
        n = call.inputs
        initial = [
            x if has else x.expand(info.batch_size, *x.shape)
            for x, has in zip(first[n:], flags[n:], strict=True)
        ]
        text = batched(call.text, flags[:n])
        outputs, finals = apply(text, first[:n], initial, call.options, call.bounds)
        results = (*outputs, *finals)  # what is kept besides is for a backward pass outside of torch.func
        return results, (0,) * len(results)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return _tangents(ctx.call, list(ctx.saved_tensors), list(tangents))

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        needs = list(ctx.needs_input_grad[1:])
        return (None, *gradients(ctx.call, list(ctx.saved_tensors), list(cotangents), needs))


def gradients(
    call: Call, saved: list[Tensor], cotangents: list[Tensor | None], needs: list[bool],
    into: Mapping[str, Tensor] = MappingProxyType({}),
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of inputs and initial states. Kernels write those of inputs by name `into` tensors."""
    scan = load(call.text)
    n, k = call.inputs, len(scan.states)
    inputs, initial, results = saved[:n], saved[n : n + k], saved[n + k :]
    of_output = dict(zip((o.name for o in scan.outputs), cotangents, strict=False))
    of_state = dict(zip((s.name for s in scan.states), cotangents[len(scan.outputs) :], strict=False))
    wanted = pipeline.Wanted(
        frozenset(i.name for i, need in zip(scan.inputs, needs, strict=False) if need),
        frozenset(name for name, g in of_output.items() if g is not None),
        any(needs[n:]),
    )
    text, derived = pipeline.backward(call.text, wanted, tuple(dtypes.name(t.dtype) for t in inputs))
    order = [state for state, _ in derived.initial]  # as the adjoint's states stand
    start = {s.name: x0 for s, x0 in zip(scan.states, initial, strict=True)}
    seeds = [_seed(of_state.get(state), start[state]) for state in order]
    seen = {name: g for output, name in derived.cotangents if (g := of_output[output]) is not None}
    if call.options.backend == "triton" and not torch.is_grad_enabled() and not _transformed():
        kept = results[len(scan.outputs) :] or [x0[None] if call.keep else x0 for x0 in initial]
        places = [into.get(i) for i, _ in derived.gradients] if into else []
        slopes, ends = _one_kernel(call, wanted, derived, inputs, kept, seen, seeds, places)
    else:
        given = dict(zip((i.name for i in scan.inputs), inputs, strict=True)) | seen
        if derived.states_before:
            states = _states_before(call, scan, inputs, initial, results)
            given |= {name: states[state] for state, name in derived.states_before}
        options = replace(call.options, reverse=not call.options.reverse)
        slopes, ends = apply(text, [given[i.name] for i in derived.scan.inputs], seeds, options, call.bounds)
    found = dict(zip((i for i, _ in derived.gradients), slopes, strict=True))
    if call.bounds is not None:
        rows = {
            i.name: t.shape[i.dims.index(BATCH)] if BATCH in i.dims else 1
            for i, t in zip(scan.inputs, inputs, strict=True)
        }
        found = {n: summed(scan.input(n).dims, g, rows[n]) for n, g in found.items()}
    mu = dict(zip(order, ends, strict=True))
    by_state = [mu.get(s.name) if need else None for s, need in zip(scan.states, needs[n:], strict=True)]
    return [*(found.get(i.name) for i in scan.inputs), *by_state]


def _one_kernel(
    call: Call, wanted: pipeline.Wanted, derived: Adjoint, inputs: list[Tensor], kept: list[Tensor],
    seen: dict[str, Tensor], seeds: list[Tensor], into: list[Tensor | None],
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """The states and the adjoint in one kernel, from what the forward kernel kept."""
    run = run_backward if recording() or into else library().scan_backward
    results = run(
        call.text,
        " ".join(sorted(wanted.inputs)),
        " ".join(sorted(wanted.present)),
        wanted.initial,
        inputs,
        kept,
        [seen[name] for _, name in derived.cotangents],
        seeds,
        call.options.reverse,
        call.options.lowering,
        call.options.memory,
        call.options.dtype,
        call.bounds,
        *([into] if into else []),
    )
    n = len(derived.gradients)
    return results[:n], results[n:]


def _tangents(call: Call, saved: list[Tensor], tangents: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The tangents of outputs and final states; of what is kept besides there are none."""
    scan = load(call.text)
    n, k = call.inputs, len(scan.states)
    inputs, initial, results = saved[:n], saved[n : n + k], saved[n + k :]
    of_input = {i.name: t for i, t in zip(scan.inputs, tangents[:n], strict=True) if t is not None}
    of_state = dict(zip((s.name for s in scan.states), tangents[n:], strict=True))
    start = dict(zip((s.name for s in scan.states), initial, strict=True))
    derived = tangent(
        call.text,
        frozenset(of_input),
        tuple(dtypes.name(t.dtype) for t in inputs),
        tuple(dtypes.name(d) for d in output_dtypes(scan, inputs, call.options.dtype)),
        tuple(dtypes.name(x.dtype) for x in initial),
    )
    given = dict(zip((i.name for i in scan.inputs), inputs, strict=True))
    shown = dict(zip((o.name for o in scan.outputs), results, strict=False))
    given |= {name: shown[output] for output, name in derived.sizes}
    given |= {name: of_input[i] for i, name in derived.inputs}
    if derived.states_before:
        states, _ = apply(pipeline.states_before(call.text), inputs, initial, call.options, call.bounds)
        by_state = dict(zip((s.name for s in scan.states), states, strict=True))
        given |= {name: by_state[state] for state, name in derived.states_before}
    named = dict(derived.states)
    seeds = [_seed(of_state[state], start[state]) for state in named]
    slopes, ends = apply(
        derived.text, [given[i.name] for i in derived.scan.inputs], seeds, call.options, call.bounds
    )
    moved = dict(zip((o.name for o in derived.scan.outputs), slopes, strict=True))
    of_output, final = dict(derived.outputs), dict(zip(named, ends, strict=True))
    rest = [None] * (len(results) - len(scan.outputs))
    by_output = (moved.get(of_output.get(o.name, "")) for o in scan.outputs)
    return (*by_output, *(final.get(s.name) for s in scan.states), *rest)


def _seed(cotangent: Tensor | None, x0: Tensor) -> Tensor:
    """The adjoint's initial state: the final state's cotangent."""
    if cotangent is not None:
        return cotangent.to(x0.dtype)
    return torch.full((), 0.0, dtype=x0.dtype, device=x0.device).expand(x0.shape)


def _states_before(
    call: Call, scan: Scan, inputs: list[Tensor], initial: list[Tensor], results: list[Tensor]
) -> dict[str, Tensor]:
    """The state before each step, bit for bit the forward pass's; differentiable in grad mode."""
    if torch.is_grad_enabled():
        outputs, _ = apply(pipeline.states_before(call.text), inputs, initial, call.options, call.bounds)
        return dict(zip((s.name for s in scan.states), outputs, strict=True))
    found = output_dtypes(scan, inputs, call.options.dtype)
    kept = dict(zip(kept_states(scan, found, call.options.dtype), results[len(scan.outputs) :], strict=True))
    shown = dict(zip((o.name for o in scan.outputs), results, strict=False))
    held = state_outputs(scan)
    states = {}
    for s, x0 in zip(scan.states, initial, strict=True):
        after = kept[s.name] if s.name in kept else _in_scan_order(scan, shown[held[s.name]], held[s.name])
        if call.bounds is not None:
            states[s.name] = packed_states_before(
                scan, s, after, x0, call.bounds, reverse=call.options.reverse
            )
            continue
        first = x0[None].to(after.dtype)
        parts = (after[1:], first) if call.options.reverse else (first, after[:-1])
        states[s.name] = torch.cat(parts) if after.shape[0] else after
    return states


def _in_scan_order(scan: Scan, tensor: Tensor, output: str) -> Tensor:
    dims = next(o.dims for o in scan.outputs if o.name == output)
    return tensor.permute([dims.index(a) for a in scan.axes if a in dims])


@cache
def library() -> Any:
    """The ops, the scan with its backward registered for the compiler."""
    return define(_setup_op, _backward_op)


def _setup_op(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    text, tensors, initial, reverse, lowering, backend, memory, dtype, keep, bounds = inputs
    scan = load(text)
    n, shown = len(scan.outputs), len(scan.outputs) + len(scan.states)
    ctx.call = Call(text, len(tensors), Options(reverse, lowering, dtype, backend, memory), keep, bounds)
    ctx.needs = [t.requires_grad for t in (*tensors, *initial)]
    ctx.save_for_backward(*tensors, *initial, *output[:n], *output[shown:])


def _backward_op(ctx: Any, cotangents: list[Tensor | None]) -> tuple[Any, ...]:
    found = gradients(ctx.call, list(ctx.saved_tensors), cotangents, ctx.needs)
    n = ctx.call.inputs
    return None, found[:n], found[n:], None, None, None, None, None, None, None
