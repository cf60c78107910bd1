"""Tensors -> axes, sizes and dtypes of a call, checked against the declaration before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scanforge import dtypes
from scanforge.declare import Declaration, StateField
from scanforge.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from scanforge.ir.scan import BATCH, TIME, Leaf
from scanforge.recurrence import Fused, Named

Tensor = torch.Tensor
KNOWN = {
    "scan": "dim, initial_state, return_final_state, reverse, reset, cu_seqlens, mask, lengths, memory, "
    "backend, lowering",
    "step": "reset, mask, inplace, backend",
    "prefixes": "dim, reverse, backend, lowering",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """A bare operator's call: the order of axes, each leaf's dims, the sizes, what is complex."""

    axes: tuple[str, ...]
    dims: tuple[tuple[str, ...], ...]
    shape: tuple[int, ...]  # of all leaves broadcast together, in the user's order
    time: int  # the time dimension
    dtype: torch.dtype  # that floats are computed in
    device: torch.device
    complex_leaves: frozenset[str]

    @property
    def natural(self) -> tuple[str, ...]:
        """The axes in the user's order."""
        return _letters(len(self.shape), self.time)

    @property
    def lanes(self) -> tuple[int, ...]:
        """The shape without time."""
        return self.shape[: self.time] + self.shape[self.time + 1 :]


def bind(declared: Declaration, tensors: Mapping[str, Any], dim: int, function: str = "scan") -> Bound:
    """Check the tensors of a call, and name their dimensions; those of a step have had time added."""
    check_names(declared, tensors, function)
    for leaf in declared.leaves:
        check_tensor(declared.name, leaf, tensors[leaf.name], _SHAPES.get(function, "(batch, time, ...)"))
    if function == "step":
        _check_step(declared, tensors)
    rank, time = _rank(declared, tensors, dim)
    shape = _broadcast(declared, tensors, rank)
    device = device_of(declared, tensors)
    letters = _letters(rank, time)
    dims = tuple(
        tuple(
            letter if size == whole else "1"
            for letter, size, whole in zip(letters, tensors[n].shape, shape, strict=True)
        )
        for n in declared.tensor_names()
    )
    axes = (TIME, *(a for a in letters if a != TIME))
    real = [real_dtype(tensors[x.name].dtype) for x in declared.leaves if x.kind == "float"]
    found_complex = frozenset(n for n in declared.tensor_names() if tensors[n].is_complex())
    return Bound(axes, dims, shape, time, dtypes.computed(real), device, found_complex)


def _letters(rank: int, time: int) -> tuple[str, ...]:
    """b for the first dimension that is not time, then d, d2, d3, ..."""
    names = iter([BATCH, "d", *(f"d{i}" for i in range(2, rank))])
    return tuple(TIME if i == time else next(names) for i in range(rank))


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a complex dtype's parts."""
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


def call_of(declared: Declaration | Fused, function: str = "scan") -> str:
    """How a call is written."""
    first = "state, " if function == "step" else ""
    return f"sf.{function}({declared.name}, {first}{', '.join(f'{n}=...' for n in declared.tensor_names())})"


def named_only(declared: Declaration | Fused, function: str, unnamed: Sequence[object]) -> None:
    """Raise ArgumentError for what is passed by position."""
    if unnamed:
        raise ArgumentError(
            f"{declared.name} got {len(unnamed)} argument(s) by position, and tensors go by keyword: write "
            f"{call_of(declared, function)}."
        )


_SHAPES = {"step": "(batch, ...)"}


def _check_step(declared: Declaration, tensors: Mapping[str, Tensor]) -> None:
    flat = next((n for n in declared.tensor_names() if tensors[n].ndim == 0), None)
    if flat is not None:
        raise ShapeError(
            f"{declared.name}.{flat} of a step has no dimension, expected (batch, ...): write {flat}[None] "
            "for a batch of one."
        )


