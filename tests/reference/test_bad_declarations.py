"""Class bodies that declare no operator: an error at class creation, with the line to write."""

from __future__ import annotations

import math

import pytest
import torch

import scanforge as sf
from tests.reference.refused import check, operator

shared = sf.Element(identity=1.0)
DECLARATIONS = {
    "identity": (
        lambda: operator(a=sf.Element()),
        ["Decay.a has no identity", "a = sf.Element(identity=...)"],
    ),
    "state": (lambda: operator(h=None), ["Decay declares no state", "h = sf.State()"]),
    "element": (
        lambda: operator(a=None, b=None),
        ["Decay declares no element", "a = sf.Element(identity=1.0)"],
    ),
    "combine": (
        lambda: type(
            "Decay",
            (sf.Operator,),
            {"a": sf.Element(identity=1.0), "h": sf.State(), "apply": lambda self, h: h},
        ),
        ["Decay declares no combine", "def combine(self, later)"],
    ),
    "apply": (
        lambda: type(
            "Decay",
            (sf.Operator,),
            {"a": sf.Element(identity=1.0), "h": sf.State(), "combine": lambda self, later: later},
        ),
        ["Decay declares no apply", "def apply(self, h)"],
    ),
    "combine's arguments": (
        lambda: operator(combine=lambda self: self),
        ["Decay.combine", "def combine(self, later)"],
    ),
    "apply's arguments": (
        lambda: operator(lambda self: self.b),
        ["Decay.apply", "(self)", "def apply(self, h)"],
    ),
    "apply for two states": (lambda: operator(g=sf.State()), ["Decay.apply", "def apply(self, h, g)"]),
    "one object, two names": (
        lambda: operator(a=shared, c=shared),
        ["Decay", "a and c", "one `sf.Element(...)` for each"],
    ),
    "one state, two names": (lambda: operator(g=(s := sf.State()), f=s), ["Decay", "State", "g and f"]),
    "kind": (
        lambda: operator(a=sf.Element(identity=1.0, kind="complex")),
        ["Decay.a", "'complex'", "kind='float', 'int' or 'bool'"],
    ),
    "domain": (lambda: operator(a=sf.Element(identity=1.0, domain="big")), ["Decay.a", "'big'", "'unit'"]),
    "identity of a kind": (
        lambda: operator(a=sf.Element(identity=1.5, kind="int")),
        ["Decay.a", "kind int", "1.5"],
    ),
    "identity a bool": (lambda: operator(a=sf.Element(identity=True)), ["Decay.a", "kind float", "True"]),
    "identity a text": (lambda: operator(a=sf.Element(identity="1")), ["Decay.a", "'1'", "a plain float"]),
    "identity a tensor": (
        lambda: operator(a=sf.Element(identity=torch.tensor(1.0))),
        ["Decay.a", "Tensor", "a plain float"],
    ),
    "identity NaN": (lambda: operator(a=sf.Element(identity=math.nan)), ["Decay.a", "nan"]),
    "initial of another type": (lambda: operator(h=sf.State(initial="0")), ["Decay.h", "'0'"]),
    "initial NaN": (lambda: operator(h=sf.State(initial=math.nan)), ["Decay.h", "nan"]),
    "private name": (lambda: operator(_c=sf.Element(identity=1.0)), ["Decay._c", "`_`"]),
    "name of a state before": (
        lambda: operator(previous_h=sf.Element(identity=1.0)),
        ["Decay.previous_h", "`previous_`"],
    ),
}

RESERVED = [
    "dim",
    "reverse",
    "initial_state",
    "return_final_state",
    "reset",
    "cu_seqlens",
    "lengths",
    "mask",
    "backend",
    "lowering",
    "tune",
    "memory",
    "inplace",
    "dtype",
]


@pytest.mark.parametrize(("declare", "parts"), DECLARATIONS.values(), ids=list(DECLARATIONS))
def test_declarations(declare, parts):
    """At class creation."""
    check(declare, sf.DeclarationError, *parts)


@pytest.mark.parametrize("name", RESERVED)
@pytest.mark.parametrize("field", [lambda: sf.Element(identity=1.0), sf.State], ids=["element", "state"])
def test_reserved_options(name, field):
    check(
        lambda: operator(**{name: field()}),
        sf.DeclarationError,
        f"Decay.{name}",
        "an option of sf.scan",
        "another name",
    )


@pytest.mark.parametrize("name", ["combine", "apply", "element", "readout"])
def test_reserved_methods(name):
    check(
        lambda: operator(**{name: sf.Element(identity=1.0)}), sf.DeclarationError, f"Decay.{name}", "a method"
    )
