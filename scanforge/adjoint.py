"""ir.Scan -> ir.Scan: the backward pass of a recurrence is a reverse affine recurrence.

For x_t = F(e_t, x_{t-1}) with J = dF/dx, and g and p the cotangents that the readout sends to x_t and
to x_{t-1}:  mu_t = J^T (g_t + mu_{t+1}) + p_t. The cotangents of the inputs at t are the vjp of the
whole step, seeded with mu_{t+1} on the state and with the outputs' cotangents: a readout of mu before
its step. The initial state's cotangent is the final mu. Nothing here knows the direction: the adjoint
of a scan runs the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from scanforge.affine import Pattern, affine_operator, closure, factor, offset
from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program, check_scan
from scanforge.ir.primitives import TABLE
from scanforge.ir.program import Program, fresh
from scanforge.ir.scan import TIME, Input, Operator, Output, Scan, State, before, is_outer
from scanforge.ir.value import Value
from scanforge.prune import drop_guards, drop_unread_inputs, tidy
from scanforge.schedule import next_state
from scanforge.vjp import pull_back


@dataclass(frozen=True, slots=True)
class Adjoint:
    """The adjoint scan, and which of its names stand for what of the primal."""

    scan: Scan
    states_before: tuple[tuple[str, str], ...]  # primal state -> input of the adjoint
    cotangents: tuple[tuple[str, str], ...]  # primal output -> input of the adjoint
    gradients: tuple[tuple[str, str], ...]  # primal input -> output of the adjoint
    initial: tuple[tuple[str, str], ...]  # primal state -> state of the adjoint
    step: Program  # one whole step, mu and gradients in one pull-back: what an ordered walk runs


@lru_cache(maxsize=4096)
def adjoint(scan: Scan, wanted: frozenset[str], cotangents: frozenset[str], initial: bool) -> Adjoint:
    """The adjoint for the gradients of these inputs, and of the initial state, from these cotangents.

    Inputs of kind int or bool have no gradient; states of these kinds carry none.
    """
    return _Derivation(scan, wanted, cotangents).result(initial)


def full_adjoint(scan: Scan) -> Adjoint:
    """The adjoint for all gradients, from all cotangents: what `explain` shows.

    It is derived each time, since scans are equal whatever file and line they come from.
    """
    wanted = frozenset(i.name for i in scan.inputs if i.kind == "float")
    return _Derivation(scan, wanted, frozenset(o.name for o in scan.outputs if o.kind == "float")).result(
        True
    )


class _Derivation:
    def __init__(self, scan: Scan, wanted: frozenset[str], cotangents: frozenset[str]) -> None:
        self.scan = scan
        self.wanted = [i.name for i in scan.inputs if i.name in wanted and i.kind == "float"]
        self.floats = [s for s in scan.states if s.kind == "float"]
        taken = {i.name for i in scan.inputs} | {o.name for o in scan.outputs} | {s.name for s in scan.states}
        self.cotangents = {
            o.name: fresh(f"grad_{o.name}", taken)
            for o in scan.outputs
            if o.name in cotangents and o.kind == "float"
        }
        self.mu = {s.name: fresh(f"mu_{s.name}", taken) for s in self.floats}
        self.inputs = self._inputs()

    def _inputs(self) -> tuple[Input, ...]:
        scan = self.scan
        given = tuple(replace(i, role="given") for i in scan.inputs)
        taken = {i.name for i in given}
        self.before = {s.name: fresh(before(s.name), taken) for s in scan.states}
        states = tuple(
            Input(self.before[s.name], s.kind, scan.order((TIME, *s.axes)), "state_before")
            for s in scan.states
        )
        seeds = tuple(
            Input(self.cotangents[o.name], o.kind, o.dims, "cotangent")
            for o in scan.outputs
            if o.name in self.cotangents
        )
        return given + states + seeds

    def result(self, initial: bool) -> Adjoint:
        gradients = {n: fresh(f"grad_{n}", (i.name for i in self.inputs)) for n in self.wanted}
        whole = self._whole(gradients)
        readout = self._part(whole, list(gradients.values()))
        element, pattern, closes = self._element()
        used = [s.name for s in self.floats if initial or self._reads_mu(readout, s.name)]
        needed = [s for s in self.floats if any(s.name in pattern[u] for u in used)]
        states = tuple(State(self.mu[s.name], "float", s.axes, 0.0) for s in needed)
        kept = {self.mu[s.name]: tuple(self.mu[j] for j in pattern[s.name]) for s in needed}
        gates = {(self.mu[s.name], self.mu[j]) for s in needed for j in pattern[s.name] if closes(s.name, j)}
        operator = affine_operator(f"{self.scan.name}.adjoint", states, kept, gates)
        scan = Scan(
            name=f"{self.scan.name}.adjoint",
            axes=self.scan.axes,
            inputs=self.inputs,
            states=states,
            operator=operator,
            element=self._leaves(element, operator, needed, pattern),
            readout=self._drop_unneeded(readout, needed),
            outputs=tuple(
                Output(gradients[i.name], "float", i.dims, i.name)
                for i in self.scan.inputs
                if i.name in gradients
            ),
        )
        scan = check_scan(drop_unread_inputs(scan))
        read = {i.name for i in scan.inputs}
        return Adjoint(
            scan,
            tuple((s, n) for s, n in self.before.items() if n in read),
            tuple((o, n) for o, n in self.cotangents.items() if n in read),
            tuple(gradients.items()),
            tuple((s.name, self.mu[s.name]) for s in needed),
            self._ordered(whole, gradients, needed, read),
        )

    def _step(self, builder: Builder) -> _Step:
        """Write the primal step x_{t-1} -> x_t, outputs into a builder."""
        scan = self.scan
        given = {i.name: builder.input(i.name, i.kind, scan.order(i.axes)) for i in self.inputs}
        previous = {s.name: given[self.before[s.name]] for s in scan.states}
        element = builder.replay(scan.element, {v.name: given[v.name] for v in scan.element.inputs})
        leaves = {leaf: element[v] for leaf, v in scan.element.outputs}
        apply = builder.replay(scan.operator.apply, leaves | previous)
        after = {state: apply[v] for state, v in scan.operator.apply.outputs}
        states = {before(s): v for s, v in previous.items()} | after
        readout = builder.replay(
            scan.readout, {v.name: (given | states)[v.name] for v in scan.readout.inputs}
        )
        return _Step(given, element, apply, readout)

    def _through_readout(self, builder: Builder, step: _Step) -> dict[str, Value]:
        """Cotangents that the outputs send to all that the readout reads."""
        seeds = {o: self._narrow_to(builder, step.given[n], o) for o, n in self.cotangents.items()}
        return pull_back(
            builder, self.scan.readout, step.readout, seeds, [v.name for v in self.scan.readout.inputs]
        )

    def _whole(self, gradients: dict[str, str]) -> Program:
        """The gradients of the inputs, and mu after the step, from mu before it."""
        scan = self.scan
        builder = Builder(f"{scan.name}.adjoint.readout", scan.axes, where="")
        step = self._step(builder)
        carried = {}
        for s in self.floats:
            carried[s.name] = builder.input(before(self.mu[s.name]), "float", scan.order((TIME, *s.axes)))
            builder.input(self.mu[s.name], "float", scan.order((TIME, *s.axes)))
        found = self._through_readout(builder, step)
        seeds = {s: _sum(found.get(s), mu) for s, mu in carried.items()}
        leaf_names = [leaf.name for leaf in scan.operator.leaves]
        through = pull_back(builder, scan.operator.apply, step.apply, seeds, [*leaf_names, *carried])
        leaves = {n: self._narrow(builder, through[n], n) for n in leaf_names if n in through}
        inputs = pull_back(builder, scan.element, step.element, leaves, self.wanted)
        zero = builder.const(0.0, "float")
        outputs = {g: _sum(found.get(n), inputs.get(n), zero) for n, g in gradients.items()}
        after = {next_state(self.mu[s]): _sum(through.get(s), found.get(before(s)), zero) for s in carried}
        return builder.finish(outputs | after)

    def _part(self, whole: Program, names: list[str]) -> Program:
        return tidy(replace(whole, outputs=tuple((n, v) for n, v in whole.outputs if n in names)))

    def _ordered(
        self, whole: Program, gradients: dict[str, str], needed: list[State], read: set[str]
    ) -> Program:
        """The whole step with the inputs and states that are left, shaped as `step_program` shapes one."""
        mus = [self.mu[s.name] for s in needed]
        part = self._part(drop_guards(whole), [*map(next_state, mus), *gradients.values()])
        inputs = tuple(v for v in part.inputs if v.name in {*read, *map(before, mus)})
        return check_program(replace(part, name=f"{self.scan.name}.adjoint.step", inputs=inputs))

    def _narrow(self, builder: Builder, cotangent: Value, leaf: str) -> Value:
        """A leaf that lacks axes of the state is broadcast by apply: its cotangent is a sum over them."""
        own = self.scan.element.output(leaf).axes
        over = tuple(a for a in cotangent.var.axes if a not in own and not is_outer(a))
        return builder.sum(cotangent, over) if over else cotangent

    def _narrow_to(self, builder: Builder, cotangent: Value, output: str) -> Value:
        """An output that has axes its value lacks repeats it: the value's cotangent is a sum over them."""
        own = self.scan.readout.output(output).axes
        over = tuple(a for a in cotangent.var.axes if a not in own and not is_outer(a))
        return builder.sum(cotangent, over) if over else cotangent

    def _element(self) -> tuple[Program, Pattern, Callable[[str, str], bool]]:
        """All of J^T and J^T g + p, the closed pattern of J^T, and which of its entries may close."""
        scan = self.scan
        builder = Builder(f"{scan.name}.adjoint.element", scan.axes, where="")
        step = self._step(builder)
        names = [s.name for s in self.floats]
        zero, one = builder.const(0.0, "float"), builder.const(1.0, "float")
        outputs: dict[str, Value] = {}
        edges: dict[str, set[str]] = {n: set() for n in names}
        for j in names:
            row = pull_back(builder, scan.operator.apply, step.apply, {j: one}, names)
            for i in names:
                outputs[_factor(i, j)] = row.get(i, zero)
                if i in row:
                    edges[i].add(j)
        found = self._through_readout(builder, step)
        seeds = {n: found[n] for n in names if n in found}
        through = pull_back(builder, scan.operator.apply, step.apply, seeds, names)
        for i in names:
            outputs[_offset(i)] = _sum(through.get(i), found.get(before(i)), zero)
        selected = {i: _behind_selections(scan.operator.apply, i) for i in names}

        def closes(i: str, j: str) -> bool:
            return j not in edges[i] or j in selected[i]

        return tidy(builder.finish(outputs)), closure(names, edges), closes

    def _leaves(self, element: Program, operator: Operator, needed: list[State], pattern: Pattern) -> Program:
        """The element program with the leaves of the pruned operator."""
        mus = [self.mu[s.name] for s in needed]
        found = dict(element.outputs)
        named: dict[str, str] = {}
        for s in needed:
            i = self.mu[s.name]
            named |= {factor(i, self.mu[j], mus): found[_factor(s.name, j)] for j in pattern[s.name]}
            named[offset(i, mus)] = found[_offset(s.name)]
        return tidy(
            replace(element, outputs=tuple((leaf.name, named[leaf.name]) for leaf in operator.leaves))
        )

    def _reads_mu(self, readout: Program, state: str) -> bool:
        return any(before(self.mu[state]) in reads for reads in readout.dependencies().values())

    def _drop_unneeded(self, readout: Program, needed: list[State]) -> Program:
        kept = {self.mu[s.name] for s in needed}
        gone = {n for mu in self.mu.values() if mu not in kept for n in (mu, before(mu))}
        return replace(readout, inputs=tuple(v for v in readout.inputs if v.name not in gone))


