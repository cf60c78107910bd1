"""A call -> what runs: the recurrence as text, its real inputs and initial states, how results go back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from scanforge.call import Bound, bind, initial_states
from scanforge.call_recurrence import BoundFused, bind_recurrence
from scanforge.declare import Declaration, Operator, declaration
from scanforge.errors import ShapeError
from scanforge.ir.scan import BATCH, TIME, Scan, is_batch
from scanforge.launch import state_dtypes
from scanforge.packed import check_bounds
from scanforge.pipeline import front, front_recurrence
from scanforge.recurrence import Fused, Named, Recurrence, fused
from scanforge.trace import Signature, Traced

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call after its checks. `text` is the recurrence to run; padding and resets change it."""

    declared: Declaration | Fused
    traced: Traced
    text: str
    inputs: tuple[Tensor, ...]
    initial: tuple[Tensor, ...]  # real states, axes in the scan's order
    dims: tuple[tuple[str, ...], ...]  # of each real state as users see it
    sizes: dict[str, int]
    dtype: torch.dtype
    device: torch.device
    packed: Tensor | None  # the bounds of packed sequences
    entering: tuple[Tensor, ...] | None = None  # where resets start from, if not from the initial states
    given: bool = True  # whether the call gives initial states; else they are the recurrence's own

    @property
    def scan(self) -> Scan:
        """The recurrence as it was declared."""
        return self.traced.scan

    def own_initial(self) -> list[Tensor]:
        """The recurrence's own initial states, whatever the call gave."""
        return [torch.full_like(x, s.initial) for s, x in zip(self.scan.states, self.initial, strict=True)]

    def adding(self, text: str, inputs: Sequence[Tensor]) -> Prepared:
        """The same call of a recurrence with further inputs."""
        return replace(self, text=text, inputs=(*self.inputs, *inputs))

    @property
    def asks_start(self) -> bool:
        """Whether a method reads sf.segment_start(): that flag then is the last input, and not given."""
        return len(self.scan.inputs) > len(self.inputs)

    def outputs(self, real: Sequence[Tensor]) -> list[Tensor]:
        """The user's outputs: pairs become complex tensors."""
        rest = iter(real)
        return [joined([next(rest) for _ in names]) for names in self.traced.outputs]

    def states(self, real: Sequence[Tensor]) -> list[Tensor]:
        """The user's states, in the declared order of axes."""
        states = zip(self.scan.states, real, self.dims, strict=True)
        turned = iter([_in_order(x, self.scan.order(s.axes), dims) for s, x, dims in states])
        return [joined([next(turned) for _ in names]) for _, names in self.traced.states]


@dataclass(frozen=True, slots=True)
class _States:
    """The states that a call of `function` gives."""

    initial: Any
    reset: Any
    function: str

    @property
    def listed(self) -> Sequence[Any]:
        return self.initial if isinstance(self.initial, tuple | list) else [self.initial]


def prepare(
    operator: type[Operator] | type[Recurrence],
    tensors: dict[str, Tensor],
    initial: Any,
    reset_state: Any = None,
    *,
    dim: int = 1,
    cu_seqlens: Any = None,
    function: str = "scan",
) -> Prepared:
    """Check, trace and prove; nothing has run when an error is raised.

    Packed sequences (`cu_seqlens`) have states of their own each. Tensors of a `step` have no time.
    """
    if isinstance(operator, type) and issubclass(operator, Recurrence):
        return _recurrence(operator, tensors, _States(initial, reset_state, function), cu_seqlens)
    if function == "step":
        tensors = {n: x.unsqueeze(1) if isinstance(x, Tensor) and x.ndim else x for n, x in tensors.items()}
    return _bare(operator, tensors, _States(initial, reset_state, function), dim, cu_seqlens)


def _bare(
    operator: type[Operator], tensors: dict[str, Tensor], given: _States, dim: int, cu_seqlens: Any
) -> Prepared:
    declared = declaration(operator)
    bound = bind(declared, tensors, dim, given.function)
    complex_states = frozenset(
        s.name
        for s, x in zip(declared.states, given.listed, strict=False)
        if isinstance(x, Tensor) and x.is_complex()
    )
    traced = front(operator, Signature(bound.axes, bound.dims, bound.complex_leaves, complex_states))
    inputs = _real_inputs(traced, tensors)
    lanes = traced.scan.lanes
    sizes = dict(zip(bound.natural, bound.shape, strict=True))
    packed = None if cu_seqlens is None else _bounds(declared, cu_seqlens, sizes, bound.device)
    named = [lanes] * len(declared.states)
    made, entering = _real_states(declared, traced, inputs, given, named, _sizes(sizes, packed), bound)
    dims = (lanes,) * len(traced.scan.states)
    return Prepared(
        declared, traced, traced.text, inputs, made, dims, sizes, bound.dtype, bound.device, packed, entering,
        given.initial is not None,
    )  # fmt: skip


