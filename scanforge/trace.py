"""Declaration -> ir.Operator and ir.Scan: the methods are called once, on Values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scanforge.captured import fingerprint
from scanforge.compose import on_itself
from scanforge.declare import Declaration, Operator, declaration
from scanforge.errors import TraceError
from scanforge.ir import scan as ir
from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program, check_scan
from scanforge.ir.complex import Complex, is_value, pair, parts
from scanforge.ir.program import Program, fresh
from scanforge.ir.unknown import declare
from scanforge.ir.value import Value


@dataclass(frozen=True, slots=True)
class Signature:
    """What a call decides of a bare operator's trace: the axes, each leaf's dims, what is complex."""

    axes: tuple[str, ...]
    dims: tuple[tuple[str, ...], ...]
    complex_leaves: frozenset[str] = frozenset()
    complex_states: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Traced:
    """A scan, and how its real inputs and states make up the user's, which may be complex."""

    scan: ir.Scan
    text: str  # the scan as text, the key of every later cache
    operators: tuple[str, ...]  # the operators as text, the keys of the laws
    leaves: tuple[tuple[str, tuple[str, ...]], ...]  # leaf -> its real leaves: one, or re and im
    states: tuple[tuple[str, tuple[str, ...]], ...]
    outputs: tuple[tuple[str, ...], ...]  # the user's outputs, each of one real output or two


def trace(cls: type[Operator], signature: Signature) -> Traced:
    """The scan of a bare operator. Memoised by the class and by all that its methods read."""
    key = fingerprint(cls)
    return _trace(cls, signature) if key is None else _trace_known(cls, signature, key)  # type: ignore[arg-type] # a class is hashable


@lru_cache(maxsize=1024)
def _trace_known(cls: type[Operator], signature: Signature, key: tuple[Any, ...]) -> Traced:
    return _trace(cls, signature)


def trace_operator(cls: type[Operator]) -> ir.Operator:
    """The operator alone, on real leaves: what the laws are about."""
    declared = declaration(cls)
    axes = (ir.TIME, ir.BATCH)
    return trace(cls, Signature(axes, ((ir.BATCH, ir.TIME),) * len(declared.leaves))).scan.operator


