"""What autograd may ask of a scan: twice, of some only, higher orders, torch.func."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import scanforge as sf
from tests.catalogue import BY_NAME, CASES, draw
from tests.reference.compare import LOWERINGS, differentiable, many
from tests.tolerances import assert_close

F64 = torch.float64
every_operator = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_lowering = pytest.mark.parametrize("lowering", LOWERINGS)


def leaves_of(name: str, shape=(2, 5, 3), dtype=F64) -> dict[str, Tensor]:
    return draw(BY_NAME[name], shape, dtype)[0]


class TestAutograd:
    @every_lowering
    def test_backward_twice(self, lowering):
        leaves = differentiable(leaves_of("MinMax"))
        out = sf.scan(sf.operators.MinMax, **leaves, lowering=lowering)
        wanted, c = tuple(leaves.values()), torch.randn(2, 5, 3, dtype=F64)
        first = torch.autograd.grad(out, wanted, c, retain_graph=True)
        second = torch.autograd.grad(out, wanted, c, retain_graph=True)
        last = torch.autograd.grad(out, wanted, 2 * c)
        for x, y, z in zip(first, second, last, strict=True):
            assert torch.equal(x, y)
            assert torch.equal(2 * x, z)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(out, wanted, c)

    def test_only_who_asks_gets_a_gradient(self):
        leaves = leaves_of("Kalman")
        leaves["gain"].requires_grad_()
        mean, var = sf.scan(sf.operators.Kalman, **leaves)
        (mean.sum() + var.sum()).backward()
        assert {n for n, x in leaves.items() if x.grad is not None} == {"gain"}

    def test_nobody_asks(self):
        out = sf.scan(sf.operators.Affine, **leaves_of("Affine"))
        assert not out.requires_grad
        with torch.no_grad():
            assert not sf.scan(sf.operators.Affine, **differentiable(leaves_of("Affine"))).requires_grad
        with torch.inference_mode():
            assert not sf.scan(sf.operators.Affine, **leaves_of("Affine")).requires_grad

    def test_int_states_carry_none(self):
        leaves = differentiable(leaves_of("RunningMax"))
        (top, at), finals = sf.scan(sf.operators.RunningMax, **leaves, return_final_state=True)
        assert (top.requires_grad, at.requires_grad) == (True, False)
        assert (finals[0].requires_grad, finals[1].requires_grad) == (True, False)

    def test_gradients_accumulate(self):
        leaves = differentiable(leaves_of("Affine"))
        for _ in range(2):
            sf.scan(sf.operators.Affine, **leaves).sum().backward()
        twice = {n: x.grad.clone() for n, x in leaves.items()}
        (once,) = torch.autograd.grad(sf.scan(sf.operators.Affine, **leaves).sum(), leaves["a"])
        assert torch.equal(twice["a"], 2 * once)

    def test_a_graph_through_two_scans(self):
        """The states of one are the elements of the next."""
        leaves = differentiable(leaves_of("Affine"))
        h = sf.scan(sf.operators.Affine, **leaves)
        out = sf.scan(sf.operators.MinMax, r=h + 1, s=h - 1)
        found = torch.autograd.grad(out.square().sum(), tuple(leaves.values()))
        (states,), _ = BY_NAME["Affine"].loop(leaves)
        (truth,), _ = BY_NAME["MinMax"].loop({"r": states + 1, "s": states - 1})
        for x, y in zip(
            found, torch.autograd.grad(truth.square().sum(), tuple(leaves.values())), strict=True
        ):
            assert_close(x, y, "gradient")

    def test_checkpointing(self):
        leaves = differentiable(leaves_of("Affine"))

        def run(a, b):
            return sf.scan(sf.operators.Affine, a=a, b=b)

        out = torch.utils.checkpoint.checkpoint(run, *leaves.values(), use_reentrant=False)
        mine = torch.autograd.grad(out.sum(), tuple(leaves.values()))
        truth = torch.autograd.grad(run(*leaves.values()).sum(), tuple(leaves.values()))
        assert all(torch.equal(x, y) for x, y in zip(mine, truth, strict=True))


def loss_of(case, scan):
    """A loss of a case's float leaves, through scanforge or through the loop."""
    leaves, initial = draw(case, (2, 4, 2))
    fixed = {n: x for n, x in leaves.items() if n not in case.float_leaves}

    def loss(*floats):
        tensors = fixed | dict(zip(case.float_leaves, floats, strict=True))
        outputs = scan(tensors, initial)
        return sum((x.cos() * (i + 1)).sum() for i, x in enumerate(case.float_outputs(outputs)))

    return loss, [leaves[n] for n in case.float_leaves]


class TestHigherOrders:
    @pytest.mark.parametrize("name", ["Affine", "MinMax", "Kalman", "LogSumExp"])
    @every_lowering
    def test_three_derivatives(self, name, lowering):
        """Of a nonlinear loss, against autograd through the loop."""
        case = BY_NAME[name]

        def mine(tensors, initial):
            first = initial if len(initial) > 1 else initial[0]
            return many(sf.scan(case.operator, **tensors, initial_state=first, lowering=lowering))

        found = []
        for scan in (mine, lambda tensors, initial: case.loop(tensors, initial)[0]):
            loss, floats = loss_of(case, scan)
            floats = [torch.where(x.isfinite(), x, 0.0).requires_grad_() for x in floats]
            results, y = [], loss(*floats)
            for _ in range(3):
                slopes = torch.autograd.grad(y, floats, create_graph=True, materialize_grads=True)
                results += slopes
                y = sum((x.square() if x.requires_grad else 0 * x).sum() for x in slopes)
                if not y.requires_grad:
                    break
            found.append(results)
        assert len(found[0]) >= 2 * len(floats)
        for x, y in zip(*found, strict=True):
            assert_close(x, y, "long")


class TestTorchFunc:
    @every_operator
    def test_grad(self, case):
        def mine(tensors, initial):
            return many(
                sf.scan(case.operator, **tensors, initial_state=initial if len(initial) > 1 else initial[0])
            )

        loss, floats = loss_of(case, mine)
        positions = tuple(range(len(floats)))
        found = torch.func.grad(loss, positions)(*floats)
        wanted = [x.clone().requires_grad_() for x in floats]
        for x, y in zip(found, torch.autograd.grad(loss(*wanted), wanted), strict=True):
            assert torch.equal(x, y)

    def test_grad_of_grad(self):
        a, b = leaves_of("Affine", (1, 6, 2)).values()

        def loss(a):
            return sf.scan(sf.operators.Affine, a=a, b=b).square().sum()

        def slope(f):
            return torch.func.grad(lambda a: torch.func.grad(f)(a).square().sum())

        def by_hand(a):
            return BY_NAME["Affine"].loop({"a": a, "b": b})[0][0].square().sum()

        assert_close(slope(loss)(a), slope(by_hand)(a), "gradient")

    def test_vjp(self):
        a, b = leaves_of("Affine").values()
        out, pull = torch.func.vjp(lambda a, b: sf.scan(sf.operators.Affine, a=a, b=b), a, b)
        wanted = [x.clone().requires_grad_() for x in (a, b)]
        truth = sf.scan(sf.operators.Affine, a=wanted[0], b=wanted[1])
        assert torch.equal(out, truth)
        for x, y in zip(pull(torch.ones_like(out)), torch.autograd.grad(truth.sum(), wanted), strict=True):
            assert torch.equal(x, y)
