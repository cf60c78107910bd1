"""What a method reads besides its arguments: a changed number changes the next result."""

from __future__ import annotations

import dataclasses
import functools
import math
import types

import numpy
import pytest

import scanforge as sf
from scanforge.captured import fingerprint, watch
from tests.symbolic.steps import HALF, QUARTER, Settings, last, operator, thrice

rate = 0.5
activation = sf.tanh
threshold = math.sqrt
table = {"rate": 0.5}


settings = Settings(0.5)


@pytest.fixture(autouse=True)
def laws_off():
    """The operators of this file are steps, chosen for what they read."""
    sf.set_law_check(False)
    yield
    sf.set_law_check(True)


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
        """The picture of what is read differs, and the watch that spares reading it again sees that."""
        assert last(cls) == HALF
        seen = watch(cls)
        assert (seen is None) == (fingerprint(cls) is None)
        assert seen is None or seen.holds()
        change()
        assert seen is None or not seen.holds()
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
