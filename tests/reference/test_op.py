"""The torch op: its registration, its fake results, aliasing, and what autograd may ask of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import scanforge as sf
from tests.catalogue import BY_NAME, CASES, draw
from tests.reference.compare import LOWERINGS, differentiable, many
from tests.tolerances import assert_close

F64 = torch.float64
every_operator = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_lowering = pytest.mark.parametrize("lowering", LOWERINGS)


class Recorder(TorchDispatchMode):
    """The calls of scanforge's ops."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "scanforge":
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def recorded(operator, wants_gradient: bool, **arguments) -> tuple:
    """The op call that a scan makes: the op, and its arguments on fresh tensors."""
    tensors = {n: x.requires_grad_(wants_gradient) if isinstance(x, Tensor) and x.is_floating_point() else x
               for n, x in arguments.items()}  # fmt: skip
    with Recorder() as recorder:
        sf.scan(operator, **tensors)
    ((func, args, kwargs),) = recorder.calls

    def fresh(x: Tensor) -> Tensor:
        return x.detach().clone().requires_grad_(wants_gradient and x.is_floating_point())

    return func, tree_map_only(Tensor, fresh, args), kwargs


def leaves_of(name: str, shape=(2, 5, 3), dtype=F64) -> dict[str, Tensor]:
    return draw(BY_NAME[name], shape, dtype)[0]


def storages(*tensors: Tensor) -> list[int]:
    return [x.untyped_storage().data_ptr() for x in tensors]


class TestRegistration:
    """torch's own examination: schema, autograd, fake results, the compiler's view with dynamic sizes."""

    @pytest.mark.parametrize(
        ("name", "gradient", "options"),
        [
            ("Affine", True, {"lowering": "loop"}),
            ("Affine", False, {"lowering": "parallel"}),
            ("MinMax", True, {"lowering": "parallel", "reverse": True}),
            ("RunningMax", True, {}),
            ("LastFlagged", False, {"dim": 0}),
            ("Kalman", True, {"dim": 2}),
        ],
    )
    def test_opcheck(self, name, gradient, options):
        op, args, kwargs = recorded(BY_NAME[name].operator, gradient, **leaves_of(name), **options)
        assert set(torch.library.opcheck(op, args, kwargs).values()) == {"SUCCESS"}

    def test_opcheck_of_leaves_that_broadcast(self):
        """Their gradients are sums; in 16 bits the states are kept beside the outputs."""
        a = torch.rand(1, 1, 3, dtype=torch.bfloat16)
        op, args, kwargs = recorded(
            sf.operators.Affine, True, a=a, b=torch.randn(2, 5, 3), initial_state=torch.ones(3)
        )
        assert set(torch.library.opcheck(op, args, kwargs).values()) == {"SUCCESS"}

    def test_one_op_per_scan(self):
        with Recorder() as recorder:
            sf.scan(sf.operators.Affine, **leaves_of("Affine"))
        assert [str(func) for func, *_ in recorder.calls] == ["scanforge.scan.default"]


class TestFakeTensors:
    def check(self, call) -> None:
        """`call` on real tensors and on fake ones gives the same metadata."""
        real = tree_leaves(call(lambda x: x))
        with FakeTensorMode() as mode:
            fake = tree_leaves(call(mode.from_tensor))
        for x, y in zip(real, fake, strict=True):
            assert (x.shape, x.dtype, x.stride(), x.device) == (y.shape, y.dtype, y.stride(), y.device)

    @every_operator
    @every_lowering
    @pytest.mark.parametrize(
        "shape", [(2, 5, 3), (1, 1, 1), (2, 0, 3), (0, 5, 3), (2, 5), (2, 5, 3, 2)], ids=str
    )
    def test_values(self, case, lowering, shape):
        leaves, initial = draw(case, shape, torch.float32)
        first = initial if len(initial) > 1 else initial[0]

        def call(made):
            tensors = {n: made(x) for n, x in leaves.items()}
            start = tuple(map(made, first)) if isinstance(first, tuple) else made(first)
            return sf.scan(
                case.operator, **tensors, initial_state=start, return_final_state=True, lowering=lowering
            )

        self.check(call)

    @every_operator
    def test_gradients(self, case):
        leaves, _ = draw(case, (2, 5, 3), torch.float32)

        def call(made):
            tensors = differentiable({n: made(x) for n, x in leaves.items()})
            outputs = case.float_outputs(many(sf.scan(case.operator, **tensors)))
            wanted = [x for x in tensors.values() if x.requires_grad]
            return torch.autograd.grad(sum(x.sum() for x in outputs), wanted)

        self.check(call)

    @pytest.mark.parametrize("dim", [0, 1, 2, -1])
    def test_time_anywhere(self, dim):
        leaves = {n: x.transpose(0, 2) for n, x in leaves_of("Affine", dtype=torch.float32).items()}
        leaves["a"] = leaves["a"][:1, :, :1].bfloat16()

        def call(made):
            tensors = {n: made(x) for n, x in leaves.items()}
            return sf.scan(sf.operators.Affine, **tensors, dim=dim, reverse=True, return_final_state=True)

        self.check(call)

    def test_dtypes_that_differ(self):
        a, b = torch.rand(2, 5, 3).half(), torch.randn(2, 1, 3)
        self.check(lambda made: sf.scan(sf.operators.Affine, a=made(a), b=made(b), return_final_state=True))
        value = b.bfloat16()
        index = torch.arange(5).reshape(1, 5, 1).to(torch.int16)
        self.check(lambda made: sf.scan(sf.operators.RunningMax, value=made(value), index=made(index),
                                        return_final_state=True))  # fmt: skip

    def test_complex(self):
        a, b = torch.randn(2, 5, 3, dtype=torch.complex64), torch.randn(2, 5, 3)
        self.check(lambda made: sf.scan(sf.operators.Affine, a=made(a), b=made(b), return_final_state=True))

    def test_prefixes(self):
        self.check(
            lambda made: sf.prefixes(
                sf.operators.Kalman, **{n: made(x) for n, x in leaves_of("Kalman").items()}
            )
        )


