"""The operators of a recurrence's element: traced, renamed to its states, and put side by side in one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from scanforge.declare import Declaration, Operator, declaration
from scanforge.errors import TraceError
from scanforge.ir import scan as ir
from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program
from scanforge.ir.complex import Complex
from scanforge.ir.program import Program, fresh
from scanforge.ir.value import Value
from scanforge.prune import drop_dead
from scanforge.recurrence import Fused, Named
from scanforge.trace import trace_real, typed


@dataclass(frozen=True, slots=True)
class Piece:
    """One operator of the recurrence, with unique leaves, and states by the names of the recurrence's."""

    operator: ir.Operator
    own: ir.Operator  # by its own names, with the initial states of the recurrence: what the laws are about
    fields: tuple[Named, ...]
    states: tuple[tuple[str, ...], ...]  # of each field: its real states


def pieces_of(
    builder: Builder, declared: Fused, elements: tuple[Operator, ...], complex_states: frozenset[str]
) -> tuple[Program, list[Piece]]:
    """The element program, and the operators that its leaves belong to."""
    wanted = [declaration(type(e)) for e in elements]
    count = sum(len(d.states) for d in wanted)
    if count != len(declared.states):
        of = ", ".join(f"{d.name} with {', '.join(s.name for s in d.states)}" for d in wanted)
        names = ", ".join(s.name for s in declared.states)
        raise TraceError(
            f"{builder.name} returns elements of {count} state(s) in all ({of}), and {declared.name} "
            f"declares {len(declared.states)}: {names}. Declare one state for each, in that order."
        )
    outputs: dict[str, Value] = {}
    pieces: list[Piece] = []
    rest = list(declared.states)
    taken = {n for s in declared.states for n in (s.name, f"{s.name}_re", f"{s.name}_im")}
    for element, operator in zip(elements, wanted, strict=True):
        fields, rest = rest[: len(operator.states)], rest[len(operator.states) :]
        _same_axes(declared, operator, fields)
        pieces.append(_piece(builder, element, fields, outputs, taken, complex_states))
    return check_program(drop_dead(builder.finish(outputs))), pieces


def _piece(
    builder: Builder, element: Operator, fields: list[Named], outputs: dict[str, Value], names: set[str],
    complex_states: frozenset[str],
) -> Piece:  # fmt: skip
    """The operator of one element, renamed; its leaves' values join the outputs."""
    declared = declaration(type(element))
    values = {leaf.name: element.__dict__[leaf.name] for leaf in declared.leaves}
    is_complex = frozenset(n for n, v in values.items() if isinstance(v, Complex))
    pairs = zip(fields, declared.states, strict=True)
    in_pairs = frozenset(s.name for field, s in pairs if field.name in complex_states)
    operator, leaves, states = trace_real(type(element), is_complex, in_pairs)
    taken = {*outputs, *names}
    renamed: dict[str, str] = {}
    for leaf in declared.leaves:
        real = leaves[leaf.name]
        made = typed(builder, leaf.name, leaf.kind, real, values[leaf.name])
        for name in real:
            renamed[name] = fresh(name, taken)
            taken.add(renamed[name])
            outputs[renamed[name]] = made[name]
            _check_leaf(builder, declared, made[name], leaf.name, fields)
    named: list[tuple[str, ...]] = []
    initial: dict[str, Any] = {}
    for field, state in zip(fields, declared.states, strict=True):
        real = states[state.name]
        spelt = (field.name,) if len(real) == 1 else (f"{field.name}_re", f"{field.name}_im")
        renamed |= dict(zip(real, spelt, strict=True))
        named.append(spelt)
        initial |= {} if field.initial is None else dict(zip(real, (field.initial, 0), strict=False))
    own = replace(operator, states=tuple(_starting(s, initial) for s in operator.states))
    return Piece(_renamed(own, renamed), own, tuple(fields), tuple(named))


