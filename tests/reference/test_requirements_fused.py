"""Faults reported in the field, where they concern fused recurrences: requirements 7 to 32."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

import scanforge as sf
from tests import recurrence_loops as loops
from tests.catalogue import generator, normal, uniform
from tests.recurrences import BY_NAME, Entry, Part, draw, parts
from tests.reference.compare import differentiable
from tests.reference.fused import check, every_lowering
from tests.tolerances import assert_close

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
TABLE = ("forward", "gradient")

# 7: states larger than a number


def test_req07_an_outer_product_state():
    check(BY_NAME["HGRN2"], *draw(BY_NAME["HGRN2"], b=1, h=2, t=257, k=64, v=32), ["both"], ["parallel"])


class Rotary(sf.Recurrence):
    """A plane that turns by an angle and shrinks: a matrix of four leaves"""

    x, angle = sf.Input("b t d"), sf.Input("b t d")
    size = sf.Input("d")
    p, q = sf.State("b d", initial=1.0), sf.State("b d")

    def element(self):
        cos, sin = self.size * sf.cos(self.angle), self.size * sf.sin(self.angle)
        return sf.operators.Matrix2x2(m00=cos, m01=-sin, m10=sin, m11=cos)

    def readout(self):
        return self.x * self.p + self.q


def rotary(states, first, *, x, angle, size):
    p, q = states
    p, q = (
        size * (angle.cos() * p - angle.sin() * q),
        size * (angle.sin() * p + angle.cos() * q),
    )
    return (x * p + q,), (p, q)


def test_req07_four_leaves():
    states = {"p": Part("b d", number=1.0), "q": Part("b d")}
    entry = Entry(Rotary, rotary, parts("x angle: b t d", size=Part("d", uniform)), states)
    check(entry, *draw(entry, t=40))
    check(entry, draw(entry, t=40)[0], reverse=True)


# 9: parameters


def decay_entry(axes: str) -> Entry:
    """h_t = σ(w) h_{t-1} + x_t, with w of any axes"""

    def element(self):
        return sf.Affine(a=sf.sigmoid(self.w), b=self.x)

    fields = {"x": sf.Input("b t d"), "w": sf.Input(axes), "h": sf.State("b d")}
    recurrence = type(
        "Decay", (sf.Recurrence,), fields | {"element": element, "readout": lambda self: self.h}
    )
    inputs = parts("x: b t d", w=Part(axes))
    return Entry(recurrence, loops.decay, inputs, {"h": Part("b d")})


@pytest.mark.parametrize("axes", ["d", "", "b d", "b", "t", "t d"])
def test_req09_gradients_of_parameters(axes):
    """Summed over time, batch and channels, whichever the parameter lacks."""
    entry = decay_entry(axes)
    if axes in ("b", "t"):
        entry = Entry(
            entry.recurrence,
            lambda states, first, x, w: loops.decay(states, first, x=x, w=w[..., None]),
            entry.inputs,
            entry.states,
        )
    check(entry, *draw(entry, b=3, t=64, d=7))


@pytest.mark.parametrize("axes", ["d", "", "b d"])
@every_lowering
def test_req09_gradcheck(axes, lowering):
    entry = decay_entry(axes)
    tensors, _ = draw(entry, b=2, t=4, d=2)
    x, w = (tensors[n].requires_grad_() for n in ("x", "w"))
    assert gradcheck(lambda x, w: sf.scan(entry.recurrence, x=x, w=w, lowering=lowering), (x, w))


def test_req09_used_twice_and_not_wanted():
    """SelectiveSSM's u is in the element and in the readout, D wants no gradient."""
    entry = BY_NAME["SelectiveSSM"]
    tensors, _ = draw(entry)
    inputs = differentiable(tensors)
    inputs["D"] = tensors["D"]
    sf.scan(entry.recurrence, **inputs).sum().backward()
    assert inputs["D"].grad is None
    twins = differentiable(tensors)
    sum(y.sum() for y in entry.loop(twins)[0]).backward()
    for name in ("u", "dt", "A", "B", "C"):
        assert_close(inputs[name].grad, twins[name].grad, "gradient", name)


# 10: constants


@every_lowering
def test_req10_numbers_that_the_methods_read(lowering):
    """A float and an int from outside; a changed number changes the result."""
    rate, window = 0.5, 3

    class Windowed(sf.Recurrence):
        x = sf.Input("b t d")
        h = sf.State("b d")

        def element(self):
            return sf.Affine(a=rate, b=self.x / window)

        def readout(self):
            return self.h * window

    def last(a):
        return a**2 + a + 1

    ones = torch.ones(1, 3, 1, dtype=F64)
    assert sf.scan(Windowed, x=ones, lowering=lowering)[0, -1, 0] == pytest.approx(last(0.5))
    rate, window = 0.25, 4
    assert sf.scan(Windowed, x=ones, lowering=lowering)[0, -1, 0] == pytest.approx(last(0.25))


