"""scan, step and prefixes: what users call to run an operator or a recurrence."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import replace
from typing import Any

import torch

from scanforge import chunked_choice, kernel_choice, launch_triton, op
from scanforge.backend import choose, lowering_of
from scanforge.boundaries import bounded, bounded_step, check_writable
from scanforge.call import named_only
from scanforge.compiled import one_node
from scanforge.declare import Declaration, Operator, declaration
from scanforge.errors import ArgumentError
from scanforge.ir.scan import TIME, load
from scanforge.launch import Options, state_dtypes
from scanforge.packed import one_by_one, summed
from scanforge.prepared import Prepared, prepare
from scanforge.recurrence import Fused, Recurrence, declared_of
from scanforge.replay import replayed
from scanforge.trace import prefix_scan

Tensor = torch.Tensor
Declared = type[Operator] | type[Recurrence]


@one_node
@replayed
def scan(  # noqa: PLR0913 - options by keyword
    operator: Declared, /, *unnamed: Any, initial_state: Any = None, return_final_state: bool = False,
    reverse: bool = False, reset: Tensor | None = None, reset_state: Any = None,
    cu_seqlens: Tensor | None = None, mask: Tensor | None = None, lengths: Tensor | None = None,
    dim: int | None = None, memory: str | None = None, backend: str | None = None,
    lowering: str | None = None, **tensors: Tensor,
) -> Any:  # fmt: skip
    """Run a recurrence over time: x_t = apply(e_t, x_{t-1}), y_t = readout(x_t, x_{t-1}, inputs_t) for all t.

    `tensors` are a Recurrence's inputs by name, of the shapes that it declares, or an operator's leaves, of
    equal rank >= 2 with time in dimension `dim` (1 by default). Size 1 broadcasts. Floats (fp16, bf16, fp32,
    fp64, complex, in any mix) are computed and carried in fp32 (fp64 if one is). Outputs, a tuple if several,
    have the dtype promoted from the inputs over time; an operator's are its states. Gradients are the
    sequential loop's, by torch's rules. `initial_state` has the state's shape without time, or broadcasts to
    it; several, a tuple. With `return_final_state` the result is (outputs, final states), the latter in the
    dtype of the computation. `reverse` runs from the last step to the first.

    `reset` of shape (b, t): where true, a new segment starts before t, from the initial state, or from
    `reset_state` if the initial state was carried over: a = b = 1 and resets at 3, 4 give 1, 2, 3, 1, 1, 2.
    `cu_seqlens` = [0, ends of the sequences...]: sequences packed into a batch of one, each with an initial
    and a final state of its own. `mask` of shape (b, t): false is padding, where the state passes through,
    outputs and gradients are 0; `lengths` of shape (b,) says the same for padding on the right.
    `memory="low"` keeps fewer states for the backward pass, which takes longer. `lowering` forces one of the
    backend's: "loop" or "parallel", "ordered_tile", "split", "ring" or "chunked".

    Raises InputError (ArgumentError, ShapeError, DTypeError, DeviceError) for tensors that do not fit,
    LawError for an operator that breaks a law, BackendError for a backend that cannot run here.
    Source: Blelloch, Prefix sums and their applications (1990), for scans of associative operators.

    Example:
        >>> import torch, scanforge as sf
        >>> a, b = torch.tensor([[2.0, 3.0, 5.0]]), torch.tensor([[1.0, 10.0, 100.0]])
        >>> sf.scan(sf.Affine, a=a, b=b)
        tensor([[  1.,  13., 165.]])
    """
    declared = declared_of(operator)
    named_only(declared, "scan", unnamed)
    wants_finals = flag_option(declared, "return_final_state", return_final_state)
    backwards, kept = flag_option(declared, "reverse", reverse), memory_option(declared, memory)
    states = initial_state, reset_state
    call = prepare(operator, tensors, *states, dim=time_dim(declared, dim), cu_seqlens=cu_seqlens)
    call = bounded(call, reverse=backwards, reset=reset, mask=mask, lengths=lengths)
    outputs, finals = run_prepared(call, Options(backwards, "", call.dtype, memory=kept), backend, lowering)
    if wants_finals:
        return one_or_tuple(call.outputs(outputs)), one_or_tuple(call.states(finals))
    return one_or_tuple(call.outputs(outputs))


@one_node
@replayed
def step(
    operator: Declared, state: Any, /, *unnamed: Any, reset: Tensor | None = None, reset_state: Any = None,
    mask: Tensor | None = None, inplace: bool = False, backend: str | None = None, **tensors: Tensor,
) -> Any:  # fmt: skip
    """One step of a recurrence, for decoding: (y_t, state after it), from the state before and inputs at t.

    `tensors` are those of `scan` without their time axis; `state` is None for the first step, else what
    `scan` (its final state) or `step` returned: of the shape of the state, in the dtype of the computation.
    Several states and several outputs are tuples. The result equals the scan of one step, gradients included.

    `inplace` writes the new state into the tensor that was given, which then must need no gradient. `reset`
    and `mask` are those of `scan` at this step, of shape (b,): where `reset` is true the step starts from
    `reset_state`, by default the recurrence's own initial state.

    Raises what `scan` raises.

    Example:
        >>> import torch, scanforge as sf
        >>> y, h = sf.step(sf.Affine, None, a=torch.tensor([2.0]), b=torch.tensor([1.0]))
        >>> y, h = sf.step(sf.Affine, h, a=torch.tensor([3.0]), b=torch.tensor([10.0]))
        >>> y
        tensor([13.])
    """
    declared = declared_of(operator)
    named_only(declared, "step", unnamed)
    writes = flag_option(declared, "inplace", inplace)
    call = prepare(operator, tensors, state, reset_state=reset_state, function="step")
    given = state if isinstance(state, tuple | list) else (state,)
    if writes:
        check_writable(call, given)
    call = bounded_step(call, reset=reset, mask=mask, first=state is None)
    options = Options(False, "", call.dtype)
    compiles = torch.compiler.is_compiling()  # a graph has the op, which writes into no input
    if writes and choose(backend, call.device, declared.name) == "triton" and not compiles:
        options = replace(options, backend="triton")
        result = launch_triton.forward(call.text, call.inputs, call.initial, options, False, inplace=True)
        outputs, after = result.outputs, list(given)
    else:
        outputs, finals = run_prepared(call, options, backend, None)
        after = call.states(finals)
        after = [old.copy_(new) for old, new in zip(given, after, strict=True)] if writes else after
    return one_or_tuple(_without_time(call, call.outputs(outputs))), one_or_tuple(after)


def _without_time(call: Prepared, outputs: list[Tensor]) -> list[Tensor]:
    """Outputs of one step: time, where it is there, is of size 1."""
    dims = {o.name: o.dims for o in call.scan.outputs}
    named = zip((dims[names[0]] for names in call.traced.outputs), outputs, strict=True)
    return [y.squeeze([i for i, d in enumerate(own) if d == TIME]) for own, y in named]


@one_node
def prefixes(
    operator: type[Operator],
    /,
    *unnamed: Any,
    reverse: bool = False,
    dim: int = 1,
    backend: str | None = None,
    lowering: str | None = None,
    **tensors: Tensor,
) -> Any:
    """The composed element of steps 0..t, for every t: the scan of the operator on itself.

    Tensors, shapes, dtypes and errors are those of `scan`. The result is a named tuple of the leaves.

    Example:
        >>> import torch, scanforge as sf
        >>> r, s = torch.tensor([[5.0, 2.0, 9.0, 1.0]]), torch.tensor([[1.0, 0.0, 3.0, 4.0]])
        >>> sf.prefixes(sf.operators.MinMax, r=r, s=s).r
        tensor([[5., 2., 2., 1.]])
    """
    declared = declaration(operator)
    named_only(declared, "prefixes", unnamed)
    backwards = flag_option(declared, "reverse", reverse)
    call = prepare(operator, tensors, None, dim=time_dim(declared, dim), function="prefixes")
    traced = prefix_scan(call.traced)
    whole = [call.sizes[a] for a in traced.scan.lanes]
    identity = tuple(
        torch.full(whole, s.initial, dtype=dtype, device=call.device)
        for s, dtype in zip(
            traced.scan.states, state_dtypes(traced.scan, call.inputs, call.dtype), strict=True
        )
    )
    call = replace(call, traced=traced, text=traced.text, initial=identity)
    outputs, _ = run_prepared(call, Options(backwards, "", call.dtype), backend, lowering)
    return namedtuple(f"{declared.name}Prefixes", declared.tensor_names())(*call.outputs(outputs))


def run_prepared(
    call: Prepared, options: Options, backend: str | None, lowering: str | None
) -> tuple[list[Tensor], list[Tensor]]:
    """The real outputs and final states of a call after its checks."""
    options = chosen_options(call, options, backend, lowering)
    inputs, initial = list(call.inputs), list(call.initial)
    if call.packed is None:
        return op.apply(call.text, inputs, initial, options)
    if options.backend != "triton" or options.lowering != "split":
        outputs, finals = op.apply(call.text, inputs, initial, options, call.packed)
    else:
        outputs, finals = _one_by_one(call, options)
    dims = [o.dims for o in load(call.text).outputs]
    return [summed(d, x) for d, x in zip(dims, outputs, strict=True)], finals


def chosen_options(call: Prepared, options: Options, backend: str | None, lowering: str | None) -> Options:
    """The options with the backend that runs the call, and the lowering, if one is forced."""
    name = call.declared.name
    chosen = choose(backend, call.device, name)
    options = replace(options, lowering=lowering_of(lowering, chosen, name), backend=chosen)
    if options.lowering == "chunked":
        wide = call.dtype == torch.float64 and call.device.type == "cuda"
        chunked_choice.check(name, call.text, packed=call.packed is not None, wide=wide)
    if options.lowering == "ring":
        kernel_choice.check_ring(name, call.text, call.dtype, call.inputs[0], packed=call.packed is not None)
    if 0 in call.sizes.values():  # no kernel has anything to do, and sums over nothing are 0
        return replace(options, lowering="", backend="reference")
    return options


def _one_by_one(call: Prepared, options: Options) -> tuple[list[Tensor], list[Tensor]]:
    """Packed sequences, each split in time."""
    assert call.packed is not None
    if torch.compiler.is_compiling():
        raise ArgumentError(
            f"{call.declared.name}: lowering='split' takes packed sequences one after another, and a "
            "compiler does not know where they end: leave lowering out."
        )

    def run(part: list[Tensor], states: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return op.apply(call.text, part, states, options)

    return one_by_one(load(call.text), run, call.inputs, call.initial, call.packed.tolist())


def one_or_tuple(values: list[Tensor]) -> Any:
    """What a call returns: several values are a tuple."""
    return values[0] if len(values) == 1 else tuple(values)


def memory_option(declared: Declaration | Fused, memory: object) -> str:
    """What goes into a call's options."""
    if memory not in {None, "low"}:
        raise ArgumentError(
            f"{declared.name}: memory={memory!r} is no choice: write memory='low', or leave it out."
        )
    return "low" if memory else ""


def time_dim(declared: Declaration | Fused, dim: int | None) -> int:
    """Where a bare operator's time is."""
    if dim is not None and isinstance(declared, Fused):
        raise ArgumentError(
            f"{declared.name}: dim={dim} is for bare operators, and a recurrence names its axes: time is "
            "`t`. Leave dim out."
        )
    return 1 if dim is None else dim


def flag_option(declared: Declaration | Fused, name: str, value: object) -> bool:
    """An option that is True or False."""
    if not isinstance(value, bool):
        kind, shown = type(value).__name__, repr(value)
        short = shown if len(shown) <= 40 and "\n" not in shown else "..."
        raise ArgumentError(
            f"{declared.name}: {name}={short} is {'an' if kind[0] in 'aeiou' else 'a'} {kind}, expected True "
            f"or False. Write {name}=True, or leave it out."
        )
    return value
