"""A domain in which equality is decidable: maxima of minima of polynomials, in canonical form.

A number is a set of sets of polynomials with rational coefficients, read as the maximum of minima.
Sums distribute over both, products and powers take single polynomials. What is equal in this form
is equal for all real arguments; what differs may still be equal. Infinities are atoms of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from math import comb, prod
from typing import Any

from scanforge.ir.program import Number

Atom = Any  # a sparse polynomial of SymPy's ring, or the strings below
Lattice = frozenset[frozenset[Atom]]
TOP, BOTTOM = "+inf", "-inf"
LIMIT = 128  # of atoms: beyond this a search is cheaper than a proof
TERMS = 50_000  # of a product, before equal ones are collected


class Undecidable(Exception):
    """The program leaves the domain."""


class Lattices:
    """The domain, over polynomials in these symbols."""

    def __init__(self, symbols: Iterable[str]) -> None:
        from sympy.polys.domains import QQ
        from sympy.polys.rings import ring

        names = list(symbols)
        self.ring, *generators = ring(names, QQ)
        self.symbols: dict[str, Lattice] = {n: _single(g) for n, g in zip(names, generators, strict=True)}

    def const(self, number: Number, kind: str) -> Lattice:
        """A number; infinities are atoms."""
        if kind == "bool" or number != number:
            raise Undecidable
        if number in (float("inf"), float("-inf")):
            return _single(TOP if number > 0 else BOTTOM)
        top, bottom = float(number).as_integer_ratio()
        return _single(self.ring(self.ring.domain(top, bottom)))

    def call(self, op: str, *args: Lattice) -> Lattice:
        """A primitive; Undecidable for those that leave the domain."""
        rule: Callable[..., Lattice] | None = _RULES.get(op)
        if rule is None:
            raise Undecidable
        return rule(*args)


def _single(atom: Atom) -> Lattice:
    return frozenset([frozenset([atom])])


def _only(x: Lattice) -> Atom:
    """The polynomial of a lattice that is one."""
    if len(x) == 1 and len(term := next(iter(x))) == 1 and not isinstance(atom := next(iter(term)), str):
        return atom
    raise Undecidable


def _canonical(terms: Iterable[Iterable[Atom]]) -> Lattice:
    """Infinities absorbed, and no minimum that another one of fewer atoms makes redundant."""
    clean = {_minimum_of(frozenset(term)) for term in terms}
    if frozenset([TOP]) in clean:
        return _single(TOP)
    clean = clean - {frozenset([BOTTOM])} or {frozenset([BOTTOM])}
    if sum(map(len, clean)) > LIMIT:
        raise Undecidable
    return frozenset(t for t in clean if not any(other < t for other in clean))


def _minimum_of(term: frozenset[Atom]) -> frozenset[Atom]:
    if BOTTOM in term:
        return frozenset([BOTTOM])
    return term - {TOP} or frozenset([TOP])


def _maximum(a: Lattice, b: Lattice) -> Lattice:
    return _canonical([*a, *b])


def _minimum(a: Lattice, b: Lattice) -> Lattice:
    return _canonical(x | y for x, y in product(a, b))


def _atoms(a: Atom, b: Atom) -> Atom:
    """The sum of two atoms."""
    ends = {x for x in (a, b) if isinstance(x, str)}
    if len(ends) > 1:
        raise Undecidable
    return ends.pop() if ends else a + b


def _add(a: Lattice, b: Lattice) -> Lattice:
    return _canonical([_atoms(p, q) for p, q in product(x, y)] for x, y in product(a, b))


def _neg(a: Lattice) -> Lattice:
    """The negative of a maximum of minima is a minimum of maxima, distributed."""
    flipped = [[{TOP: BOTTOM, BOTTOM: TOP}[p] if isinstance(p, str) else -p for p in term] for term in a]
    if prod(map(len, flipped)) > LIMIT:
        raise Undecidable
    return _canonical(product(*flipped))


def _mul(a: Lattice, b: Lattice) -> Lattice:
    for scale, other in ((a, b), (b, a)):
        if len(other) > 1 or len(next(iter(other))) > 1:
            factor = _only(scale)
            if not factor.is_ground or factor == 0:
                raise Undecidable
            size = abs(factor.LC)
            scaled = _canonical([[_scaled(p, size) for p in term] for term in other])
            return scaled if factor.LC > 0 else _neg(scaled)
    left, right = _only(a), _only(b)
    if len(left) * len(right) > TERMS:
        raise Undecidable
    return _single(left * right)


def _scaled(atom: Atom, factor: Any) -> Atom:
    return atom if isinstance(atom, str) else atom * factor


def _div(a: Lattice, b: Lattice) -> Lattice:
    divisor = _only(b)
    if not divisor.is_ground or divisor == 0:
        raise Undecidable
    return _mul(a, _single(divisor.ring(1 / divisor.LC)))


def _pow(a: Lattice, b: Lattice) -> Lattice:
    power = _only(b)
    exponent = power.LC if power.is_ground else -1
    if exponent.denominator != 1 or not 0 <= exponent <= 8:
        raise Undecidable
    base = _only(a)
    if comb(len(base) + int(exponent), int(exponent)) > TERMS:
        raise Undecidable
    return _single(base ** int(exponent))


_RULES: dict[str, Callable[..., Lattice]] = {
    "add": _add,
    "sub": lambda a, b: _add(a, _neg(b)),
    "neg": _neg,
    "mul": _mul,
    "gated": _mul,  # of finite numbers it is a product
    "div": _div,
    "pow": _pow,
    "minimum": _minimum,
    "maximum": _maximum,
    "to_float": lambda a: a,
}
