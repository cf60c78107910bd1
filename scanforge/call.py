"""Tensors -> axes, sizes and dtypes of a call, checked against the declaration before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scanforge import dtypes
from scanforge.declare import OPTIONS, Declaration
from scanforge.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from scanforge.ir.scan import BATCH, TIME, Leaf

Tensor = torch.Tensor


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


def bind(declared: Declaration, tensors: Mapping[str, Any], dim: int) -> Bound:
    """Check the tensors of a call, and name their dimensions."""
    _check_names(declared, tensors)
    for leaf in declared.leaves:
        _check_tensor(declared, leaf, tensors[leaf.name])
    rank, time = _rank(declared, tensors, dim)
    shape = _broadcast(declared, tensors, rank)
    device = _device(declared, tensors)
    letters = _letters(rank, time)
    dims = tuple(
        tuple(
            letter if size == whole else "1"
            for letter, size, whole in zip(letters, tensors[n].shape, shape, strict=True)
        )
        for n in declared.leaf_names()
    )
    axes = (TIME, *(a for a in letters if a != TIME))
    real = [_real_dtype(tensors[x.name].dtype) for x in declared.leaves if x.kind == "float"]
    found_complex = frozenset(n for n in declared.leaf_names() if tensors[n].is_complex())
    return Bound(axes, dims, shape, time, dtypes.computed(real), device, found_complex)


def _letters(rank: int, time: int) -> tuple[str, ...]:
    """b for the first dimension that is not time, then d, d2, d3, ..."""
    names = iter([BATCH, "d", *(f"d{i}" for i in range(2, rank))])
    return tuple(TIME if i == time else next(names) for i in range(rank))


def _real_dtype(dtype: torch.dtype) -> torch.dtype:
    return {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)


def _call(declared: Declaration) -> str:
    return f"sf.scan({declared.name}, {', '.join(f'{n}=...' for n in declared.leaf_names())})"


def _check_names(declared: Declaration, tensors: Mapping[str, Any]) -> None:
    wanted = declared.leaf_names()
    missing, unknown = [n for n in wanted if n not in tensors], [n for n in tensors if n not in wanted]
    if unknown:
        raise ArgumentError(
            f"{declared.name} has no element {', '.join(map(repr, unknown))}: its elements are "
            f"{', '.join(wanted)}, "
            f"and the options are {', '.join(OPTIONS[:4])}, backend, lowering. Write {_call(declared)}."
        )
    if missing:
        raise ArgumentError(
            f"{declared.name} is called without {', '.join(missing)}: write {_call(declared)}."
        )


def _check_tensor(declared: Declaration, leaf: Leaf, tensor: Any) -> None:
    name = f"{declared.name}.{leaf.name}"
    if not isinstance(tensor, Tensor):
        raise ArgumentError(
            f"{name} got a {type(tensor).__name__}, and wants a torch.Tensor of shape (batch, time, ...): "
            f"write {leaf.name}=torch.as_tensor(...)."
        )
    if tensor.dtype not in dtypes.ACCEPTED[leaf.kind]:
        accepted = ", ".join(dtypes.name(d) for d in dtypes.ACCEPTED[leaf.kind])
        convert = {"float": ".float()", "int": ".long()", "bool": " != 0"}[leaf.kind]
        raise DTypeError(
            f"{name} is of kind {leaf.kind} and got dtype {dtypes.name(tensor.dtype)}, expected "
            f"one of {accepted}: "
            f"write {leaf.name}={leaf.name}{convert}, or declare {leaf.name} with another kind."
        )
    if tensor.layout != torch.strided:
        raise ArgumentError(
            f"{name} has layout {tensor.layout}, expected a dense tensor: write {leaf.name}.to_dense()."
        )


def _rank(declared: Declaration, tensors: Mapping[str, Tensor], dim: int) -> tuple[int, int]:
    ranks = {n: tensors[n].ndim for n in declared.leaf_names()}
    rank = max(ranks.values())
    if rank < 2:
        raise ShapeError(
            f"{declared.name} got tensors of rank {rank}, expected rank 2 or more, (batch, time, ...): "
            f"write {declared.leaf_names()[0]}[None] for a batch of one."
        )
    low = next((n for n, r in ranks.items() if r < rank), None)
    if low is not None:
        ones = ", ".join(["1"] * (rank - ranks[low]))
        raise ShapeError(
            f"{declared.name}.{low} has rank {ranks[low]} and another element rank {rank}: all "
            "leaves have the same "
            f"rank, with size 1 where one is shared. Write {low}.view({ones}, *{low}.shape) or the like."
        )
    if isinstance(dim, bool) or not isinstance(dim, int):
        raise ArgumentError(
            f"dim={dim!r} is a {type(dim).__name__}, expected an int: the number of the time dimension."
        )
    if not -rank <= dim < rank:
        raise ShapeError(
            f"{declared.name}: dim={dim} is out of range for tensors of rank {rank}: write {-rank} "
            f"to {rank - 1}."
        )
    return rank, dim % rank


def _broadcast(declared: Declaration, tensors: Mapping[str, Tensor], rank: int) -> tuple[int, ...]:
    names = declared.leaf_names()
    whole = []
    for d in range(rank):
        sizes = {tensors[n].shape[d] for n in names} - {1}
        if len(sizes) > 1:
            shapes = ", ".join(f"{n} {tuple(tensors[n].shape)}" for n in names)
            raise ShapeError(
                f"{declared.name}: the leaves do not broadcast in dimension {d}, where sizes "
                f"{sorted(sizes)} meet: "
                f"{shapes}. Give them equal sizes there, or size 1 for one that is shared."
            )
        whole.append(sizes.pop() if sizes else 1)
    return tuple(whole)


def _device(declared: Declaration, tensors: Mapping[str, Tensor]) -> torch.device:
    found = {n: tensors[n].device for n in declared.leaf_names()}
    device = next(iter(found.values()))
    if any(d != device for d in found.values()):
        shown = ", ".join(f"{n} on {d}" for n, d in found.items())
        raise DeviceError(
            f"{declared.name} got tensors on several devices: {shown}. Move them to one: write "
            f"x.to({str(device)!r})."
        )
    return device


def initial_states(
    declared: Declaration, bound: Bound, given: Any, complex_states: Sequence[bool]
) -> list[Tensor | None]:
    """One tensor per state, broadcast to the lanes, or None for each where none was given."""
    if given is None:
        return [None] * len(declared.states)
    several = len(declared.states) > 1
    values = list(given) if isinstance(given, tuple | list) else [given]
    if len(values) != len(declared.states):
        names = ", ".join(s.name for s in declared.states)
        write = "a tuple of tensors" if several else "one tensor"
        raise ArgumentError(
            f"{declared.name}: initial_state has {len(values)} tensor(s) for the state(s) {names}: "
            f"write {write}."
        )
    made: list[Tensor | None] = []
    for state, value, is_complex in zip(declared.states, values, complex_states, strict=True):
        where = f"{declared.name}: initial_state of {state.name}"
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"{where} is a {type(value).__name__}, expected a torch.Tensor of shape {bound.lanes}."
            )
        if value.dtype not in dtypes.ACCEPTED[state.kind] or (value.is_complex() and not is_complex):
            raise DTypeError(f"{where} has dtype {dtypes.name(value.dtype)}, expected a {state.kind} dtype.")
        if value.device != bound.device:
            raise DeviceError(
                f"{where} is on {value.device}, and the elements are on {bound.device}: move it there."
            )
        fits = value.ndim <= len(bound.lanes) and all(
            a in (1, b) for a, b in zip(reversed(value.shape), reversed(bound.lanes), strict=False)
        )
        if not fits:
            raise ShapeError(
                f"{where} has shape {tuple(value.shape)}, expected {bound.lanes} (the elements' "
                "shape without time) "
                "or one that broadcasts to it."
            )
        made.append(value)
    return made
