"""Scan -> Facts: what the structure of a recurrence says about its backward pass and its rounding."""

from __future__ import annotations

from dataclasses import dataclass

from scanforge.adjoint import full_adjoint
from scanforge.ir.program import Program
from scanforge.ir.scan import Scan

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
        return [kind, order, f"the state before the step is {read}, {where}"]


def facts(scan: Scan) -> Facts:
    """Derived from the adjoint for all gradients."""
    derived = full_adjoint(scan)
    states_before = {name for _, name in derived.states_before}
    states = {mu: state for state, mu in derived.initial}
    element = derived.scan.element.dependencies()
    gradients = derived.scan.readout.dependencies()
    factors = {n: reads for n, reads in element.items() if n.startswith("a")}
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
    )


def _selects(program: Program) -> bool:
    return all(line.op in _SELECTING for line in program.lines if line.op != "const")


def _reads(program: Program, output: str, name: str) -> bool:
    return name in program.dependencies()[output]
