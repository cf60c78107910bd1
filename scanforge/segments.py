"""Scan -> Scan: padding and resets are recurrences of their own, so every backend and gradient has them.

padded      a step whose `mask` is false has the identity for its element, and 0 for its outputs; all that
            it reads goes through `guard`, so that nothing flows back to it, not even NaN
resetting   a step whose `reset` is true starts from `enter_<state>` instead of the state before it, or from
            what the recurrence begins with if no call says otherwise

With the flag f and the state x0 to enter with, the element of a resetting recurrence is (f, x0, e):

    (f, x0, e) o (f', x0', e') = (f or f', x0' if f' else x0, e' if f' else e o e')

A state that is the recurrence's own is a number in `apply`, and the element is (f, e).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program, check_scan
from scanforge.ir.program import Number, Program, fresh
from scanforge.ir.scan import TIME, Input, Leaf, Operator, Output, Scan, State, before, dump, is_batch, load
from scanforge.ir.value import Value
from scanforge.prune import drop_dead


@dataclass(frozen=True, slots=True)
class Changed:
    """The new recurrence as text, and how many of its last inputs are new: the flag, then one a state."""

    text: str
    added: tuple[str, ...]


def flag_axes(scan: Scan) -> tuple[str, ...]:
    """The axes of a mask or of resets: the batch axes, then time."""
    return (*(a for a in scan.axes if is_batch(a)), TIME)


@lru_cache(maxsize=1024)
def padded(text: str, dims: tuple[str, ...]) -> Changed:
    """The recurrence with a mask of these dims."""
    scan = load(text)
    mask = Input(fresh("mask", _taken(scan)), "bool", dims)
    identity = {x.name: x.identity for x in scan.operator.leaves}
    zero: dict[str, Number] = {o.name: 0 for o in scan.outputs}
    changed = replace(
        scan,
        name=f"{scan.name}.padded",
        inputs=(*scan.inputs, mask),
        element=_masked(scan, scan.element, mask, identity),
        readout=_masked(scan, scan.readout, mask, zero),
    )
    return Changed(dump(check_scan(changed)), (mask.name,))


@lru_cache(maxsize=1024)
def resetting(text: str, dims: tuple[str, ...], *, own: bool = False) -> Changed:
    """The recurrence with resets, where the flag has these dims; to its `own` first states, or to inputs."""
    scan = load(text)
    taken = _taken(scan)
    flag = Input(fresh("reset", taken), "bool", dims)
    entered = () if own else scan.states
    enter = {s.name: Input(fresh(f"enter_{s.name}", taken), s.kind, scan.order(s.axes)) for s in entered}
    added = (flag, *enter.values())
    changed = replace(
        scan,
        name=f"{scan.name}.resetting",
        inputs=(*scan.inputs, *added),
        operator=_operator(scan.operator, flag.name, {s: i.name for s, i in enter.items()}),
        element=_with_inputs(scan, scan.element, added),
        readout=_entering(scan, flag, enter),
    )
    return Changed(dump(check_scan(changed)), tuple(i.name for i in added))


def _taken(scan: Scan) -> set[str]:
    states = {n for s in scan.states for n in (s.name, before(s.name))}
    fields: tuple[Input | Output | Leaf, ...] = (*scan.inputs, *scan.outputs, *scan.operator.leaves)
    return states | {f.name for f in fields}


def _inputs(builder: Builder, scan: Scan, program: Program, added: Sequence[Input]) -> dict[str, Value]:
    """The inputs of a program, and further ones."""
    made = {v.name: builder.input(v.name, v.kind, v.axes) for v in program.inputs}
    return made | {i.name: builder.input(i.name, i.kind, scan.order(i.axes)) for i in added}


def _masked(scan: Scan, program: Program, mask: Input, otherwise: Mapping[str, Number]) -> Program:
    """The program, its outputs replaced where the mask is false."""
    builder = Builder(program.name, scan.axes, where="")
    given = _inputs(builder, scan, program, [mask])
    real = given[mask.name]
    found = builder.inline(program, {v.name: real.call("guard", given[v.name]) for v in program.inputs})
    kept = {n: real.call("where", v, builder.const(otherwise[n], v.var.kind)) for n, v in found.items()}
    return check_program(drop_dead(builder.finish(kept)))


def _with_inputs(scan: Scan, program: Program, added: Sequence[Input]) -> Program:
    """The program, and further inputs that it hands through."""
    builder = Builder(program.name, scan.axes, where="")
    given = _inputs(builder, scan, program, added)
    return check_program(
        builder.finish(builder.inline(program, given) | {i.name: given[i.name] for i in added})
    )


def _entering(scan: Scan, flag: Input, enter: Mapping[str, Input]) -> Program:
    """The readout, to which the state before a reset step is the one to enter with."""
    builder = Builder(scan.readout.name, scan.axes, where="")
    given = _inputs(builder, scan, scan.readout, [flag, *enter.values()])
    seen = dict(given)
    for state in scan.states:
        name = before(state.name)
        if name in given:
            entry = given[enter[state.name].name] if enter else builder.const(state.initial, state.kind)
            seen[name] = given[flag.name].call("where", entry, given[name])
    return check_program(drop_dead(builder.finish(builder.inline(scan.readout, seen))))


def _operator(operator: Operator, flag: str, enter: Mapping[str, str]) -> Operator:
    """The operator whose element begins with a flag and the states to enter with."""
    kinds = {s.name: s.kind for s in operator.states}
    initial = {s.name: s.initial for s in operator.states}
    leaves = [Leaf(flag, "bool", False), *(Leaf(n, kinds[s], initial[s]) for s, n in enter.items())]
    apply = Builder(operator.apply.name, where="")
    fields: tuple[Leaf | State, ...] = (*operator.leaves, *leaves, *operator.states)
    given = {f.name: apply.input(f.name, f.kind) for f in fields}
    seen = dict(given)
    for s in operator.states:
        entry = given[enter[s.name]] if enter else apply.const(s.initial, s.kind)
        seen[s.name] = given[flag].call("where", entry, given[s.name])
    stepped = check_program(drop_dead(apply.finish(apply.inline(operator.apply, seen))))
    combine = _combine(operator, flag, leaves)
    return replace(operator, leaves=(*operator.leaves, *leaves), apply=stepped, combine=combine)


def _combine(operator: Operator, flag: str, leaves: Sequence[Leaf]) -> Program:
    builder = Builder(operator.combine.name, where="")
    given = {
        f"{when}_{x.name}": builder.input(f"{when}_{x.name}", x.kind)
        for when in ("earlier", "later")
        for x in (*operator.leaves, *leaves)
    }
    restarts = given[f"later_{flag}"]
    composed = builder.inline(operator.combine, given)
    made = {n: restarts.call("where", given[f"later_{n}"], v) for n, v in composed.items()}
    made[flag] = given[f"earlier_{flag}"] | restarts
    for x in leaves[1:]:
        made[x.name] = restarts.call("where", given[f"later_{x.name}"], given[f"earlier_{x.name}"])
    return check_program(builder.finish(made))
