"""Recurrences whose methods read something besides their arguments."""

from __future__ import annotations

import torch

import scanforge as sf

ONE = torch.ones(1, 3, 1, dtype=torch.float64)


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
