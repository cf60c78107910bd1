"""The parts of a recurrence's face that the catalogue leaves out, each against a few lines of torch."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests.catalogue import generator, normal
from tests.recurrence_declarations import Decay, SelectiveSSM
from tests.recurrences import BY_NAME, draw
from tests.reference.compare import cotangent, differentiable
from tests.reference.fused import every_lowering
from tests.tolerances import assert_close, assert_equal

F64, C128 = torch.float64, torch.complex128
INF = float("inf")
T = 6


def drawn(seed: int, *shape: int, dtype: torch.dtype = F64) -> torch.Tensor:
    if dtype.is_complex:
        return torch.complex(drawn(seed, *shape), drawn(seed + 1, *shape)).requires_grad_()
    return normal(generator(seed), shape, dtype).requires_grad_()


def assert_same(got, truth, *inputs) -> None:
    """Values, and the gradients of a fixed combination of all outputs."""
    found = []
    for outputs in (got, truth):
        read = [(y, cotangent(y, i)) for i, y in enumerate(outputs)]
        found.append(torch.autograd.grad([y for y, _ in read], inputs, [c for _, c in read]))
    for x, y in zip((*got, *found[0]), (*truth, *found[1]), strict=True):
        assert_close(x, y, "long")


class Stopped(sf.Recurrence):
    """h_t = σ(stop(x_t)) h_{t-1} + x_t,  y_t = stop(h_t) x_t"""

    x = sf.Input("b t d")
    h = sf.State("b d")

    def element(self):
        return sf.Affine(a=sf.sigmoid(sf.stop_gradient(self.x)), b=self.x)

    def readout(self):
        return sf.stop_gradient(self.h) * self.x, self.h


@every_lowering
def test_stop_gradient(lowering):
    x, h, ys, hs = drawn(1, 2, T, 3), torch.zeros(2, 3, dtype=F64), [], []
    for row in x.unbind(1):
        h = torch.sigmoid(row.detach()) * h + row
        ys.append(h.detach() * row)
        hs.append(h)
    assert_same(sf.scan(Stopped, x=x, lowering=lowering), (torch.stack(ys, 1), torch.stack(hs, 1)), x)


class Largest(sf.Recurrence):
    """The largest value so far and when it was, counted from `time`"""

    x = sf.Input("b t d")
    time = sf.Input("t", kind="int")
    top = sf.State("b d", initial=-INF)
    at = sf.State("b d", initial=-1, kind="int")

    def element(self):
        return sf.operators.RunningMax(value=self.x, index=self.time)

    def readout(self):
        return self.top, self.at


@every_lowering
@pytest.mark.parametrize("reverse", [False, True])
def test_states_of_ints(lowering, reverse):
    x, time = drawn(2, 2, T, 3), torch.arange(T)
    (top, at), (last, when) = sf.scan(
        Largest, x=x, time=time, return_final_state=True, reverse=reverse, lowering=lowering
    )
    there = x.flip(1) if reverse else x
    values, indices = there.cummax(1)
    if reverse:
        values, indices = values.flip(1), (T - 1 - indices).flip(1)
    assert_equal(top, values)
    assert_equal(at, indices)
    assert at.dtype == when.dtype == torch.int64
    assert_equal(last, values[:, 0 if reverse else -1])
    assert_same((top, last), (values, x.amax(1)), x)


class Diagonal(sf.Recurrence):
    """S4D: h_t = A h_{t-1} + B x_t,  y_t = Re(C·h_t), complex if A, B and C are"""

    x = sf.Input("b t d")
    A, B, C = sf.Input("d n"), sf.Input("d n"), sf.Input("d n")
    h = sf.State("b d n")

    def element(self):
        return sf.Affine(a=self.A, b=self.B * self.x)

    def readout(self):
        return sf.real(sf.sum(self.C * self.h, "n"))


@every_lowering
@pytest.mark.parametrize("dtype", [C128, F64], ids=str)
def test_complex_inputs(lowering, dtype):
    x, A, B, C = drawn(3, 2, T, 3), *(drawn(10 * i, 3, 4, dtype=dtype) for i in (1, 2, 3))
    h0 = drawn(50, 2, 3, 4, dtype=dtype)
    y, final = sf.scan(
        Diagonal, x=x, A=A, B=B, C=C, initial_state=h0, return_final_state=True, lowering=lowering
    )
    h, history = h0, []
    for row in x.unbind(1):
        h = A * h + B * row[..., None]
        history.append((C * h).sum(-1).real)
    assert (y.dtype, final.dtype) == (F64, dtype)
    assert_same((y, final), (torch.stack(history, 1), h), x, A, B, C, h0)


class Bare(sf.Recurrence):
    """Without a readout the outputs are the states"""

    x = sf.Input("b t d")
    h = sf.State("b d")

    def element(self):
        return sf.Affine(a=0.5, b=self.x)


@every_lowering
def test_no_readout(lowering):
    x = drawn(4, 2, T, 3)
    truth = sf.scan(sf.Affine, a=torch.full_like(x, 0.5), b=x)
    assert_same([sf.scan(Bare, x=x, lowering=lowering)], [truth], x)


class Idle(Bare):
    """A line that nobody reads"""

    def readout(self):
        sf.tanh(sf.previous(self.h))
        return 2 * self.x


@every_lowering
@pytest.mark.parametrize("mask", [None, torch.arange(T) < 4], ids=["all", "masked"])
def test_lines_that_nobody_reads(mask, lowering):
    x = drawn(15, 2, T, 3)
    real = mask if mask is None else mask.expand(2, T)
    kept = torch.ones(T, dtype=torch.bool) if mask is None else mask
    got = sf.scan(Idle, x=x, mask=real, lowering=lowering)
    assert_same([got], [torch.where(kept[:, None], 2 * x, 0)], x)


def read(outputs: str | None, value, **inputs: str):
    """A recurrence whose one output is `value(self)`, with these axes."""
    fields = {n: sf.Input(axes) for n, axes in inputs.items()} | {"h": sf.State("b d")}
    fields |= {} if outputs is None else {"y": sf.Output(outputs)}
    methods = {"element": lambda self: sf.Affine(a=0.5, b=self.x), "readout": value}
    return type("Read", (sf.Recurrence,), fields | methods)


def states(x):
    return sf.scan(Bare, x=x)


@every_lowering
@pytest.mark.parametrize(
    ("axes", "equation"), [("b t", "btd->bt"), ("t d", "btd->td"), ("d b", "btd->db"), ("", "btd->")]
)
def test_an_output_sums_over_what_it_lacks(axes, equation, lowering):
    x = drawn(5, 2, T, 3)
    got = sf.scan(read(axes, lambda self: self.h * self.h, x="b t d"), x=x, lowering=lowering)
    assert_same([got], [torch.einsum(equation, states(x).square())], x)


@every_lowering
def test_an_output_has_axes_that_its_value_lacks(lowering):
    """As the gradient of an input that was summed: the value is the same along them."""
    x = drawn(6, 2, T, 3)
    recurrence = read("b t n d", lambda self: self.h, x="b t d", w="n")
    y = sf.scan(recurrence, x=x, w=torch.ones(4, dtype=F64), lowering=lowering)
    assert y.shape == (2, T, 4, 3)
    assert_same([y], [states(x)[:, :, None].expand_as(y)], x)


@every_lowering
def test_a_sum_over_b_and_t_counts_the_steps(lowering):
    """The value of each step is broadcast to b and t first, so a parameter counts B·T times."""
    x, w = drawn(8, 2, T, 3), drawn(9, 3)
    y = sf.scan(read("d", lambda self: self.w, x="b t d", w="d"), x=x, w=w, lowering=lowering)
    assert_close(y, 2 * T * w, "forward")
    (slope,) = torch.autograd.grad(y.sum(), w)
    assert_close(slope, torch.full((3,), 2.0 * T, dtype=F64), "forward")
    mask = torch.arange(T) < torch.tensor([[2], [5]])
    y = sf.scan(read("d", lambda self: self.w, x="b t d", w="d"), x=x, w=w, mask=mask, lowering=lowering)
    assert_close(y, 7 * w, "forward")


@every_lowering
@pytest.mark.parametrize("axes", ["", "b t", "b t d"])
def test_a_second_derivative_counts_what_broadcasts(axes, lowering):
    """The slope by a number is the cotangent times a size; so is the slope of that slope."""
    x, w = drawn(16, 2, T, 3), drawn(17)
    y = sf.scan(read(axes, lambda self: self.x + self.w, x="b t d", w=""), x=x, w=w, lowering=lowering)
    equation = f"btd->{axes.replace(' ', '')}"
    seconds = []
    for outputs in (y, torch.einsum(equation, x + w)):
        (slope,) = torch.autograd.grad(outputs.square().sum(), w, create_graph=True)
        seconds.append(torch.autograd.grad(slope.square(), (x, w)))
    for got, truth in zip(*seconds, strict=True):
        assert_close(got, truth, "long")


@pytest.mark.parametrize(
    ("wide", "value", "shape"),
    [
        ("b t d n", lambda self: self.h * self.w, (2, T, 3, 4)),
        ("n t b d", lambda self: self.h * self.w, (4, T, 2, 3)),
        ("t n b d", lambda self: sf.sum(self.h * self.w, "n"), (T, 2, 3)),
    ],
)
def test_the_order_of_axes_that_nobody_declared(wide, value, shape):
    """That of the widest input with t, then the state's."""
    sizes = {"b": 2, "t": T, "d": 3, "n": 4}
    w = drawn(11, *(sizes[a] for a in wide.split()))
    assert sf.scan(read(None, value, x="b t d", w=wide), x=drawn(12, 2, T, 3), w=w).shape == shape


