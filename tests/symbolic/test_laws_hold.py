"""Right operators raise no alarm, and what is decidable is proved."""

from __future__ import annotations

import functools
import itertools
import math
import re
import time

import pytest

import scanforge as sf
from scanforge import laws
from scanforge.affine import affine_operator, closure
from scanforge.ir.scan import State, dump_operator
from scanforge.trace import Signature, trace

INF = math.inf
SHIPPED = [getattr(sf.operators, name) for name in sf.operators.__all__]
FUNCTIONS = ["abs", "sign", "floor", "exp", "log1p", "expm1", "sigmoid", "softplus", "silu", "gelu"]
TOWERS = {
    "exp": lambda h, a: sf.exp(sf.exp(sf.exp(h) + a)),
    "five times exp": lambda h, a: sf.exp(sf.exp(sf.exp(sf.exp(sf.exp(h) + a)))),
    "exp below": lambda h, a: sf.exp(-sf.exp(sf.exp(sf.exp(h)))) + a,
    "sin": lambda h, a: sf.sin(sf.exp(sf.exp(sf.exp(h)))) + a,
    "pow of pow": lambda h, a: ((h**100) ** 100) ** 100 + a,
    "pow to a pow": lambda h, a: (sf.abs(h) + 2.0) ** ((sf.abs(h) + 2.0) ** ((sf.abs(h) + 2.0) ** a)),
    "squares": lambda h, a: functools.reduce(lambda x, _: x * x, range(12), h) + a,
}
FUNCTIONS += ["erf", "tanh", "sin", "cos"]


def text(operator, **complex_parts) -> str:
    count = len(operator.__scanforge__.leaves)
    signature = Signature(("t", "b", "d"), (("b", "t", "d"),) * count, **complex_parts)
    return trace(operator, signature).operators[0]


def results(operator, **complex_parts) -> dict[str, str]:
    return {r.law: str(r) for r in laws.check_laws(text(operator, **complex_parts))}


def tower(step):
    """An operator with this step, and a combine that is not its."""

    class Tower(sf.Operator):
        a = sf.Element(identity=0.0)
        h = sf.State()

        def combine(self, later):
            return Tower(a=self.a + later.a)

        def apply(self, h):
            return step(h, self.a)

    return Tower


class Resettable(sf.Operator):
    """An affine recurrence that starts anew where the flag is set."""

    starts = sf.Element(identity=False, kind="bool")
    a = sf.Element(identity=1.0)
    b = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return Resettable(
            starts=self.starts | later.starts,
            a=sf.where(later.starts, later.a, later.a * self.a),
            b=sf.where(later.starts, later.b, later.a * self.b + later.b),
        )

    def apply(self, h):
        return sf.where(self.starts, self.b, self.a * h + self.b)


class LastBool(sf.Operator):
    """The last flagged value, with a flag of kind bool."""

    flag = sf.Element(identity=False, kind="bool")
    value = sf.Element(identity=0.0)
    last = sf.State()

    def combine(self, later):
        return LastBool(flag=self.flag | later.flag, value=sf.where(later.flag, later.value, self.value))

    def apply(self, last):
        return sf.where(self.flag, self.value, last)


class SoftmaxMean(sf.Operator):
    """Log-sum-exp with a weighted value: attention over the past."""

    m = sf.Element(identity=-INF)
    s = sf.Element(identity=0.0, domain="nonnegative")
    v = sf.Element(identity=0.0)
    top, total, value = sf.State(initial=-INF), sf.State(), sf.State()

    def combine(self, later):
        m, s, v = later.apply(self.m, self.s, self.v)
        return SoftmaxMean(m=m, s=s, v=v)

    def apply(self, top, total, value):
        m = sf.maximum(self.m, top)
        shift = sf.where(m > -INF, m, 0.0)
        new, old = sf.exp(self.m - shift), sf.exp(top - shift)
        return m, self.s * new + total * old, self.v * new + value * old


class Moments(sf.Operator):
    """Count, mean and sum of squares about it, merged as Chan et al. (1979) do."""

    n = sf.Element(identity=0.0, domain="nonnegative")
    mean = sf.Element(identity=0.0)
    squares = sf.Element(identity=0.0, domain="nonnegative")
    count, centre, spread = sf.State(domain="nonnegative"), sf.State(), sf.State()

    def combine(self, later):
        n, mean, squares = later.apply(self.n, self.mean, self.squares)
        return Moments(n=n, mean=mean, squares=squares)

    def apply(self, count, centre, spread):
        total = count + self.n
        share = sf.where(total > 0, self.n / sf.where(total > 0, total, 1.0), 0.0)
        gap = self.mean - centre
        return total, centre + gap * share, spread + self.squares + gap * gap * count * share


class Moebius(sf.Operator):
    """A fraction of two linear forms; it leaves its domain where the denominator is 0."""

    a, b = sf.Element(identity=1.0), sf.Element(identity=0.0)
    c, d = sf.Element(identity=0.0), sf.Element(identity=1.0)
    x = sf.State()

    def combine(self, later):
        return Moebius(
            a=later.a * self.a + later.b * self.c,
            b=later.a * self.b + later.b * self.d,
            c=later.c * self.a + later.d * self.c,
            d=later.c * self.b + later.d * self.d,
        )

    def apply(self, x):
        return (self.a * x + self.b) / (self.c * x + self.d)