class Forwards(sf.Operator):
    """`h <- b`: a naive implementation would hand the input back."""

    b = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return later

    def apply(self, h):
        return self.b


class Stays(sf.Operator):
    """`h <- h`: a naive implementation would hand the initial state back."""

    b = sf.Element(identity=0.0)
    h, g = sf.State(), sf.State()

    def combine(self, later):
        return later

    def apply(self, h, g):
        return h, h


class TestAliasing:
    @every_operator
    @every_lowering
    @pytest.mark.parametrize("length", [0, 1, 5])
    def test_outputs_share_no_storage(self, case, lowering, length):
        leaves, initial = draw(case, (2, length, 3), torch.float32)
        states, finals = sf.scan(
            case.operator, **leaves, initial_state=initial if len(initial) > 1 else initial[0],
            return_final_state=True, lowering=lowering,
        )  # fmt: skip
        given, found = storages(*leaves.values(), *initial), storages(*many(states), *many(finals))
        filled = [s for s in found if s]  # an empty tensor has no storage
        assert not set(filled) & set(given)
        assert len(set(filled)) == len(filled)

    @pytest.mark.parametrize("operator", [Forwards, Stays])
    @every_lowering
    @pytest.mark.parametrize("length", [0, 1, 4])
    def test_what_passes_through_is_copied(self, operator, lowering, length):
        sf.set_law_check(False)
        try:
            b, start = torch.randn(1, length, 3), torch.randn(1, 3)
            initial = start if operator is Forwards else (start, start)
            states, finals = sf.scan(
                operator, b=b, initial_state=initial, return_final_state=True, lowering=lowering
            )
        finally:
            sf.set_law_check(True)
        found = [s for s in storages(*many(states), *many(finals)) if s]
        assert not set(found) & set(storages(b, start))
        assert len(set(found)) == len(found)

    @every_lowering
    def test_inputs_are_not_written(self, lowering):
        leaves, (initial,) = draw(BY_NAME["Affine"], (2, 9, 3))
        saved = {n: x.clone() for n, x in leaves.items()} | {"h": initial.clone()}
        tensors = differentiable(leaves)
        sf.scan(sf.operators.Affine, **tensors, initial_state=initial, lowering=lowering).sum().backward()
        for name, x in (leaves | {"h": initial}).items():
            assert torch.equal(x, saved[name])

    @every_lowering
    def test_gradients_share_no_storage(self, lowering):
        """`h <- b` sends the cotangent straight to b."""
        leaves = differentiable(leaves_of("Affine"))
        h0 = torch.zeros(2, 3, dtype=F64, requires_grad=True)
        out, final = sf.scan(
            sf.operators.Affine, **leaves, initial_state=h0, return_final_state=True, lowering=lowering
        )
        cotangents = torch.ones_like(out), torch.ones_like(final)
        found = torch.autograd.grad((out, final), (*leaves.values(), h0), cotangents)
        held = storages(*found, *cotangents, out, final, *leaves.values(), h0)
        assert len(set(held)) == len(held)


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
