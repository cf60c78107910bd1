"""Gradients of every shipped operator against autograd through the loop written by hand, in float64."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import scanforge as sf
from tests.catalogue import BY_NAME, CASES, draw, on_grid
from tests.reference.compare import (
    LOWERINGS,
    Loss,
    actual,
    assert_same,
    assert_same_gradients,
    cotangent,
    differentiable,
    expected,
    many,
)
from tests.tolerances import assert_close

LENGTHS = (0, 1, 2, 3, 7)

every_operator = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_lowering = pytest.mark.parametrize("lowering", LOWERINGS)


def subsets(count: int) -> list[tuple[int, ...]]:
    """The choices of `count` things, nothing included."""
    return [tuple(i for i in range(count) if chosen >> i & 1) for chosen in range(2**count)]


@every_operator
@every_lowering
class TestEveryOperator:
    @pytest.mark.parametrize("given", [False, True], ids=["default start", "given start"])
    @pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
    def test_every_subset_of_outputs(self, case, lowering, reverse, given):
        kinds = subsets(len(case.float_states))
        losses = [Loss(states, finals) for states in kinds for finals in kinds if states or finals]
        for length in LENGTHS:
            leaves, initial = draw(case, (2, length, 3), seed=length)
            for loss in losses:
                assert_same(case, leaves, initial if given else None, loss, reverse, lowering=lowering)

    def test_longer_than_a_level_of_the_tree(self, case, lowering):
        leaves, initial = draw(case, (1, 67, 2), seed=67)
        everything = tuple(range(len(case.float_states)))
        assert_same(case, leaves, initial, Loss(everything, everything), lowering=lowering)

    def test_loss_far_from_the_start(self, case, lowering):
        """Only the carry over many steps links the first elements to this loss."""
        leaves, initial = draw(case, (2, 50, 3), seed=9)
        assert_same(case, leaves, initial, Loss((), (0,)), lowering=lowering)

    def test_leaves_of_size_one_get_the_summed_gradient(self, case, lowering):
        full, initial = draw(case, (2, 7, 3))
        for thin in case.float_leaves:
            for axis in range(3):
                leaves = full | {thin: full[thin].narrow(axis, 0, 1)}
                assert_same(case, leaves, initial, Loss((0,), (0,)), lowering=lowering)

    def test_one_leaf_wants_a_gradient(self, case, lowering):
        """The others are constants: nothing may depend on who else asks."""
        leaves, initial = draw(case, (2, 7, 3))
        first = initial if len(initial) > 1 else initial[0]
        for name in case.float_leaves:
            alone, twin = (leaves[name].clone().requires_grad_() for _ in range(2))
            got = many(
                sf.scan(case.operator, **leaves | {name: alone}, initial_state=first, lowering=lowering)
            )
            truth, _ = case.loop(leaves | {name: twin}, initial)
            for x, y in zip(case.float_outputs(got), case.float_outputs(truth), strict=True):
                c = cotangent(y, 3)
                (slope,) = torch.autograd.grad(x, alone, c, retain_graph=True)
                if y.requires_grad:
                    assert_close(
                        slope, torch.autograd.grad(y, twin, c, retain_graph=True)[0], "gradient", name
                    )
                else:
                    assert not slope.any()

    def test_time_on_another_axis(self, case, lowering):
        leaves, initial = draw(case, (2, 5, 3, 2))
        start = initial if len(initial) > 1 else initial[0]
        name = case.float_leaves[0]
        twin = leaves[name].clone().requires_grad_()
        truth = case.loop(leaves | {name: twin}, initial)[0][0]
        c = cotangent(truth, 3)
        (y,) = torch.autograd.grad(truth, twin, c)
        for dim in (0, 2, 3, -1):
            moved = {n: x.movedim(1, dim) for n, x in leaves.items()}
            moved[name] = moved[name].clone().requires_grad_()
            got = sf.scan(case.operator, **moved, initial_state=start, dim=dim, lowering=lowering)
            (x,) = torch.autograd.grad(many(got)[0], moved[name], c.movedim(1, dim))
            assert_close(x.movedim(dim, 1), y, "gradient", f"dim={dim}")

    def test_gradcheck(self, case, lowering):
        """First and second derivatives against finite differences."""
        function, inputs = as_function(case, (1, 4, 2), lowering)
        assert gradcheck(function, inputs)
        assert gradgradcheck(function, inputs)

    def test_gradcheck_in_reverse(self, case, lowering):
        function, inputs = as_function(case, (1, 3, 1), lowering, reverse=True)
        assert gradcheck(function, inputs)
        assert gradgradcheck(function, inputs)

    def test_second_derivative_through_the_loop(self, case, lowering):
        """The gradient of a norm of the gradient, as a loss of its own."""

        def penalty(states, inputs):
            gradients = torch.autograd.grad(
                (states**2).sum(), inputs, create_graph=True, materialize_grads=True
            )
            size = sum((g * g).sum() for g in gradients)
            return torch.autograd.grad(size, inputs, allow_unused=True, materialize_grads=True)

        function, inputs = as_function(case, (2, 7, 3), lowering)
        twins = [x.detach().clone().requires_grad_() for x in inputs]
        leaves, initial = draw(case, (2, 7, 3))
        names = case.float_leaves
        start = dict(zip(case.states, initial, strict=True)) | dict(
            zip(case.float_states, twins[len(names) :], strict=True)
        )
        truth = case.loop(leaves | dict(zip(names, twins, strict=False)), tuple(start.values()))
        seconds = penalty(case.float_outputs(truth[0])[0], twins)
        for x, y in zip(penalty(function(*inputs)[0], list(inputs)), seconds, strict=True):
            assert_close(x, y, "long", "second derivative")


def as_function(case, shape, lowering, reverse=False):
    """`(function, inputs)`: float leaves, then float initial states, to float states and final states."""
    leaves, initial = draw(case, shape)
    leaves = {name: keep_away_from_infinity(x) for name, x in leaves.items()}
    names, states = case.float_leaves, dict(zip(case.states, initial, strict=True))

    def function(*inputs):
        given = states | dict(zip(case.float_states, inputs[len(names) :], strict=True))
        start = tuple(given.values())
        results = sf.scan(
            case.operator,
            **leaves | dict(zip(names, inputs, strict=False)),
            initial_state=start if len(start) > 1 else start[0],
            return_final_state=True,
            reverse=reverse,
            lowering=lowering,
        )
        return tuple(x for result in results for x in case.float_outputs(many(result)))

    inputs = [*(leaves[name] for name in names), *(states[name] for name in case.float_states)]
    return function, tuple(x.clone().requires_grad_() for x in inputs)


def keep_away_from_infinity(x: torch.Tensor) -> torch.Tensor:
    """Finite differences need finite numbers; a bound of ±9 is as open as infinity for normal states."""
    return x.clamp(-9, 9) if x.is_floating_point() else x


@pytest.mark.parametrize("case", [c for c in CASES if c.exact_on_grid], ids=lambda case: case.name)
@every_lowering
class TestExactOnTheGrid:
    """Nothing rounds on quarter integers, so a tie is a tie in every order of evaluation."""

    @pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
    def test_ties_follow_torch_on_the_sequential_loop(self, case, reverse, lowering):
        leaves, initial = draw(case, (2, 40, 3), seed=5)
        start = tuple(on_grid(dict(enumerate(initial))).values())
        for loss in (Loss((0,), ()), Loss((), (0,))):
            assert_same(case, on_grid(leaves), start, loss, reverse, lowering=lowering)

    def test_nan_spreads_and_splits_as_in_the_loop(self, case, lowering):
        leaves, initial = draw(case, (4, 20, 3), seed=6)
        for name in case.float_leaves:
            holes = leaves | {name: leaves[name].clone()}
            holes[name][2:, 8] = float("nan")
            got = actual(case, holes, initial, Loss((0,), (0,)), lowering=lowering)
            truth = expected(case, holes, initial, Loss((0,), (0,)))
            for x, y in zip((*got.states, *got.finals), (*truth.states, *truth.finals), strict=True):
                assert torch.equal(x.isnan(), y.isnan())
                assert_close(x.nan_to_num(7.0).double(), y.nan_to_num(7.0).double(), "forward")
            assert_same_gradients(case, got, truth)


@every_lowering
@pytest.mark.parametrize("wanted", [False, True])
def test_an_output_may_be_written_into(lowering, wanted):
    """An output is no view of anything: torch lets a caller scale it in place."""
    leaves, _ = draw(BY_NAME["Affine"], (2, 7, 3))
    inputs = {n: x.requires_grad_(wanted) for n, x in leaves.items()}
    truth = 2 * sf.scan(sf.operators.Affine, **inputs, lowering=lowering)
    assert torch.equal(sf.scan(sf.operators.Affine, **inputs, lowering=lowering).mul_(2), truth)


@every_lowering
def test_an_output_modified_in_place_is_noticed(lowering):
    """As by an activation with inplace=True: a right gradient or torch's error, never another number."""
    leaves, _ = draw(BY_NAME["Affine"], (2, 7, 3))
    inputs = differentiable(leaves)
    wanted = list(inputs.values())
    truth = torch.autograd.grad((sf.scan(sf.operators.Affine, **inputs, lowering=lowering) * 2).sum(), wanted)
    states, final = sf.scan(sf.operators.Affine, **inputs, return_final_state=True, lowering=lowering)
    last = final.clone()
    try:
        states.mul_(2)
        found = torch.autograd.grad(states.sum(), wanted)
    except RuntimeError as error:
        assert "inplace" in str(error)  # noqa: PT017 - either outcome is right
    else:
        for x, y in zip(found, truth, strict=True):
            assert_close(x, y, "gradient")
    assert torch.equal(final, last)


