"""What torch does to a scan, done to every operator and every layer's recurrence that ships.

The catalogues of tests have shorter relatives of the layers' recurrences; these are the ones people run.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import hessian, jacfwd, jacrev, vmap

import scanforge as sf
from models.minmax.convolutions import Previous
from scanforge import operators, selfcheck
from tests.catalogue import generator
from tests.pytorch.calls import F64, Called, Tensors, many, one, weighed, with_gradients
from tests.pytorch.test_opcheck import examined
from tests.tolerances import assert_close

SIZES = {"b": 1, "t": 3, "d": 2, "n": 2, "h": 1, "k": 2, "v": 1, "g": 1}


def called(declared: selfcheck.Declared) -> Called:
    """A call on small tensors without ties; it has no loop by hand, for the self-check compares those."""
    tensors, initial = selfcheck.drawn(declared, selfcheck.Form(None, F64, SIZES))
    names = [n for n, x in tensors.items() if x.is_floating_point()]
    carried = [k for k, x in enumerate(initial) if x.is_floating_point()]

    def scan(*floats: Tensor) -> Tensors:
        states = list(initial)
        for k, x in zip(carried, floats[len(names) :], strict=True):
            states[k] = x
        given = tensors | dict(zip(names, floats, strict=False))
        found = sf.scan(declared, **given, initial_state=one(tuple(states)), return_final_state=True)
        return tuple(x for part in found for x in many(part) if x.is_floating_point())

    floats = [*(tensors[n] for n in names), *(initial[k] for k in carried)]
    apart = [1e-2 * torch.rand(x.shape, generator=generator(k), dtype=F64) for k, x in enumerate(floats)]
    return Called(declared.__name__, scan, scan, tuple(x - y for x, y in zip(floats, apart, strict=True)))


def wanted(call: Called) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for x in call.floats]


SHIPPED = selfcheck.shipped()
CALLS = [called(declared) for declared in SHIPPED]
LAYERS = [c for c, d in zip(CALLS, SHIPPED, strict=True) if issubclass(d, sf.Recurrence)]
every = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
FEW = ("TiedKeys", "Previous", "LinearGated", "RGLRUScan", "Euler")
every_layer = pytest.mark.parametrize("call", LAYERS, ids=lambda call: call.name)
some_at_first = pytest.mark.parametrize(
    "call",
    [pytest.param(c, id=c.name, marks=() if c.name in FEW else pytest.mark.slow) for c in LAYERS],
)


def test_the_list_is_whole():
    assert {c.name for c in CALLS} >= {*operators.__all__, "RGLRUScan", "Euler", "TiedKeys", "LinearGated"}
    assert len(LAYERS) == len(CALLS) - len(operators.__all__) >= 12


@every_layer
def test_second_derivatives(call: Called):
    """Of the operators, tests/reference/test_gradients.py."""
    assert gradgradcheck(call.scan, wanted(call))


@every
def test_forward_mode(call: Called):
    """One tensor moves at a time, the initial state alone too; the backward pass has one of its own."""
    assert gradcheck(call.scan, wanted(call), check_forward_ad=True)
    assert gradgradcheck(
        call.scan, wanted(call), check_fwd_over_rev=True, check_rev_over_rev=False,
        check_undefined_grad=False, fast_mode=True,
    )  # fmt: skip


@some_at_first
def test_req43_opcheck(call: Called):
    assert examined(call.scan, call.floats, gradient=True) == {"SUCCESS"}


@some_at_first
def test_req43_compiled_is_eager(call: Called):
    compiled = torch.compile(call.scan, backend="aot_eager", fullgraph=True, dynamic=True)
    got, want = (with_gradients(f, call.floats) for f in (compiled, call.scan))
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


@some_at_first
def test_vmap_of_gradients(call: Called):
    several = [torch.stack([x, 0.5 * x]) for x in call.floats]
    each = torch.func.grad(lambda *floats: weighed(call.scan(*floats)), tuple(range(len(call.floats))))
    for k, got in enumerate(zip(*vmap(each)(*several), strict=True)):
        for x, y in zip(got, each(*(x[k] for x in several)), strict=True):
            assert_close(x, y, "gradient", call.name)


def test_forward_mode_of_an_initial_state_that_only_one_step_reads():
    """The tangent recurrence reads nothing over time, and has its length from the outputs."""
    u, h = torch.randn(1, 3, 2, dtype=F64), torch.randn(1, 2, dtype=F64)

    def scan(h: Tensor) -> Tensor:
        return sf.scan(Previous, u=u, initial_state=h)

    moved = jacfwd(scan)(h)
    assert torch.equal(moved, jacrev(scan)(h))
    assert torch.equal(moved[:, 0], torch.eye(2, dtype=F64).reshape(1, 2, 1, 2))
    assert not moved[:, 1:].any()
    assert not hessian(lambda h: scan(h).sum())(h).any()
