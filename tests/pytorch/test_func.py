"""torch.func of a scan: vmap is one scan with one more batch axis, jvp a scan beside it, and both nest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import scanforge as sf
from tests import catalogue, recurrences
from tests.pytorch.calls import F64, Called, every, of_operator, of_recurrence, weighed
from tests.tolerances import assert_close

CALLS = every()
REVERSED = every(reverse=True)
every_call = pytest.mark.parametrize("call", CALLS, ids=[c.name for c in CALLS])
AFFINE = sf.operators.Affine


class Scans(TorchDispatchMode):
    """How often an op of scanforge runs."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.namespace == "scanforge"
        return func(*args, **(kwargs or {}))


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(shape, generator=catalogue.generator(seed), dtype=F64).to(dtype)


def several(call: Called, count: int = 3) -> list[tuple[Tensor, ...]]:
    """The floats of a call, `count` times, all different."""
    return [tuple(x * (1 - k / 8) for x in call.floats) for k in range(count)]


class TestVmap:
    @every_call
    def test_equals_the_calls_one_by_one(self, call: Called):
        samples = several(call)
        got = vmap(call.scan)(*map(torch.stack, zip(*samples, strict=True)))
        for x, *ys in zip(got, *(call.scan(*s) for s in samples), strict=True):
            assert_close(x, torch.stack(ys), "forward", call.name)

    @every_call
    def test_of_one_tensor_only(self, call: Called):
        """The others are shared: they get no axis."""
        last = torch.stack([call.floats[0], 0.5 * call.floats[0]], -1)
        got = vmap(lambda x: call.scan(x, *call.floats[1:]), in_dims=-1)(last)
        for x, *ys in zip(got, *(call.scan(last[..., k], *call.floats[1:]) for k in range(2)), strict=True):
            assert_close(x, torch.stack(ys), "forward", call.name)

    def test_is_one_scan(self):
        a, b = drawn(7, 2, 5, 3).sigmoid(), drawn(7, 2, 5, 3)
        with Scans() as scans:
            vmap(lambda a, b: sf.scan(AFFINE, a=a, b=b))(a, b)
        assert scans.count == 1

    def test_inside_vmap(self):
        a, b = drawn(2, 3, 1, 5, 2).sigmoid(), drawn(3, 1, 5, 2)
        got = vmap(lambda a: vmap(lambda a, b: sf.scan(AFFINE, a=a, b=b))(a, b))(a)
        want = sf.scan(AFFINE, a=a.flatten(0, 2), b=b.expand(2, -1, -1, -1, -1).flatten(0, 2))
        assert torch.equal(got.flatten(0, 2), want)

    @every_call
    def test_gradient_of_each_sample(self, call: Called):
        samples = several(call)
        positions = tuple(range(len(call.floats)))
        each = grad(lambda *floats: weighed(call.scan(*floats)), positions)
        got = vmap(each)(*map(torch.stack, zip(*samples, strict=True)))
        for x, *ys in zip(got, *(each(*s) for s in samples), strict=True):
            assert_close(x, torch.stack(ys), "gradient", call.name)

    @every_call
    def test_gradient_through_it(self, call: Called):
        samples = several(call)
        wanted = [torch.stack(x).requires_grad_() for x in zip(*samples, strict=True)]
        got = torch.autograd.grad(
            weighed(vmap(call.scan)(*wanted)), wanted, materialize_grads=True, allow_unused=True
        )
        for k, sample in enumerate(samples):
            alone = [x.clone().requires_grad_() for x in sample]
            want = torch.autograd.grad(
                weighed(call.loop(*alone)), alone, materialize_grads=True, allow_unused=True
            )
            for x, y in zip(got, want, strict=True):
                assert_close(x[k], y, "gradient", call.name)

    def test_options(self):
        a, b = drawn(4, 2, 9, 3).sigmoid(), drawn(4, 2, 9, 3)
        reset, mask = drawn(2, 9) > 0.5, drawn(4, 2, 9, seed=1) > -0.5

        def scan(a, b, mask):
            return sf.scan(AFFINE, a=a, b=b, reset=reset, mask=mask, reverse=True)

        got = vmap(scan)(a, b, mask)
        for k in range(4):
            assert torch.equal(got[k], scan(a[k], b[k], mask[k]))

    def test_packed_sequences(self):
        a, b, bounds = drawn(4, 1, 9, 3).sigmoid(), drawn(4, 1, 9, 3), torch.tensor([0, 4, 4, 9])

        def scan(a, b):
            return sf.scan(AFFINE, a=a, b=b, cu_seqlens=bounds, return_final_state=True)

        states, finals = vmap(scan)(a, b)
        for k in range(4):
            for x, y in zip((states[k], finals[k]), scan(a[k], b[k]), strict=True):
                assert torch.equal(x, y)

    @pytest.mark.parametrize("option", ["reset", "mask", "lengths"])
    def test_of_an_option(self, option):
        """Samples that are padded or begin anew at steps of their own."""
        a, b = drawn(2, 5, 3).sigmoid(), drawn(2, 5, 3)
        given = torch.tensor([[1, 2], [0, 5]]) if option == "lengths" else drawn(2, 2, 5, seed=2) > 0
        got = vmap(lambda x: sf.scan(AFFINE, a=a, b=b, **{option: x}))(given)
        for k in range(2):
            assert torch.equal(got[k], sf.scan(AFFINE, a=a, b=b, **{option: given[k]}))

    def test_of_bounds_is_refused(self):
        a, bounds = drawn(1, 9, 3), torch.tensor([[0, 4, 9], [0, 2, 9]])
        with pytest.raises(sf.ArgumentError, match="is mapped by vmap"):
            vmap(lambda x: sf.scan(AFFINE, a=a, b=a, cu_seqlens=x))(bounds)

    def test_ensemble_of_layers(self):
        """Weights stacked, as torch.func's ensembles are."""

        class Layer(torch.nn.Module):
            def __init__(self, seed: int) -> None:
                super().__init__()
                self.w = torch.nn.Parameter(drawn(3, seed=seed))

            def forward(self, x: Tensor) -> Tensor:
                return sf.scan(recurrences.declared.Decay, x=x, w=self.w)

        layers, x = [Layer(k) for k in range(3)], drawn(2, 6, 3)
        weights, buffers = torch.func.stack_module_state(layers)
        got = vmap(lambda w, b: functional_call(layers[0], (w, b), (x,)))(weights, buffers)
        assert_close(got, torch.stack([layer(x) for layer in layers]), "forward")


