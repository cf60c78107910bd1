"""class -> ir.Scan of a recurrence: element and readout are called once, on Values with named axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from scanforge.captured import fingerprint
from scanforge.declare import Operator
from scanforge.errors import TraceError
from scanforge.ir import scan as ir
from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program, check_scan
from scanforge.ir.complex import Complex, parts
from scanforge.ir.method import Method, tracing
from scanforge.ir.program import Program, fresh
from scanforge.ir.typing import broadcast
from scanforge.ir.value import Value
from scanforge.pieces import Piece, pieces_of, together
from scanforge.prune import drop_dead
from scanforge.recurrence import Named, Recurrence, fused, has_readout
from scanforge.trace import Traced, shown, typed

START = "segment_start"


@dataclass(frozen=True, slots=True)
class Call:
    """What a call decides of a recurrence's trace: further batch axes, which dims are 1, what is complex."""

    batch: tuple[str, ...]  # beside b, in the order of the dims
    dims: tuple[tuple[str, ...], ...]  # of each input
    complex_inputs: frozenset[str] = frozenset()
    complex_states: frozenset[str] = frozenset()  # of the initial states that are given


def trace_recurrence(cls: type[Recurrence], call: Call) -> Traced:
    """The scan of a recurrence. Memoised by the class and by all that its methods read."""
    key = fingerprint(cls)
    return _trace(cls, call) if key is None else _trace_known(cls, call, key)  # type: ignore[arg-type] # a class is hashable


@lru_cache(maxsize=1024)
def _trace_known(cls: type[Recurrence], call: Call, key: tuple[Any, ...]) -> Traced:
    return _trace(cls, call)


def _trace(cls: type[Recurrence], call: Call) -> Traced:
    return _Tracer(cls, call).traced()


