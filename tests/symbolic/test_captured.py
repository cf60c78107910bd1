"""What a method reads besides its arguments: a changed number changes the next result, no other retraces."""

from __future__ import annotations

import dataclasses
import functools
import math
import types

import numpy
import pytest
import torch

import scanforge as sf
from scanforge import laws, trace
from scanforge.captured import fingerprint

ONE = torch.ones(1, 3, 1, dtype=torch.float64)

rate = 0.5
activation = sf.tanh
threshold = math.sqrt
table = {"rate": 0.5}


class Settings:
    """A configuration object, read in every way that a method can read one."""

    scale = 0.5  # of the class

    def __init__(self, value: float) -> None:
        self.value = value
        self.hidden = value
        self.other = value

    def get(self) -> float:
        return self.hidden

    @property
    def shown(self) -> float:
        return self.hidden

    def __call__(self, h):
        return self.hidden * h

    def __getitem__(self, key):
        return self.hidden

    def __float__(self):
        return self.hidden


settings = Settings(0.5)


def operator(step, **attributes):
    """`h <- step(self, h)` and the sum of b; laws do not hold, and are switched off in this file."""

    class Step(sf.Operator):
        b = sf.Element(identity=0.0)
        h = sf.State()

        def combine(self, later):
            return Step(b=self.b + later.b)

        apply = step

    for name, value in attributes.items():
        setattr(Step, name, value)
    return Step


def last(cls) -> float:
    return sf.scan(cls, b=ONE)[0, -1, 0].item()


def thrice(step, h: float = 0.0) -> float:
    for _ in range(3):
        h = step(h)
    return h


HALF, QUARTER = thrice(lambda h: 0.5 * h + 1.0), thrice(lambda h: 0.25 * h + 1.0)


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


def read_global(self, h):
    return rate * h + self.b


def helper(h):
    return rate * h


def outer_helper(h):
    return helper(h)


def the_other_value(h):
    return settings.other * h


def read_module(h):
    from tests.symbolic import captured_numbers

    return captured_numbers.rate * h


