"""Bad input: a typed error before anything runs, with the operator, the field and what to write."""

from __future__ import annotations

import numpy
import pytest
import torch

import scanforge as sf
from tests.reference.refused import SHIPPED, affine, applies, check, composes, table, x

meta = torch.ones(2, 3, device="meta")
TENSORS = {
    "sizes": (
        affine(b=torch.ones(2, 4, 3)),
        sf.ShapeError,
        ["Affine", "dimension 1", "a (2, 5, 3), b (2, 4, 3)", "size 1"],
    ),
    "ranks": (
        affine(b=torch.ones(2, 5)),
        sf.ShapeError,
        ["Affine.b has rank 2", "rank 3", "b.view(1, *b.shape)"],
    ),
    "rank 1": (
        affine(a=x[0, 0], b=x[0, 0]),
        sf.ShapeError,
        ["Affine", "rank 1", "rank 2 or more", "a[None]"],
    ),
    "rank 0": (affine(a=x.sum(), b=x.sum()), sf.ShapeError, ["Affine", "rank 0", "rank 2 or more"]),
    "int for float": (
        affine(a=x.int()),
        sf.DTypeError,
        ["Affine.a is of kind float", "got dtype int32", "float64", "a=a.float()"],
    ),
    "bool for float": (affine(b=x > 0), sf.DTypeError, ["Affine.b", "dtype bool", "b=b.float()"]),
    "float8": (affine(a=x.to(torch.float8_e4m3fn)), sf.DTypeError, ["Affine.a", "float8_e4m3fn", "bfloat16"]),
    "half a complex": (
        affine(a=x.to(torch.complex32)),
        sf.DTypeError,
        ["Affine.a", "complex32", "a=a.cfloat()"],
    ),
    "float for int": (
        lambda: sf.scan(SHIPPED.LastFlagged, flag=x, value=x),
        sf.DTypeError,
        ["LastFlagged.flag is of kind int", "float32", "int64", "flag=flag.long()"],
    ),
    "device": (affine(b=x.to("meta")), sf.DeviceError, ["Affine", "a on cpu, b on meta", "b.to('cpu')"]),
    "missing": (
        lambda: sf.scan(SHIPPED.Affine, a=x),
        sf.ArgumentError,
        ["Affine is called without b", "sf.scan(Affine, a=..., b=...)"],
    ),
    "unknown": (
        affine(c=x),
        sf.ArgumentError,
        ["Affine", "c", "its elements are a, b", "sf.scan(Affine, a=..., b=...)"],
    ),
    "misspelt option": (
        affine(revers=True),
        sf.ArgumentError,
        ["revers", "the options are dim, initial_state"],
    ),
    "list": (
        affine(a=[[1.0]]),
        sf.ArgumentError,
        ["Affine.a got an object of type list", "torch.Tensor", "torch.as_tensor"],
    ),
    "array": (affine(a=numpy.ones((2, 5, 3))), sf.ArgumentError, ["Affine.a", "ndarray", "torch.as_tensor"]),
    "None": (affine(b=None), sf.ArgumentError, ["Affine.b got nothing", "torch.Tensor"]),
    "nested": (
        affine(a=torch.nested.nested_tensor([x[0], x[1, :3]])),
        sf.ArgumentError,
        ["Affine.a is a nested tensor", "a.to_padded_tensor(0.0)", "lengths="],
    ),
    "jagged": (
        affine(a=torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged)),
        sf.ArgumentError,
        ["Affine.a is a nested tensor", "lengths="],
    ),
    "sparse": (affine(a=x.to_sparse()), sf.ArgumentError, ["Affine.a", "sparse_coo", "a.to_dense()"]),
    "dim too large": (affine(dim=3), sf.ShapeError, ["Affine", "dim=3", "rank 3", "-3 to 2"]),
    "dim too small": (affine(dim=-4), sf.ShapeError, ["dim=-4", "rank 3"]),
    "dim a float": (affine(dim=1.0), sf.ArgumentError, ["Affine", "dim=1.0", "type float", "-3 to 2"]),
    "dim a bool": (affine(dim=True), sf.ArgumentError, ["dim=True", "type bool"]),
    "backend": (affine(backend="cuda"), sf.ArgumentError, ["backend='cuda'", "'reference'"]),
    "backend a number": (affine(backend=1), sf.ArgumentError, ["backend=1"]),
    "lowering": (affine(lowering="tile"), sf.ArgumentError, ["lowering='tile'", "'loop' or 'parallel'"]),
}

