"""The laws of an operator: proved where they are decidable, else searched for a counter-example.

    action            e.combine(l).apply(x) = l.apply(e.apply(x))
    associativity     a.combine(b).combine(c) and a.combine(b.combine(c)) act alike on every state
    identity          identity.apply(x) = x
    two-sided         identity.combine(e) and e.combine(identity) act as e does

The first and third imply the others. Leaves that no state feels may differ.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scanforge.cache import keep, recall
from scanforge.errors import LawError
from scanforge.ir.interpret import Domain, interpret
from scanforge.ir.lattice import Lattices, Undecidable
from scanforge.ir.scan import Operator, load_operator
from scanforge.sampling import Numbers, Sampler, numbers_for

Values = dict[str, Any]
SAMPLES = 100


@dataclass(frozen=True, slots=True)
class Broken:
    """A counter-example."""

    sample: dict[str, str]
    left: dict[str, str]
    right: dict[str, str]


@dataclass(frozen=True, slots=True)
class LawResult:
    """What is known of one law: proved, tested on n samples, or broken."""

    law: str
    proved: bool = False
    samples: int = 0
    broken: Broken | None = None
    hint: str = ""

    def __str__(self) -> str:
        if self.broken:
            return "broken"
        return "proved" if self.proved else f"tested on {self.samples} samples"


@dataclass(frozen=True, slots=True)
class Law:
    """An equation between two ways to reach states, from elements and states by name."""

    name: str
    equation: str
    elements: tuple[str, ...]
    sides: Callable[[Meaning, Mapping[str, Values], Values], tuple[Values, Values]]
    ways: tuple[str, str]  # what gives them, for people


class Meaning:
    """combine and apply of an operator in some domain of numbers."""

    def __init__(self, operator: Operator, domain: Domain) -> None:
        self.operator, self.domain = operator, domain

    def combine(self, earlier: Values, later: Values) -> Values:
        """The composed element."""
        named = {f"earlier_{n}": v for n, v in earlier.items()} | {f"later_{n}": v for n, v in later.items()}
        return interpret(self.operator.combine, named, self.domain)

    def apply(self, element: Values, states: Values) -> Values:
        """The states after the step."""
        return interpret(self.operator.apply, element | states, self.domain)

    def identity(self) -> Values:
        """The declared identity element."""
        return {leaf.name: self.domain.const(leaf.identity, leaf.kind) for leaf in self.operator.leaves}

    def initial(self) -> Values:
        """The declared initial states."""
        return {s.name: self.domain.const(s.initial, s.kind) for s in self.operator.states}


def _associativity(m: Meaning, e: Mapping[str, Values], x: Values) -> tuple[Values, Values]:
    left = m.combine(m.combine(e["a"], e["b"]), e["c"])
    return m.apply(left, x), m.apply(m.combine(e["a"], m.combine(e["b"], e["c"])), x)


def _two_sided(m: Meaning, e: Mapping[str, Values], x: Values) -> tuple[Values, Values]:
    first, last = m.combine(m.identity(), e["e"]), m.combine(e["e"], m.identity())
    alone = m.apply(e["e"], x)
    both: Values = {}
    for side, made in (("first", m.apply(first, x)), ("last", m.apply(last, x))):
        both |= {f"{n} with identity {side}": v for n, v in made.items()}
    return both, {f"{n} with identity {side}": v for side in ("first", "last") for n, v in alone.items()}


def _action(m: Meaning, e: Mapping[str, Values], x: Values) -> tuple[Values, Values]:
    return m.apply(m.combine(e["e"], e["l"]), x), m.apply(e["l"], m.apply(e["e"], x))


def _action_swapped(m: Meaning, e: Mapping[str, Values], x: Values) -> tuple[Values, Values]:
    return m.apply(m.combine(e["l"], e["e"]), x), m.apply(e["l"], m.apply(e["e"], x))


def _identity(m: Meaning, e: Mapping[str, Values], x: Values) -> tuple[Values, Values]:
    return m.apply(m.identity(), x), x


_ASSOCIATIVITY = "a.combine(b).combine(c) must act as a.combine(b.combine(c)) on every state"
_ACTION = "e.combine(l).apply(x) must equal l.apply(e.apply(x)): `self` acts first, `later` second"
_BRACKETS = ("a.combine(b).combine(c) gives", "a.combine(b.combine(c)) gives")
_TWO_SIDED = "e before or after the identity must act as e alone"
_ALONE = ("with the identity e gives", "alone it gives")
LAWS = (
    Law("associativity", _ASSOCIATIVITY, ("a", "b", "c"), _associativity, _BRACKETS),
    Law("action", _ACTION, ("e", "l"), _action, ("e.combine(l) gives", "l after e gives")),
    Law("identity", "the identity element must leave every state as it is", (), _identity,
        ("the identity gives", "and should leave")),
    Law("two-sided identity", _TWO_SIDED, ("e",), _two_sided, _ALONE),
)  # fmt: skip
_NAN = (
    "The identity fills padding and chunks, and its infinity turned NaN, as in 0 times infinity: select with "
    'sf.where, or exclude the 0 with domain="positive".'
)
_SWAPPED = Law("action, operands swapped", _ACTION, ("e", "l"), _action_swapped, ("", ""))


class _Switch:
    on = os.environ.get("SCANFORGE_LAWS", "1") != "0"


def set_law_check(on: bool) -> None:
    """Switch the check of laws at an operator's first use on or off, for this process.

    The environment variable SCANFORGE_LAWS=0 does the same from outside.
    """
    _Switch.on = bool(on)


def law_check() -> bool:
    """Whether laws are checked at an operator's first use."""
    return _Switch.on


