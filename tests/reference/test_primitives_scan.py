"""Every row of the primitive table inside a recurrence: values, gradients and theirs, through scan itself."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

import scanforge as sf
from scanforge.ir.primitives import TABLE
from tests.reference.test_primitives import COUNTERPARTS, F64, torch_gradients


def through_a_scan(name: str):
    """The recurrence of `by_hand`, declared; its laws do not hold, and none are needed."""
    row = TABLE[name]
    count = row.text.count("{")

    class Row(sf.Operator):
        a = sf.Element(identity=1.0)
        h = sf.State()

        def combine(self, later):
            return later

        def apply(self, h):
            if row.kinds == "logic":
                flags = (self.a > 0.4, h > 0.3)
                return flags[0].call(name, *flags[1:count]).call("where", self.a, h)
            if row.kinds == "compare":
                return self.a.call(name, h).call("where", 0.9 * h + self.a, self.a)
            if row.kinds == "select":
                return (self.a > h).call(name, self.a, 0.5 * h)
            if row.kinds == "guard":
                return (self.a > h).call(name, self.a + 0.5 * h)
            return self.a.call(name, h) if count == 2 else self.a.call(name) + 0.5 * h

    return Row


def by_hand(name: str, a: Tensor, h: Tensor) -> Tensor:
    """`h <- f(a, h)` or `h <- f(a) + h / 2`, or what a condition made of f chooses."""
    row, f, states = TABLE[name], COUNTERPARTS[name], []
    count = row.text.count("{")
    for x in a.unbind(1):
        if row.kinds == "logic":
            flags = (x > 0.4, h > 0.3)
            h = torch.where(f(*flags[:count]), x, h)
        elif row.kinds == "compare":
            h = torch.where(f(x, h), 0.9 * h + x, x)
        elif row.kinds == "select":
            h = f(x > h, x, 0.5 * h)
        elif row.kinds == "guard":
            h = f(x > h, x + 0.5 * h)
        else:
            h = f(x, h) if count == 2 else f(x) + 0.5 * h
        states.append(h)
    return torch.stack(states, 1)


class TestThroughAScan:
    """At generic positive points, through scan's own gradients and their gradients."""

    @pytest.mark.parametrize("name", sorted(set(TABLE) - {"to_float"}))
    def test_value_gradient_and_second_derivative(self, name):
        sf.set_law_check(False)
        try:
            random = torch.Generator().manual_seed(3)
            a = 0.2 + 0.7 * torch.rand((2, 4, 3), generator=random, dtype=F64)
            h0 = 0.2 + 0.7 * torch.rand((2, 3), generator=random, dtype=F64)
            found = []
            steps = (lambda a, h: sf.scan(through_a_scan(name), a=a, initial_state=h), partial(by_hand, name))
            for step in steps:
                leaves = a.clone().requires_grad_(), h0.clone().requires_grad_()
                y = step(*leaves)
                first = torch.autograd.grad((y * y).sum(), leaves, create_graph=True, materialize_grads=True)
                second = torch_gradients([(x * x).sum() for x in first], leaves, [None, None])
                found.append([y.detach(), *(x.detach() for x in (*first, *second))])
        finally:
            sf.set_law_check(True)
        for mine, truth in zip(*found, strict=True):
            assert torch.allclose(mine, truth, rtol=1e-11, atol=1e-13)

    def test_whole_numbers_become_floats(self):
        class Mixed(sf.Operator):
            n = sf.Element(identity=0, kind="int")
            h = sf.State()

            def combine(self, later):
                return Mixed(n=self.n + later.n)

            def apply(self, h):
                return h + self.n

        n = torch.arange(6).reshape(1, 6)
        assert sf.scan(Mixed, n=n).tolist() == [[0.0, 1.0, 3.0, 6.0, 10.0, 15.0]]