class _Tracer:
    def __init__(self, cls: type[Recurrence], call: Call) -> None:
        self.cls, self.call, self.declared = cls, call, fused(cls)
        axes = self.declared.axes
        self.batch = (*call.batch, *(a for a in axes if a == ir.BATCH))
        self.axes = (ir.TIME, *self.batch, *(a for a in axes if not ir.is_outer(a)))
        self.dims = dict(zip(self.declared.tensor_names(), call.dims, strict=True))
        taken = {f.name for f in (*self.declared.inputs, *self.declared.states, *self.declared.outputs)}
        self.start = fresh(START, taken)
        self.asked_start = False
        self.parts = {
            i.name: (fresh(f"{i.name}_re", taken), fresh(f"{i.name}_im", taken))
            if i.name in call.complex_inputs
            else (i.name,)
            for i in self.declared.inputs
        }

    def traced(self) -> Traced:
        element, pieces = self.element()
        operator, states = self.operator(pieces)
        readout, outputs, grouped = self.readout(operator, states)
        scan = check_scan(
            ir.Scan(
                name=self.declared.name,
                axes=self.axes,
                inputs=self.inputs(),
                states=operator.states,
                operator=operator,
                element=element,
                readout=readout,
                outputs=outputs,
            )
        )
        given = tuple((name, real) for name, real in self.parts.items())
        laws = tuple(ir.dump_operator(p.own) for p in pieces)
        return Traced(scan, ir.dump(scan), laws, given, states, grouped)

    def inputs(self) -> tuple[ir.Input, ...]:
        made = [
            ir.Input(real, i.kind, self.dims[i.name])
            for i in self.declared.inputs
            for real in self.parts[i.name]
        ]
        if self.asked_start:
            made.append(ir.Input(self.start, "bool", (*self.batch, ir.TIME)))
        return tuple(made)

    def order(self, axes: Sequence[str]) -> tuple[str, ...]:
        return tuple(a for a in self.axes if a in axes)

    def symbols(self, builder: Builder) -> dict[str, Any]:
        """A Value, or a complex pair, for each input."""
        made: dict[str, Any] = {}
        for i in self.declared.inputs:
            axes = self.order(self.dims[i.name])
            values = [builder.input(real, i.kind, axes) for real in self.parts[i.name]]
            made[i.name] = values[0] if len(values) == 1 else Complex(*values)
        return made

    def run(self, builder: Builder, method: str, values: dict[str, Any], before: dict[str, Value]) -> Any:
        """Call a method with these values as its fields."""
        instance = object.__new__(self.cls)
        instance.__dict__.update(values)
        start = builder.input(self.start, "bool", self.order((ir.TIME, *self.batch)))
        with tracing(Method(method, start, before)) as state:
            result = getattr(instance, method)()
        self.asked_start |= state.asked_start
        if not state.asked_start:
            builder.inputs = [v for v in builder.inputs if v.name != self.start]
        return result

    def element(self) -> tuple[Program, list[Piece]]:
        builder = Builder(f"{self.declared.name}.element", self.axes)
        result = self.run(builder, "element", self.symbols(builder), {})
        elements = result if isinstance(result, tuple) else (result,)
        if not elements or not all(isinstance(e, Operator) for e in elements):
            raise TraceError(
                f"{builder.name} returns {shown(result)}, and must return an operator's element, or a tuple "
                "of them: write `return sf.Affine(a=..., b=...)` or the like."
            )
        return pieces_of(builder, self.declared, elements, self.call.complex_states)

    def operator(self, pieces: list[Piece]) -> tuple[ir.Operator, tuple[tuple[str, tuple[str, ...]], ...]]:
        """All operators in one, its states those of the recurrence, with their axes."""
        named = [(f.name, f.axes, real) for p in pieces for f, real in zip(p.fields, p.states, strict=True)]
        axes = {r: self.order(spelt_out(own, self.batch)) for _, own, real in named for r in real}
        operator = together(self.declared.name, pieces)
        states = tuple(replace(s, axes=axes[s.name]) for s in operator.states)
        return replace(operator, states=states), tuple((name, real) for name, _, real in named)

    def readout(
        self, operator: ir.Operator, states: tuple[tuple[str, tuple[str, ...]], ...]
    ) -> tuple[Program, tuple[ir.Output, ...], tuple[tuple[str, ...], ...]]:
        builder = Builder(f"{self.declared.name}.readout", self.axes)
        values = self.symbols(builder)
        before: dict[str, Value] = {}
        after: dict[str, Value] = {}
        for s in operator.states:
            axes = self.order((ir.TIME, *s.axes))
            before[s.name] = builder.input(ir.before(s.name), s.kind, axes)
            after[s.name] = builder.input(s.name, s.kind, axes)
        for name, real in states:
            values[name] = after[real[0]] if len(real) == 1 else Complex(*(after[r] for r in real))
        if has_readout(self.cls):
            result = self.run(builder, "readout", values, before)
        else:
            result = tuple(values[name] for name, _ in states)
        found = result if isinstance(result, tuple) else (result,)
        declared = self.declared.outputs
        if result is None or isinstance(result, list) or (declared and len(found) != len(declared)):
            names = ", ".join(o.name for o in declared) or "its value"
            raise TraceError(
                f"{builder.name} returns {shown(result)}, and must return {names}: write `return ...` with "
                "one value for each output, in declared order."
            )
        return self.outputs(builder, found)

    def outputs(
        self, builder: Builder, found: tuple[Any, ...]
    ) -> tuple[Program, tuple[ir.Output, ...], tuple[tuple[str, ...], ...]]:
        """The results of the readout as Outputs; those that are not declared have all axes of their value."""
        values: dict[str, Value] = {}
        outputs: list[ir.Output] = []
        grouped: list[tuple[str, ...]] = []
        taken = {v.name for v in builder.inputs}
        for k, value in enumerate(found):
            field = self.declared.outputs[k] if self.declared.outputs else None
            default = "y" if len(found) == 1 else f"y{k}"
            name = field.name if field else fresh(default, {*taken, *values})
            real = (f"{name}_re", f"{name}_im") if isinstance(value, Complex) else (name,)
            kinds = {p.var.kind for p in parts(value) if isinstance(p, Value)} or {"float"}
            values |= typed(builder, name, kinds.pop(), real, value)
            axes = broadcast(self.axes, [values[r].var.axes for r in real])
            dims = self.output_dims(field, axes)
            outputs += [ir.Output(r, values[r].var.kind, dims) for r in real]
            grouped.append(real)
        readout = check_program(drop_dead(builder.finish(values)))
        return readout, tuple(outputs), tuple(grouped)

    def output_dims(self, field: Named | None, axes: tuple[str, ...]) -> tuple[str, ...]:
        if field is not None:
            return spelt_out(field.axes, self.batch)
        timed = [i.axes for i in self.declared.inputs if ir.TIME in i.axes]
        widest = max(timed, key=len, default=())
        rest = [a for f in (*self.declared.states, *self.declared.inputs) for a in f.axes]
        ordered = dict.fromkeys([*widest, *([ir.BATCH] if self.batch else []), ir.TIME, *rest])
        present = {*axes, ir.TIME, ir.BATCH}
        named = [a for a in ordered if a in present]
        return spelt_out(named, self.batch)


def spelt_out(axes: Sequence[str], batch: Sequence[str]) -> tuple[str, ...]:
    """The axes with all batch axes in the place of `b`."""
    return tuple(x for a in axes for x in (batch if a == ir.BATCH else (a,)))
