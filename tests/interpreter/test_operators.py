"""Every shipped operator's kernels, forward and backward, against the loop in float64."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests.catalogue import BY_NAME, draw, on_grid
from tests.kernels import (
    both_ways,
    check,
    every_lowering,
    every_operator,
    everything,
    guarded,
    outcome,
)
from tests.loops import lanes
from tests.reference.compare import Loss, assert_same_gradients, assert_same_values, cotangent, expected, many
from tests.tolerances import assert_close, assert_equal

pytestmark = pytest.mark.interpreter
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64

# Tiles have 8 rows here and 4 in the backward kernel, chunks 16: both sides of each, and a prime.
# The others of each kind are left to `make test-all`.
LENGTHS = (1, 4, 5, 8, 17, 37, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 9, 16, 33)))
SHAPES = (
    (1, 9, 1),
    (1, 9, 70),
    (2, 17, 2, 3),
    *(pytest.param(s, marks=pytest.mark.slow) for s in ((2, 9, 33), (3, 17))),
)


def start_of(initial):
    return initial if len(initial) > 1 else initial[0]


@every_operator
@every_lowering
class TestEveryOperator:
    @pytest.mark.parametrize("length", LENGTHS)
    def test_values_and_gradients(self, case, lowering, length):
        leaves, initial = draw(case, (1 + length // 17, length, 5), F32, seed=length)
        check(case, leaves, initial, everything(case), lowering=lowering)

    @pytest.mark.parametrize("length", [4, 16, 37])
    def test_in_reverse(self, case, lowering, length):
        leaves, initial = draw(case, (1, length, 5), F32, seed=length)
        check(case, leaves, initial, everything(case), reverse=True, lowering=lowering)

    @pytest.mark.usefixtures("own_tiles")
    @pytest.mark.parametrize(("length", "reverse"), [(65, False), (97, True)])
    def test_the_plans_own_tiles(self, case, lowering, length, reverse):
        """Up to 64 rows, and chunks of 64 steps."""
        leaves, initial = draw(case, (1, length, 3), F32, seed=length)
        check(case, leaves, initial, everything(case), reverse, lowering=lowering)

    @pytest.mark.parametrize("dtype", [BF16, F16, F64], ids=str)
    def test_every_dtype(self, case, lowering, dtype):
        leaves, initial = draw(case, (1, 35, 5), dtype)
        got = check(case, leaves, initial, everything(case), lowering=lowering)
        carried = F64 if dtype == F64 else F32
        for name, states, finals in zip(case.states, got.states, got.finals, strict=True):
            if name in case.float_states:
                assert (states.dtype, finals.dtype) == (dtype, carried)
        assert {x.dtype for x in got.gradients.values()} == {dtype}

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_lanes(self, case, lowering, shape):
        """One lane, more than a warp's, more than a block's, several axes, none beside the batch."""
        leaves, initial = draw(case, shape)
        check(case, leaves, initial, Loss((0,), (0,)), lowering=lowering)

    @pytest.mark.parametrize(
        "loss", [Loss((0,), ()), Loss((), (0,)), Loss((-1,), ()), Loss((), (-1,))], ids=str
    )
    def test_a_loss_that_reads_one_output(self, case, lowering, loss):
        """A cotangent that is missing is no input of the backward kernel."""
        leaves, initial = draw(case, (1, 21, 3), F32)
        check(case, leaves, initial, loss, lowering=lowering)

    def test_the_declared_start(self, case, lowering):
        leaves, _ = draw(case, (2, 19, 3), F32)
        check(case, leaves, None, everything(case), lowering=lowering)

    def test_one_start_for_all_lanes(self, case, lowering):
        leaves, initial = draw(case, (2, 19, 3), F32)
        check(case, leaves, tuple(x[:1] for x in initial), everything(case), lowering=lowering)
        check(case, leaves, tuple(x[:1, :1] for x in initial), Loss((0,), (0,)), lowering=lowering)

    def test_one_input_wants_a_gradient(self, case, lowering):
        """Each subset of gradients is a kernel of its own: nothing may depend on who else asks."""
        leaves, initial = draw(case, (1, 18, 3), F32)
        truth = expected(case, leaves, initial, Loss((0,), (0,))).gradients
        for name, slope in truth.items():
            inputs = {n: guarded(x) for n, x in leaves.items()}
            inputs |= {f"initial {n}": guarded(x) for n, x in zip(case.states, initial, strict=True)}
            inputs[name].requires_grad_()
            states, finals = sf.scan(
                case.operator,
                **{n: inputs[n] for n in leaves},
                initial_state=start_of(tuple(inputs[f"initial {n}"] for n in case.states)),
                return_final_state=True,
                backend="triton",
                lowering=lowering,
            )
            read = [case.float_outputs(many(x))[0] for x in (states, finals)]
            cotangents = [cotangent(x, seed).to(F32) for seed, x in enumerate(read)]
            (found,) = torch.autograd.grad(read, inputs[name], cotangents)
            assert_close(found, slope, "gradient", name)

    def test_without_gradients(self, case, lowering):
        """No states are kept: the forward kernel is another, and gives the same."""
        leaves, initial = draw(case, (1, 37, 3), F32)
        with torch.no_grad():
            states, finals = sf.scan(
                case.operator, **leaves, initial_state=start_of(initial), return_final_state=True,
                backend="triton", lowering=lowering,
            )  # fmt: skip
        got = outcome(case, leaves, initial, Loss(), lowering=lowering)
        for x, y in zip((*many(states), *many(finals)), (*got.states, *got.finals), strict=True):
            assert_equal(x, y)

    def test_leaves_of_size_one_broadcast(self, case, lowering):
        """They are read with stride 0, and their gradients are sums; each leaf lacks another axis."""
        full, initial = draw(case, (2, 17, 3))
        for shift in range(3):
            cut = {n: x.narrow((i + shift) % 3, 0, 1) for i, (n, x) in enumerate(full.items())}
            check(case, cut, initial, Loss((0,), (0,)), lowering=lowering)

    def test_one_leaf_is_whole_and_the_others_numbers(self, case, lowering):
        full, initial = draw(case, (2, 17, 3))
        for whole in (case.float_leaves[0], case.float_leaves[-1]):
            leaves = {n: x if n == whole else x[:1, :1, :1] for n, x in full.items()}
            check(case, leaves, initial, Loss((0,), (0,)), lowering=lowering)

    def test_every_leaf_is_a_number(self, case, lowering):
        leaves, _ = draw(case, (1, 1, 1), F32)
        check(case, leaves, None, everything(case), lowering=lowering)

    @pytest.mark.parametrize("dim", [0, -1])
    def test_time_on_another_axis(self, case, lowering, dim):
        leaves, initial = draw(case, (2, 18, 3), F32)
        truth = expected(case, leaves, initial, Loss((0,), ()))
        inputs = {n: guarded(x.movedim(1, dim)) for n, x in leaves.items()}
        wanted = [inputs[n].requires_grad_() for n in case.float_leaves]
        got = many(
            sf.scan(case.operator, **inputs, initial_state=start_of(initial), dim=dim, backend="triton",
                    lowering=lowering)
        )  # fmt: skip
        for name, x, y in zip(case.states, got, truth.states, strict=True):
            back = x.movedim(dim, 1)
            exact = case.selects or name not in case.float_states
            assert_equal(back, y, name) if exact else assert_close(back, y, "forward", name)
        read = case.float_outputs(got)[0]
        c = cotangent(read.movedim(dim, 1), 0).to(F32).movedim(1, dim)
        for name, x in zip(case.float_leaves, torch.autograd.grad(read, wanted, c), strict=True):
            assert_close(x.movedim(dim, 1), truth.gradients[name], "gradient", name)

    @both_ways
    def test_prefixes(self, case, lowering, reverse):
        leaves, _ = draw(case, (1, 21, 3))
        got = sf.prefixes(
            case.operator, **{n: guarded(x) for n, x in leaves.items()}, reverse=reverse, backend="triton",
            lowering=lowering,
        )  # fmt: skip
        for name, y in case.prefix_loop(leaves, reverse).items():
            x = getattr(got, name)
            assert_equal(x, y, name) if case.selects else assert_close(x, y, "forward", name)

    def test_ties(self, case, lowering):
        """Quarter integers: selections and half gradients are exact."""
        leaves, initial = draw(case, (1, 21, 3), seed=5)
        initial = tuple(on_grid(dict(enumerate(initial))).values())
        got = outcome(case, on_grid(leaves), initial, everything(case), lowering=lowering)
        truth = expected(case, on_grid(leaves), initial, everything(case))
        assert_same_values(case, got, truth)
        assert_same_gradients(case, got, truth)
        if case.exact_on_grid:
            for name, x in got.gradients.items():
                assert_equal(x, truth.gradients[name], name)

    def test_sizes_of_zero(self, case, lowering):
        for shape in ((0, 5, 3), (2, 5, 0), (0, 0, 0)):
            leaves, _ = draw(case, shape, F32)
            inputs = {n: x.requires_grad_(x.is_floating_point()) for n, x in leaves.items()}
            states, finals = sf.scan(
                case.operator, **inputs, return_final_state=True, backend="triton", lowering=lowering
            )
            assert [x.shape for x in many(states)] == [torch.Size(shape)] * len(case.states)
            assert [x.shape for x in many(finals)] == [lanes(inputs[case.float_leaves[0]])] * len(case.states)
            read, wanted = case.float_outputs(many(states))[0], [inputs[n] for n in case.float_leaves]
            assert [x.shape for x in torch.autograd.grad(read.sum(), wanted)] == [torch.Size(shape)] * len(
                wanted
            )

    def test_inputs_are_not_written(self, case, lowering):
        leaves, initial = draw(case, (2, 18, 3), F32)
        saved = {n: x.clone() for n, x in leaves.items()}, tuple(x.clone() for x in initial)
        inputs = {n: x.requires_grad_(x.is_floating_point()) for n, x in leaves.items()}
        states, finals = sf.scan(
            case.operator, **inputs, initial_state=start_of(initial), return_final_state=True,
            backend="triton", lowering=lowering,
        )  # fmt: skip
        case.float_outputs(many(states))[0].sum().backward()
        assert all(torch.equal(saved[0][n], x) for n, x in leaves.items())
        assert all(torch.equal(x, y) for x, y in zip(saved[1], initial, strict=True))
        given = {x.untyped_storage().data_ptr() for x in (*leaves.values(), *initial)}
        assert not given & {x.untyped_storage().data_ptr() for x in (*many(states), *many(finals))}

    def test_backward_twice(self, case, lowering):
        """Bit for bit the same: nothing is accumulated in what was kept."""
        leaves, initial = draw(case, (1, 21, 3), F32)
        inputs = {n: x.requires_grad_(x.is_floating_point()) for n, x in leaves.items()}
        states = many(
            sf.scan(case.operator, **inputs, initial_state=start_of(initial), backend="triton",
                    lowering=lowering)
        )  # fmt: skip
        read, wanted = case.float_outputs(states)[0], [inputs[n] for n in case.float_leaves]
        first, second = (
            torch.autograd.grad(read, wanted, torch.ones_like(read), retain_graph=True) for _ in range(2)
        )
        for x, y in zip(first, second, strict=True):
            assert_equal(x, y)


@every_lowering
@pytest.mark.parametrize(("name", "reverse"), [("Affine", False), ("Affine", True), ("LogSumExp", False)])
def test_second_derivatives(name, reverse, lowering):
    """The gradient of a norm of the gradient: two scans through the states before each step."""
    case = BY_NAME[name]
    leaves, initial = draw(case, (1, 21, 3))
    leaves = {n: torch.where(x.isfinite(), x, 0.0) for n, x in leaves.items()}
    found = []
    for kernels in (True, False):
        inputs = {n: x.detach().clone().requires_grad_() for n, x in leaves.items()}
        start = tuple(x.detach().clone().requires_grad_() for x in initial)
        if kernels:
            options = {"initial_state": start_of(start), "reverse": reverse, "lowering": lowering}
            states = many(sf.scan(case.operator, **inputs, backend="triton", **options))
        else:
            states, _ = case.loop(inputs, start, reverse)
        wanted = [*inputs.values(), *start]
        total = sum((x**2).sum() for x in states)
        slopes = torch.autograd.grad(total, wanted, create_graph=True, materialize_grads=True)
        size = sum((x**2).sum() for x in slopes)
        found.append((*slopes, *torch.autograd.grad(size, wanted, allow_unused=True, materialize_grads=True)))
    for x, y in zip(*found, strict=True):
        assert_close(x, y, "long")
