"""Operators that nobody wrote by hand: their laws hold by construction, and so does the loop.

A `Made` is an operator as data: fields, and two functions of a maths namespace. With `sf` it becomes a
class, with torch a step of the sequential loop. The bases are the known ones; products, conjugates by an
invertible map of the state, and segmented versions (a flag that starts anew) of lawful ones are lawful.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import scanforge as sf
from tests.catalogue import chance, generator
from tests.loops import run, steps
from tests.reference.compare import LOWERINGS, cotangent, many
from tests.tolerances import assert_close, assert_equal

F64 = torch.float64
TORCH = SimpleNamespace(
    exp=torch.exp,
    log=torch.log,
    sin=torch.sin,
    cos=torch.cos,
    maximum=torch.maximum,
    minimum=torch.minimum,
    where=torch.where,
)
Draw = Callable[[torch.Generator, tuple[int, ...]], Tensor]


@dataclass(frozen=True)
class Part:
    """A leaf or a state: its identity or initial value, and how to draw it."""

    number: float
    draw: Draw
    kind: str = "float"
    domain: str | None = None


@dataclass(frozen=True)
class Made:
    """`combine(m, earlier, later)` on dicts of leaves, `apply(m, e, x)` on tuples of states."""

    name: str
    leaves: dict[str, Part]
    states: dict[str, Part]
    combine: Callable
    apply: Callable
    positive: bool = False  # keeps a positive state positive

    def operator(self) -> type[sf.Operator]:
        """The class that a person would have written."""
        made = self

        def combine(self, later):
            names = tuple(made.leaves)
            e, l = ({n: getattr(x, n) for n in names} for x in (self, later))
            return type(self)(**made.combine(sf, e, l))

        def apply(self, *states):
            results = made.apply(sf, {n: getattr(self, n) for n in made.leaves}, states)
            return results if len(results) > 1 else results[0]

        fields = {
            n: sf.Element(identity=p.number, kind=p.kind, domain=p.domain) for n, p in self.leaves.items()
        }
        fields |= {n: sf.State(initial=p.number, kind=p.kind) for n, p in self.states.items()}
        return type(self.name, (sf.Operator,), fields | {"combine": combine, "apply": apply})


def normal(g, shape):
    return torch.randn(shape, generator=g, dtype=F64)


def between(low: float, high: float) -> Draw:
    return lambda g, shape: low + (high - low) * torch.rand(shape, generator=g, dtype=F64)


GATE = Part(1.0, between(-1, 1))
TERM = STATE = Part(0.0, normal)

AFFINE = Made(
    "Affine",
    {"a": GATE, "b": TERM},
    {"h": STATE},
    lambda m, e, l: {"a": l["a"] * e["a"], "b": l["a"] * e["b"] + l["b"]},
    lambda m, e, x: (e["a"] * x[0] + e["b"],),
)
POSITIVE = replace(
    AFFINE,
    name="Positive",
    leaves={
        "a": Part(1.0, between(0.1, 1), domain="positive"),
        "b": Part(0.0, between(0.1, 1), domain="nonnegative"),
    },
    states={"h": Part(1.0, between(0.5, 2))},
    positive=True,
)
LOG_AFFINE = Made(
    "LogAffine",
    {"g": Part(0.0, between(-2, 0)), "b": TERM},
    {"h": STATE},
    lambda m, e, l: {"g": l["g"] + e["g"], "b": m.exp(l["g"]) * e["b"] + l["b"]},
    lambda m, e, x: (m.exp(e["g"]) * x[0] + e["b"],),
)
MIN_MAX = Made(
    "MinMax",
    {"r": Part(math.inf, normal), "s": Part(-math.inf, normal)},
    {"x": STATE},
    lambda m, e, l: {"r": m.minimum(l["r"], e["r"]), "s": m.maximum(m.minimum(l["r"], e["s"]), l["s"])},
    lambda m, e, x: (m.maximum(m.minimum(e["r"], x[0]), e["s"]),),
)
MAX_PLUS = Made(
    "MaxPlus",
    {"a": Part(0.0, normal), "b": Part(-math.inf, normal)},
    {"x": STATE},
    lambda m, e, l: {"a": l["a"] + e["a"], "b": m.maximum(l["a"] + e["b"], l["b"])},
    lambda m, e, x: (m.maximum(e["a"] + x[0], e["b"]),),
)
ROTATION = Made(
    "Rotation",
    {"w": Part(0.0, between(-3, 3))},
    {"x": STATE, "y": STATE},
    lambda m, e, l: {"w": e["w"] + l["w"]},
    lambda m, e, x: (
        m.cos(e["w"]) * x[0] - m.sin(e["w"]) * x[1],
        m.sin(e["w"]) * x[0] + m.cos(e["w"]) * x[1],
    ),
)
BASES = (AFFINE, POSITIVE, LOG_AFFINE, MIN_MAX, MAX_PLUS, ROTATION)


def product(first: Made, second: Made) -> Made:
    """Two operators side by side."""

    def prefixed(letter, parts):
        return {f"{letter}_{n}": p for n, p in parts.items()}

    def of(letter, e):
        return {n[2:]: x for n, x in e.items() if n[0] == letter}

    def combine(m, e, l):
        made = [(k, one.combine(m, of(k, e), of(k, l))) for k, one in (("p", first), ("q", second))]
        return {f"{k}_{n}": x for k, leaves in made for n, x in leaves.items()}

    def apply(m, e, x):
        k = len(first.states)
        return (*first.apply(m, of("p", e), x[:k]), *second.apply(m, of("q", e), x[k:]))

    return Made(
        f"{first.name}And{second.name}",
        prefixed("p", first.leaves) | prefixed("q", second.leaves),
        prefixed("p", first.states) | prefixed("q", second.states),
        combine,
        apply,
    )


def conjugate(made: Made, name: str, into: Callable, out: Callable) -> Made:
    """The same maps seen through z = into(x), x = out(z)."""
    states = {
        n: replace(p, number=float(into(math, p.number)), draw=lambda g, s, p=p: into(TORCH, p.draw(g, s)))
        for n, p in made.states.items()
    }

    def apply(m, e, z):
        return tuple(into(m, x) for x in made.apply(m, e, tuple(out(m, one) for one in z)))

    return replace(made, name=f"{name}{made.name}", states=states, apply=apply, positive=False)


def scaled(made: Made, c: float) -> Made:
    return conjugate(made, "Scaled", lambda m, x: x / c, lambda m, z: z * c)


def shifted(made: Made, d: float) -> Made:
    return conjugate(made, "Shifted", lambda m, x: x - d, lambda m, z: z + d)


def in_logs(made: Made) -> Made:
    return conjugate(made, "Logs", lambda m, x: m.log(x), lambda m, z: m.exp(z))


def segmented(made: Made) -> Made:
    """Where `start` is set, the state is the initial one before the element acts."""
    inner = made.leaves
    start = next(n for n in ("start", "restart", "anew") if n not in inner)
    numbers = [p.number for p in made.states.values()]

    def combine(m, e, l):
        flag = l[start] != 0
        both = made.combine(m, {n: e[n] for n in inner}, {n: l[n] for n in inner})
        return {n: m.where(flag, l[n], both[n]) for n in inner} | {start: m.where(flag, l[start], e[start])}

    def apply(m, e, x):
        flag = e[start] != 0
        fresh = tuple(m.where(flag, number, one) for number, one in zip(numbers, x, strict=True))
        return made.apply(m, {n: e[n] for n in inner}, fresh)

    flag = Part(0, lambda g, shape: chance(g, shape, 0.25).to(torch.int32), kind="int")
    return Made(f"Segmented{made.name}", {start: flag} | inner, made.states, combine, apply)


@st.composite
def operators(draw) -> Made:
    """A base, wrapped up to twice, perhaps beside another base."""
    made = draw(st.sampled_from(BASES))
    if made.positive and draw(st.booleans()):
        made = in_logs(made)
    for wrap in draw(st.lists(st.sampled_from(("scaled", "shifted", "segmented")), max_size=2, unique=True)):
        if wrap == "scaled":
            made = scaled(made, draw(st.sampled_from((-3.0, -0.5, 0.1, 2.0))))
        elif wrap == "shifted":
            made = shifted(made, draw(st.sampled_from((-1.25, 0.3, 2.0))))
        else:
            made = segmented(made)
    if draw(st.booleans()):
        made = product(made, draw(st.sampled_from(BASES)))
    return made


def drawn(made: Made, length: int, seed: int) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    g = generator(seed)
    leaves = {n: p.draw(g, (2, length, 2)) for n, p in made.leaves.items()}
    initial = tuple(p.draw(g, (2, 2)) for p in made.states.values())
    for x in (*leaves.values(), *initial):
        x.requires_grad_(x.is_floating_point())
    return leaves, initial


def gradients(states, finals, inputs, missing: bool) -> tuple[Tensor, ...]:
    outputs = [*states, *finals]
    cotangents = [cotangent(x, i) for i, x in enumerate(outputs)]
    wanted = [x for x in inputs if x.requires_grad]
    return torch.autograd.grad(outputs, wanted, cotangents, allow_unused=missing, materialize_grads=missing)


@given(operators(), st.integers(0, 9), st.booleans(), st.integers(0, 99))
@settings(deadline=None, max_examples=40, derandomize=True)
def test_values_and_gradients(made, length, reverse, seed):
    operator = made.operator()
    leaves, initial = drawn(made, length, seed)
    inputs = (*leaves.values(), *initial)
    truth = run(lambda *x, **e: made.apply(TORCH, e, x), leaves, initial, reverse)
    slopes = gradients(*truth, inputs, missing=True)
    for lowering in LOWERINGS:
        states, finals = sf.scan(
            operator,
            **leaves,
            initial_state=initial if len(initial) > 1 else initial[0],
            reverse=reverse,
            return_final_state=True,
            lowering=lowering,
        )
        got = many(states), many(finals)
        for x, y in zip((*got[0], *got[1]), (*truth[0], *truth[1]), strict=True):
            assert_close(x, y, "long", made.name)
        for x, y in zip(gradients(*got, inputs, missing=False), slopes, strict=True):
            assert_close(x, y, "long", f"{made.name} gradient")


@given(operators(), st.integers(1, 9), st.booleans(), st.integers(0, 99))
@settings(deadline=None, max_examples=20, derandomize=True)
def test_prefixes(made, length, reverse, seed):
    leaves, _ = drawn(made, length, seed)
    got = sf.prefixes(made.operator(), **leaves, reverse=reverse)._asdict()
    _, rows = steps(leaves)
    history = []
    for row in reversed(rows) if reverse else rows:
        history.append(made.combine(TORCH, history[-1], row) if history else row)
    for name in leaves:
        truth = torch.stack([row[name] for row in (reversed(history) if reverse else history)], 1)
        if truth.is_floating_point():
            assert_close(got[name], truth, "long", name)
        else:
            assert_equal(got[name], truth, name)


@given(st.sampled_from(BASES), st.sampled_from(BASES))
@settings(deadline=None, max_examples=10, derandomize=True)
def test_a_product_with_one_half_swapped_is_refused(first, second):
    """The laws have teeth: the wrong order in either half is an error that names the whole."""
    wrong = replace(AFFINE, name="Wrong", combine=lambda m, e, l: AFFINE.combine(m, l, e))
    for made in (product(first, wrong), product(wrong, second)):
        with pytest.raises(sf.LawError) as caught:
            sf.scan(made.operator(), **drawn(made, 3, 0)[0])
        assert caught.value.operator == made.name