def check_names(declared: Declaration | Fused, tensors: Mapping[str, Any], function: str = "scan") -> None:
    """Raise ArgumentError for tensors that are missing or not known."""
    wanted = declared.tensor_names()
    missing, unknown = [n for n in wanted if n not in tensors], [n for n in tensors if n not in wanted]
    if unknown:
        raise ArgumentError(
            f"{declared.name} is called with {', '.join(unknown)}, and there is no such {declared.word} or "
            f"option: its {declared.word}s are {', '.join(wanted)}, and the options are {KNOWN[function]}. "
            f"Write {call_of(declared, function)}."
        )
    if missing:
        raise ArgumentError(
            f"{declared.name} is called without {', '.join(missing)}: write {call_of(declared, function)}."
        )


def check_tensor(owner: str, leaf: Leaf | Named, tensor: Any, shape: str = "(batch, time, ...)") -> None:
    """Raise for what is not a dense tensor of the kind."""
    where, name = f"{owner}.{leaf.name}", leaf.name
    if not isinstance(tensor, Tensor):
        raise ArgumentError(
            f"{where} got {_a(tensor)}, expected a torch.Tensor of shape {shape}: write "
            f"{name}=torch.as_tensor(...)."
        )
    if tensor.dtype not in dtypes.ACCEPTED[leaf.kind]:
        half = tensor.dtype == torch.complex32 and leaf.kind == "float"
        raise DTypeError(
            f"{where} is of kind {leaf.kind} and got dtype {dtypes.name(tensor.dtype)}, expected "
            f"{_accepted(leaf.kind)}: write {name}={name}{'.cfloat()' if half else _CONVERT[leaf.kind]}, or "
            f"declare {name} with another kind."
        )
    _check_dense(where, name, tensor)


def _check_dense(where: str, name: str, tensor: Tensor) -> None:
    if tensor.is_nested:
        raise ArgumentError(
            f"{where} is a nested tensor, expected a dense one: write {name}.to_padded_tensor(0.0), and "
            "lengths=torch.tensor([...])."
        )
    if tensor.layout != torch.strided:
        raise ArgumentError(
            f"{where} has layout {tensor.layout}, expected a dense tensor: write {name}.to_dense()."
        )


_CONVERT = {"float": ".float()", "int": ".long()", "bool": " != 0"}


def _accepted(kind: str) -> str:
    """The dtypes of a kind, for people."""
    names = [dtypes.name(d) for d in dtypes.ACCEPTED[kind]]
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def _a(value: object) -> str:
    return "nothing (None)" if value is None else f"an object of type {type(value).__name__}"


def _rank(declared: Declaration, tensors: Mapping[str, Tensor], dim: int) -> tuple[int, int]:
    ranks = {n: tensors[n].ndim for n in declared.tensor_names()}
    rank = max(ranks.values())
    if rank < 2:
        raise ShapeError(
            f"{declared.name} got tensors of rank {rank}, expected rank 2 or more, (batch, time, ...): "
            f"write {declared.tensor_names()[0]}[None] for a batch of one."
        )
    low = next((n for n, r in ranks.items() if r < rank), None)
    if low is not None:
        ones = ", ".join(["1"] * (rank - ranks[low]))
        raise ShapeError(
            f"{declared.name}.{low} has rank {ranks[low]} and another element rank {rank}: all elements have "
            "the same rank, with size 1 where one is shared. "
            f"Write {low}.view({ones}, *{low}.shape) or the like."
        )
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise ArgumentError(
            f"{declared.name}: dim={dim!r} is {_a(dim)}, expected an int: write the number of the time "
            f"dimension, {-rank} to {rank - 1}."
        )
    if not -rank <= dim < rank:
        raise ShapeError(
            f"{declared.name}: dim={dim} is out of range for tensors of rank {rank}: write "
            f"{-rank} to {rank - 1}."
        )
    return rank, dim % rank