@pytest.mark.parametrize("axes", ["t b d", "d b t", "b d t"])
@every_lowering
def test_time_on_any_axis(axes, lowering):
    x = drawn(13, 2, T, 3)
    order = ["btd".index(a) for a in axes.split()]
    got = sf.scan(read(None, lambda self: self.h, x=axes), x=x.permute(order), lowering=lowering)
    assert_same([got], [states(x).permute(order)], x)


def test_a_base_class_shares_its_methods():
    class Half(Decay):
        """The same with another decay"""

        def element(self):
            return sf.Affine(a=0.5 + 0 * self.w, b=self.x)

    x = drawn(14, 2, T, 3)
    assert_close(sf.scan(Half, x=x, w=torch.zeros(3, dtype=F64)), states(x), "forward")


def test_memory_low_has_the_same_numbers():
    entry = BY_NAME["SelectiveSSM"]
    tensors, _ = draw(entry, t=40)
    results = []
    for memory in (None, "low"):
        inputs = differentiable(tensors)
        y = sf.scan(SelectiveSSM, **inputs, memory=memory)
        results.append([y, *torch.autograd.grad(y.square().sum(), list(inputs.values()))])
    for x, y in zip(*results, strict=True):
        assert_close(x, y, "long")


def test_forward_mode_is_right_or_refused():
    """Never a silent zero."""
    tensors, _ = draw(BY_NAME["RGLRU"])
    x = tensors.pop("x")

    def function(x):
        return sf.scan(BY_NAME["RGLRU"].recurrence, x=x, **tensors)

    try:
        _, tangent = torch.func.jvp(function, (x,), (torch.ones_like(x),))
    except (NotImplementedError, RuntimeError):
        return
    assert_close(tangent, function(torch.ones_like(x)), "long")


@every_lowering
def test_an_output_modified_in_place_is_noticed(lowering):
    """A right gradient or torch's error, never another number."""
    inputs = differentiable(draw(BY_NAME["RGLRU"])[0])
    wanted = list(inputs.values())
    recurrence = BY_NAME["RGLRU"].recurrence
    truth = torch.autograd.grad((sf.scan(recurrence, **inputs, lowering=lowering) * 2).sum(), wanted)
    y = sf.scan(recurrence, **inputs, lowering=lowering)
    try:
        found = torch.autograd.grad(y.mul_(2).sum(), wanted)
    except RuntimeError as error:
        assert "inplace" in str(error)  # noqa: PT017 - either outcome is right
    else:
        for x, y in zip(found, truth, strict=True):
            assert_close(x, y, "long")
