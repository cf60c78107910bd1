"""Methods that cannot be traced: a typed error at the user's own line, with what to write."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

import scanforge as sf
from tests.reference.refused import SHIPPED, applies, check, composes, operator, x

kept: list = []


def keeps(self, h):
    kept.append(h)
    return self.a * h + self.b


def keeps_in_combine(self, later):
    kept[:] = [later.a]
    return type(self)(a=later.a * self.a, b=later.a * self.b + later.b)


def assigns(name):
    def step(self, h):
        setattr(self, name, h)
        return h

    return step


def deletes(self, h):
    del self.a
    return h


def writes_into(self, h):
    h[0] = 1.0
    return h


UNKNOWN = "whose number is not known while the method is traced"
LANE = "A value is one lane's number"
SHOWN = ["Decay.apply (test_bad_methods.py:", UNKNOWN]
CHOICE = [*SHOWN, "sf.where(condition, a, b)", "sf.minimum or sf.maximum"]
CAPTURED = ["Decay.apply (test_bad_methods.py:", "`w = sf.Element(identity=...)`", "self.w", "w=tensor"]
METHODS = {
    "if": (applies(lambda self, h: h if h > 0 else self.a), [*CHOICE, "`h > 0.0`"]),
    "and": (applies(lambda self, h: sf.where((h > 0) and (h < 1), h, 0.0)), [*CHOICE, "& | ~"]),
    "not": (applies(lambda self, h: sf.where(not (h > 0), h, 0.0)), CHOICE),
    "chain": (applies(lambda self, h: sf.where(0 < h < 1, h, 0.0)), CHOICE),
    "min": (applies(lambda self, h: min(h, self.a)), [*CHOICE, "`a < h`"]),
    "max": (applies(lambda self, h: max(h, 0.0)), CHOICE),
    "in": (applies(lambda self, h: h if h in (1.0, 2.0) else self.a), CHOICE),
    "if on a complex value": (
        applies(lambda self, h: h if self.a == 0 else self.b, a=x * 1j, b=x * 1j),
        CHOICE,
    ),
    "math.exp": (applies(lambda self, h: math.exp(h)), [*SHOWN, "sf.exp"]),
    "math.exp on a complex value": (applies(lambda self, h: math.exp(self.a), a=x * 1j), [*SHOWN, "sf.exp"]),
    "math.floor": (applies(lambda self, h: math.floor(h)), [*SHOWN, "sf.floor"]),
    "round": (applies(lambda self, h: round(h)), [*SHOWN, "sf.floor"]),
    "float": (applies(lambda self, h: float(h)), SHOWN),
    "int": (applies(lambda self, h: int(h)), SHOWN),
    "numpy.exp": (
        applies(lambda self, h: numpy.exp(h)),
        [*SHOWN, "`h` to numpy.exp", "Write sf.exp instead"],
    ),
    "numpy.exp on a complex value": (
        applies(lambda self, h: numpy.exp(self.a), a=x * 1j),
        [*SHOWN, "Write sf.exp"],
    ),
    "numpy.maximum": (applies(lambda self, h: numpy.maximum(h, 0)), [*SHOWN, "Write sf.maximum instead"]),
    "numpy.where": (applies(lambda self, h: numpy.where(h > 0, h, 0)), [*SHOWN, "Write sf.where instead"]),
    "numpy.asarray": (applies(lambda self, h: numpy.asarray(h)), SHOWN),
    "torch.minimum": (
        applies(lambda self, h: torch.minimum(h, self.a)),
        [*SHOWN, "Write sf.minimum instead"],
    ),
    "torch.exp on a complex value": (
        applies(lambda self, h: torch.exp(self.a), a=x * 1j),
        [*SHOWN, "Write sf.exp"],
    ),
    "torch.add": (applies(lambda self, h: torch.add(h, 1.0)), [*SHOWN, "Write a + b instead"]),
    "torch.relu": (applies(lambda self, h: torch.relu(h)), [*SHOWN, "Write sf.maximum(x, 0.0) instead"]),
    "torch.stack": (
        applies(lambda self, h: torch.stack([h, h])),
        ["sf has no stack: write it with the functions that it has, abs, conj, cos"],
    ),
    "a library's function": (
        applies(lambda self, h: torch.nn.functional.silu(h)),
        [*SHOWN, "Write sf.silu instead"],
    ),
    "a method of tensors": (
        applies(lambda self, h: h.exp()),
        ["Decay.apply (test_bad_methods.py:", ".exp of `h`", "Write sf.exp"],
    ),
    "a shape": (
        applies(lambda self, h: h * h.shape[0]),
        ["Decay.apply (test_bad_methods.py:", ".shape of `h`", "one lane's number"],
    ),
    "index": (applies(lambda self, h: h[0]), [*SHOWN, "indexes `h`", LANE]),
    "item assignment": (applies(writes_into), [*SHOWN, LANE]),
    "iteration": (applies(lambda self, h: sum(v for v in h)), [*SHOWN, "iterates over `h`", LANE]),
    "length": (applies(lambda self, h: h * len(h)), [*SHOWN, LANE]),
    "as an index": (applies(lambda self, h: [1.0, 2.0][h]), [*SHOWN, LANE]),
    "range": (applies(lambda self, h: next(h for _ in range(h))), [*SHOWN, LANE]),
    "%": (applies(lambda self, h: h % 2), [*SHOWN, "a - b * sf.floor(a / b)"]),
    "//": (applies(lambda self, h: 7 // h), [*SHOWN, "sf.floor(a / b)"]),
    "@": (applies(lambda self, h: h @ h), [*SHOWN, LANE]),
    "a tensor on the left": (applies(lambda self, h: x * h), [*CAPTURED, "a Tensor of shape (2, 5, 3)"]),
    "a tensor on the right": (applies(lambda self, h: h * x), [*CAPTURED, "a Tensor of shape (2, 5, 3)"]),
    "a tensor in sf.maximum": (applies(lambda self, h: sf.maximum(x, h)), CAPTURED),
    "a tensor in torch.maximum": (applies(lambda self, h: torch.maximum(x, h)), CAPTURED),
    "a tensor compared": (applies(lambda self, h: sf.where(x > h, h, 0.0)), CAPTURED),
    "a tensor as a condition": (applies(lambda self, h: sf.where(x > 0, h, 0.0)), CAPTURED),
    "a tensor beside a complex value": (applies(lambda self, h: x * self.a, a=x * 1j), CAPTURED),
    "a parameter": (applies(lambda self, h: torch.nn.Parameter(x) * h), [*CAPTURED, "a Parameter of shape"]),
    "a 0-d tensor": (applies(lambda self, h: torch.tensor(0.5) * h), [*CAPTURED, "w.item()"]),
    "an array": (applies(lambda self, h: numpy.ones(3) * h), [*CAPTURED, "ndarray of shape (3,)"]),
    "a text": (
        applies(lambda self, h: h + "1"),
        ["Decay.apply (test_bad_methods.py:", "a str as an operand", "sf.exp"],
    ),
    "None": (
        applies(lambda self, h: h + None),
        ["Decay.apply (test_bad_methods.py:", "a NoneType as an operand"],
    ),
    "a complex number": (
        applies(lambda self, h: 1j * h),
        ["Decay.apply (test_bad_methods.py:", "1j", "ComplexAffine"],
    ),
    "order of complex values": (
        applies(lambda self, h: sf.where(self.a > 0, h, self.b), a=x * 1j),
        ["Decay.apply", "no order", "sf.abs(x)"],
    ),
    "sqrt of a complex value": (
        applies(lambda self, h: sf.sqrt(self.a) * h, a=x * 1j),
        ["sf.sqrt (test_bad_methods.py:", "no complex form", "sf.abs(x)"],
    ),
    "power of a complex value": (
        applies(lambda self, h: self.a**0.5 * h, a=x * 1j),
        ["Decay.apply", "the power 0.5"],
    ),
    "a bool as a number": (
        applies(lambda self, h: (h > 0) + h),
        ["Decay.apply (test_bad_methods.py:", "sf.where(flag, 1.0, 0.0)"],
    ),
    "& of numbers": (applies(lambda self, h: h & h), ["Decay.apply (test_bad_methods.py:", "compare first"]),
    "sf.exp of a number": (
        applies(lambda self, h: sf.exp(1.0) * h),
        ["sf.exp (test_bad_methods.py:", "math.exp"],
    ),
    "self.a assigned": (
        applies(assigns("a")),
        ["Decay (test_bad_methods.py:", "self.a", "never changes", "Decay(a=..., b=...)"],
    ),
    "self.other assigned": (
        applies(assigns("other")),
        ["Decay (test_bad_methods.py:", "self.other", "Use a local name"],
    ),
    "self.a deleted": (applies(deletes), ["Decay (test_bad_methods.py:", "self.a"]),
    "a field that is not there": (
        applies(lambda self, h: self.c * h),
        ["Decay (test_bad_methods.py:", "'c'", "`c = sf.Element(identity=...)`"],
    ),
    "a state as a field": (
        applies(lambda self, h: self.h + self.b),
        ["Decay (test_bad_methods.py:", "self.h", "def apply(self, h)"],
    ),
    "a value of another trace": (
        applies(lambda self, h: kept[0] * h, combine=keeps_in_combine),
        ["belongs to", "its own arguments and fields"],
    ),
    "another trace's value returned": (
        applies(lambda self, h: kept[0], combine=keeps_in_combine),
        ["Decay.apply gives h", "Decay.combine"],
    ),
    "combine returns None": (
        composes(lambda self, later: None),
        ["Decay.combine returns nothing", "return Decay(a=..., b=...)"],
    ),
    "combine returns a tuple": (
        composes(lambda self, later: (later.a, later.b)),
        ["a tuple of 2", "return Decay(a=..., b=...)"],
    ),
    "combine returns another operator": (
        composes(lambda self, later: SHIPPED.Affine(a=self.a, b=self.b)),
        ["Affine", "return Decay(a=..., b=...)"],
    ),
    "combine of wrong fields": (
        composes(lambda self, later: type(self)(a=self.a, c=self.b)),
        ["without b and with c", "Decay(a=..., b=...)"],
    ),
    "combine of too few fields": (
        composes(lambda self, later: type(self)(a=self.a)),
        ["without b", "Decay(a=..., b=...)"],
    ),
    "combine of a wrong kind": (
        composes(lambda self, later: type(self)(a=self.a > 0, b=self.b)),
        ["Decay.combine", "kind bool", "float"],
    ),
    "apply returns two": (
        applies(lambda self, h: (h, h)),
        ["Decay.apply returns 2 value(s)", "1 state(s) h"],
    ),
    "apply returns one of two": (
        applies(lambda self, h, g: h, g=sf.State()),
        ["Decay.apply returns 1 value(s)", "2 state(s) h, g"],
    ),
    "apply returns a bool": (
        applies(lambda self, h: h > 0),
        ["Decay.apply gives h", "kind bool", "declared as float"],
    ),
    "a float for an int state": (
        applies(lambda self, h: self.a, h=sf.State(kind="int")),
        ["Decay.apply gives h", "kind float", "declared as int"],
    ),
}


@pytest.mark.parametrize(("call", "parts"), METHODS.values(), ids=list(METHODS))
def test_methods(call, parts):
    """While a method is traced, the user's own line is named."""
    check(call, sf.TraceError, *parts)