def _broadcast(declared: Declaration, tensors: Mapping[str, Tensor], rank: int) -> tuple[int, ...]:
    names = declared.tensor_names()
    whole = []
    for d in range(rank):
        sizes = [tensors[n].shape[d] for n in names]
        if any(size != sizes[0] for size in sizes):  # a size that all share may be a symbol, of 1 or more
            sizes = [size for size in sizes if size != 1]
        if any(size != sizes[0] for size in sizes):
            shapes = ", ".join(f"{n} {tuple(tensors[n].shape)}" for n in names)
            met = sorted({int(size) for size in sizes})
            raise ShapeError(
                f"{declared.name}: the elements do not broadcast in dimension {d}, where sizes "
                f"{met} meet: {shapes}. Give them equal sizes there, or size 1 for one that is "
                "shared."
            )
        whole.append(sizes[0])
    return tuple(whole)


def device_of(declared: Declaration | Fused, tensors: Mapping[str, Tensor]) -> torch.device:
    """The device of all tensors; several are refused."""
    found = {n: tensors[n].device for n in declared.tensor_names()}
    device = next(iter(found.values()))
    if any(d != device for d in found.values()):
        shown = ", ".join(f"{n} on {d}" for n, d in found.items())
        raise DeviceError(
            f"{declared.name} got tensors on several devices: {shown}. Move them to one: write "
            f"{declared.tensor_names()[-1]}.to({str(device)!r})."
        )
    return device


def initial_states(
    declared: Declaration | Fused, shapes: Sequence[tuple[int, ...]], device: torch.device, given: Any,
    complex_states: Sequence[bool], called: str,
) -> list[Tensor | None]:  # fmt: skip
    """One tensor per state, that broadcasts to its shape, or None for each where none was given.

    `called` is the name of the argument.
    """
    if given is None:
        return [None] * len(declared.states)
    values = list(given) if isinstance(given, tuple | list) else [given]
    if len(values) != len(declared.states):
        names = ", ".join(s.name for s in declared.states)
        write = f"({names})" if len(declared.states) > 1 else names
        raise ArgumentError(
            f"{declared.name}: {called} has {len(values)} tensor(s), expected one for each state "
            f"({names}): write {'' if called == 'state' else f'{called}='}{write}."
        )
    made: list[Tensor | None] = []
    states: Sequence[StateField | Named] = declared.states
    for state, value, shape, is_complex in zip(states, values, shapes, complex_states, strict=True):
        where = f"{declared.name}: {called} of {state.name}"
        _check_initial(where, state, value, shape, device, is_complex)
        made.append(value)
    return made


def _check_initial(
    where: str, state: StateField | Named, value: Any, shape: tuple[int, ...], device: torch.device,
    is_complex: bool,
) -> None:  # fmt: skip
    name = state.name
    if not isinstance(value, Tensor):
        raise ArgumentError(
            f"{where} is {_a(value)}, expected a torch.Tensor of shape {shape}: write "
            f"torch.full({shape}, ...) for {name}."
        )
    if value.dtype not in dtypes.ACCEPTED[state.kind] or (value.is_complex() and not is_complex):
        raise DTypeError(
            f"{where} has dtype {dtypes.name(value.dtype)}, and the state is of kind {state.kind}, expected "
            f"{_accepted(state.kind)}: write {name}{_CONVERT[state.kind]}."
        )
    _check_dense(where, name, value)
    if value.device != device:
        raise DeviceError(
            f"{where} is on {value.device}, and the tensors are on {device}: write "
            f"{name}.to({str(device)!r})."
        )
    fits = value.ndim <= len(shape) and all(
        a in (1, b) for a, b in zip(reversed(value.shape), reversed(shape), strict=False)
    )
    if not fits:
        axes = (
            f"axes {' '.join(state.axes)}" if isinstance(state, Named) else "the elements' shape without time"
        )
        raise ShapeError(
            f"{where} has shape {tuple(value.shape)}, expected {shape} ({axes}): give it that shape, or size "
            "1 where one is shared."
        )
