"""Scan -> MatrixForm: a recurrence whose steps, a chunk at a time, are matrix products.

    S_t = decay_t * S_{t-1} + key_t ⊗ value_t,    contracted_t = Σ_k query_t S_t   (or S_{t-1})
    outputs_t = readout(contracted_t, inputs_t)

`k` is the axis that the readout contracts, `v` one that key and query lack; the decay has one of the two or
neither. All other axes of the state are lanes. What does not fit is said in a sentence, for `explain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from scanforge.facts import expanded_axes
from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program
from scanforge.ir.program import Line, Program, fresh
from scanforge.ir.scan import TIME, Scan, before, is_batch, load
from scanforge.ir.value import Value
from scanforge.products import Algebra, NotOfFormError
from scanforge.prune import tidy


@dataclass(frozen=True, slots=True)
class MatrixForm:
    """The parts of the recurrence, as programs of its inputs.

    gates    -> query, key, and the decay unless it is on the value axis; `reset` where the state before is 0
    values   -> value, and the decay and `reset` if it is on the value axis
    slopes   the one of both that has the decay, as its logarithm if that has a slope of its own
    readout  of `contracted` and inputs -> the outputs
    A decay is called `decay`, or `log2_decay` where the declaration takes an exponential.
    """

    state: str
    lanes: tuple[str, ...]
    key_axis: str
    value_axis: str
    decay_on: str  # key | value | lanes | none
    reads_before: bool
    contracted: str  # how `readout` names it
    gates: Program
    values: Program
    readout: Program
    slopes: Program
    reader: Program | None = None  # -> read, where keys and values have changed places (chunked_swap.py)

    @property
    def parts(self) -> tuple[Program, ...]:
        """All programs but slopes."""
        return (self.gates, self.values, self.readout, *([self.reader] if self.reader else []))

    @property
    def shown_axis(self) -> str:
        """The axis that what is contracted keeps."""
        return self.key_axis if self.reader else self.value_axis

    @property
    def log_slope(self) -> bool:
        """Whether the derivatives are a logarithm's: nothing is divided by a decay."""
        return any(n == "log2_decay" for n, _ in self.slopes.outputs)

    @property
    def resets(self) -> bool:
        """Whether there are steps before which the state is set to 0."""
        return any(n == "reset" for p in (self.gates, self.values) for n, _ in p.outputs)

    @property
    def log_decay(self) -> bool:
        """Whether the decay is given as a logarithm, to base 2."""
        return any(n == "log2_decay" for p in (self.gates, self.values) for n, _ in p.outputs)

    @property
    def plain_readout(self) -> bool:
        """Whether the only output is what was contracted."""
        return [v for _, v in self.readout.outputs] == [self.contracted]

    def plain(self, part: str) -> str:
        """The input that `query`, `key`, `value` or `read` is; empty for an expression."""
        program = self.part(part)
        variable = dict(program.outputs)[part]
        return variable if variable in {v.name for v in program.inputs} else ""

    def part(self, name: str) -> Program:
        """The program of something along values, or the gates."""
        return {"value": self.values, "read": self.reader or self.gates}.get(name, self.gates)

    def sentence(self) -> str:
        """The form for people."""
        on = {"key": f"on {self.key_axis}", "value": f"on {self.value_axis}", "none": "of 1"}
        decay = on.get(self.decay_on, "shared by a matrix")
        when = " before the step" if self.reads_before else ""
        return (
            f"matrix products in chunks: {self.state}{when} is contracted over {self.key_axis} and written "
            f"by an outer product of {self.key_axis} and {self.value_axis}, with a decay {decay}"
        )


@lru_cache(maxsize=4096)
def matrix_form(text: str) -> MatrixForm | str:
    """The form of the recurrence of a text, or why it has none."""
    try:
        return _Finder(load(text)).form()
    except NotOfFormError as reason:
        return str(reason)


def matrix_sentence(text: str) -> list[str]:
    """The form of a recurrence whose outputs contract its state, or why it has none."""
    form = matrix_form(text)
    if isinstance(form, MatrixForm):
        return [form.sentence()]
    return [f"no matrix products in chunks: {form}"] if expanded_axes(load(text)) else []