class Automaton(sf.Operator):
    """Two states of a machine: where each goes."""

    low = sf.Element(identity=False, kind="bool")
    high = sf.Element(identity=True, kind="bool")
    on = sf.State(initial=False, kind="bool")

    def combine(self, later):
        return Automaton(low=later.apply(self.low), high=later.apply(self.high))

    def apply(self, on):
        return sf.where(on, self.high, self.low)


class Counter(sf.Operator):
    """A whole number that grows."""

    step = sf.Element(identity=0, kind="int")
    count = sf.State(kind="int")

    def combine(self, later):
        return Counter(step=self.step + later.step)

    def apply(self, count):
        return count + self.step


class Product(sf.Operator):
    """A gain in log space that never loses its sign's domain."""

    gain = sf.Element(identity=1.0, domain="positive")
    level = sf.State(initial=1.0)

    def combine(self, later):
        return Product(gain=sf.exp(sf.log(self.gain) + sf.log(later.gain)))

    def apply(self, level):
        return self.gain * level


RIGHT = [Resettable, LastBool, SoftmaxMean, Moebius, Automaton, Counter, Product]
DECIDABLE = {"Affine", "ComplexAffine", "Matrix2x2", "MinMax", "MaxPlus", "Counter"}


def through(name: str, domain: str):
    """The last flagged value, shown through a primitive; the identity's value is inside the domain."""

    class Shown(sf.Operator):
        flag = sf.Element(identity=False, kind="bool")
        value = sf.Element(identity=1.0, domain=domain)
        last = sf.State()

        def combine(self, later):
            return Shown(flag=self.flag | later.flag, value=sf.where(later.flag, later.value, self.value))

        def apply(self, last):
            return sf.where(self.flag, getattr(sf, name)(self.value), last)

    return Shown


class TestRightOperators:
    @pytest.mark.parametrize("operator", [*SHIPPED, *RIGHT], ids=lambda x: x.__name__)
    def test_no_alarm(self, operator):
        laws.ensure(text(operator))
        found = results(operator)
        assert list(found) == ["associativity", "action", "identity", "two-sided identity"]
        for said in found.values():
            assert said == "proved" or re.fullmatch(r"tested on ([5-9]\d|100) samples", said)

    @pytest.mark.parametrize("operator", [*SHIPPED, *RIGHT], ids=lambda x: x.__name__)
    def test_what_is_decidable_is_proved(self, operator):
        assert (set(results(operator).values()) == {"proved"}) == (operator.__name__ in DECIDABLE)

    def test_complex_affine_is_proved_on_pairs(self):
        assert set(results(sf.operators.Affine, complex_leaves=frozenset("ab")).values()) == {"proved"}

    @pytest.mark.parametrize("name", FUNCTIONS)
    def test_every_function(self, name):
        laws.ensure(text(through(name, "nonnegative")))

    @pytest.mark.parametrize("name", ["log", "sqrt", "rsqrt"])
    def test_functions_with_a_domain(self, name):
        laws.ensure(text(through(name, "positive")))

    def test_a_state_that_is_never_negative(self):
        laws.ensure(text(Moments))

    def test_a_branch_that_is_not_taken_may_divide_by_zero(self):
        class Inverse(sf.Operator):
            flag = sf.Element(identity=False, kind="bool")
            value = sf.Element(identity=0.0)
            last = sf.State()

            def combine(self, later):
                return Inverse(
                    flag=self.flag | later.flag, value=sf.where(later.flag, later.value, self.value)
                )

            def apply(self, last):
                return sf.where(self.flag, 1.0 / self.value, last)

        laws.ensure(text(Inverse))

    @pytest.mark.parametrize("name", list(TOWERS))
    def test_numbers_that_cannot_be_computed_with_are_left_out(self, name):
        """A tower of exponentials or powers: the other samples are judged, and soon."""
        started = time.perf_counter()
        found = laws.check_laws(text(tower(TOWERS[name])))
        assert time.perf_counter() - started < 5
        action = next(r for r in found if r.law == "action")
        assert action.broken
        assert "domain" in action.hint or action.broken.left != action.broken.right
        assert 10 < next(r for r in found if r.law == "associativity").samples <= 100

    @pytest.mark.parametrize("states", [1, 2, 3])
    def test_the_affine_operator_of_every_closed_pattern(self, states):
        """Every adjoint's operator, proved once: 1, 4 and 29 patterns (the preorders of so many points)."""
        names = [f"m{i}" for i in range(states)]
        pairs = list(itertools.permutations(names, 2))
        patterns = set()
        for chosen in itertools.product([False, True], repeat=len(pairs)):
            edges = {n: {j for (i, j), on in zip(pairs, chosen, strict=True) if on and i == n} for n in names}
            patterns.add(tuple(closure(names, edges).items()))
        assert len(patterns) == {1: 1, 2: 4, 3: 29}[states]
        for pattern in patterns:
            operator = affine_operator("k", [State(n, "float", (), 0.0) for n in names], dict(pattern))
            assert len(operator.leaves) == states + sum(len(row) for _, row in pattern)
            assert all(r.proved for r in laws.check_laws(dump_operator(operator)))
