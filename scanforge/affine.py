"""The k-by-k affine operator x_i = sum_j a_ij x_j + b_i, with the zeros of a pattern left out.

It is the operator of every adjoint. Its laws are proved once in the tests. An entry that a selection of the
primal may close multiplies as a gate: where it is 0, nothing comes through, not even NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program
from scanforge.ir.program import Program
from scanforge.ir.scan import Leaf, Operator, State
from scanforge.ir.value import Value

Pattern = Mapping[str, tuple[str, ...]]  # state -> the states that it reads


def closure(states: Sequence[str], edges: Mapping[str, set[str]]) -> dict[str, tuple[str, ...]]:
    """The reflexive, transitive closure of a pattern: what products of such matrices can fill."""
    reach = {i: {i} | edges.get(i, set()) for i in states}
    for via in states:
        for i in states:
            if via in reach[i]:
                reach[i] |= reach[via]
    return {i: tuple(j for j in states if j in reach[i]) for i in states}


def factor(i: str, j: str, states: Sequence[str]) -> str:
    """The name of the leaf a_ij."""
    return "a" if len(states) == 1 else f"a_{i}_{j}"


def offset(i: str, states: Sequence[str]) -> str:
    """The name of the leaf b_i."""
    return "b" if len(states) == 1 else f"b_{i}"


@dataclass(frozen=True, slots=True)
class _Matrix:
    """The states in order, the entries that are there, and those of them that are gates."""

    names: list[str]
    pattern: Pattern
    gates: Set[tuple[str, str]]

    def times(self, i: str, k: str, leaf: Value, x: Value) -> Value:
        """a_ik x, with a_ik in `leaf`."""
        return leaf.call("gated", x) if (i, k) in self.gates else leaf * x


def affine_operator(
    name: str, states: Sequence[State], pattern: Pattern, gates: Set[tuple[str, str]] = frozenset()
) -> Operator:
    """The affine operator whose matrix has the entries of a closed pattern; (i, j) in `gates` are gates."""
    names = [s.name for s in states]
    leaves = []
    for i in names:
        leaves += [Leaf(factor(i, j, names), "float", 1.0 if i == j else 0.0) for j in pattern[i]]
        leaves.append(Leaf(offset(i, names), "float", 0.0))
    return Operator(
        name,
        tuple(leaves),
        tuple(states),
        _combine(name, leaves, _Matrix(names, pattern, gates)),
        _apply(name, leaves, _Matrix(names, pattern, gates)),
    )


def _apply(name: str, leaves: Sequence[Leaf], m: _Matrix) -> Program:
    builder = Builder(f"{name}.apply", where="")
    e = {leaf.name: builder.input(leaf.name, "float") for leaf in leaves}
    x = {i: builder.input(i, "float") for i in m.names}
    made = {}
    for i in m.names:
        terms = [m.times(i, j, e[factor(i, j, m.names)], x[j]) for j in m.pattern[i]]
        made[i] = _total(terms) + e[offset(i, m.names)]
    return check_program(builder.finish(made))


def _combine(name: str, leaves: Sequence[Leaf], m: _Matrix) -> Program:
    builder = Builder(f"{name}.combine", where="")
    first = {leaf.name: builder.input(f"earlier_{leaf.name}", "float") for leaf in leaves}
    later = {leaf.name: builder.input(f"later_{leaf.name}", "float") for leaf in leaves}
    made: dict[str, Value] = {}

    def moved(i: str, k: str, leaf: str) -> Value:
        return m.times(i, k, later[factor(i, k, m.names)], first[leaf])

    for i in m.names:
        for j in m.pattern[i]:
            via = [k for k in m.pattern[i] if j in m.pattern[k]]
            made[factor(i, j, m.names)] = _total([moved(i, k, factor(k, j, m.names)) for k in via])
        total = _total([moved(i, k, offset(k, m.names)) for k in m.pattern[i]])
        made[offset(i, m.names)] = total + later[offset(i, m.names)]
    return check_program(builder.finish({leaf.name: made[leaf.name] for leaf in leaves}))


def _total(terms: list[Value]) -> Value:
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result
