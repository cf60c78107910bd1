"""How often a method runs, what it may not capture, and that equal operators are one."""

from __future__ import annotations

import numpy
import pytest
import torch

import scanforge as sf
from scanforge import laws, trace
from scanforge.captured import fingerprint
from tests.symbolic.steps import HALF, ONE, QUARTER, Settings, last, operator

rate = 0.5
table = {"rate": 0.5}
settings = Settings(0.5)


def helper(h):
    return rate * h


def read_global(self, h):
    return rate * h + self.b


@pytest.fixture(autouse=True)
def laws_off():
    """The operators of this file are steps, chosen for what they read."""
    sf.set_law_check(False)
    yield
    sf.set_law_check(True)


@pytest.fixture
def traces(monkeypatch) -> list[type]:
    """The classes traced from here on."""
    seen: list[type] = []
    original = trace._trace

    def counted(cls, signature):
        seen.append(cls)
        return original(cls, signature)

    monkeypatch.setattr(trace, "_trace", counted)
    trace._trace_known.cache_clear()
    return seen


class TestHowOftenAMethodRuns:
    def test_an_unchanged_operator_is_traced_once(self, traces):
        cls = operator(lambda self, h: settings.value * helper(h) + table["rate"] * h + self.b)
        for _ in range(3):
            last(cls)
        assert traces == [cls]

    def test_a_number_that_comes_back_is_known(self, traces, monkeypatch):
        cls = operator(read_global)
        for value in (0.5, 0.25, 0.5, 0.25):
            monkeypatch.setitem(globals(), "rate", value)
            last(cls)
        assert len(traces) == 2

    def test_a_number_that_no_method_names_is_not_looked_at(self, traces, monkeypatch):
        cls = operator(lambda self, h: settings.value * h + self.b)
        last(cls)
        monkeypatch.setattr(settings, "unread", 1.0, raising=False)
        last(cls)
        assert traces == [cls]

    @pytest.mark.parametrize("shipped", [getattr(sf.operators, n) for n in sf.operators.__all__])
    def test_shipped_operators_are_comparable(self, shipped):
        assert fingerprint(shipped) is not None
        assert fingerprint(shipped) == fingerprint(shipped)

    def test_an_opaque_object_is_traced_anew_each_time(self, traces):
        numbers = iter([0.5, 0.25])
        cls = operator(lambda self, h: next(numbers) * h + self.b)
        assert (last(cls), last(cls)) == (HALF, QUARTER)
        assert traces == [cls, cls]

    def test_none_of_the_users_code_runs_to_find_out(self):
        class Loud:
            @property
            def value(self):
                raise RuntimeError("ran")

        loud = Loud()
        assert fingerprint(operator(lambda self, h: loud.value * h)) is not None

    def test_a_long_chain_of_objects_ends(self):
        chain: list = []
        for _ in range(2000):
            chain = [chain]
        assert fingerprint(operator(lambda self, h: len(chain) * h)) is None


class TestACapturedTensorIsAnError:
    @pytest.mark.parametrize("make", [torch.tensor, numpy.asarray], ids=["tensor", "array"])
    @pytest.mark.parametrize("value", [0.5, [0.5]], ids=["0-d", "1-d"])
    @pytest.mark.parametrize(
        "use",
        [lambda w, h: w * h, lambda w, h: h * w, lambda w, h: sf.maximum(h, w)],
        ids=["left", "right", "sf"],
    )
    def test_it_shows_the_line_to_write(self, make, value, use):
        w = make(value)
        with pytest.raises(sf.TraceError, match=r"`w = sf\.Element\(identity=\.\.\.\)`.*self\.w.*w=tensor"):
            last(operator(lambda self, h: use(w, h) + self.b))

    def test_a_number_taken_out_of_it_is_read_anew(self):
        w = torch.tensor([0.5])
        cls = operator(lambda self, h: w.item() * h + self.b)
        assert last(cls) == HALF
        w.fill_(0.25)
        assert last(cls) == QUARTER


class TestOneOperatorManyClasses:
    @staticmethod
    def declare():
        class Decay(sf.Operator):
            a = sf.Element(identity=1.0)
            b = sf.Element(identity=0.0)
            h = sf.State()

            def combine(self, later):
                return Decay(a=later.a * self.a, b=later.a * self.b + later.b)

            def apply(self, h):
                return self.a * h + self.b

        return Decay

    def test_twenty_declarations_are_one_text_and_one_law_check(self):
        sf.set_law_check(True)
        laws.check_laws.cache_clear()
        signature = trace.Signature(("t", "b", "d"), (("b", "t", "d"),) * 2)
        classes = [self.declare() for _ in range(20)]
        for cls in classes:
            sf.scan(cls, a=ONE, b=ONE)
        assert len(set(classes)) == 20
        assert len({trace.trace(cls, signature).text for cls in classes}) == 1
        assert laws.check_laws.cache_info().misses == 1