@pytest.mark.parametrize("captured", [torch.tensor(0.7), torch.rand(3)], ids=["0-d", "d"])
@pytest.mark.parametrize("method", ["element", "readout"])
def test_req10_a_captured_tensor_is_to_be_declared(captured, method):
    class Captured(sf.Recurrence):
        x = sf.Input("b t d")
        h = sf.State("b d")

        def element(self):
            return sf.Affine(a=captured if method == "element" else 0.5, b=self.x)

        def readout(self):
            return self.h * captured if method == "readout" else self.h

    with pytest.raises(sf.ScanforgeError, match=r"sf\.Input"):
        sf.scan(Captured, x=torch.ones(2, 3, 3))


# 11: derivatives that are zero by structure


class Ignoring(sf.Recurrence):
    """The element ignores `spare`, the readout ignores the state"""

    x, spare = sf.Input("b t d"), sf.Input("d")
    h = sf.State("b d")

    def element(self):
        return sf.Affine(a=0.5, b=self.x)

    def readout(self):
        return 2 * self.x


@every_lowering
@pytest.mark.parametrize("dtype", [BF16, F32, F64], ids=str)
def test_req11_zeros_and_not_none(lowering, dtype):
    x, spare = torch.ones(2, 3, 4, dtype=dtype), torch.ones(4, dtype=dtype)
    h0 = torch.ones(2, 4, dtype=F64 if dtype is F64 else F32)
    inputs = [v.requires_grad_() for v in (x, spare, h0)]
    y, final = sf.scan(
        Ignoring, x=x, spare=spare, initial_state=h0, return_final_state=True, lowering=lowering
    )
    assert torch.equal(y, 2 * x)
    for loss, slopes in ((y, (2, 0, 0)), (final, (None, 0, 0.125))):
        found = torch.autograd.grad(loss.sum(), inputs, retain_graph=True)
        for v, g, slope in zip(inputs, found, slopes, strict=True):
            assert (g.shape, g.dtype) == (v.shape, v.dtype)
            assert slope is None or torch.equal(g, torch.full_like(v, slope))


@every_lowering
def test_req11_an_input_that_only_the_readout_reads(lowering):
    entry = BY_NAME["SelectiveSSM"]
    inputs = differentiable(draw(entry)[0])
    _, final = sf.scan(entry.recurrence, **inputs, return_final_state=True, lowering=lowering)
    for name in ("C", "D"):
        (slope,) = torch.autograd.grad(final.sum(), inputs[name], retain_graph=True)
        assert torch.equal(slope, torch.zeros_like(inputs[name]))


# 12: a learnable number


class Tempered(sf.Recurrence):
    """h_t = exp(-τ softplus(x_t)) h_{t-1} + x_t"""

    x = sf.Input("b t d")
    tau = sf.Input("")
    h = sf.State("b d")

    def element(self):
        return sf.Affine(a=sf.exp(-self.tau * sf.softplus(self.x)), b=self.x)

    def readout(self):
        return self.h


def tempered(states, first, *, x, tau):
    h = torch.exp(-tau * torch.nn.functional.softplus(x)) * states[0] + x
    return (h,), (h,)


def test_req12_a_learnable_number():
    entry = Entry(Tempered, tempered, parts("x: b t d", tau=Part("")), {"h": Part("b d")})
    tensors, initial = draw(entry, b=2, t=130, d=3)
    got = check(entry, tensors | {"tau": torch.tensor(0.7, dtype=F64)}, initial)
    assert got.gradients["both"]["tau"].shape == ()


# 14: guard values behind the inputs


class Gated(sf.Recurrence):
    """h_t = exp(-A softplus(x_t + bias)) h_{t-1} + x_t"""

    x = sf.Input("b t d")
    bias, A = sf.Input("d"), sf.Input("d")
    h = sf.State("b d")

    def element(self):
        return sf.Affine(a=sf.exp(-self.A * sf.softplus(self.x + self.bias)), b=self.x)

    def readout(self):
        return self.h


def gated(states, first, *, x, bias, A):
    h = torch.exp(-A * torch.nn.functional.softplus(x + bias)) * states[0] + x
    return (h,), (h,)


GATED = Entry(Gated, gated, parts("x: b t d", "bias A: d"), {"h": Part("b d")})


@pytest.mark.parametrize("length", [1, 5, 37, 63, 65, 127, 129])
@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
def test_req14_nothing_is_read_behind_the_end(length, dtype):
    room = torch.full((2, length + 70, 8), math.nan, dtype=dtype)
    x = room[:, 3 : 3 + length, 2:5].copy_(normal(generator(14), (2, length, 3), dtype))
    three, two = torch.full((3,), 3.0, dtype=dtype), torch.full((3,), 2.0, dtype=dtype)
    truth = GATED.loop({"x": x.double(), "bias": three.double(), "A": two.double()})
    inputs = {"x": x.requires_grad_(), "bias": three.requires_grad_(), "A": two.requires_grad_()}
    for lowering in ("loop", "parallel"):
        y = sf.scan(Gated, **inputs, lowering=lowering)
        assert_close(y, truth[0][0], "forward")
        assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), list(inputs.values())))
    copies = {n: v.detach().clone() for n, v in inputs.items()}
    check(GATED, copies, losses=["both"], quantities=TABLE)
