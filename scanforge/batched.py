"""Scan -> Scan: one more batch axis, so that a recurrence under vmap is one recurrence."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program, check_scan
from scanforge.ir.program import Program
from scanforge.ir.scan import BATCH, TIME, Scan, before, dump, load


@lru_cache(maxsize=1024)
def batched(text: str, inputs: tuple[bool, ...]) -> str:
    """The recurrence with a new batch axis, first in all states, in all outputs, and in these inputs.

    An output that sums over an axis sums for each entry of the new one: that is what every output has.
    """
    scan = load(text)
    axis = next(a for k in range(2, len(scan.axes) + 3) if (a := f"{BATCH}{k}") not in scan.axes)
    axes = (TIME, axis, *scan.lanes)
    states = tuple(replace(s, axes=(axis, *s.axes)) for s in scan.states)
    given = tuple(
        replace(i, dims=(axis, *i.dims)) if has else i for i, has in zip(scan.inputs, inputs, strict=True)
    )
    wide = {i.name for i in given if axis in i.dims} | {n for s in states for n in (s.name, before(s.name))}
    changed = Scan(
        name=scan.name,
        axes=axes,
        inputs=given,
        states=states,
        operator=replace(scan.operator, states=states),
        element=_widened(scan.element, axes, axis, wide),
        readout=_widened(scan.readout, axes, axis, wide),
        outputs=tuple(replace(o, dims=(axis, *o.dims)) for o in scan.outputs),
    )
    return dump(check_scan(changed))


def _widened(program: Program, axes: tuple[str, ...], axis: str, wide: Collection[str]) -> Program:
    """The program, typed anew from the inputs that have the new axis."""
    builder = Builder(program.name, axes, where="")
    given = {}
    for v in program.inputs:
        own = {axis, *v.axes} if v.name in wide else {*v.axes}
        given[v.name] = builder.input(v.name, v.kind, tuple(a for a in axes if a in own))
    return check_program(builder.finish(builder.inline(program, given)))