def trace_real(
    cls: type[Operator], complex_leaves: frozenset[str], complex_states: frozenset[str]
) -> tuple[ir.Operator, dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """The operator alone when these are complex, with the real names of its leaves and states."""
    names = _Names(declaration(cls), set(complex_leaves), set(complex_states))
    operator = _operator(cls, names, ())
    leaves = {x.name: names.leaf(x.name) for x in names.declared.leaves}
    return operator, leaves, {s.name: names.state(s.name) for s in names.declared.states}


def _trace(cls: type[Operator], signature: Signature) -> Traced:
    names = _Names(declaration(cls), set(signature.complex_leaves), set(signature.complex_states))
    operator = _operator(cls, names, tuple(a for a in signature.axes if a != ir.TIME))
    return _bare(operator, names, signature)


def _operator(cls: type[Operator], names: _Names, lanes: tuple[str, ...]) -> ir.Operator:
    """The operator on real leaves and states; a complex leaf may make others complex, which `names` notes."""
    while True:  # until nothing changes
        before = len(names.complex_leaves) + len(names.complex_states)
        combine, apply = _combine(cls, names), _apply(cls, names)
        if len(names.complex_leaves) + len(names.complex_states) == before:
            break
    declared = names.declared
    return ir.Operator(
        declared.name,
        tuple(
            ir.Leaf(
                n, x.kind, x.identity if i == 0 else 0.0, x.domain if len(names.leaf(x.name)) == 1 else "any"
            )
            for x in declared.leaves
            for i, n in enumerate(names.leaf(x.name))
        ),
        tuple(
            ir.State(
                n,
                s.kind,
                lanes,
                s.initial if i == 0 else 0.0,
                s.domain if len(names.state(s.name)) == 1 else "any",
            )
            for s in declared.states
            for i, n in enumerate(names.state(s.name))
        ),
        combine,
        apply,
    )


class _Names:
    """Which leaves and states are complex, and the names of their real parts."""

    def __init__(self, declared: Declaration, complex_leaves: set[str], complex_states: set[str]) -> None:
        self.declared, self.complex_leaves, self.complex_states = declared, complex_leaves, complex_states

    def leaf(self, name: str) -> tuple[str, ...]:
        return self._parts(name, self.complex_leaves)

    def state(self, name: str) -> tuple[str, ...]:
        return self._parts(name, self.complex_states)

    def _parts(self, name: str, complex_names: set[str]) -> tuple[str, ...]:
        taken = {*self.declared.tensor_names(), *(s.name for s in self.declared.states)}
        return (fresh(f"{name}_re", taken), fresh(f"{name}_im", taken)) if name in complex_names else (name,)


def _symbols(builder: Builder, fields: Sequence[Any], named: Any, prefix: str = "") -> dict[str, Any]:
    """A Value, or a complex pair, for each field."""
    made = {}
    for field in fields:
        values = [builder.input(prefix + n, field.kind) for n in named(field.name)]
        made[field.name] = values[0] if len(values) == 1 else Complex(*values)
    return made


def _combine(cls: type[Operator], names: _Names) -> Program:
    declared = names.declared
    builder = Builder(f"{declared.name}.combine")
    earlier = cls(**_symbols(builder, declared.leaves, names.leaf, "earlier_"))
    later = cls(**_symbols(builder, declared.leaves, names.leaf, "later_"))
    result = earlier.combine(later)
    if type(result) is not cls:
        write = f"return {declared.name}({', '.join(f'{n}=...' for n in declared.tensor_names())})"
        raise TraceError(
            f"{builder.name} returns {shown(result)}, and must return an element: write `{write}`."
        )
    outputs: dict[str, Value] = {}
    for leaf in declared.leaves:
        value = result.__dict__[leaf.name]
        if isinstance(value, Complex):
            names.complex_leaves.add(leaf.name)
        outputs |= typed(builder, leaf.name, leaf.kind, names.leaf(leaf.name), value)
    return check_program(builder.finish(outputs))


def _apply(cls: type[Operator], names: _Names) -> Program:
    declared = names.declared
    builder = Builder(f"{declared.name}.apply")
    element = cls(**_symbols(builder, declared.leaves, names.leaf))
    states = _symbols(builder, declared.states, names.state)
    result = element.apply(*states.values())
    values = result if isinstance(result, tuple) else (result,)
    if result is None or isinstance(result, list):
        raise TraceError(
            f"{builder.name} returns {shown(result)}, and must return the states after the step: write "
            f"`return {', '.join(states)}`, the new value of each."
        )
    if len(values) != len(states):
        raise TraceError(
            f"{builder.name} returns {len(values)} value(s) for the {len(states)} state(s) "
            f"{', '.join(states)}: return one for each, in declared order."
        )
    outputs: dict[str, Value] = {}
    for state, value in zip(declared.states, values, strict=True):
        if isinstance(value, Complex):
            names.complex_states.add(state.name)
        outputs |= typed(builder, state.name, state.kind, names.state(state.name), value)
    return check_program(builder.finish(outputs))


def typed(
    builder: Builder, name: str, kind: str, real_names: tuple[str, ...], value: Any
) -> dict[str, Value]:
    """The real outputs of one field, converted to its kind; a number becomes a constant."""
    values = parts(pair(value)) if len(real_names) == 2 else parts(value)[:1]
    outputs = {}
    for real_name, part in zip(real_names, values, strict=True):
        if not is_value(part) and (isinstance(part, str) or not isinstance(part, int | float)):
            hint = declare() if hasattr(part, "shape") else f"Return a number or an expression for {name}."
            raise TraceError(
                f"{builder.name} gives `{name}` {shown(part)}, and wants a value made of its arguments. "
                f"{hint}"
            )
        got = part.var.kind if is_value(part) else ("bool" if isinstance(part, bool) else "")
        if got == kind or (got == "" and kind != "bool" and not (kind == "int" and isinstance(part, float))):
            outputs[real_name] = part if is_value(part) else _number(builder, part, kind)
        elif (got, kind) == ("int", "float"):
            outputs[real_name] = builder.call("add", part, 0.0)
        elif got == "bool" and kind == "bool":
            outputs[real_name] = builder.const(part, kind)
        else:
            got = got or type(part).__name__
            raise TraceError(
                f"{builder.name} gives {name} a value of kind {got}, and {name} is declared as {kind}. "
                f"Declare it with kind={got!r}, or convert: sf.where(flag, 1, 0) for a bool."
            )
    return outputs


def _number(builder: Builder, number: Any, kind: str) -> Value:
    """A number that a method returned: by now no line of the user's is running."""
    with builder.at(""):
        return builder.const(number, kind)


def shown(x: object) -> str:
    if isinstance(x, tuple | list):
        return f"a {type(x).__name__} of {len(x)}"
    if hasattr(x, "shape"):
        return f"a {type(x).__name__} of shape {tuple(x.shape)}"
    return "nothing (None)" if x is None else f"a {type(x).__name__}"


def _bare(operator: ir.Operator, names: _Names, signature: Signature) -> Traced:
    """The scan that feeds leaves straight to the operator and returns the states."""
    axes = signature.axes
    dims = dict(zip((x.name for x in names.declared.leaves), signature.dims, strict=True))
    inputs: list[ir.Input] = []
    element = Builder(f"{operator.name}.element", axes, where="")
    leaves: dict[str, Value] = {}
    given: list[tuple[str, tuple[str, ...]]] = []
    for field in names.declared.leaves:
        real_names = names.leaf(field.name)
        present = real_names if field.name in signature.complex_leaves else real_names[:1]
        given.append((field.name, real_names))
        for name in present:
            inputs.append(ir.Input(name, field.kind, dims[field.name]))
            leaves[name] = element.input(name, field.kind, _in_order(axes, inputs[-1].axes))
        leaves |= {name: element.const(0.0, "float") for name in real_names[len(present) :]}
    readout = Builder(f"{operator.name}.readout", axes, where="")
    for i in inputs:
        readout.input(i.name, i.kind, _in_order(axes, i.axes))
    full = tuple(axes)
    after: dict[str, Value] = {}
    for state in operator.states:
        readout.input(ir.before(state.name), state.kind, full)
        after[state.name] = readout.input(state.name, state.kind, full)
    natural = _natural(signature)
    scan = ir.Scan(
        name=operator.name,
        axes=axes,
        inputs=tuple(inputs),
        states=operator.states,
        operator=operator,
        element=element.finish({leaf.name: leaves[leaf.name] for leaf in operator.leaves}),
        readout=readout.finish(after),
        outputs=tuple(ir.Output(s.name, s.kind, natural) for s in operator.states),
    )
    states = tuple((s.name, names.state(s.name)) for s in names.declared.states)
    shown_as = tuple(real for _, real in states)
    return Traced(
        check_scan(scan), ir.dump(scan), (ir.dump_operator(operator),), tuple(given), states, shown_as
    )


def _in_order(axes: tuple[str, ...], some: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(a for a in axes if a in some)


def _natural(signature: Signature) -> tuple[str, ...]:
    """All axes in the order of the user's dimensions: the first leaf's, with broadcast ones filled in."""
    columns = zip(*signature.dims, strict=True)
    return tuple(next((d for d in column if d != "1"), "1") for column in columns)


def prefix_scan(traced: Traced) -> Traced:
    """The scan of an operator on itself: its states are the composed elements of steps 0..t."""
    scan = on_itself(traced.scan, traced.scan.outputs[0].dims)
    names = dict(zip((x.name for x in scan.operator.leaves), (s.name for s in scan.states), strict=True))
    prefixes = tuple((leaf, tuple(names[p] for p in real_names)) for leaf, real_names in traced.leaves)
    outputs = tuple(real for _, real in prefixes)
    return Traced(scan, ir.dump(scan), traced.operators, traced.leaves, prefixes, outputs)