def ensure(text: str) -> None:
    """Raise LawError if the operator of this text breaks a law. Each content is checked once, ever."""
    if _Switch.on:
        results = check_laws(text)
        broken = next((r for r in results if r.broken), None)
        if broken is not None:
            raise _error(load_operator(text), broken, results)


@lru_cache(maxsize=1024)
def check_laws(text: str) -> tuple[LawResult, ...]:
    """What is known of each law of the operator of this text; kept on disk where none is broken."""
    kept = recall("laws", text)
    if kept is not None:
        return tuple(LawResult(law, proved, samples) for law, proved, samples in kept)
    results = _checked(load_operator(text))
    if not any(r.broken for r in results):
        keep("laws", text, [(r.law, r.proved, r.samples) for r in results])
    return results


def _checked(operator: Operator) -> tuple[LawResult, ...]:
    proved = {law.name for law in LAWS if law.name in {"action", "identity"} and _prove(operator, law)}
    if proved == {"action", "identity"}:
        proved = {law.name for law in LAWS}
    elif "action" in proved:
        proved.add("associativity")
    return tuple(
        LawResult(law.name, proved=True) if law.name in proved else _search(operator, law) for law in LAWS
    )


def _prove(operator: Operator, law: Law) -> bool:
    """Whether both sides have the same canonical form."""
    leaves, states = [x.name for x in operator.leaves], [x.name for x in operator.states]
    names = [f"{e}_{leaf}" for e in law.elements for leaf in leaves] + [f"x_{s}" for s in states]
    domain = Lattices(names)
    elements = {e: {leaf: domain.symbols[f"{e}_{leaf}"] for leaf in leaves} for e in law.elements}
    try:
        left, right = law.sides(
            Meaning(operator, domain), elements, {s: domain.symbols[f"x_{s}"] for s in states}
        )
    except Undecidable:
        return False
    return left == right


