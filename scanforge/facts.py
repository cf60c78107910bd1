"""Scan -> Facts: what the structure of a recurrence says about its backward pass and its rounding."""

from __future__ import annotations

from dataclasses import dataclass

from scanforge.adjoint import full_adjoint
from scanforge.ir.program import Program, Var
from scanforge.ir.scan import TIME, Scan, before, is_outer

_SELECTING = frozenset(
    {"minimum", "maximum", "where", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "not"}
)


@dataclass(frozen=True, slots=True)
class Facts:
    """Tags of a recurrence. `couples` lists, for each state, the states that its Jacobian reads."""

    affine: bool  # in the state: the Jacobian does not depend on it
    selects: bool  # apply and combine only select: bitwise equal in any order
    couples: tuple[tuple[str, tuple[str, ...]], ...]
    state_in_element: bool  # the adjoint's element reads the state before the step
    state_in_gradients: tuple[str, ...]  # the gradients that read it
    state_in_readout: tuple[str, ...] = ()  # the states whose value before the step an output reads
    expanded: tuple[str, ...] = ()  # axes of states that no output over time has
    outer: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = ()  # leaf -> the axes of its factors

    def sentences(self) -> list[str]:
        """The facts for people."""
        kind = "affine in the state" if self.affine else "not affine in the state"
        order = "only selects, so every order of evaluation gives the same bits" if self.selects else "rounds"
        read = (
            f"read by {', '.join(self.state_in_gradients)}"
            if self.state_in_gradients
            else "read by no gradient"
        )
        where = "and by the adjoint's element" if self.state_in_element else "not by the adjoint's element"
        lines = [kind, order, f"the state before the step is {read}, {where}"]
        if self.state_in_readout:
            lines.append(f"an output reads {', '.join(self.state_in_readout)} before the step")
        if self.expanded:
            axes = " ".join(self.expanded)
            lines.append(f"the outputs contract {axes}: the state is expanded along it")
        for leaf, factors in self.outer:
            axes = " and ".join(f"({' '.join(f)})" for f in factors)
            lines.append(f"{leaf} is an outer product of factors over {axes}")
        return lines


def facts(scan: Scan) -> Facts:
    """Derived from the adjoint for all gradients."""
    derived = full_adjoint(scan)
    states_before = {name for _, name in derived.states_before}
    states = {mu: state for state, mu in derived.initial}
    element = derived.scan.element.dependencies()
    gradients = derived.scan.readout.dependencies()
    factors = {n: reads for n, reads in element.items() if n.startswith("a")}
    shown = frozenset().union(*scan.readout.dependencies().values())
    return Facts(
        affine=not any(reads & states_before for reads in factors.values()),
        selects=_selects(scan.operator.apply) and _selects(scan.operator.combine),
        couples=tuple(
            (
                states[s.name],
                tuple(states[x] for x in states if _reads(derived.scan.operator.apply, s.name, x)),
            )
            for s in derived.scan.states
        ),
        state_in_element=any(reads & states_before for reads in element.values()),
        state_in_gradients=tuple(n for n, reads in gradients.items() if reads & states_before),
        state_in_readout=tuple(s.name for s in scan.states if before(s.name) in shown),
        expanded=expanded_axes(scan),
        outer=tuple((leaf, over) for leaf, _ in scan.element.outputs if (over := _outer(scan, leaf))),
    )


def _outer(scan: Scan, leaf: str) -> tuple[tuple[str, ...], ...]:
    """The axes of the factors of a leaf that is a product over disjoint axes; () for any other."""
    found = [
        set(v.axes) - {a for a in v.axes if is_outer(a)}
        for v in _factors(scan.element, dict(scan.element.outputs)[leaf])
    ]
    common = set.intersection(*found)
    groups: list[set[str]] = []
    for own in (f - common for f in found if f - common):
        touched = [g for g in groups if g & own]
        groups = [g for g in groups if not g & own] + [own.union(*touched)]
    return tuple(scan.order(g) for g in groups) if len(groups) > 1 else ()


def _factors(program: Program, variable: str) -> list[Var]:
    """The variables whose product a variable is."""
    line = next((x for x in program.lines if x.var.name == variable and x.op == "mul"), None)
    if line is None:
        return [program.variables()[variable]]
    return [f for a in line.args for f in _factors(program, a)]


def _selects(program: Program) -> bool:
    return all(line.op in _SELECTING for line in program.lines if line.op != "const")


def _reads(program: Program, output: str, name: str) -> bool:
    return name in program.dependencies()[output]


def expanded_axes(scan: Scan) -> tuple[str, ...]:
    """The axes of states that no value read out over time has: the readout contracts them."""
    timed = [o for o in scan.outputs if TIME in o.axes]
    shown = {a for o in timed for a in (*o.axes, *scan.readout.output(o.name).axes)}
    states = {a for s in scan.states for a in s.axes}
    return scan.order(a for a in states if a not in shown and not is_outer(a)) if scan.outputs else ()
