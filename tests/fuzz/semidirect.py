"""Semidirect products: a group of maps acts on a monoid, x -> m·x ⊕ n, so that the laws hold by construction.

    (m, n) ∘ (m', n') = (m m', m'·n ⊕ n')

The monoid is a sum, a maximum or a minimum of so many components; the maps are scalings, decays in logs and
rotations of a sum, and shifts of a maximum or minimum.
"""

from __future__ import annotations

import math

from hypothesis import strategies as st

from tests.reference.test_random_operators import Made, Part, between, normal

MERGE = {
    "sum": (0.0, lambda m, x, y: x + y),
    "max": (-math.inf, lambda m, x, y: m.maximum(x, y)),
    "min": (math.inf, lambda m, x, y: m.minimum(x, y)),
}
MAPS = {  # what a map is drawn from, its identity, how two compose, and what it does
    "scale": (between(-1, 1), 1.0, lambda e, l: l * e, lambda m, g, x: tuple(g * one for one in x)),
    "decay": (between(-2, 0), 0.0, lambda e, l: l + e, lambda m, g, x: tuple(m.exp(g) * one for one in x)),
    "shift": (normal, 0.0, lambda e, l: l + e, lambda m, g, x: tuple(g + one for one in x)),
    "rotate": (
        between(-3, 3), 0.0, lambda e, l: l + e,
        lambda m, g, x: (m.cos(g) * x[0] - m.sin(g) * x[1], m.sin(g) * x[0] + m.cos(g) * x[1]),
    ),
}  # fmt: skip
ACTS = {"scale": ("sum",), "decay": ("sum",), "rotate": ("sum",), "shift": ("max", "min")}


def semidirect(action: str, monoid: str, width: int) -> Made:
    """The operator of this action on this monoid; a rotation turns two components."""
    draw, identity, compose, act = MAPS[action]
    empty, merge = MERGE[monoid]
    names = [f"n{i}" for i in range(2 if action == "rotate" else width)]

    def moved(m, g, x, e):
        return tuple(merge(m, one, e[n]) for n, one in zip(names, act(m, g, x), strict=True))

    return Made(
        f"{action.title()}On{monoid.title()}",
        {"m": Part(identity, draw)} | {n: Part(empty, normal) for n in names},
        {f"x{i}": Part(0.0, normal) for i in range(len(names))},
        lambda m, e, l: (
            {"m": compose(e["m"], l["m"])}
            | dict(zip(names, moved(m, l["m"], tuple(e[n] for n in names), l), strict=True))
        ),
        lambda m, e, x: moved(m, e["m"], x, e),
    )


@st.composite
def products(draw) -> Made:
    action = draw(st.sampled_from(sorted(ACTS)))
    return semidirect(action, draw(st.sampled_from(ACTS[action])), draw(st.integers(1, 3)))