class TestForwardMode:
    @pytest.mark.parametrize("call", [*CALLS, *REVERSED], ids=lambda c: c.name)
    def test_jvp_is_the_loops(self, call: Called):
        tangents = tuple(drawn(*x.shape, seed=k) for k, x in enumerate(call.floats))
        got, want = jvp(call.scan, call.floats, tangents), jvp(call.loop, call.floats, tangents)
        for x, y in zip((*got[0], *got[1]), (*want[0], *want[1]), strict=True):
            assert_close(x, y, "gradient", call.name)

    @every_call
    def test_where_one_tensor_moves(self, call: Called):
        rest = call.floats[1:]
        tangent = (drawn(*call.floats[0].shape),)
        got, want = (
            jvp(lambda x, f=f: f(x, *rest), call.floats[:1], tangent)[1] for f in (call.scan, call.loop)
        )
        for x, y in zip(got, want, strict=True):
            assert_close(x, y, "gradient", call.name)

    def test_dual_tensors(self):
        a, b, da = drawn(2, 5, 3).sigmoid(), drawn(2, 5, 3), drawn(2, 5, 3, seed=1)
        with forward_ad.dual_level():
            out = sf.scan(AFFINE, a=forward_ad.make_dual(a, da), b=b)
            got = forward_ad.unpack_dual(out).tangent
        assert torch.equal(got, jvp(lambda a: sf.scan(AFFINE, a=a, b=b), (a,), (da,))[1])

    def test_of_packed_sequences(self):
        a, b, bounds = drawn(1, 9, 3).sigmoid(), drawn(1, 9, 3), torch.tensor([0, 4, 4, 9])

        def packed(a, b):
            return sf.scan(AFFINE, a=a, b=b, cu_seqlens=bounds, reverse=True)

        def apart(a, b):
            parts = [slice(0, 4), slice(4, 9)]
            return torch.cat([sf.scan(AFFINE, a=a[:, p], b=b[:, p], reverse=True) for p in parts], 1)

        tangents = drawn(1, 9, 3, seed=1), drawn(1, 9, 3, seed=2)
        assert_close(jvp(packed, (a, b), tangents)[1], jvp(apart, (a, b), tangents)[1], "gradient")

    def test_ties_split_as_the_gradient_does(self):
        """max(x, x) moves as x: the halves of both sides."""
        r, s = torch.ones(1, 3, 1, dtype=F64), torch.ones(1, 3, 1, dtype=F64)
        moved = jvp(lambda r: sf.scan(sf.operators.MinMax, r=r, s=s), (r,), (torch.ones_like(r),))[1]
        by_rows = jacrev(lambda r: sf.scan(sf.operators.MinMax, r=r, s=s))(r).sum((3, 4, 5))
        assert_close(moved, by_rows, "gradient")

    def test_half_precision_keeps_its_dtypes(self):
        a, b = drawn(2, 5, 3).sigmoid().bfloat16(), drawn(2, 5, 3).bfloat16()
        (states, final), (moved, moved_final) = jvp(
            lambda a, b: sf.scan(AFFINE, a=a, b=b, return_final_state=True), (a, b), (b, a)
        )
        assert (
            (moved.dtype, moved_final.dtype) == (states.dtype, final.dtype) == (torch.bfloat16, torch.float32)
        )


NESTED = [
    of_operator(catalogue.BY_NAME["Affine"], (1, 3, 2)),
    of_operator(catalogue.BY_NAME["LogSumExp"], (1, 3, 1)),
    of_operator(catalogue.BY_NAME["Kalman"], (1, 3, 1)),
    of_recurrence(recurrences.BY_NAME["SelectiveSSM"], sizes={"b": 1, "t": 3, "d": 2, "n": 2}),
    of_recurrence(recurrences.BY_NAME["GatedMinMax"], sizes={"b": 1, "t": 3, "d": 2}),
]


@pytest.mark.parametrize("call", NESTED, ids=lambda c: c.name)
@pytest.mark.parametrize(
    "second",
    [hessian, lambda f: jacrev(jacrev(f)), lambda f: jacrev(jacfwd(f)), lambda f: jacfwd(jacfwd(f))],
    ids=["hessian", "reverse-reverse", "reverse-forward", "forward-forward"],
)
def test_second_derivatives(call: Called, second):
    for k, x in enumerate(call.floats[:2]):

        def loss(x: Tensor, function, k=k) -> Tensor:
            return weighed(function(*call.floats[:k], x, *call.floats[k + 1 :]))

        got = second(lambda x: loss(x, call.scan))(x)
        assert_close(got, hessian(lambda x: loss(x, call.loop))(x), "gradient", call.name)