def _recurrence(
    cls: type[Recurrence], tensors: dict[str, Tensor], given: _States, cu_seqlens: Any
) -> Prepared:
    declared = fused(cls)
    bound = bind_recurrence(declared, tensors, given.initial, given.function)
    traced = front_recurrence(cls, bound.call)
    if given.function == "step":
        tensors = {
            i.name: tensors[i.name].unsqueeze(dims.index(TIME)) if TIME in dims else tensors[i.name]
            for i, dims in zip(declared.inputs, bound.call.dims, strict=True)
        }
    inputs = _real_inputs(traced, tensors)
    packed = None if cu_seqlens is None else _bounds(declared, cu_seqlens, bound.sizes, bound.device)
    named = [bound.state_dims(s) for s in declared.states]
    sized = _sizes(bound.sizes, packed)
    made, entering = _real_states(declared, traced, inputs, given, named, sized, bound)
    dims = tuple(d for d, (_, real) in zip(named, traced.states, strict=True) for _ in real)
    return Prepared(
        declared, traced, traced.text, inputs, made, dims, bound.sizes, bound.dtype, bound.device, packed,
        entering, given.initial is not None,
    )  # fmt: skip


def _bounds(
    declared: Declaration | Fused, cu_seqlens: Any, sizes: dict[str, int], device: torch.device
) -> Tensor:
    batch = [n for a, n in sizes.items() if is_batch(a)]
    alone = next((s for s in declared.states if isinstance(s, Named) and BATCH not in s.axes), None)
    if alone is not None:
        raise ShapeError(
            f"{declared.name}: packed sequences have states of their own, and {alone.name} has no axis b: "
            f"write {alone.name} = sf.State({' '.join(['b', *alone.axes])!r})."
        )
    return check_bounds(declared, cu_seqlens, sizes[TIME], batch, device)


def _sizes(sizes: dict[str, int], packed: Tensor | None) -> dict[str, int]:
    """The sizes of states: packed sequences are a batch of them."""
    return sizes if packed is None else sizes | {BATCH: packed.numel() - 1}


def _real_inputs(traced: Traced, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """The scan's real inputs, in its order: a complex tensor is two."""
    made: dict[str, Tensor] = {}
    for leaf, names in traced.leaves:
        parts = (tensors[leaf].real, tensors[leaf].imag) if tensors[leaf].is_complex() else (tensors[leaf],)
        made |= dict(zip(names, parts, strict=False))
    return tuple(made[i.name] for i in traced.scan.inputs if i.name in made)


def _real_states(
    declared: Declaration | Fused, traced: Traced, inputs: Sequence[Tensor], given: _States,
    named: Sequence[tuple[str, ...]], sizes: dict[str, int], bound: Bound | BoundFused,
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...] | None]:  # fmt: skip
    """The real initial states, and those that resets start from, if the call gives them."""
    is_complex = [len(names) == 2 for _, names in traced.states]
    shapes = [tuple(sizes[a] for a in dims) for dims in named]

    def made(value: Any, called: str) -> tuple[Tensor, ...]:
        states = initial_states(declared, shapes, bound.device, value, is_complex, called)
        return _real_initial(traced, inputs, states, named, shapes, bound)

    initial = made(given.initial, "state" if given.function == "step" else "initial_state")
    return initial, None if given.reset is None else made(given.reset, "reset_state")


def _real_initial(
    traced: Traced, inputs: Sequence[Tensor], given: Sequence[Tensor | None],
    named: Sequence[tuple[str, ...]], shapes: Sequence[tuple[int, ...]], bound: Bound | BoundFused,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Every real state's initial tensor, of full shape in the scan's order of axes, in the carried dtype."""
    scan = traced.scan
    carried = dict(zip((s.name for s in scan.states), state_dtypes(scan, inputs, bound.dtype), strict=True))
    made: list[Tensor] = []
    for (_, names), value, shape, dims in zip(traced.states, given, shapes, named, strict=True):
        for k, name in enumerate(names):
            state = scan.state(name)
            if value is None:
                one = torch.full((), state.initial, dtype=carried[name], device=bound.device)
                x0 = one.expand(shape)
            else:
                x0 = _part(value, k, len(names)).to(carried[name]).expand(shape)
            made.append(_in_order(x0, dims, scan.order(state.axes)))
    return tuple(made)


def _in_order(x: Tensor, dims: Sequence[str], order: Sequence[str]) -> Tensor:
    """The tensor with its dims in another order."""
    return x if tuple(dims) == tuple(order) else x.permute([dims.index(d) for d in order])


def _part(value: Tensor, k: int, count: int) -> Tensor:
    """The k-th real tensor of a state that has `count`."""
    if count == 1:
        return value
    if value.is_complex():
        return value.imag if k else value.real
    return torch.zeros_like(value) if k else value


def joined(parts: Sequence[Tensor]) -> Tensor:
    """One real tensor, or the complex one of two."""
    if len(parts) == 1:
        return parts[0]
    if parts[0].dtype not in {torch.float32, torch.float64}:
        parts = [p.float() for p in parts]
    return torch.complex(*parts)