def _search(operator: Operator, law: Law) -> LawResult:
    """Seeded samples; the simplest counter-example found is reported."""
    numbers = numbers_for(operator, with_identity="identity" in law.name)
    sampler, tried, worst = Sampler(operator, numbers), 0, None
    for elements, states in sampler.draws(law.elements, SAMPLES, initial="identity" in law.name):
        found = _compare(operator, law, numbers, elements, states)
        tried += found is not None
        if found and (worst is None or found[1] < worst[1]):
            worst = found
    if "identity" in law.name and worst is None:
        worst = _nan_at_identity(operator)
    if worst is not None:
        swapped = law.name == "action" and not _search(operator, _SWAPPED).broken
        hint = "It holds with the operands of combine swapped: exchange self and later." if swapped else ""
        if "NaN" in worst[0].left.values():
            hint = _NAN
        return LawResult(law.name, broken=worst[0], hint=hint)
    if not tried:
        outside = Broken({}, {}, {})
        return LawResult(
            law.name,
            broken=outside,
            hint="No sample lies in the operator's domain: declare domain= on its elements.",
        )
    return LawResult(law.name, samples=tried)


def _compare(
    operator: Operator, law: Law, numbers: Numbers, elements: dict[str, Values], states: Values
) -> tuple[Broken, float] | tuple[()] | None:
    """A counter-example with its complexity, () where both sides agree, None outside the domain."""
    try:
        left, right = law.sides(Meaning(operator, numbers.domain), elements, states)
        if not all(numbers.is_number(v) for v in (*left.values(), *right.values())):
            undefined = numbers.finite(states) and "identity" not in law.name
            if undefined or not all(map(numbers.is_number, right.values())):
                return None
        elif all(numbers.equal(left[n], right[n]) for n in right):
            return ()
    except (ZeroDivisionError, ValueError, OverflowError):
        return None
    shown = {f"{e}.{n}": numbers.show(v) for e, leaves in elements.items() for n, v in leaves.items()}
    shown |= {n: numbers.show(v) for n, v in states.items()}
    size = float(sum(len(v) for v in shown.values()))
    return Broken(shown, numbers.show_all(left), numbers.show_all(right)), size


def _nan_at_identity(operator: Operator) -> tuple[Broken, float] | None:
    """float64 has no 40 digits: there the identity on the initial state must at least not be NaN."""
    from scanforge.sampling import Float64

    meaning = Meaning(operator, Float64())
    for element in (meaning.identity(), meaning.combine(meaning.identity(), meaning.identity())):
        after = meaning.apply(element, meaning.initial())
        if any(v != v for v in after.values()):
            sample = {f"identity.{n}": repr(float(v)) for n, v in element.items()}
            sample |= {n: repr(float(v)) for n, v in meaning.initial().items()}
            return Broken(
                sample,
                {n: repr(float(v)) for n, v in after.items()},
                {n: repr(float(v)) for n, v in meaning.initial().items()},
            ), 0.0
    return None


def _error(operator: Operator, result: LawResult, results: tuple[LawResult, ...]) -> LawError:
    broken = result.broken
    assert broken is not None
    law = next(x for x in LAWS if x.name == result.law)
    others = [r.law for r in results if r.broken and r is not result]
    message = f"{operator.name} breaks the law of {law.name}: {law.equation}."
    if broken.sample:
        message += (
            f" For {_pairs(broken.sample)} the left side gives {_pairs(broken.left)} and the right side "
            f"{_pairs(broken.right)}."
        )
    if others:
        message += f" Also broken: {', '.join(others)}."
    message += f" {result.hint}" if result.hint else ""
    message += " Correct combine, apply or the identities; sf.set_law_check(False) switches this check off."
    return LawError(
        message,
        law=law.name,
        operator=operator.name,
        sample=broken.sample,
        left=broken.left,
        right=broken.right,
    )


def counter_example(result: LawResult) -> str:
    """What breaks a law, and what both of its sides make of it."""
    broken = result.broken
    assert broken is not None
    ways = next(x.ways for x in LAWS if x.name == result.law)
    left, right = (f"{way} {_pairs(x)}" for way, x in zip(ways, (broken.left, broken.right), strict=True))
    return f"broken for {_pairs(broken.sample)}: {left}, {right}. {result.hint}".rstrip()


def _pairs(values: Mapping[str, str]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in values.items())