@every_lowering
def test_a_tangent_is_right_or_refused(lowering):
    """Forward mode: never a silent zero."""
    leaves, _ = draw(BY_NAME["Affine"], (1, 5, 2))
    a, b = leaves.values()

    def function(b):
        return sf.scan(sf.operators.Affine, a=a, b=b, lowering=lowering)

    try:
        _, tangent = torch.func.jvp(function, (b,), (torch.ones_like(b),))
    except (NotImplementedError, RuntimeError):
        return
    assert_close(tangent, function(torch.ones_like(b)), "gradient")


@every_lowering
class TestModulusOne:
    """A gate of modulus 1 forgets nothing, so a carry lost anywhere shows."""

    @pytest.mark.parametrize("gate", [1.0, -1.0, 0.9999])
    def test_affine(self, lowering, gate):
        a = torch.full((1, 197, 2), gate, dtype=torch.float64, requires_grad=True)
        b = torch.randn(1, 197, 2, dtype=torch.float64, requires_grad=True)
        states = sf.scan(sf.operators.Affine, a=a, b=b, lowering=lowering)
        for index in (196, 130, 64, 5, 0):
            (db,) = torch.autograd.grad(states[:, index].sum(), b, retain_graph=True)
            age = index - torch.arange(197)
            truth = torch.where(age >= 0, gate ** age.abs().double(), 0.0)
            assert_close(db, truth.reshape(1, -1, 1).expand(1, 197, 2), "gradient", f"index {index}")
            if abs(gate) == 1:
                assert set(db.unique().tolist()) <= {-1.0, 0.0, 1.0}

    def test_complex_affine(self, lowering):
        case = BY_NAME["ComplexAffine"]
        phase = torch.linspace(0, 3, 394, dtype=torch.float64).reshape(1, 197, 2)
        leaves, initial = draw(case, (1, 197, 2))
        leaves |= {"a_re": phase.cos(), "a_im": phase.sin()}
        assert_same(case, leaves, initial, Loss((), (0,)), lowering=lowering)
        assert_same(case, leaves, initial, Loss((1,), ()), lowering=lowering)


@every_operator
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_prefixes(case, reverse):
    """Each composed leaf alone, and all together: the scan of the operator on itself is a loop too."""
    for length in LENGTHS:
        leaves, _ = draw(case, (2, length, 3), seed=length)
        leaves = {name: keep_away_from_infinity(x) for name, x in leaves.items()}  # no tie with the identity
        mine, twin = differentiable(leaves), differentiable(leaves)
        got = sf.prefixes(case.operator, **mine, reverse=reverse)._asdict()
        truth = case.prefix_loop(twin, reverse)
        for read in [*((name,) for name in case.float_leaves), case.float_leaves]:
            cotangents = [cotangent(truth[name], seed) for seed, name in enumerate(read)]
            gradients = []
            for outputs, inputs, missing in ((got, mine, False), (truth, twin, True)):
                found = torch.autograd.grad(
                    [outputs[name] for name in read],
                    [inputs[name] for name in case.float_leaves],
                    cotangents,
                    retain_graph=True,
                    allow_unused=missing,
                    materialize_grads=missing,
                )
                gradients.append(found)
            for name, x, y in zip(case.float_leaves, *gradients, strict=True):
                assert_close(x, y, "gradient", f"{case.name} T={length} {read} by {name}")