INITIAL = {
    "shape": (
        affine(initial_state=torch.ones(4)),
        sf.ShapeError,
        ["Affine", "initial_state of h", "(4,)", "(2, 3)"],
    ),
    "rank": (
        affine(initial_state=torch.ones(1, 2, 3)),
        sf.ShapeError,
        ["initial_state of h", "(1, 2, 3)", "(2, 3)"],
    ),
    "count": (
        affine(initial_state=(x[:, 0], x[:, 0])),
        sf.ArgumentError,
        ["Affine", "2 tensor(s)", "(h)", "initial_state=h"],
    ),
    "none of one": (affine(initial_state=()), sf.ArgumentError, ["0 tensor(s)"]),
    "one of two": (
        lambda: sf.scan(SHIPPED.RunningMax, value=x, index=x.long(), initial_state=x[:, 0]),
        sf.ArgumentError,
        ["RunningMax", "1 tensor(s)", "initial_state=(top, at)"],
    ),
    "dtype": (
        affine(initial_state=torch.ones(2, 3).int()),
        sf.DTypeError,
        ["initial_state of h", "int32", "kind float", "h.float()"],
    ),
    "float for int": (
        lambda: sf.scan(SHIPPED.RunningMax, value=x, index=x.long(), initial_state=(x[:, 0], x[:, 0])),
        sf.DTypeError,
        ["RunningMax", "initial_state of at", "float32", "kind int", "at.long()"],
    ),
    "device": (
        affine(initial_state=meta),
        sf.DeviceError,
        ["initial_state of h", "meta", "cpu", "h.to('cpu')"],
    ),
    "number": (
        affine(initial_state=1.0),
        sf.ArgumentError,
        ["initial_state of h", "type float", "(2, 3)", "torch.full"],
    ),
    "array": (affine(initial_state=numpy.ones((2, 3))), sf.ArgumentError, ["initial_state of h", "ndarray"]),
    "sparse": (
        affine(initial_state=torch.ones(2, 3).to_sparse()),
        sf.ArgumentError,
        ["initial_state of h", "to_dense()"],
    ),
    "dictionary": (
        affine(initial_state={"h": x[:, 0]}),
        sf.ArgumentError,
        ["initial_state of h", "type dict"],
    ),
}

INSTANCES = {
    "an instance": (
        lambda: sf.scan(SHIPPED.Affine(a=1.0, b=2.0), a=x, b=x),
        sf.DeclarationError,
        ["an instance of Affine", "Pass the class itself"],
    ),
    "a function": (
        lambda: sf.scan(lambda h: h, a=x),
        sf.DeclarationError,
        ["an instance of function", "sf.Operator"],
    ),
    "None": (lambda: sf.scan(None, a=x), sf.DeclarationError, ["NoneType", "sf.Operator"]),
    "another class": (lambda: sf.scan(int, a=x), sf.DeclarationError, ["the class int"]),
    "the base class": (lambda: sf.scan(sf.Operator, a=x), sf.DeclarationError, ["the class Operator"]),
    "built of tensors": (
        lambda: SHIPPED.MinMax(r=x, s=x),
        sf.TraceError,
        ["MinMax(r=...)", "a Tensor", "sf.scan(MinMax, r=..., s=...)"],
    ),
    "built of positions": (
        lambda: SHIPPED.MinMax(1.0, 2.0),
        sf.TraceError,
        ["MinMax", "without names", "MinMax(r=..., s=...)"],
    ),
    "built incompletely": (
        lambda: SHIPPED.MinMax(r=1.0),
        sf.TraceError,
        ["MinMax", "without s", "MinMax(r=..., s=...)"],
    ),
    "check": (lambda: sf.check(SHIPPED.Affine(a=1.0, b=2.0)), sf.DeclarationError, ["an instance of Affine"]),
    "explain": (lambda: sf.explain(min), sf.DeclarationError, ["builtin_function"]),
    "source": (lambda: sf.source(torch.nn.Linear), sf.DeclarationError, ["the class Linear"]),
}


