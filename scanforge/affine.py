"""The k-by-k affine operator x_i = sum_j a_ij x_j + b_i, with the zeros of a pattern left out.

It is the operator of every adjoint. Its laws are proved once in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def affine_operator(name: str, states: Sequence[State], pattern: Pattern) -> Operator:
    """The affine operator whose matrix has the entries of a closed pattern."""
    names = [s.name for s in states]
    leaves = []
    for i in names:
        leaves += [Leaf(factor(i, j, names), "float", 1.0 if i == j else 0.0) for j in pattern[i]]
        leaves.append(Leaf(offset(i, names), "float", 0.0))
    return Operator(
        name,
        tuple(leaves),
        tuple(states),
        _combine(name, leaves, names, pattern),
        _apply(name, leaves, names, pattern),
    )


def _apply(name: str, leaves: Sequence[Leaf], names: Sequence[str], pattern: Pattern) -> Program:
    builder = Builder(f"{name}.apply", where="")
    e = {leaf.name: builder.input(leaf.name, "float") for leaf in leaves}
    x = {i: builder.input(i, "float") for i in names}
    return check_program(
        builder.finish(
            {
                i: _total([e[factor(i, j, names)] * x[j] for j in pattern[i]]) + e[offset(i, names)]
                for i in names
            }
        )
    )


def _combine(name: str, leaves: Sequence[Leaf], names: Sequence[str], pattern: Pattern) -> Program:
    builder = Builder(f"{name}.combine", where="")
    first = {leaf.name: builder.input(f"earlier_{leaf.name}", "float") for leaf in leaves}
    later = {leaf.name: builder.input(f"later_{leaf.name}", "float") for leaf in leaves}
    made: dict[str, Value] = {}
    for i in names:
        for j in pattern[i]:
            via = [k for k in pattern[i] if j in pattern[k]]
            made[factor(i, j, names)] = _total(
                [later[factor(i, k, names)] * first[factor(k, j, names)] for k in via]
            )
        moved = _total([later[factor(i, k, names)] * first[offset(k, names)] for k in pattern[i]])
        made[offset(i, names)] = moved + later[offset(i, names)]
    return check_program(builder.finish({leaf.name: made[leaf.name] for leaf in leaves}))


def _total(terms: list[Value]) -> Value:
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result