def _starting(state: ir.State, initial: dict[str, Any]) -> ir.State:
    """The state with the initial value that the recurrence gives it, if it does."""
    cast: Any = {"float": float, "int": int, "bool": bool}[state.kind]
    return replace(state, initial=cast(initial[state.name])) if state.name in initial else state


def _renamed(operator: ir.Operator, names: dict[str, str]) -> ir.Operator:
    """The operator with other names for leaves and states."""
    both = names | {f"{w}_{n}": f"{w}_{m}" for w in ("earlier", "later") for n, m in names.items()}
    return ir.Operator(
        operator.name,
        tuple(replace(x, name=names[x.name]) for x in operator.leaves),
        tuple(replace(s, name=names[s.name]) for s in operator.states),
        _rename(operator.combine, both),
        _rename(operator.apply, both),
    )


def _rename(program: Program, names: dict[str, str]) -> Program:
    """The program with other names for its inputs and outputs."""
    builder = Builder(program.name)
    made = {v.name: builder.input(names[v.name], v.kind) for v in program.inputs}
    results = builder.inline(program, made)
    return check_program(builder.finish({names[n]: v for n, v in results.items()}))


def together(name: str, pieces: list[Piece]) -> ir.Operator:
    """The operators side by side, in one."""
    leaves = tuple(x for p in pieces for x in p.operator.leaves)
    states = tuple(s for p in pieces for s in p.operator.states)
    combine, apply = Builder(f"{name}.combine"), Builder(f"{name}.apply")
    sides = ("earlier", "later")
    given = {f"{w}_{x.name}": combine.input(f"{w}_{x.name}", x.kind) for w in sides for x in leaves}
    both: tuple[ir.Leaf | ir.State, ...] = (*leaves, *states)
    fields = {f.name: apply.input(f.name, f.kind) for f in both}
    composed: dict[str, Value] = {}
    stepped: dict[str, Value] = {}
    for p in pieces:
        composed |= combine.inline(
            p.operator.combine, {v.name: given[v.name] for v in p.operator.combine.inputs}
        )
        stepped |= apply.inline(p.operator.apply, {v.name: fields[v.name] for v in p.operator.apply.inputs})
    programs = (check_program(combine.finish(composed)), check_program(apply.finish(stepped)))
    return ir.Operator(name, leaves, states, *programs)


def _same_axes(declared: Fused, operator: Declaration, fields: list[Named]) -> None:
    """The states of one operator have equal axes; their kinds are the operator's."""
    if len({frozenset(f.axes) for f in fields}) > 1:
        names = ", ".join(f"{f.name} ({' '.join(f.axes)})" for f in fields)
        raise TraceError(
            f"{declared.name}: the states of {operator.name} have different axes: {names}. Declare them with "
            "equal axes, or return an operator for each."
        )
    for field, state in zip(fields, operator.states, strict=True):
        if field.kind != state.kind:
            raise TraceError(
                f"{declared.name}.{field.name} is of kind {field.kind}, and the state {state.name} of "
                f"{operator.name} that it stands for is of kind {state.kind}: write kind={state.kind!r}."
            )


def _check_leaf(
    builder: Builder, operator: Declaration, value: Value, leaf: str, fields: list[Named]
) -> None:
    """A state has all the axes of its element."""
    own = set(fields[0].axes)
    lacking = [a for a in value.var.axes if not ir.is_outer(a) and a not in own]
    lacking += [ir.BATCH] if ir.BATCH in value.var.axes and ir.BATCH not in own else []
    if lacking:
        names = ", ".join(f.name for f in fields)
        wanted = " ".join([*fields[0].axes, *lacking])
        raise TraceError(
            f"{builder.name} gives {operator.name}.{leaf} the axes {' '.join(value.var.axes)}, and the state "
            f"{names} has {' '.join(fields[0].axes) or '(none)'}: write "
            f"`{fields[0].name} = sf.State({wanted!r})`, or sum over {' '.join(lacking)}."
        )
