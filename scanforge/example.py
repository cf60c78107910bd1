"""Sizes of axes, or shapes -> a call without data: what explain, source and check look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scanforge.call import bind
from scanforge.call_recurrence import bind_recurrence
from scanforge.declare import Declaration, Operator, declaration
from scanforge.errors import ArgumentError
from scanforge.ir.scan import BATCH, TIME, Leaf
from scanforge.recurrence import Fused, Named, Recurrence, declared_of, fused
from scanforge.trace import Signature, Traced, trace
from scanforge.trace_recurrence import trace_recurrence

Tensor = torch.Tensor
Shapes = Mapping[str, tuple[int, ...]]
USUAL = {"b": 8, "t": 512, "d": 64, "n": 16, "h": 4, "k": 64, "v": 64}
SMALL = {"b": 2, "t": 33, "d": 3, "n": 2, "h": 2, "k": 3, "v": 2}
OTHER = 2  # of axes that bear another name


@dataclass(frozen=True, slots=True)
class Example:
    """A call: the declaration, its trace, tensors of the right shapes, and the size of every axis."""

    declared: Declaration | Fused
    traced: Traced
    tensors: dict[str, Tensor]  # on the device "meta"
    initial: tuple[Tensor, ...] | None  # where only states have some axis
    sizes: dict[str, int]  # in the order in which people name axes: b, t, then the others


def fields_of(declared: Declaration | Fused) -> tuple[Leaf | Named, ...]:
    """What the tensors of a call are: leaves or inputs."""
    return declared.inputs if isinstance(declared, Fused) else declared.leaves


def example(
    operator: type[Operator] | type[Recurrence],
    shapes: Shapes | None,
    sizes: Mapping[str, int],
    usual: Mapping[str, int],
) -> Example:
    """The call with these shapes of tensors, and of these sizes, else the usual ones, where none is given.

    Raises ArgumentError for a name that the declaration does not have, ShapeError for shapes that do not fit.
    """
    declared = declared_of(operator)
    given = dict(shapes or {})
    unknown = [n for n in given if n not in declared.tensor_names()]
    if unknown:
        raise ArgumentError(
            f"{declared.name} has no {declared.word} {', '.join(unknown)}: its {declared.word}s are "
            f"{', '.join(declared.tensor_names())}."
        )
    for axis, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise ArgumentError(
                f"{declared.name}: {axis}={size!r} is no size of an axis: write {axis}=8 or the like."
            )
    if isinstance(operator, type) and issubclass(operator, Recurrence):
        return _recurrence(operator, given, sizes, usual)
    return _bare(operator, given, sizes, usual)


def _bare(
    operator: type[Operator], shapes: Shapes, sizes: Mapping[str, int], usual: Mapping[str, int]
) -> Example:
    declared = declaration(operator)
    whole = tuple(({a: usual[a] for a in ("b", "t", "d")} | dict(sizes)).values())
    tensors = {x.name: _empty(x.kind, shapes.get(x.name, whole)) for x in declared.leaves}
    bound = bind(declared, tensors, 1)
    traced = trace(operator, Signature(bound.axes, bound.dims))
    return Example(declared, traced, tensors, None, dict(zip(bound.natural, bound.shape, strict=True)))


def _recurrence(
    cls: type[Recurrence], shapes: Shapes, sizes: Mapping[str, int], usual: Mapping[str, int]
) -> Example:
    declared = fused(cls)
    unknown = [a for a in sizes if a not in declared.axes]
    if unknown:
        raise ArgumentError(
            f"{declared.name} has no axis {', '.join(unknown)}: its axes are {', '.join(declared.axes)}. "
            f"Write {' '.join(f'{a}=8' for a in declared.axes)} or the like."
        )
    known = {a: usual.get(a, OTHER) for a in declared.axes} | _told(declared, shapes) | dict(sizes)
    tensors = {
        i.name: _empty(i.kind, shapes.get(i.name, tuple(known[a] for a in i.axes))) for i in declared.inputs
    }
    initial = None
    if any(a not in {x for i in declared.inputs for x in i.axes} for s in declared.states for a in s.axes):
        initial = tuple(_empty(s.kind, tuple(known[a] for a in s.axes)) for s in declared.states)
    bound = bind_recurrence(declared, tensors, initial)
    order = [*bound.batch, TIME, *(a for a in declared.axes if a not in {TIME, BATCH})]
    found = {a: bound.sizes[a] for a in order}
    return Example(declared, trace_recurrence(cls, bound.call), tensors, initial, found)


def _told(declared: Fused, shapes: Shapes) -> dict[str, int]:
    """The sizes that shapes of inputs tell; dimensions before the declared ones are further batch axes."""
    found: dict[str, int] = {}
    for i in declared.inputs:
        shape = shapes.get(i.name, ())
        found |= dict(zip(reversed(i.axes), reversed(shape), strict=False))
    return found


_DTYPES = {"float": torch.float32, "int": torch.int64, "bool": torch.bool}


def _empty(kind: str, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, device="meta", dtype=_DTYPES[kind])
