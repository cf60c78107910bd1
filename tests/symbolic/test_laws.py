"""Broken operators: a whole sentence, with a counter-example that is one; when the check runs."""

from __future__ import annotations

import math
import time
from fractions import Fraction

import pytest
import torch

import scanforge as sf
from scanforge import laws
from scanforge.ir.scan import load_operator
from scanforge.trace import Signature, trace
from tests.broken import Half
from tests.subprocesses import ROOT, run_python

INF = math.inf


def text(operator, **complex_parts) -> str:
    count = len(operator.__scanforge__.leaves)
    signature = Signature(("t", "b", "d"), (("b", "t", "d"),) * count, **complex_parts)
    return trace(operator, signature).operators[0]


def results(operator, **complex_parts) -> dict[str, str]:
    return {r.law: str(r) for r in laws.check_laws(text(operator, **complex_parts))}


def error(operator) -> sf.LawError:
    with pytest.raises(sf.LawError) as caught:
        laws.ensure(text(operator))
    return caught.value


def affine(combine=None, a_identity: float = 1.0, b_identity: float = 0.0):
    """The affine operator, with one part exchanged."""
    compose = combine or (lambda e, l: (l.a * e.a, l.a * e.b + l.b))

    class Broken(sf.Operator):
        a = sf.Element(identity=a_identity)
        b = sf.Element(identity=b_identity)
        h = sf.State()

        def combine(self, later):
            a, b = compose(self, later)
            return Broken(a=a, b=b)

        def apply(self, h):
            return self.a * h + self.b

    return Broken


class Naive(sf.Operator):
    """Log-sum-exp without care for -inf: the identity on the initial state is NaN."""

    m = sf.Element(identity=-INF)
    s = sf.Element(identity=0.0, domain="nonnegative")
    top, total = sf.State(initial=-INF), sf.State()

    def combine(self, later):
        m, s = later.apply(self.m, self.s)
        return Naive(m=m, s=s)

    def apply(self, top, total):
        m = sf.maximum(self.m, top)
        return m, self.s * sf.exp(self.m - m) + total * sf.exp(top - m)


class Fading(sf.Operator):
    """A peak that may close entirely: then 0 times the identity's -inf is NaN, though no step is."""

    a = sf.Element(identity=1.0, domain="nonnegative")
    u = sf.Element(identity=-INF)
    x = sf.State()

    def combine(self, later):
        return Fading(a=later.a * self.a, u=sf.maximum(later.a * self.u, later.u))

    def apply(self, x):
        return sf.maximum(self.a * x, self.u)


class Overflow(sf.Operator):
    """0 * exp(1000) is 0 in forty digits and NaN in float64."""

    s = sf.Element(identity=0.0)
    top, total = sf.State(initial=1000.0), sf.State()

    def combine(self, later):
        return Overflow(s=self.s + later.s)

    def apply(self, top, total):
        return top, total + self.s * sf.exp(top)


class Ties(sf.Operator):
    """Wrong only where two values are equal."""

    value = sf.Element(identity=-INF)
    index = sf.Element(identity=-1, kind="int")
    top, at = sf.State(initial=-INF), sf.State(initial=-1, kind="int")

    def combine(self, later):
        wins = later.value >= self.value
        return Ties(
            value=sf.where(wins, later.value, self.value), index=sf.where(wins, later.index, self.index)
        )

    def apply(self, top, at):
        wins = self.value > top
        return sf.where(wins, self.value, top), sf.where(wins, self.index, at)


class Rotated(sf.Operator):
    """A machine whose combine forgets one of two entries."""

    low = sf.Element(identity=False, kind="bool")
    high = sf.Element(identity=True, kind="bool")
    on = sf.State(initial=False, kind="bool")

    def combine(self, later):
        return Rotated(low=later.apply(self.low), high=later.high)

    def apply(self, on):
        return sf.where(on, self.high, self.low)


SWAPPED = affine(lambda e, l: (l.a * e.a, e.a * l.b + e.b))
PROJECTION = affine(lambda e, l: (l.a, l.b))  # associative, and not the action
MODULUS = affine(lambda e, l: (abs(l.a * e.a), l.a * e.b + l.b))  # right for positive gates
WRONG_IDENTITY = affine(a_identity=0.0)
WRONG_SUMMAND = affine(b_identity=1.0)

