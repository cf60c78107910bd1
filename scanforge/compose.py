"""Scan -> Scan: a recurrence as a scan of its operator on itself, and as a scan over chunks' aggregates.

on_itself   the states are the composed elements of steps 0..t
carry       the inputs are composed elements of whole chunks, the outputs the states before each
"""

from __future__ import annotations

from dataclasses import replace

from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program, check_scan
from scanforge.ir.program import Program, fresh
from scanforge.ir.scan import TIME, Input, Operator, Output, Scan, State, before
from scanforge.ir.value import Value


def on_itself(scan: Scan, dims: tuple[str, ...] | None = None) -> Scan:
    """The scan of the operator on itself; with dims it hands composed elements out, else only the last."""
    operator = scan.operator
    taken = [*(i.name for i in scan.inputs), *(s.name for s in scan.states)]
    names = {x.name: fresh(f"{x.name}_prefix", taken) for x in operator.leaves}
    axes = {x.name: scan.lanes for x in operator.leaves} if dims else leaf_axes(scan)
    states = tuple(State(names[x.name], x.kind, axes[x.name], x.identity, x.domain) for x in operator.leaves)
    apply = Builder(f"{operator.name}.combine", where="")
    later = {f"later_{x.name}": apply.input(x.name, x.kind) for x in operator.leaves}
    earlier = {f"earlier_{x.name}": apply.input(names[x.name], x.kind) for x in operator.leaves}
    made = apply.inline(operator.combine, later | earlier)
    composed = check_program(apply.finish({names[x.name]: made[x.name] for x in operator.leaves}))
    outputs = tuple(Output(s.name, s.kind, dims) for s in states) if dims else ()
    on = replace(
        scan,
        name=f"{scan.name}.prefixes",
        states=states,
        operator=Operator(operator.name, operator.leaves, states, operator.combine, composed),
        readout=_readout(scan, states, after=bool(dims)),
        outputs=outputs,
    )
    return check_scan(on)


def leaf_axes(scan: Scan) -> dict[str, tuple[str, ...]]:
    """The lane axes that composed leaves have: those of every leaf that they are made of."""
    axes = {x.name: set(scan.element.output(x.name).axes) - {TIME} for x in scan.operator.leaves}
    reads = {
        n: {r.partition("_")[2] for r in found} for n, found in scan.operator.combine.dependencies().items()
    }
    for _ in axes:  # as many rounds as a chain can be long
        for leaf, others in reads.items():
            axes[leaf] |= set().union(*(axes[o] for o in others))
    return {leaf: scan.order(found) for leaf, found in axes.items()}


def carry(scan: Scan) -> Scan:
    """The scan over aggregates, read out as the states before each."""
    operator = scan.operator
    axes = {n: scan.order((TIME, *own)) for n, own in leaf_axes(scan).items()}
    inputs = tuple(Input(x.name, x.kind, axes[x.name]) for x in operator.leaves)
    element = Builder(f"{scan.name}.carry", scan.axes, where="")
    leaves = {x.name: element.input(x.name, x.kind, axes[x.name]) for x in operator.leaves}
    bare = replace(
        scan,
        name=f"{scan.name}.carry",
        inputs=inputs,
        element=element.finish(leaves),
        outputs=tuple(
            Output(before(s.name), s.kind, scan.order((TIME, *s.axes)), "state") for s in scan.states
        ),
    )
    readout = Builder(f"{scan.name}.carry", scan.axes, where="")
    for i in inputs:
        readout.input(i.name, i.kind, axes[i.name])
    read = _states(readout, scan, scan.states)
    shown = {before(s.name): read[before(s.name)] for s in scan.states}
    return check_scan(replace(bare, readout=readout.finish(shown)))


def _readout(scan: Scan, states: tuple[State, ...], *, after: bool) -> Program:
    builder = Builder(f"{scan.name}.prefixes", scan.axes, where="")
    for i in scan.inputs:
        builder.input(i.name, i.kind, scan.order(i.axes))
    read = _states(builder, scan, states)
    return builder.finish({s.name: read[s.name] for s in states} if after else {})


def _states(builder: Builder, scan: Scan, states: tuple[State, ...]) -> dict[str, Value]:
    """The states before and after the step as inputs of a readout."""
    made = {}
    for s in states:
        axes = scan.order((TIME, *s.axes))
        made[before(s.name)] = builder.input(before(s.name), s.kind, axes)
        made[s.name] = builder.input(s.name, s.kind, axes)
    return made
