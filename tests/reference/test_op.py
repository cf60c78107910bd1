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