class TestAChangedNumberChangesTheResult:
    """Each case: a step, and how to change what it reads from a half to a quarter."""

    def check(self, cls, change) -> None:
        assert last(cls) == HALF
        change()
        assert last(cls) == QUARTER

    def test_closure_float(self):
        factor = 0.5

        def step(self, h):
            return factor * h + self.b

        def change():
            nonlocal factor
            factor = 0.25

        self.check(operator(step), change)

    def test_global(self, monkeypatch):
        self.check(operator(read_global), lambda: monkeypatch.setitem(globals(), "rate", 0.25))

    def test_global_of_a_helper_of_a_helper(self, monkeypatch):
        cls = operator(lambda self, h: outer_helper(h) + self.b)
        self.check(cls, lambda: monkeypatch.setitem(globals(), "rate", 0.25))

    def test_a_replaced_helper(self, monkeypatch):
        cls = operator(lambda self, h: outer_helper(h) + self.b)
        self.check(cls, lambda: monkeypatch.setitem(globals(), "helper", lambda h: 0.25 * h))

    def test_class_attribute(self):
        cls = operator(lambda self, h: self.factor * h + self.b, factor=0.5)
        self.check(cls, lambda: setattr(cls, "factor", 0.25))

    def test_class_attribute_of_a_base(self):
        class Base(sf.Operator):
            factor = 0.5
            b = sf.Element(identity=0.0)
            h = sf.State()

            def combine(self, later):
                return type(self)(b=self.b + later.b)

            def apply(self, h):
                return self.factor * h + self.b

        class Derived(Base):
            def apply(self, h):
                return super().apply(h)

        self.check(Derived, lambda: setattr(Base, "factor", 0.25))

    def test_a_global_read_by_the_method_of_a_base(self, monkeypatch):
        class Base(operator(read_global)):
            pass

        class Derived(Base):
            def combine(self, later):
                return Derived(b=self.b + later.b)

            def apply(self, h):
                return super().apply(h)

        self.check(Derived, lambda: monkeypatch.setitem(globals(), "rate", 0.25))

    def test_a_method_of_the_class(self):
        factor = [0.5]
        cls = operator(lambda self, h: self.decayed(h) + self.b, decayed=lambda self, h: factor[0] * h)
        self.check(cls, lambda: factor.__setitem__(0, 0.25))

    def test_list_in_a_closure(self):
        factors = [0.5]
        self.check(operator(lambda self, h: factors[0] * h + self.b), lambda: factors.__setitem__(0, 0.25))

    def test_nested_containers(self):
        factors = {"deep": [(0.5,)]}
        cls = operator(lambda self, h: factors["deep"][0][0] * h + self.b)
        self.check(cls, lambda: factors["deep"].__setitem__(0, (0.25,)))

    def test_dictionary_global(self, monkeypatch):
        cls = operator(lambda self, h: table["rate"] * h + self.b)
        self.check(cls, lambda: monkeypatch.setitem(table, "rate", 0.25))

    def test_default_argument(self):
        def decayed(h, factor=0.5):
            return factor * h

        cls = operator(lambda self, h: decayed(h) + self.b)
        self.check(cls, lambda: setattr(decayed, "__defaults__", (0.25,)))

    def test_attribute_of_a_function(self):
        def decayed(h):
            return decayed.factor * h

        decayed.factor = 0.5
        cls = operator(lambda self, h: decayed(h) + self.b)
        self.check(cls, lambda: setattr(decayed, "factor", 0.25))

    @pytest.mark.parametrize(
        ("read", "name"),
        [
            (lambda s: s.value, "value"),
            (lambda s: s.get(), "hidden"),
            (lambda s: s.shown, "hidden"),
            (lambda s: s["any"], "hidden"),
            (lambda s: s(1.0), "hidden"),
            (lambda s: float(s), "hidden"),
            (lambda s: getattr(s, "val" + "ue"), "value"),
            (lambda s: vars(s)["value"], "value"),
        ],
        ids=["attribute", "method", "property", "index", "call", "float", "getattr", "vars"],
    )
    def test_configuration_object(self, read, name):
        mine = Settings(0.5)
        self.check(operator(lambda self, h: read(mine) * h + self.b), lambda: setattr(mine, name, 0.25))

    def test_class_attribute_of_a_configuration_object(self, monkeypatch):
        cls = operator(lambda self, h: settings.scale * h + self.b)
        self.check(cls, lambda: monkeypatch.setattr(Settings, "scale", 0.25))

    def test_one_object_read_by_two_functions(self, monkeypatch):
        """Each function reads another attribute of it."""
        monkeypatch.setattr(settings, "value", 1.0)
        cls = operator(lambda self, h: settings.value * the_other_value(h) + self.b)
        self.check(cls, lambda: monkeypatch.setattr(settings, "other", 0.25))

    def test_a_replaced_configuration_object(self, monkeypatch):
        cls = operator(lambda self, h: settings.value * h + self.b)
        self.check(cls, lambda: monkeypatch.setitem(globals(), "settings", Settings(0.25)))

    @pytest.mark.parametrize(
        "make",
        [
            lambda x: types.SimpleNamespace(value=x),
            dataclasses.make_dataclass("Plain", [("value", float)]),
            dataclasses.make_dataclass("Slotted", [("value", float)], slots=True),
        ],
        ids=["namespace", "dataclass", "slots"],
    )
    def test_kinds_of_configuration_object(self, make):
        mine = make(0.5)
        self.check(operator(lambda self, h: mine.value * h + self.b), lambda: setattr(mine, "value", 0.25))

    def test_a_replaced_partial(self):
        decayed = functools.partial(lambda factor, h: factor * h, 0.5)

        def step(self, h):
            return decayed(h) + self.b

        def change():
            nonlocal decayed
            decayed = functools.partial(lambda factor, h: factor * h, 0.25)

        self.check(operator(step), change)

    def test_a_bound_method_of_a_container(self):
        factors = {"rate": 0.5}
        get = factors.get
        self.check(
            operator(lambda self, h: get("rate") * h + self.b), lambda: factors.__setitem__("rate", 0.25)
        )

    def test_a_number_imported_in_the_method(self, monkeypatch):
        from tests.symbolic import captured_numbers

        cls = operator(lambda self, h: read_module(h) + self.b)
        self.check(cls, lambda: monkeypatch.setattr(captured_numbers, "rate", 0.25))

    def test_numpy_number(self, monkeypatch):
        monkeypatch.setitem(globals(), "rate", numpy.float32(0.5))
        self.check(operator(read_global), lambda: monkeypatch.setitem(globals(), "rate", numpy.float32(0.25)))

    def test_window_length(self):
        """An integer, as a loop's count."""
        window = 1

        def step(self, h):
            for _ in range(window):
                h = 0.5 * h
            return h + self.b

        cls = operator(step)
        assert last(cls) == HALF
        window = 2
        assert last(cls) == QUARTER


class TestAChangedFunctionChangesTheResult:
    def test_function_of_sf(self, monkeypatch):
        cls = operator(lambda self, h: activation(h) + self.b)
        assert last(cls) == pytest.approx(thrice(lambda h: math.tanh(h) + 1.0), rel=1e-15)
        monkeypatch.setitem(globals(), "activation", sf.sin)
        assert last(cls) == pytest.approx(thrice(lambda h: math.sin(h) + 1.0), rel=1e-15)

    def test_function_of_math(self, monkeypatch):
        cls = operator(lambda self, h: threshold(0.25) * h + self.b)
        assert last(cls) == HALF
        monkeypatch.setitem(globals(), "threshold", abs)
        assert last(cls) == QUARTER

    def test_replaced_method(self):
        cls = operator(lambda self, h: 0.5 * h + self.b)
        assert last(cls) == HALF
        cls.apply = lambda self, h: 0.25 * h + self.b
        assert last(cls) == QUARTER


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