SENTENCES = {
    "a number as a bool": (
        applies(lambda self, h: sf.where(h, h, 0.0)),
        sf.TraceError,
        ["Decay.apply (test_bad_input.py:", "write"],
    ),
    "sf.maximum of one": (
        applies(lambda self, h: sf.maximum(h)),
        sf.TraceError,
        ["sf.maximum (test_bad_input.py:", "write"],
    ),
    "positional tensors": (
        lambda: sf.scan(SHIPPED.Affine, x, x),
        sf.ArgumentError,
        ["Affine", "sf.scan(Affine, a=..., b=...)"],
    ),
    "return_final_state": (
        affine(return_final_state=torch.tensor([True, False])),
        sf.ArgumentError,
        ["return_final_state"],
    ),
    "reverse names the operator": (affine(reverse=1), sf.ArgumentError, ["Affine", "an int"]),
    "backend names the operator": (affine(backend="cuda"), sf.ArgumentError, ["Affine"]),
    "lowering names the operator": (affine(lowering="tile"), sf.ArgumentError, ["Affine"]),
    "apply returns None": (applies(lambda self, h: None), sf.TraceError, ["Decay.apply", "return"]),
    "apply returns a tensor": (
        applies(lambda self, h: x),
        sf.TraceError,
        ["Decay.apply", "sf.Element(identity=...)"],
    ),
    "apply returns a list": (applies(lambda self, h: [h]), sf.TraceError, ["Decay.apply", "return"]),
    "combine of None": (
        composes(lambda self, later: type(self)(a=None, b=self.b)),
        sf.TraceError,
        ["Decay.combine", "`a`"],
    ),
    "sf.exp of two": (applies(lambda self, h: sf.exp(h, h)), sf.TraceError, ["sf.exp (test_bad_input.py:"]),
    "sf.where of one": (
        applies(lambda self, h: sf.where(h)),
        sf.TraceError,
        ["write sf.where(condition, a, b)"],
    ),
    "apply returns a number too many": (applies(lambda self, h: (h, h)), sf.TraceError, ["2 value(s)", "h"]),
    "prefixes by position": (
        lambda: sf.prefixes(SHIPPED.Affine, x, x),
        sf.ArgumentError,
        ["Affine", "2 argument(s) by position", "sf.prefixes(Affine, a=..., b=...)"],
    ),
    "dtype of source": (
        lambda: sf.source(SHIPPED.Affine, dtype=torch.int32),
        sf.ArgumentError,
        ["Affine", "torch.int32", "bf16"],
    ),
    "source of what": (
        lambda: sf.source(SHIPPED.Affine, "sideways"),
        sf.ArgumentError,
        ["Affine", "sideways"],
    ),
    "sf.nosuch": (applies(lambda self, h: sf.nosuch(h)), sf.TraceError, ["nosuch", "abs, conj, cos"]),
    "dtype of explain": (
        lambda: sf.explain(SHIPPED.Affine, dtype="bf17"),
        sf.ArgumentError,
        ["bf17", "bf16"],
    ),
}


@table(TENSORS)
def test_tensors_and_options(call, error, parts):
    check(call, error, *parts)


@table(INITIAL)
def test_initial_states(call, error, parts):
    check(call, error, *parts)


@table(INSTANCES)
def test_what_is_no_operator(call, error, parts):
    check(call, error, *parts)


@table(SENTENCES)
def test_sentences(call, error, parts):
    check(call, error, *parts)


@pytest.mark.parametrize("lowering", ["loop", "parallel"])
def test_meta_tensors_give_shapes(lowering):
    """Values of no tensor are computed, and shapes, dtypes and gradients are right."""
    a = torch.empty(2, 5, 3, device="meta", dtype=torch.bfloat16, requires_grad=True)
    states, final = sf.scan(SHIPPED.Affine, a=a, b=a[:, :, :1], return_final_state=True, lowering=lowering)
    assert (states.device.type, states.shape, states.dtype) == ("meta", (2, 5, 3), torch.bfloat16)
    assert (final.device.type, final.shape, final.dtype) == ("meta", (2, 3), torch.float32)
    states.sum().backward()
    assert (a.grad.device.type, a.grad.shape) == ("meta", (2, 5, 3))


def test_an_unknown_function_is_an_attribute_error_too():
    with pytest.raises(AttributeError, match="has no nosuch"):
        sf.nosuch  # noqa: B018
    assert not hasattr(sf, "nosuch")
    assert not hasattr(sf.maths, "_nosuch")


def test_triton_on_the_cpu_names_the_backend_that_runs(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("SCANFORGE_FALLBACK", raising=False)
    check(affine(backend="triton"), sf.BackendError, "Triton", "Write backend='reference'.")


@pytest.mark.parametrize("value", [torch.tensor(True), 1, None, "yes"], ids=repr)
def test_reverse_is_a_bool(value):
    with pytest.raises(sf.ArgumentError, match=r"reverse=.* expected True or False\."):
        sf.scan(SHIPPED.Affine, a=x, b=x, reverse=value)


def test_the_kinds_of_error():
    """What a caller may catch."""
    assert issubclass(sf.DeclarationError, TypeError)
    assert issubclass(sf.TraceError, TypeError)
    for kind in (sf.ArgumentError, sf.ShapeError, sf.DTypeError, sf.DeviceError):
        assert issubclass(kind, sf.InputError)
        assert issubclass(kind, ValueError)
    assert issubclass(sf.ArgumentError, TypeError)
    assert issubclass(sf.BackendError, RuntimeError)
