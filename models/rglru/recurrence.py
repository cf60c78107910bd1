"""The RG-LRU as declarations: gates, decay, normalisation and the branch that multiplies the state."""

from __future__ import annotations

import math
import types
from functools import cache
from typing import Any

import scanforge as sf

MAX_SLOPE = 1000.0  # of the square root at a = 1, where its own slope is infinite: as in recurrentgemma
GELUS = ("exact", "tanh")


class RGLRUScan(sf.Recurrence):
    """h_t = a_t h_{t-1} + sqrt(1 - a_t²) σ(i_t) x_t,  y_t = gelu(gate_t) h_t,  a_t = σ(a_log)^(c σ(r_t))

    `r`, `i` and `gate` come before their activations. A subclass sets `c` and `gelu`, "exact" or "tanh".
    log a_t = -c softplus(-a_log) σ(r_t) is at most 0 for any gate, and 1 - a_t² = -expm1(2 log a_t) keeps its
    digits where a_t is close to 1. The slope of the square root is at most 1000.
    Source: De et al., Griffin (2024), equations 1 to 4.
    """

    x, r, i, gate = sf.Input("b t d"), sf.Input("b t d"), sf.Input("b t d"), sf.Input("b t d")
    a_log = sf.Input("d")
    h = sf.State("b d")
    c = 8.0
    gelu = "exact"

    def multiplier(self, log_a: Any) -> Any:
        return sf.sqrt(-sf.expm1(2 * log_a), max_slope=MAX_SLOPE)

    def element(self) -> Any:
        log_a = -self.c * sf.softplus(-self.a_log) * sf.sigmoid(self.r)
        return sf.Affine(a=sf.exp(log_a), b=self.multiplier(log_a) * sf.sigmoid(self.i) * self.x)

    def readout(self) -> Any:
        if self.gelu == "exact":
            return sf.gelu(self.gate) * self.h
        inner = math.sqrt(2 / math.pi) * (self.gate + 0.044715 * self.gate * self.gate * self.gate)
        return 0.5 * self.gate * (1 + sf.tanh(inner)) * self.h


class RGLRUUnitStart(RGLRUScan):
    """RG-LRU whose input enters with weight 1, not sqrt(1 - a²), at steps where `first` is true

    `first` is an input: the first step of a chunk that goes on from a state is not the first of its sequence.
    Source: recurrentgemma, whose multiplier is 1 at position 0 of every document.
    """

    first = sf.Input("b t", kind="bool")

    def multiplier(self, log_a: Any) -> Any:
        return sf.where(self.first, 1.0, super().multiplier(log_a))


@cache
def declared(c: float, gelu: str, unit_start: bool) -> type[sf.Recurrence]:
    """The declaration with this power, this form of gelu, and this rule for first steps."""
    base = RGLRUUnitStart if unit_start else RGLRUScan
    return types.new_class(base.__name__, (base,), exec_body=lambda body: body.update(c=c, gelu=gelu))
