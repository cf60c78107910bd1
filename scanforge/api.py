"""scan and prefixes: what users call to run an operator."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import torch

from scanforge import op
from scanforge.backend import choose, lowering_of
from scanforge.call import Bound, bind, initial_states, named_only
from scanforge.declare import Declaration, Operator, declaration
from scanforge.errors import ArgumentError
from scanforge.ir.scan import Scan
from scanforge.launch import Options, state_dtypes
from scanforge.pipeline import front
from scanforge.trace import Signature, Traced, prefix_scan

Tensor = torch.Tensor


def scan(
    operator: type[Operator],
    /,
    *unnamed: Any,
    initial_state: Any = None,
    return_final_state: bool = False,
    reverse: bool = False,
    dim: int = 1,
    backend: str | None = None,
    lowering: str | None = None,
    **tensors: Tensor,
) -> Any:
    """Run a recurrence over time: x_t = apply(e_t, x_{t-1}) for all t.

    `tensors` are the operator's leaves by name, of equal rank >= 2 with time in dimension `dim`; size 1
    broadcasts. Floats may be fp16, bf16, fp32, fp64 or complex in any mix: they are computed and carried in
    fp32 (fp64 if one is), and the states come back in the promoted dtype, of the broadcast shape. With
    several states a tuple comes back, in declared order.

    `initial_state` has that shape without time, or broadcasts to it; several states, a tuple. With
    `return_final_state` the result is (states, final states), the latter in the dtype of the computation.
    `reverse` runs from the last step to the first. `lowering` forces "loop" or "parallel". All tensors get
    gradients, those of the sequential loop by torch's rules.

    Raises InputError (its kinds are ArgumentError, ShapeError, DTypeError, DeviceError) for tensors that
    do not fit, LawError for an operator that breaks a law, BackendError for a backend that cannot run here.

    Source: Blelloch, Prefix sums and their applications (1990), for scans of associative operators.

    Example:
        >>> import torch, scanforge as sf
        >>> a, b = torch.tensor([[2.0, 3.0, 5.0]]), torch.tensor([[1.0, 10.0, 100.0]])
        >>> sf.scan(sf.operators.Affine, a=a, b=b)
        tensor([[  1.,  13., 165.]])
    """
    declared = declaration(operator)
    named_only(declared, "scan", unnamed)
    wants_finals = _flag(declared, "return_final_state", return_final_state)
    bound = bind(declared, tensors, dim)
    traced = _traced(operator, declared, bound, initial_state)
    states, finals = _run(declared, bound, traced, tensors, initial_state, reverse, backend, lowering)
    if wants_finals:
        return _one_or_tuple(states), _one_or_tuple(finals)
    return _one_or_tuple(states)


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
    bound = bind(declared, tensors, dim)
    traced = prefix_scan(_traced(operator, declared, bound, None))
    leaves, _ = _run(declared, bound, traced, tensors, None, reverse, backend, lowering)
    return namedtuple(f"{declared.name}Prefixes", declared.leaf_names())(*leaves)


def _traced(operator: type[Operator], declared: Declaration, bound: Bound, initial_state: Any) -> Traced:
    """The trace for these tensors, its laws checked."""
    given = initial_state if isinstance(initial_state, tuple | list) else [initial_state]
    complex_states = frozenset(
        s.name
        for s, x in zip(declared.states, given, strict=False)
        if isinstance(x, Tensor) and x.is_complex()
    )
    return front(operator, Signature(bound.axes, bound.dims, bound.complex_leaves, complex_states))


def _run(
    declared: Declaration,
    bound: Bound,
    traced: Traced,
    tensors: dict[str, Tensor],
    initial_state: Any,
    reverse: bool,
    backend: str | None,
    lowering: str | None,
) -> tuple[list[Tensor], list[Tensor]]:
    inputs = _real_inputs(traced, tensors)
    chosen = choose(backend, bound.device, declared.name)
    form = lowering_of(lowering, chosen, declared.name)
    options = Options(_flag(declared, "reverse", reverse), form, bound.dtype, chosen)
    initial = _real_initial(declared, bound, traced, inputs, initial_state)
    outputs, finals = op.apply(traced.text, inputs, initial, options)
    return _grouped(traced, outputs), _grouped(traced, finals)


def _real_inputs(traced: Traced, tensors: dict[str, Tensor]) -> list[Tensor]:
    """The scan's real inputs, in its order: a complex tensor is two."""
    made: dict[str, Tensor] = {}
    for leaf, names in traced.leaves:
        parts = (tensors[leaf].real, tensors[leaf].imag) if tensors[leaf].is_complex() else (tensors[leaf],)
        made |= dict(zip(names, parts, strict=False))
    return [made[i.name] for i in traced.scan.inputs]


def _real_initial(
    declared: Declaration, bound: Bound, traced: Traced, inputs: list[Tensor], initial_state: Any
) -> list[Tensor]:
    """Every real state's initial tensor, of the lanes' shape and the carried dtype."""
    complex_states = [len(names) == 2 for _, names in traced.states]
    given = (
        initial_states(declared, bound, initial_state, complex_states) if initial_state is not None else []
    )
    made: dict[str, Tensor] = {}
    for (_, names), value in zip(traced.states, given, strict=False):
        if value is not None:
            parts = (value.real, value.imag) if value.is_complex() else (value, torch.zeros_like(value))
            made |= dict(zip(names, parts, strict=False))
    scan: Scan = traced.scan
    carried = state_dtypes(scan, inputs, bound.dtype)
    return [
        made[s.name].to(dtype).expand(bound.lanes)
        if s.name in made
        else torch.full(bound.lanes, s.initial, dtype=dtype, device=bound.device)
        for s, dtype in zip(scan.states, carried, strict=True)
    ]


def _grouped(traced: Traced, real: list[Tensor]) -> list[Tensor]:
    """The declared states of the real ones: pairs become complex tensors."""
    found = dict(zip((s.name for s in traced.scan.states), real, strict=True))
    return [_joined([found[n] for n in names]) for _, names in traced.states]


def _joined(parts: list[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    if parts[0].dtype not in {torch.float32, torch.float64}:
        parts = [p.float() for p in parts]
    return torch.complex(*parts)


def _one_or_tuple(values: list[Tensor]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _flag(declared: Declaration, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        kind, shown = type(value).__name__, repr(value)
        short = shown if len(shown) <= 40 and "\n" not in shown else "..."
        raise ArgumentError(
            f"{declared.name}: {name}={short} is {'an' if kind[0] in 'aeiou' else 'a'} {kind}, expected True "
            f"or False. Write {name}=True, or leave it out."
        )
    return value