BROKEN = {
    "half": (Half, "associativity"),
    "swapped": (SWAPPED, "action"),
    "projection": (PROJECTION, "action"),
    "modulus": (MODULUS, "associativity"),
    "wrong identity": (WRONG_IDENTITY, "identity"),
    "wrong summand": (WRONG_SUMMAND, "identity"),
    "naive log-sum-exp": (Naive, "identity"),
    "overflow": (Overflow, "identity"),
    "ties": (Ties, "action"),
    "rotated": (Rotated, "associativity"),
}
broken = pytest.mark.parametrize(("operator", "law"), BROKEN.values(), ids=list(BROKEN))


def number(shown: str) -> Fraction:
    return Fraction(shown)


class TestBrokenOperators:
    @broken
    def test_the_error_is_filled_and_reads_as_sentences(self, operator, law):
        found = error(operator)
        assert (found.law, found.operator) == (law, operator.__name__)
        assert found.sample
        assert found.left.keys() == found.right.keys() == {s.name for s in operator.__scanforge__.states}
        assert found.left != found.right
        message = str(found)
        assert message.startswith(f"{operator.__name__} breaks the law of {law}: ")
        assert message.endswith("the identities; sf.set_law_check(False) switches this check off.")
        for shown in (found.sample, found.left, found.right):
            for name, value in shown.items():
                assert f"{name} = {value}" in message

    @broken
    def test_scan_raises_before_anything_runs(self, operator, law):
        kinds = {"float": torch.float32, "int": torch.int64, "bool": torch.bool}
        leaves = operator.__scanforge__.leaves
        tensors = {leaf.name: torch.ones(1, 3, 1, dtype=kinds[leaf.kind]) for leaf in leaves}
        before = sf.last_run()
        with pytest.raises(sf.LawError, match=law):
            sf.scan(operator, **tensors)
        assert sf.last_run() is before

    def test_a_law_error_is_a_value_error(self):
        assert issubclass(sf.LawError, ValueError)
        assert issubclass(sf.LawError, sf.ScanforgeError)

    def test_req03_a_combine_that_is_not_associative(self):
        """The error names the operator, three sample elements and both results, which differ as it says."""
        ones = torch.ones(1, 4, 1)
        with pytest.raises(sf.LawError, match="Half") as caught:
            sf.scan(Half, x=ones)
        found = caught.value
        assert found.law == "associativity"
        assert set(found.sample) == {"a.x", "b.x", "c.x", "h"}
        a, b, c, h = (number(found.sample[n]) for n in ("a.x", "b.x", "c.x", "h"))
        half = Fraction(1, 2)
        assert number(found.left["h"]) == half * h + (half * (half * a + b) + c)
        assert number(found.right["h"]) == half * h + (half * a + (half * b + c))
        assert "Also broken: action" in str(found)

    def test_req03_a_combine_that_disagrees_with_apply(self):
        found = error(SWAPPED)
        assert "exchange self and later" in str(found)
        s = {n: number(v) for n, v in found.sample.items()}
        composed = s["l.a"] * s["e.a"] * s["h"] + s["e.a"] * s["l.b"] + s["e.b"]
        stepped = s["l.a"] * (s["e.a"] * s["h"] + s["e.b"]) + s["l.b"]
        assert (number(found.left["h"]), number(found.right["h"])) == (composed, stepped)
        assert composed != stepped

    def test_only_swapped_operands_get_the_hint(self):
        for operator in (Half, PROJECTION, MODULUS, WRONG_IDENTITY, Naive):
            assert "exchange" not in str(error(operator))

    def test_the_wrong_identity_is_shown_at_work(self):
        found = error(WRONG_SUMMAND)
        assert number(found.left["h"]) == number(found.sample["h"]) + 1
        assert found.right["h"] == found.sample["h"]

    def test_naive_log_sum_exp_is_nan_at_the_identity(self):
        found = error(Naive)
        assert found.sample["top"] == "-inf"
        assert "nan" in found.left["total"].lower()
        assert float(found.right["total"]) == 0.0
        assert "nan" in error(Overflow).left["total"]

    def test_an_identity_that_meets_a_closed_gate_is_nan(self):
        """What runs steps does not see it; what composes padded steps would hand NaN out."""
        caught = error(Fading)
        assert caught.law == "two-sided identity"
        assert caught.sample["e.a"] == "0"
        assert "NaN" in caught.left.values()
        assert 'domain="positive"' in str(caught)
        steps = {"a": torch.tensor([[0.5, 0.0]]), "u": torch.ones(1, 2)}
        padding = torch.tensor([[False, True]])
        sf.set_law_check(False)
        try:
            found = [
                sf.scan(Fading, **steps, mask=padding, lowering=low)[0, 1].isnan().item()
                for low in ("loop", "parallel")
            ]
        finally:
            sf.set_law_check(True)
        assert found == [False, True]

    def test_numbers_read_as_numbers(self):
        assert "float64" not in str(error(Overflow))

    def test_an_associative_combine_that_is_not_the_action(self):
        said = results(PROJECTION)
        assert said["associativity"] != "broken"
        assert said["action"] == "broken"

    def test_where_it_is_broken_only_at_ties(self):
        found = error(Ties)
        assert found.sample["e.value"] == found.sample["l.value"]

    def test_the_same_counter_example_in_every_run(self):
        first = str(error(Half))
        laws.check_laws.cache_clear()
        assert str(error(Half)) == first


