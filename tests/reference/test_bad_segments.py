"""What is refused of resets, padding, packed sequences and steps: type of the error, and the words in it."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests.reference.test_recurrence_errors import refused

x = torch.ones(2, 5, 3)


class Shared(sf.Recurrence):
    """One state for the whole batch"""

    w = sf.Input("t d")
    x = sf.Input("b t d")
    h = sf.State("d")

    def element(self):
        return sf.Affine(a=0.5, b=self.w)

    def readout(self):
        return self.h * self.x


class Pair(sf.Recurrence):
    """Two states"""

    x = sf.Input("b t d")
    h, g = sf.State("b d"), sf.State("b d")

    def element(self):
        return sf.Affine(a=0.5, b=self.x), sf.Affine(a=0.25, b=self.x)


def affine(**options):
    """The scan of the bare operator."""
    return lambda: sf.scan(sf.Affine, **{"a": x, "b": x} | options)


def shared(**options):
    return lambda: sf.scan(Shared, w=x[0], x=x, **options)


def step(state=None, /, operator=sf.Affine, **changes):
    given = {"a": x[:, 0], "b": x[:, 0]} if operator is sf.Affine else {"x": x[:, 0]}
    return lambda: sf.step(operator, state, **given | changes)


SHAPE, ARGUMENT, DTYPE = sf.ShapeError, sf.ArgumentError, sf.DTypeError
h = torch.zeros(2, 3)

CASES = {
    "a reset that is no tensor": (
        affine(reset=[[1, 0]]),
        ARGUMENT,
        ("Affine: reset", "list", "(2, 5)", "reset="),
    ),
    "a mask that is a flag": (affine(mask=True), ARGUMENT, ("Affine: mask", "bool", "(2, 5)")),
    "a complex mask": (affine(mask=torch.ones(2, 5) * 1j), DTYPE, ("Affine: mask", "complex", "!= 0")),
    "a mask of the elements' rank": (affine(mask=x), SHAPE, ("mask", "(2, 5, 3)", "(2, 5) (b, t)")),
    "a reset of another length": (
        affine(reset=torch.ones(2, 4)),
        SHAPE,
        ("reset", "(2, 4)", "(2, 5) (b, t)"),
    ),
    "lengths that are a list": (affine(lengths=[5, 3]), ARGUMENT, ("lengths", "torch.tensor([...])")),
    "lengths that are floats": (affine(lengths=torch.tensor([5.0, 3.0])), ARGUMENT, ("lengths", "ints")),
    "lengths that are flags": (affine(lengths=torch.tensor([True, False])), ARGUMENT, ("lengths", "ints")),
    "lengths of another batch": (affine(lengths=torch.tensor([5])), SHAPE, ("lengths", "(1,)", "(2,)")),
    "lengths beyond the end": (
        affine(lengths=torch.tensor([5, 6])),
        ARGUMENT,
        ("[5, 6]", "0 to the 5 steps"),
    ),
    "lengths below 0": (affine(lengths=torch.tensor([5, -1])), ARGUMENT, ("[5, -1]", "0 to the 5 steps")),
    "mask and lengths": (
        affine(mask=x[..., 0], lengths=torch.tensor([5, 5])),
        ARGUMENT,
        ("Affine", "mask= and lengths=", "one of them"),
    ),
    "a mask elsewhere": (
        affine(mask=torch.ones(2, 5, device="meta")),
        sf.DeviceError,
        ("mask", "meta", ".to("),
    ),
    "bounds that are a list": (
        affine(cu_seqlens=[0, 5]),
        ARGUMENT,
        ("cu_seqlens", "int32 or int64", "torch.tensor"),
    ),
    "bounds of rank 2": (affine(cu_seqlens=torch.tensor([[0, 5]])), SHAPE, ("cu_seqlens", "(1, 2)")),
    "no bounds": (affine(cu_seqlens=torch.zeros(0).long()), SHAPE, ("cu_seqlens", "(0,)")),
    "bounds that do not begin at 0": (
        lambda: sf.scan(sf.Affine, a=x[:1], b=x[:1], cu_seqlens=torch.tensor([1, 5])),
        ARGUMENT,
        ("[1, 5]", "rise from 0 to the 5 steps"),
    ),
    "a packed batch of two": (
        affine(cu_seqlens=torch.tensor([0, 5])),
        SHAPE,
        ("batch of one", "(1, 5, ...)"),
    ),
    "memory": (affine(memory="high"), ARGUMENT, ("memory='high'", "memory='low'")),
    "resets of a state that all share": (
        shared(reset=torch.ones(2, 5)),
        SHAPE,
        ("Shared: reset", "(2, 5)", "h has no axis b"),
    ),
    "lengths of a state that all share": (
        shared(lengths=torch.tensor([5, 4])),
        SHAPE,
        ("Shared: lengths", "h has no axis b"),
    ),
    "packed sequences of a state that all share": (
        lambda: sf.scan(Shared, w=x[0], x=x[:1], cu_seqlens=torch.tensor([0, 2, 5])),
        SHAPE,
        ("Shared", "h has no axis b", "sf.State('b d')"),
    ),
    "a step by position": (
        lambda: sf.step(sf.Affine, h, x[:, 0]),
        ARGUMENT,
        ("sf.step(Affine, state, a=...",),
    ),
    "a step without a tensor": (
        lambda: sf.step(sf.Affine, h, a=h),
        ARGUMENT,
        ("without b", "sf.step(Affine"),
    ),
    "a step with an option of scan": (step(h, reverse=True), ARGUMENT, ("reverse", "reset, mask, inplace")),
    "a step of a number": (step(None, a=torch.ones(()), b=h), SHAPE, ("Affine.a of a step", "(batch, ...)")),
    "a step of no tensor": (step(h, a=2.0), ARGUMENT, ("Affine.a", "float", "(batch, ...)")),
    "a state of another shape": (step(h[:, :2]), SHAPE, ("Affine: state of h", "(2, 2)", "(2, 3)")),
    "a state that is no tensor": (step(0.0), ARGUMENT, ("Affine: state of h", "float", "(2, 3)")),
    "too few states": (step(h, operator=Pair), ARGUMENT, ("Pair: state has 1", "(h, g)")),
    "a reset of a step with time": (
        step(h, reset=torch.ones(2, 1)),
        SHAPE,
        ("reset of a step", "(2, 1)", "(2,)"),
    ),
    "a mask of a step, another batch": (
        step(h, mask=torch.ones(3)),
        SHAPE,
        ("mask of a step", "(3,)", "(2,)"),
    ),
    "a mask of a step that is a flag": (step(h, mask=True), ARGUMENT, ("mask of a step", "bool", "(2,)")),
    "in place that is no flag": (step(h, inplace=1), ARGUMENT, ("inplace=1", "True or False")),
    "in place without a state": (step(inplace=True), ARGUMENT, ("inplace=True", "none is given")),
    "in place of what a gradient needs": (
        step(h, a=x[:, 0].clone().requires_grad_(), inplace=True),
        ARGUMENT,
        ("inplace=True", "torch.no_grad()"),
    ),
    "in place of a smaller state": (step(h[:1], inplace=True), ARGUMENT, ("(2, 3)", "(1, 3)", "sf.step")),
    "in place of an expanded state": (
        step(h[:1].expand(2, 3), inplace=True),
        ARGUMENT,
        ("inplace=True", "share memory", "state.clone()"),
    ),
    "prefixes with a mask": (
        lambda: sf.prefixes(sf.Affine, a=x, b=x, mask=x[..., 0]),
        ARGUMENT,
        ("mask", "dim, reverse, backend, lowering", "sf.prefixes(Affine"),
    ),
}


@pytest.mark.parametrize(("attempt", "error", "parts"), CASES.values(), ids=list(CASES))
def test_refused(attempt, error, parts):
    refused(attempt, error, parts)


def test_flags_that_all_share():
    """Size 1 in the batch is no cut for some of them."""
    starts = torch.zeros(1, 5)
    starts[0, 3] = 1
    y = sf.scan(Shared, w=x[0], x=x, reset=starts, reverse=False)
    assert torch.equal(y[0, 3], torch.ones(3))
    assert torch.equal(sf.scan(Shared, w=x[0], x=x, reset=starts, reverse=True)[0, 2], torch.ones(3))


@pytest.mark.parametrize(
    "attempt", [lambda: sf.scan(object(), a=x), lambda: sf.step(3, None), lambda: sf.check(int)]
)
def test_what_is_no_declaration(attempt):
    with pytest.raises(sf.DeclarationError, match=r"derives from sf\.Operator"):
        attempt()
