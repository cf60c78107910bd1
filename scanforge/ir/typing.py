"""Kinds and axes of a line from those of its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scanforge.errors import TraceError
from scanforge.ir.primitives import Primitive

KINDS = ("float", "int", "bool")


def broadcast(order: Sequence[str], operands: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """The union of the operands' axes, in the program's order."""
    present = {axis for axes in operands for axis in axes}
    return tuple(axis for axis in order if axis in present)


def axes_of(row: Primitive, order: Sequence[str], operands: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The axes of a primitive's result. A guard's condition gives it none: it acts on the way back."""
    return broadcast(order, operands[1:] if row.kinds == "guard" else operands)


def common(kinds: Iterable[str]) -> str:
    """The widest kind: float before int before bool."""
    present = set(kinds)
    return next(kind for kind in KINDS if kind in present)


def signature(row: Primitive, kinds: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The kinds that a primitive wants for its arguments, and the kind of its result.

    Ints become floats where a float meets them; nothing else is converted.
    """
    rule, wide = row.kinds, common(kinds)
    if rule == "cast":
        return tuple(kinds), "float"
    if rule == "guard":
        return tuple(kinds), kinds[1]
    if rule == "select":
        if kinds[0] != "bool":
            raise TraceError(
                f"{row.name} wants a condition (bool) first, and got {kinds[0]}: write sf.where(x > 0, a, b)."
            )
        branches = common(kinds[1:])
        _only(row, kinds[1:], branches)
        return ("bool", branches, branches), branches
    if rule == "logic":
        if set(kinds) != {"bool"}:
            raise TraceError(
                f"{row.name} works on bool values, and got {', '.join(kinds)}: compare first, as in x > 0."
            )
        return tuple(kinds), "bool"
    if rule == "compare":
        if wide == "bool" and row.name not in {"eq", "ne"}:
            raise TraceError(f"{row.name} compares numbers, and got bool values: write & | ~ for logic.")
        _only(row, kinds, wide)
        return (wide,) * len(kinds), "bool"
    if "bool" in kinds:
        raise TraceError(
            f"{row.name} works on numbers, and got a bool value: write sf.where(flag, 1.0, 0.0)."
        )
    result = "float" if rule in {"float", "power"} else wide
    return (result,) * len(kinds), result


def _only(row: Primitive, kinds: Sequence[str], wide: str) -> None:
    if wide != "bool" and "bool" in kinds:
        raise TraceError(
            f"{row.name} mixes a bool with a {wide}: write sf.where(flag, 1.0, 0.0) for the bool."
        )
