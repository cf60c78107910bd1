"""Recurrences whose steps are matrix products over chunks, in every form that the compiler finds.

A `Matrix` says how one decays, writes and reads; `recurrence` makes the class. The truth is the reference
backend's loop in float64, which the suites of `tests/reference` compare with loops written by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

import scanforge as sf
from tests.catalogue import generator

F64 = torch.float64
# decay by name: where f stands, and what the element map makes of it
DECAYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "sigmoid": ("b t h k", lambda s: sf.sigmoid(s.f)),
    "bounded": ("b t h k", lambda s: s.lower + (1 - s.lower) * sf.sigmoid(s.f)),
    "log": ("b t h k", lambda s: sf.exp(-sf.softplus(s.f))),
    "power": ("b t h k", lambda s: sf.exp2(-sf.abs(s.f) / 4)),
    "raw": ("b t h k", lambda s: s.f),
    "a channel's": ("h k", lambda s: sf.sigmoid(s.f)),
    "head's": ("b t h", lambda s: sf.exp(-sf.softplus(s.f))),
    "head's constant": ("h", lambda s: sf.sigmoid(s.f)),
    "number": ("b t h k", lambda s: 0.9),
    "none": ("b t h k", lambda s: 1.0),
    "on values": ("b t h v", lambda s: sf.sigmoid(s.f)),
    "on values, log": ("b t h v", lambda s: sf.exp(-sf.softplus(s.f))),
}
KEYS = ("own", "tied", "weighted", "shared by heads", "divided")
READS = ("after", "before", "bonus", "skip", "gated", "scaled", "activated")


@dataclass(frozen=True)
class Matrix:
    """How it decays, where its keys come from, how it is read out, and the axes of heads."""

    decay: str = "bounded"
    keys: str = "own"
    read: str = "after"
    heads: str = "h"  # of the state, between b and k

    def recurrence(self) -> type[sf.Recurrence]:
        return _made(self)

    @property
    def on(self) -> str:
        """Where the form finds the decay."""
        axes = DECAYS[self.decay][0].split()
        if self.decay in {"number", "none"}:
            return {"number": "lanes", "none": "none"}[self.decay]
        return "key" if "k" in axes else "value" if "v" in axes else "lanes"

    def draw(self, dtype: torch.dtype, seed: int = 0, **sizes: int) -> dict[str, Tensor]:
        g, found = generator(seed), {}
        whole = {"b": 2, "t": 9, "h": 2, "g": 2, "k": 3, "v": 4} | sizes
        for name, x in vars(self.recurrence()).items():
            if isinstance(x, sf.Input):
                shape = [whole[a] for a in x.axes]
                draws = (
                    torch.rand
                    if name in {"lower", "dt"} or (self.decay == "raw" and name == "f")
                    else torch.randn
                )
                found[name] = draws(shape, generator=g, dtype=F64).to(dtype)
        return found


@cache
def _made(m: Matrix) -> type[sf.Recurrence]:
    def axes(text: str) -> str:
        return " ".join(m.heads if a == "h" else a for a in text.split()).strip()

    where, decay = DECAYS[m.decay]
    fields: dict[str, Any] = {"q": sf.Input(axes("b t h k")), "v": sf.Input(axes("b t h v"))}
    fields["f"] = sf.Input(axes(where))
    if m.decay == "bounded":
        fields["lower"] = sf.Input(axes("h k"))
    if m.keys != "tied":
        fields["k"] = sf.Input("b t k" if m.keys == "shared by heads" else axes("b t h k"))
    if m.keys in {"weighted", "divided"}:
        fields["dt"] = sf.Input(axes("b t h"))
    if m.read in {"bonus", "skip"}:
        fields["u"] = sf.Input(axes("h k") if m.read == "bonus" else "v")
    fields["S"] = sf.State(axes("b h k v"))

    def key(self: Any) -> Any:
        if m.keys == "tied":
            return 1 - decay(self)
        return {"weighted": lambda: self.dt * self.k, "divided": lambda: self.k / (1 + self.dt)}.get(
            m.keys, lambda: self.k
        )()

    def element(self: Any) -> Any:
        return sf.Affine(
            a=decay(self) * 1.0 if isinstance(decay(self), float) else decay(self), b=key(self) * self.v
        )

    def readout(self: Any) -> Any:
        before = sf.previous(self.S)
        return {
            "after": lambda: sf.sum(self.q * self.S, "k"),
            "before": lambda: sf.sum(before * self.q, "k"),
            "bonus": lambda: sf.sum(self.q * (before + self.u * key(self) * self.v), "k"),
            "skip": lambda: sf.sum(self.q * self.S, "k") + self.u * self.v,
            "gated": lambda: sf.sum(self.q * self.S, "k") * sf.silu(self.v),
            "scaled": lambda: 0.25 * sf.sum(self.q * self.S, "k"),
            "activated": lambda: sf.sum(sf.silu(self.q) * self.S, "k") / 3,
        }[m.read]()

    return type("Matrix", (sf.Recurrence,), fields | {"element": element, "readout": readout})


EVERY = [
    *(Matrix(decay=d) for d in DECAYS),
    *(Matrix(keys=k) for k in KEYS),
    *(Matrix(read=r) for r in READS),
    *(Matrix(decay=d, read="bonus", keys="tied", heads=h) for d in ("log", "raw") for h in ("", "g h")),
]  # fmt: skip
