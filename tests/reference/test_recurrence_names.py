"""Fields that bear names which generated code uses, with resets and padding; and complex initial states."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests.catalogue import chance, generator, normal
from tests.reference.fused import every_lowering
from tests.tolerances import assert_close

F64, C128, T = torch.float64, torch.complex128, 6
NAMES = (
    "a b y e_a torch steps rows outputs initial_h final_h after_h leaf elements mask_ enter_h segment_start"
)


class Odd(sf.Recurrence):
    """Every name that a generated module has for itself"""

    a, b, y, e_a, torch, steps, rows, outputs = (sf.Input("b t d") for _ in range(8))
    initial_h, final_h, after_h, leaf, elements = (sf.Input("b t d") for _ in range(5))
    mask_, enter_h, segment_start = (sf.Input("b t d") for _ in range(3))
    h = sf.State("b d")

    def element(self):
        first = sf.where(sf.segment_start(), self.segment_start, self.leaf)
        return sf.Affine(
            a=sf.sigmoid(self.a * self.e_a * self.torch),
            b=self.b + self.steps * self.rows - self.outputs + first,
        )

    def readout(self):
        y = self.h * self.y + self.initial_h * self.final_h * self.after_h
        return y, self.elements * self.mask_ * self.enter_h + sf.previous(self.h)


def by_hand(x, reset, mask):
    """The two outputs, step by step."""
    h, first, history = torch.zeros(2, 3, dtype=F64), torch.ones(2, dtype=torch.bool), []
    for t in range(T):
        r = {n: v[:, t] for n, v in x.items()}
        real = mask[:, t, None]
        h, first = torch.where(reset[:, t, None], 0.0, h), first | reset[:, t]
        b = r["b"] + r["steps"] * r["rows"] - r["outputs"]
        b = b + torch.where(first[:, None], r["segment_start"], r["leaf"])
        after = torch.sigmoid(r["a"] * r["e_a"] * r["torch"]) * h + b
        y = after * r["y"] + r["initial_h"] * r["final_h"] * r["after_h"]
        z = r["elements"] * r["mask_"] * r["enter_h"] + h
        history.append((torch.where(real, y, 0.0), torch.where(real, z, 0.0)))
        h, first = torch.where(real, after, h), first & ~mask[:, t]
    return tuple(torch.stack(column, 1) for column in zip(*history, strict=True))


@every_lowering
def test_names_of_generated_code(lowering):
    """Values, gradients, and theirs."""
    g = generator(1)
    assert set(NAMES.split()) == set(Odd.__scanforge__.tensor_names())
    x = {n: normal(g, (2, T, 3), F64).requires_grad_() for n in NAMES.split()}
    reset, mask = chance(g, (2, T), 0.3), chance(g, (2, T), 0.7)
    found = []
    for outputs in (sf.scan(Odd, **x, reset=reset, mask=mask, lowering=lowering), by_hand(x, reset, mask)):
        loss = sum(y.sin().sum() for y in outputs)
        first = torch.autograd.grad(loss, list(x.values()), create_graph=True)
        second = torch.autograd.grad(sum(s.square().sum() for s in first), list(x.values()))
        found.append((*outputs, *first, *second))
    for mine, truth in zip(*found, strict=True):
        assert_close(mine, truth, "long")


class Diagonal(sf.Recurrence):
    """h_t = A h_{t-1} + B x_t,  y_t = Re(C·h_t)"""

    x = sf.Input("b t d")
    A, B, C = sf.Input("d n"), sf.Input("d n"), sf.Input("d n")
    h = sf.State("b d n", initial=0.5)

    def element(self):
        return sf.Affine(a=self.A, b=self.B * self.x)

    def readout(self):
        return sf.real(sf.sum(self.C * self.h, "n"))


@every_lowering
@pytest.mark.parametrize("given", [False, True])
def test_complex_states(lowering, given):
    """Complex by the initial state alone, as by the inputs; `initial` is the real part."""
    g = generator(2)
    x, (A, B, C) = normal(g, (2, T, 3), F64), normal(g, (3, 3, 4), F64)
    wide = {n: v.to(C128) for n, v in {"A": A, "B": B, "C": C}.items()}
    h0 = torch.complex(normal(g, (2, 3, 4), F64), normal(g, (2, 3, 4), F64))
    h0 = h0 if given else torch.full((2, 3, 4), 0.5, dtype=C128)
    options = {"return_final_state": True, "lowering": lowering}
    truth, end = sf.scan(Diagonal, x=x, **wide, initial_state=h0 if given else None, **options)
    y, final = sf.scan(Diagonal, x=x, A=A, B=B, C=C, initial_state=h0, **options)
    assert (final.dtype, end.dtype) == (C128, C128)
    assert_close(y, truth, "forward")
    assert_close(final, end, "forward")
    state = h0
    for t in range(T):
        y_t, state = sf.step(Diagonal, state, x=x[:, t], A=A, B=B, C=C)
        assert_close(y_t, y[:, t], "forward")
    assert_close(state, final, "forward")