SWITCHED_OFF = """
import torch, scanforge as sf
class Half(sf.Operator):
    x = sf.Element(identity=0.0)
    h = sf.State()
    def combine(self, later):
        return Half(x=0.5 * self.x + later.x)
    def apply(self, h):
        return 0.5 * h + self.x
try:
    print(sf.scan(Half, x=torch.ones(1, 4)).tolist())
except sf.LawError as error:
    print(error.law)
"""


class TestWhenTheyAreChecked:
    def test_the_switch(self):
        ones = torch.ones(1, 4, 1)
        sf.set_law_check(False)
        try:
            assert sf.scan(Half, x=ones).flatten().tolist() == [1.0, 1.5, 1.75, 1.875]
        finally:
            sf.set_law_check(True)
        with pytest.raises(sf.LawError):
            sf.scan(Half, x=ones)

    @pytest.mark.parametrize(
        ("value", "printed"),
        [("0", "[[1.0, 1.5, 1.75, 1.875]]"), ("1", "associativity"), (None, "associativity")],
    )
    def test_the_environment_variable(self, value, printed, monkeypatch):
        monkeypatch.delenv("SCANFORGE_LAWS", raising=False)
        if value is not None:
            monkeypatch.setenv("SCANFORGE_LAWS", value)
        assert run_python("-c", SWITCHED_OFF, cwd=ROOT).strip() == printed

    def test_each_content_is_checked_once(self, monkeypatch):
        """Two classes of the same text are one operator; another number makes another."""
        searched = []
        original = laws._search
        monkeypatch.setattr(
            laws, "_search", lambda operator, law: searched.append(law.name) or original(operator, law)
        )
        laws.check_laws.cache_clear()

        def declare(scale):
            class Scaled(sf.Operator):
                x = sf.Element(identity=0.0)
                h = sf.State()

                def combine(self, later):
                    return Scaled(x=self.x + later.x)

                def apply(self, h):
                    return h + scale * sf.sin(self.x) - scale * sf.sin(self.x) + self.x

            return Scaled

        ones = torch.ones(1, 2, 1)
        for _ in range(2):
            sf.scan(declare(0.5), x=ones)
            sf.scan(declare(0.5), x=ones, dim=0)
            sf.scan(declare(0.5), x=torch.ones(1, 2, 1, 1), reverse=True)
        assert sorted(searched) == ["action", "associativity", "identity", "two-sided identity"]
        sf.scan(declare(0.25), x=ones)
        assert len(searched) == 8

    @pytest.mark.parametrize(
        "operator", [sf.operators.Affine, sf.operators.MinMax, sf.operators.LogSumExp, Half]
    )
    def test_half_a_second_is_plenty(self, operator):
        import sympy  # noqa: F401 - its import takes longer than the proof

        known = load_operator(text(operator))
        start = time.perf_counter()
        laws._checked(known)  # whatever is kept on disk
        assert time.perf_counter() - start < 0.5
