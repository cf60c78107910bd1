"""Tensors of a recurrence's call -> axes, sizes and dtypes, by name, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scanforge import dtypes
from scanforge.call import check_names, check_tensor, device_of, real_dtype
from scanforge.errors import ShapeError
from scanforge.ir.scan import BATCH, TIME
from scanforge.recurrence import Fused, Named
from scanforge.trace_recurrence import Call, spelt_out

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class BoundFused:
    """A recurrence's call: what its trace depends on, the size of every axis, dtype and device."""

    call: Call
    batch: tuple[str, ...]  # all batch axes, in the order of the dims
    sizes: dict[str, int]
    dtype: torch.dtype  # that floats are computed in
    device: torch.device

    def state_dims(self, state: Named) -> tuple[str, ...]:
        """The axes of a state in the user's order."""
        return spelt_out(state.axes, self.batch)


def bind_recurrence(
    declared: Fused, tensors: Mapping[str, Any], initial: Any, function: str = "scan"
) -> BoundFused:
    """Check the tensors of a call, and name their dimensions. Those of a step have no time axis."""
    check_names(declared, tensors, function)
    steps = function != "step"
    fields = {i: tuple(a for a in i.axes if steps or a != TIME) for i in declared.inputs}
    for i, axes in fields.items():
        check_tensor(declared.name, i, tensors[i.name], f"({', '.join(axes)})")
    batch = _batch(declared, fields, tensors)
    named = {i: spelt_out(axes, batch) for i, axes in fields.items()}
    sizes = _sizes(declared, named, tensors) | ({} if steps else {TIME: 1})
    _sizes_of_states(declared, batch, sizes, initial)
    dims = tuple(
        tuple("1" if found.get(a, sizes[a]) != sizes[a] else a for a in spelt_out(i.axes, batch))
        for i, axes in named.items()
        for found in [dict(zip(axes, tensors[i.name].shape, strict=True))]
    )
    real = [real_dtype(tensors[i.name].dtype) for i in declared.inputs if i.kind == "float"]
    found_complex = frozenset(i.name for i in declared.inputs if tensors[i.name].is_complex())
    states = zip(declared.states, _given(initial), strict=False)
    in_pairs = frozenset(s.name for s, x in states if isinstance(x, Tensor) and x.is_complex())
    return BoundFused(
        Call(batch[:-1], dims, found_complex, in_pairs),
        batch,
        sizes,
        dtypes.computed(real),
        device_of(declared, tensors),
    )


def _batch(
    declared: Fused, fields: Mapping[Named, tuple[str, ...]], tensors: Mapping[str, Tensor]
) -> tuple[str, ...]:
    """The batch axes: b, and as many before it as the tensors have dimensions beyond the declared ones."""
    more = {i: tensors[i.name].ndim - len(axes) for i, axes in fields.items()}
    batched = {i: n for i, n in more.items() if BATCH in i.axes}
    wrong = next((i for i, n in more.items() if (n and i not in batched) or n < 0), None)
    if wrong is None and len(set(batched.values())) > 1:
        wrong = min(batched, key=lambda i: batched[i])
    if wrong is not None:
        got, wanted = tensors[wrong.name].ndim, len(fields[wrong])
        raise ShapeError(
            f"{declared.name}.{wrong.name} has {got} dimension(s), expected {wanted}: give it the axes that "
            "it declares. Further batch axes stand before b, the same on all inputs that have b.\n"
            f"{_table(declared, fields, tensors)}"
        )
    count = max(batched.values(), default=0)
    return (*(f"{BATCH}{k}" for k in range(2, count + 2)), *([BATCH] if BATCH in declared.axes else ()))


def _sizes(
    declared: Fused, named: Mapping[Named, tuple[str, ...]], tensors: Mapping[str, Tensor]
) -> dict[str, int]:
    """The size of each axis that an input has; 1 broadcasts."""
    sizes: dict[str, int] = {}
    first: dict[str, str] = {}
    for i, axes in named.items():
        for axis, size in zip(axes, tensors[i.name].shape, strict=True):
            if sizes.get(axis, 1) == 1:
                sizes[axis], first[axis] = size, i.name
            elif size not in (1, sizes[axis]):  # a tuple, since a symbol has no hash
                raise ShapeError(
                    f"{declared.name}: the axis {axis} has size {sizes[axis]} in {first[axis]} and size "
                    f"{size} in {i.name}. Give them one size, or size 1 to what is shared.\n"
                    f"{_table(declared, named, tensors)}"
                )
    return sizes


def _sizes_of_states(declared: Fused, batch: Sequence[str], sizes: dict[str, int], initial: Any) -> None:
    """Axes that only states have take their sizes from the initial states."""
    values = (
        _given(initial) if len(_given(initial)) == len(declared.states) else [None] * len(declared.states)
    )
    for state, value in zip(declared.states, values, strict=True):
        dims = spelt_out(state.axes, batch)
        if isinstance(value, Tensor) and value.ndim == len(dims):
            for axis, size in zip(dims, value.shape, strict=True):
                sizes.setdefault(axis, size)
    lacking = [a for a in declared.axes if a not in sizes]
    if lacking:
        other = "" if lacking[0] == TIME else ", or pass initial_state= with it"
        raise ShapeError(
            f"{declared.name}: nothing tells the size of the axis {lacking[0]}: no input has it. Give an "
            f"input the axis {lacking[0]}{other}."
        )


def _given(initial: Any) -> list[Any]:
    return list(initial) if isinstance(initial, tuple | list) else [initial]


def _table(declared: Fused, named: Mapping[Named, tuple[str, ...]], tensors: Mapping[str, Tensor]) -> str:
    """The declaration and the shapes side by side."""
    rows = [
        (i.name, " ".join(axes) or "(no axes)", str(tuple(tensors[i.name].shape)))
        for i, axes in named.items()
    ]
    wide = [max(len(r[k]) for r in [*rows, ("input", "declared", "")]) for k in range(2)]
    lines = [("input", "declared", "got"), *rows]
    return "\n".join(f"  {a:<{wide[0]}}  {b:<{wide[1]}}  {c}" for a, b, c in lines)