def test_the_line_is_the_users():
    def step(self, h):
        return h if h > 0 else self.a  # the line that is named

    line = step.__code__.co_firstlineno + 1
    assert f"test_bad_methods.py:{line}" in check(applies(step), sf.TraceError)


def test_a_value_of_an_earlier_call():
    kept.clear()
    applies(keeps)()
    check(applies(lambda self, h: kept[0] * h), sf.TraceError, "an earlier trace of Decay.apply")
    check(applies(lambda self, h: kept[0]), sf.TraceError, "an earlier trace of Decay.apply")


def test_a_missing_field_can_be_asked_for():
    """hasattr and getattr with a default see what is missing as Python does."""
    seen = []

    def step(self, h):
        seen.extend([hasattr(self, "c"), getattr(self, "c", 0.0), hasattr(h, "shape")])
        return self.a * h + self.b

    sf.scan(operator(step), a=x, b=x)
    assert seen[:3] == [False, 0.0, False]


@pytest.mark.parametrize("number", [numpy.float64(0.5), numpy.float32(0.5), numpy.int64(2), True], ids=repr)
def test_numpy_numbers_are_numbers(number):
    """On either side of a value."""
    sf.set_law_check(False)
    try:
        sign = float(number)
        left = sf.scan(operator(lambda self, h: number * self.b if number is not True else self.b), a=x, b=x)
        right = sf.scan(operator(lambda self, h: self.b * sign), a=x, b=x)
    finally:
        sf.set_law_check(True)
    assert torch.equal(left, right)