@dataclass(frozen=True, slots=True)
class _Step:
    """The values of every variable of the primal step."""

    given: dict[str, Value]
    element: dict[str, Value]
    apply: dict[str, Value]
    readout: dict[str, Value]


def _behind_selections(program: Program, start: str) -> set[str]:
    """The outputs that a float input reaches through a selection, on some way."""
    reached, behind = {start}, set[str]()
    for line in program.lines:
        through = reached.intersection(line.args) if line.var.kind == "float" else set()
        if through:
            reached.add(line.var.name)
            row = TABLE.get(line.op)
            if through & behind or (row is not None and row.gate is not None):
                behind.add(line.var.name)
    return {output for output, variable in program.outputs if variable in behind}


def _factor(i: str, j: str) -> str:
    """How the unpruned element program names J_ji, the factor of mu_j in mu_i."""
    return f"{i}<-{j}"


def _offset(i: str) -> str:
    return f"{i}<-"


def _sum(*terms: Value | None) -> Value:
    """The sum of the terms that are there; a last constant 0 counts only when it is alone."""
    present: Iterable[Value] = [t for t in terms if t is not None]
    real = [t for t in present if t.number is None or t.number != 0]
    total = (real or list(present))[0]
    for term in (real or list(present))[1:]:
        total = total + term
    return total