class _Finder:
    """All of a step is written into one builder; its parts are some of the lines, and products of them."""

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        if len(scan.states) != 1 or scan.states[0].kind != "float":
            raise NotOfFormError(f"{len(scan.states)} states are not one matrix of floats")
        self.state = scan.states[0]
        builder = self.builder = Builder(f"{scan.name}.form", scan.axes, where="")
        self.algebra = Algebra(builder)
        axes = scan.order((TIME, *self.state.axes))
        given = {i.name: builder.input(i.name, i.kind, scan.order(i.axes)) for i in scan.inputs}
        self.previous = builder.input(before(self.state.name), "float", axes)
        self.after = builder.input(fresh("after", given), "float", axes)
        leaves = builder.inline(scan.element, {v.name: given[v.name] for v in scan.element.inputs})
        stepped = builder.inline(scan.operator.apply, leaves | {self.state.name: self.previous})
        self.next = stepped[self.state.name]
        read = given | {self.state.name: self.after, before(self.state.name): self.previous}
        self.outputs = builder.inline(scan.readout, {v.name: read[v.name] for v in scan.readout.inputs})

    def form(self) -> MatrixForm:
        """The parts, checked."""
        algebra, summed = self.algebra, self.contraction()
        self.key = summed.over[0]
        symbol = self.read_state(summed)
        coefficients, bonus = algebra.linear(algebra.value_of(summed.args[0]), symbol.var.name)
        decays, written = algebra.linear(self.next, self.previous.var.name)
        if coefficients is None or decays is None or written is None:
            raise NotOfFormError("its step is not a decayed state and something added to it")
        self.value = self.find_value_axis(coefficients, written)
        key, value = self.outer(written, "what is written")
        query = [c for c in coefficients if self.value not in c.var.axes]
        outside = [c for c in coefficients if self.value in c.var.axes]
        taken = (v.name for v in self.builder.inputs)
        kept = tuple(a for a in self.previous.var.axes if a != self.key)
        contracted = self.builder.input(fresh("contracted", taken), "float", kept)
        read = algebra.product([contracted, *outside])
        if bonus is not None:
            keyed, valued = self.outer(bonus, "what the readout adds to the state")
            read = read + self.builder.sum(keyed, (self.key,)) * valued
        outputs = self.downstream(summed.var.name, read)
        outputs, scale = self.without_scale(outputs, contracted)
        gates = {"query": self.where_real(algebra.product([*query, *scale])), "key": key}
        return self.parts(decays, gates, value, outputs, contracted, symbol)

    def where_real(self, query: Value) -> Value:
        """0 at steps of padding, where anything may stand."""
        live = self.algebra.live([query])
        guards = dict.fromkeys(
            x.args[0] for x in self.builder.lines if x.op == "guard" and x.var.name in live
        )
        for name in guards:
            query = self.algebra.select(self.algebra.value_of(name), query, keeps=True)
        return query

    def contraction(self) -> Line:
        """The line that sums the state over one axis, through which alone outputs read it."""
        symbols = (self.after.var.name, self.previous.var.name)
        fed, live = self.algebra.fed_by(symbols), self.algebra.live(self.outputs.values())
        sums = [x for x in self.builder.lines if x.op == "sum" and x.var.name in fed & live]
        if len(sums) != 1:
            raise NotOfFormError(f"its outputs contract the state in {len(sums) or 'no'} sums, not in one")
        over = sums[0].over
        if len(over) != 1 or over[0] not in self.state.axes:
            raise NotOfFormError(
                f"its readout sums over {' and '.join(over)}, not over one axis of the state"
            )
        around = self.algebra.fed_by(symbols, without=sums[0].var.name)
        if any(v.var.name in around for v in self.outputs.values()):
            raise NotOfFormError("an output reads the state beside what the readout sums")
        return sums[0]

    def read_state(self, summed: Line) -> Value:
        """The state that the readout contracts."""
        symbols = (self.after, self.previous)
        reads = [s for s in symbols if summed.args[0] in self.algebra.fed_by([s.var.name])]
        if len(reads) > 1:
            raise NotOfFormError("its readout contracts the states before and after the step together")
        return reads[0]

    def outer(self, value: Value, what: str) -> tuple[Value, Value]:
        """A value as a product of something without the value axis and something without the key axis."""
        both = frozenset({self.key, self.value})
        found = self.algebra.factors(value, both)
        wrong = next((f for f in found if both <= set(f.var.axes)), None)
        if wrong is not None:
            line = self.algebra.line(wrong.var.name)
            shown = line.expression() if line else wrong.var.name
            raise NotOfFormError(f"{what} is no outer product over {self.key} and {self.value}: {shown}")
        keyed = [f for f in found if self.value not in f.var.axes]
        valued = [f for f in found if self.value in f.var.axes]
        return self.algebra.product(keyed), self.algebra.product(valued)

    def downstream(self, name: str, instead: Value) -> dict[str, Value]:
        """The outputs, with another value for a line."""
        names = {name: instead}
        for line in list(self.builder.lines):
            if line.var.name != name and names.keys() & set(line.args):
                args = [names[a] if a in names else self.algebra.value_of(a) for a in line.args]
                made = (
                    self.builder.sum(args[0], line.over)
                    if line.op == "sum"
                    else self.builder.call(line.op, *args)
                )
                names[line.var.name] = made
        return {o: names.get(v.var.name, v) for o, v in self.outputs.items()}

    def without_scale(
        self, outputs: dict[str, Value], contracted: Value
    ) -> tuple[dict[str, Value], list[Value]]:
        """The outputs, and the factors of the only one if the query can take them over."""
        if len(outputs) == 1 and set(self.scan.outputs[0].axes) == set(contracted.var.axes):
            ((name, value),) = outputs.items()
            try:
                factors, rest = self.algebra.linear(value, contracted.var.name)
            except NotOfFormError:
                return outputs, []
            if factors is not None and rest is None and all(self.value not in f.var.axes for f in factors):
                return {name: contracted}, factors
        return outputs, []

    def find_value_axis(self, coefficients: Sequence[Value], written: Value) -> str:
        """The last axis of the state that is written along and that query and key lack."""
        query = {a for c in coefficients if self.key in c.var.axes for a in c.var.axes}
        keyed = {a for f in self.algebra.separate(written) if self.key in f.var.axes for a in f.var.axes}
        axes = [a for a in self.state.axes if a not in query | {self.key} and not is_batch(a)]
        axes = [a for a in axes if a in written.var.axes]
        if not axes:
            raise NotOfFormError("every axis that is written along is also the query's")
        return next((a for a in reversed(axes) if a not in keyed), axes[-1])

    def parts(
        self, decays: list[Value], gates: dict[str, Value], value: Value, outputs: dict[str, Value],
        contracted: Value, symbol: Value,
    ) -> MatrixForm:  # fmt: skip
        """The programs, and which axes they may have."""
        lanes = tuple(a for a in self.scan.order(self.state.axes) if a not in {self.key, self.value})
        reset, decays = self.algebra.cleared(decays, {TIME, *lanes})
        decay = self.algebra.product(decays)
        own = set(decay.var.axes) & {self.key, self.value}
        if len(own) > 1:
            raise NotOfFormError(f"its decay has both {self.key} and {self.value}")
        on = {self.key: "key", self.value: "value"}.get(
            "".join(own), "none" if decay.number == 1 else "lanes"
        )
        log = self.algebra.log2_of(decay)
        named = {"decay": decay} if log is None else {"log2_decay": log}
        slope = self.algebra.log2_of(decay, sigmoids=True)
        beside = {"value": value} if on == "value" else dict(gates)
        slopes = beside | (named if slope is None else {"log2_decay": slope})
        named |= {} if reset is None else {"reset": reset}
        gates |= named if on != "value" else {}
        values = {"value": value} | (named if on == "value" else {})
        return MatrixForm(
            self.state.name,
            lanes,
            self.key,
            self.value,
            on,
            symbol is self.previous,
            contracted.var.name,
            self.program("gates", gates, {TIME, *lanes, self.key}),
            self.program("values", values, {TIME, *lanes, self.value}),
            self.program("readout", outputs, set(self.scan.axes)),
            self.program("slopes", slopes, {TIME, *lanes, self.value if on == "value" else self.key}),
        )

    def program(self, name: str, outputs: dict[str, Value], axes: Iterable[str]) -> Program:
        """Some values as a program, of inputs that it reads."""
        whole = self.builder.finish(outputs)
        made = replace(tidy(whole), name=f"{self.scan.name}.{name}")
        read = {a for x in made.lines for a in x.args} | {v for _, v in made.outputs}
        made = replace(made, inputs=tuple(v for v in made.inputs if v.name in read))
        for line in made.lines:
            if name != "readout" and (line.op == "sum" or not set(line.var.axes) <= set(axes)):
                raise NotOfFormError(f"its {name} are not made entry by entry: {line.expression()}")
        wrong = [v.name for v in made.inputs if not set(v.axes) <= set(axes)]
        if wrong:
            raise NotOfFormError(f"its {name} read {wrong[0]}, which has an axis more")
        return check_program(made)
