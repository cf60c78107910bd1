"""What is refused of a recurrence: the error's type, and the words that a person needs."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests.recurrence_declarations import HGRN2, LinearAttention, SelectiveSSM
from tests.recurrences import BY_NAME, draw

x = torch.ones(2, 5, 3)
SSM, _ = draw(BY_NAME["SelectiveSSM"], torch.float32)


def recurrence(element=None, readout=None, **fields):
    """h_t = h_{t-1} / 2 + x_t, with parts exchanged; a field that is None is left out."""
    body = {"x": sf.Input("b t d"), "h": sf.State("b d")}
    body |= {
        "element": element or (lambda self: sf.Affine(a=0.5, b=self.x)),
        "readout": readout or (lambda self: self.h),
    }
    return type("Half", (sf.Recurrence,), {n: v for n, v in (body | fields).items() if v is not None})


def call(element=None, readout=None, tensors=None, **fields):
    """The call of such a recurrence."""
    return lambda: sf.scan(recurrence(element, readout, **fields), **tensors or {"x": x})


def ssm(**changes):
    return lambda: sf.scan(SelectiveSSM, **SSM | changes)


def step(state=None, /, **options):
    return lambda: sf.step(recurrence(), state, **{"x": x[:, 0]} | options)


SHAPE, ARGUMENT, DTYPE = sf.ShapeError, sf.ArgumentError, sf.DTypeError
TRACE, DECLARE = sf.TraceError, sf.DeclarationError
ONE = sf.State("b d")
TOP, TOTAL = sf.State("b d", initial=float("-inf")), sf.State("b")

CALLS = {
    "axis sizes side by side": (
        ssm(C=torch.ones(2, 5, 7)),
        SHAPE,
        ("SelectiveSSM", "n", "b t n", "(2, 5, 7)", "(2, 5, 2)", "b t d", "(2, 5, 3)"),
    ),
    "a time that differs": (ssm(dt=torch.ones(2, 4, 3)), SHAPE, ("t", "dt", "(2, 4, 3)", "(2, 5, 3)")),
    "a rank too low": (ssm(u=torch.ones(5, 3)), SHAPE, ("u", "(5, 3)", "b t d")),
    "a rank too high": (ssm(A=torch.ones(1, 3, 2)), SHAPE, ("A", "d n", "(1, 3, 2)")),
    "batch axes on one input": (ssm(u=torch.ones(4, 2, 5, 3)), SHAPE, ("b t d", "(4, 2, 5, 3)")),
    "missing inputs": (lambda: sf.scan(HGRN2, q=x, v=x), ARGUMENT, ("HGRN2", "f, lower", "sf.scan(HGRN2")),
    "an unknown input": (ssm(w=x), ARGUMENT, ("w", "u, dt, A, B, C, D")),
    "a tensor by position": (lambda: sf.scan(recurrence(), x), ARGUMENT, ("position", "keyword", "x=...")),
    "no tensor": (ssm(D=1.0), ARGUMENT, ("SelectiveSSM.D", "float", "torch.Tensor")),
    "ints for a float": (ssm(D=torch.ones(3).long()), DTYPE, ("SelectiveSSM.D", "int64", "float")),
    "floats for a bool": (
        call(keep=sf.Input("b t", kind="bool"), tensors={"x": x, "keep": x[..., 0]}),
        DTYPE,
        ("keep", "float32", "bool"),
    ),
    "an initial state of another shape": (
        ssm(initial_state=torch.ones(2, 2, 3)),
        SHAPE,
        ("initial_state", "h", "(2, 2, 3)", "(2, 3, 2)", "b d n"),
    ),
    "too many initial states": (
        lambda: sf.scan(LinearAttention, q=x[..., None], k=x[..., None], v=x[..., None], initial_state=x),
        ARGUMENT,
        ("initial_state", "S, z"),
    ),
    "nothing tells a size": (
        call(h=sf.State("b d n")),
        SHAPE,
        ("axis n", "initial_state"),
    ),
    "dim": (lambda: sf.scan(recurrence(), x=x, dim=0), ARGUMENT, ("dim", "bare", "t")),
    "mask and lengths": (
        lambda: sf.scan(recurrence(), x=x, mask=x[..., 0] > 0, lengths=torch.tensor([5, 5])),
        ARGUMENT,
        ("mask", "lengths"),
    ),
    "a mask of another shape": (
        lambda: sf.scan(recurrence(), x=x, mask=torch.ones(2, 4) > 0),
        SHAPE,
        ("mask", "(2, 4)", "(2, 5)"),
    ),
    "resets of another shape": (
        lambda: sf.scan(recurrence(), x=x, reset=torch.ones(5) > 0),
        SHAPE,
        ("reset", "(5,)", "(2, 5)"),
    ),
    "packed in a batch of two": (
        lambda: sf.scan(recurrence(), x=x, cu_seqlens=torch.tensor([0, 5])),
        SHAPE,
        ("cu_seqlens", "batch of one", "(1, 5, ...)"),
    ),
    "packed to another end": (
        lambda: sf.scan(recurrence(), x=x[:1], cu_seqlens=torch.tensor([0, 4])),
        ARGUMENT,
        ("cu_seqlens", "[0, 4]", "5"),
    ),
    "packed downwards": (
        lambda: sf.scan(recurrence(), x=x[:1], cu_seqlens=torch.tensor([0, 4, 3, 5])),
        ARGUMENT,
        ("cu_seqlens", "[0, 4, 3, 5]", "rise"),
    ),
    "packed by floats": (
        lambda: sf.scan(recurrence(), x=x[:1], cu_seqlens=torch.tensor([0.0, 5.0])),
        ARGUMENT,
        ("cu_seqlens", "int32", "int64"),
    ),
    "packed states of another count": (
        lambda: sf.scan(
            recurrence(), x=x[:1], cu_seqlens=torch.tensor([0, 2, 5]), initial_state=torch.ones(3, 3)
        ),
        SHAPE,
        ("initial_state", "(3, 3)", "(2, 3)"),
    ),
    "a step with a time axis": (step(torch.ones(2, 3), x=x), SHAPE, ("x", "(2, 5, 3)")),
    "a step in place without a state": (step(inplace=True), ARGUMENT, ("inplace", "state")),
    "a step in place of what wants a gradient": (
        step(torch.ones(2, 3, requires_grad=True), inplace=True),
        sf.InputError,
        ("inplace", "gradient"),
    ),
    "a step in place of another type": (
        step(torch.ones(2, 3, dtype=torch.bfloat16), inplace=True),
        sf.InputError,
        ("inplace", "float32"),
    ),
}


def summing(method: str):
    """Affine with a sum in a method."""

    def combine(self, later):
        b = sf.sum(later.b, "d") if method == "combine" else later.a * self.b + later.b
        return type(self)(a=later.a * self.a, b=b)

    def apply(self, h):
        return self.a * h + (sf.sum(self.b, "d") if method == "apply" else self.b)

    fields = {"a": sf.Element(identity=1.0), "b": sf.Element(identity=0.0), "h": sf.State()}
    operator = type("Sums", (sf.Operator,), fields | {"combine": combine, "apply": apply})
    return call(lambda self: operator(a=0.5, b=self.x))


B = {"B": sf.Input("b t n"), "tensors": {"x": x, "B": x}}
METHODS = {
    "a sum in apply": (summing("apply"), TRACE, ("Sums.apply", "readout")),
    "a sum in combine": (summing("combine"), TRACE, ("Sums.combine", "readout")),
    "a state that lacks an axis": (
        call(lambda self: sf.Affine(a=0.5, b=self.x * self.B), **B),
        TRACE,
        ("h", "b d", "'b d n'"),
    ),
    "states of one operator with other axes": (
        call(
            lambda self: sf.operators.LogSumExp(m=self.x, s=1.0),
            lambda self: self.top,
            h=None,
            top=TOP,
            total=TOTAL,
        ),
        TRACE,
        ("LogSumExp", "top (b d)", "total (b)", "equal axes"),
    ),
    "too few states": (
        call(lambda self: sf.operators.LogSumExp(m=self.x, s=1.0)),
        TRACE,
        ("LogSumExp", "top, total", "h"),
    ),
    "an element that is a value": (call(lambda self: self.x), TRACE, ("Half.element", "sf.Affine")),
    "an element that is nothing": (call(lambda self: None), TRACE, ("Half.element", "return")),
    "a state in the element": (
        call(lambda self: sf.Affine(a=0.5, b=self.h)),
        TRACE,
        ("Half.element", "self.h", "state", "readout"),
    ),
    "an input that is not declared": (
        call(lambda self: sf.Affine(a=0.5, b=self.y)),
        TRACE,
        ("y", "x", "sf.Input"),
    ),
    "a sum over an axis that is not there": (
        call(None, lambda self: sf.sum(self.h, "n")),
        TRACE,
        ("Half.readout", "n", "b d"),
    ),
    "a sum over time": (call(None, lambda self: sf.sum(self.x, "t")), TRACE, ("t", "sf.Output")),
    "previous of an input": (call(None, lambda self: sf.previous(self.x)), TRACE, ("previous", "state")),
    "previous of an expression": (call(None, lambda self: sf.previous(2 * self.h)), TRACE, ("previous",)),
    "more outputs than declared": (
        call(None, lambda self: (self.h, self.x), y=sf.Output("b t d")),
        TRACE,
        ("Half.readout", "y"),
    ),
    "a readout that is nothing": (call(None, lambda self: None), TRACE, ("Half.readout", "return")),
    "a Python if": (call(lambda self: sf.Affine(a=0.5 if self.x > 0 else 1, b=self.x)), TRACE, ("sf.where",)),
    "an assignment": (call(lambda self: setattr(self, "x", 1)), TRACE, ("x", "local name")),
}

CLASSES = {
    "one object for two names": (lambda: recurrence(h=ONE, g=ONE), DECLARE, ("h and g", "sf.State")),
    **{
        f"the option {name}": (
            lambda name=name: recurrence(**{name: sf.Input("b t")}),
            DECLARE,
            (f"Half.{name}", "option"),
        )
        for name in ("reverse", "initial_state", "reset", "cu_seqlens", "mask", "lengths", "inplace", "dtype")
    },
    **{
        f"the method {name}": (
            lambda name=name: recurrence(**{name: sf.Input("b t")}),
            DECLARE,
            (name,),
        )
        for name in ("element", "combine", "apply")
    },
    "a state with time": (lambda: recurrence(h=sf.State("b t d")), DECLARE, ("h", "t", "'b d'")),
    "a state without axes": (lambda: recurrence(h=sf.State()), DECLARE, ("h", "axes")),
    "an element in a recurrence": (
        lambda: recurrence(a=sf.Element(identity=1.0)),
        DECLARE,
        ("Half.a", "sf.Input"),
    ),
    "an axis twice": (lambda: sf.Input("b t d d"), DECLARE, ("b t d d", "twice")),
    "axes that are no text": (lambda: sf.Input(3), DECLARE, ("3", "names")),
    "commas between axes": (lambda: sf.Input("b, t"), DECLARE, ("b, t", "spaces")),
    "no state": (lambda: recurrence(h=None), DECLARE, ("Half", "no state")),
    "no input": (lambda: recurrence(x=None), DECLARE, ("Half", "no input")),
    "built by hand": (lambda: recurrence()(x=x), TRACE, ("Half", "sf.scan(Half")),
}


def table(cases):
    return pytest.mark.parametrize(("attempt", "error", "parts"), cases.values(), ids=list(cases))


def refused(attempt, error, parts) -> None:
    """An error of this type that says all of this, and nothing has run."""
    before = sf.last_run()
    with pytest.raises(error) as caught:
        attempt()
    assert isinstance(caught.value, sf.ScanforgeError)
    message = str(caught.value)
    for part in parts:
        assert part in message, f"{part!r} is not in: {message}"
    assert sf.last_run() is before


@table(CALLS)
def test_calls(attempt, error, parts):
    refused(attempt, error, parts)


@table(METHODS)
def test_methods(attempt, error, parts):
    refused(attempt, error, parts)


@table(CLASSES)
def test_classes(attempt, error, parts):
    refused(attempt, error, parts)


@pytest.mark.parametrize("function", [sf.segment_start, lambda: sf.sum(x, "d"), lambda: sf.previous(x)])
def test_outside_of_a_method(function):
    with pytest.raises(sf.TraceError, match=r"sf\.\w+"):
        function()


def test_a_size_that_the_initial_state_tells():
    wide = recurrence(h=sf.State("b d n"))
    y, h = sf.scan(wide, x=x, initial_state=torch.zeros(2, 3, 4), return_final_state=True)
    assert y.shape == (2, 5, 3, 4)
    assert torch.equal(y[..., 0], sf.scan(recurrence(), x=x))
    assert torch.equal(h, y[:, -1])
