"""Values of every shipped operator against the loop written by hand, in float64."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests.catalogue import BY_NAME, CASES, Case, draw, on_grid
from tests.loops import lanes
from tests.reference.compare import LOWERINGS, many
from tests.tolerances import assert_close, assert_equal

LENGTHS = (0, 1, 2, 3, 7, 33)


def assert_states(case: Case, got: tuple, truth: tuple, quantity: str = "forward") -> None:
    for name, x, y in zip(case.states, got, truth, strict=True):
        if case.selects or name not in case.float_states:
            assert_equal(x, y, f"{case.name} {name}")
        else:
            assert_close(x, y, quantity, f"{case.name} {name}")


def scan(case: Case, leaves, initial=None, **options):
    first = initial if initial is None or len(initial) > 1 else initial[0]
    states, finals = sf.scan(case.operator, **leaves, initial_state=first, return_final_state=True, **options)
    return many(states), many(finals)


@pytest.mark.parametrize("lowering", LOWERINGS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
class TestEveryOperator:
    @pytest.mark.parametrize("given", [False, True], ids=["default start", "given start"])
    @pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
    def test_states_and_finals(self, case, lowering, reverse, given):
        for length in LENGTHS:
            leaves, initial = draw(case, (2, length, 3), seed=length)
            start = initial if given else None
            states, finals = scan(case, leaves, start, reverse=reverse, lowering=lowering)
            truth_states, truth_finals = case.loop(leaves, start, reverse)
            assert_states(case, states, truth_states)
            assert_states(case, finals, truth_finals)

    @pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
    def test_prefixes(self, case, lowering, reverse):
        for length in LENGTHS:
            leaves, _ = draw(case, (2, length, 3), seed=length)
            got = sf.prefixes(case.operator, **leaves, reverse=reverse)
            truth = case.prefix_loop(leaves, reverse)
            assert got._fields == tuple(leaves)
            for name, y in truth.items():
                x = getattr(got, name)
                assert_equal(x, y, name) if case.selects else assert_close(x, y, "forward", name)

    def test_ties(self, case, lowering):
        leaves, initial = draw(case, (2, 40, 3), seed=5)
        leaves = on_grid(leaves)
        states, finals = scan(case, leaves, initial, lowering=lowering)
        truth_states, truth_finals = case.loop(leaves, initial)
        assert_states(case, states, truth_states)
        assert_states(case, finals, truth_finals)

    def test_time_on_another_axis(self, case, lowering):
        shape = (2, 7, 3, 4)
        leaves, initial = draw(case, shape)
        truth, _ = case.loop(leaves, initial)
        for dim in range(-4, 4):
            moved = {name: x.movedim(1, dim) for name, x in leaves.items()}
            first = initial if len(initial) > 1 else initial[0]
            got = sf.scan(case.operator, **moved, initial_state=first, dim=dim, lowering=lowering)
            assert_states(case, tuple(x.movedim(dim, 1) for x in many(got)), truth)

    def test_leaves_of_size_one_broadcast(self, case, lowering):
        full, initial = draw(case, (2, 7, 3))
        for thin in full:
            for axis in range(3):
                leaves = full | {thin: full[thin].narrow(axis, 0, 1)}
                states, finals = scan(case, leaves, initial, lowering=lowering)
                truth_states, truth_finals = case.loop(leaves, initial)
                assert_states(case, states, truth_states)
                assert_states(case, finals, truth_finals)

    def test_every_leaf_of_size_one(self, case, lowering):
        leaves, _ = draw(case, (1, 1, 1))
        states, finals = scan(case, leaves, None, lowering=lowering)
        truth_states, truth_finals = case.loop(leaves)
        assert_states(case, states, truth_states)
        assert_states(case, finals, truth_finals)

    def test_two_axes_are_enough(self, case, lowering):
        leaves, initial = draw(case, (3, 9))
        states, finals = scan(case, leaves, initial, lowering=lowering)
        truth_states, truth_finals = case.loop(leaves, initial)
        assert_states(case, states, truth_states)
        assert_states(case, finals, truth_finals)

    def test_sizes_of_zero_stay_zero(self, case, lowering):
        for shape in ((0, 5, 3), (2, 5, 0), (0, 0, 0)):
            leaves, _ = draw(case, shape)
            states, finals = scan(case, leaves, None, lowering=lowering)
            assert [x.shape for x in states] == [torch.Size(shape)] * len(case.states)
            assert [x.shape for x in finals] == [lanes(leaves[case.float_leaves[0]])] * len(case.states)

    def test_inputs_are_not_written(self, case, lowering):
        leaves, initial = draw(case, (2, 7, 3))
        before = {name: x.clone() for name, x in leaves.items()}, tuple(x.clone() for x in initial)
        states, finals = scan(case, leaves, initial, lowering=lowering)
        assert all(torch.equal(before[0][name], x) for name, x in leaves.items())
        assert all(torch.equal(x, y) for x, y in zip(before[1], initial, strict=True))
        given = {x.untyped_storage().data_ptr() for x in (*leaves.values(), *initial)}
        assert not given & {x.untyped_storage().data_ptr() for x in (*states, *finals)}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1025])
def test_order_across_every_level_of_the_tree(length, reverse):
    case = BY_NAME["Matrix2x2"]
    leaves, initial = draw(case, (1, length, 2), seed=length)
    got = sf.scan(case.operator, **leaves, initial_state=initial, reverse=reverse, lowering="parallel")
    assert_states(case, got, case.loop(leaves, initial, reverse)[0])


class TestNumbersByHand:
    """The hand-checkable numbers: exact in every precision."""

    @pytest.mark.parametrize("lowering", LOWERINGS)
    @pytest.mark.parametrize(
        ("options", "states"),
        [
            ({}, [1, 13, 165]),
            ({"reverse": True}, [621, 310, 100]),
            ({"initial_state": torch.tensor([7.0])}, [15, 55, 375]),
        ],
    )
    def test_affine(self, options, states, lowering):
        a, b = torch.tensor([[2.0, 3.0, 5.0]]), torch.tensor([[1.0, 10.0, 100.0]])
        assert sf.scan(sf.operators.Affine, a=a, b=b, lowering=lowering, **options).tolist() == [states]

    @pytest.mark.parametrize("lowering", LOWERINGS)
    def test_affine_gradients(self, lowering):
        a = torch.tensor([[2.0, 3.0, 5.0]], requires_grad=True)
        b = torch.tensor([[1.0, 10.0, 100.0]], requires_grad=True)
        h0 = torch.zeros(1, requires_grad=True)
        states = sf.scan(sf.operators.Affine, a=a, b=b, initial_state=h0, lowering=lowering)
        da, db = torch.autograd.grad(states.sum(), (a, b), retain_graph=True)
        assert (da.tolist(), db.tolist()) == ([[0, 6, 13]], [[19, 6, 1]])
        assert torch.autograd.grad(states[0, -1], h0)[0].tolist() == [30]

    @pytest.mark.parametrize("lowering", LOWERINGS)
    @pytest.mark.parametrize(("start", "states"), [(0.0, [1, 1, 3, 4]), (6.0, [5, 2, 3, 4])])
    def test_min_max(self, start, states, lowering):
        r, s = torch.tensor([[5.0, 2.0, 9.0, 1.0]]), torch.tensor([[1.0, 0.0, 3.0, 4.0]])
        h0 = torch.tensor([start])
        assert sf.scan(sf.operators.MinMax, r=r, s=s, initial_state=h0, lowering=lowering).tolist() == [
            states
        ]

    def test_min_max_prefixes(self):
        r, s = torch.tensor([[5.0, 2.0, 9.0, 1.0]]), torch.tensor([[1.0, 0.0, 3.0, 4.0]])
        prefix = sf.prefixes(sf.operators.MinMax, r=r, s=s)
        assert (prefix.r.tolist(), prefix.s.tolist()) == ([[5, 2, 2, 1]], [[1, 1, 3, 4]])


def test_kalman_is_the_textbook_filter():
    """Predict and update one measurement at a time, with none of the associative elements."""
    g = torch.Generator().manual_seed(0)
    f, q, h, r = 0.9, 0.3, 1.7, 0.5
    y = torch.randn(2, 20, generator=g, dtype=torch.float64)
    mean, var = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    means, variances = [], []
    for y_t in y.unbind(1):
        mean, var = f * mean, f * f * var + q
        k = var * h / (h * h * var + r)
        mean, var = mean + k * (y_t - h * mean), (1 - k * h) * var
        means.append(mean)
        variances.append(var)
    s = h * h * q + r
    k = q * h / s
    number = torch.tensor(1.0, dtype=torch.float64).reshape(1, 1)
    got = sf.scan(
        sf.operators.Kalman,
        gain=(1 - k * h) * f * number,
        offset=k * y,
        noise=(1 - k * h) * q * number,
        eta=f * h / s * y,
        info=(f * h) ** 2 / s * number,
        lowering="parallel",
    )
    assert_close(got[0], torch.stack(means, 1), "forward", "mean")
    assert_close(got[1], torch.stack(variances, 1), "forward", "var")


def test_running_max_agrees_with_torch_but_for_ties():
    value = torch.tensor([[2.0, 5.0, 5.0, 1.0, 7.0]])
    top, at = sf.scan(sf.operators.RunningMax, value=value, index=torch.arange(5).reshape(1, 5))
    assert torch.equal(top, value.cummax(1).values)
    assert at.tolist() == [[0, 1, 1, 1, 4]]
    assert value.cummax(1).indices.tolist() == [[0, 1, 2, 2, 4]]


def test_log_sum_exp_agrees_with_torch_and_has_no_nan():
    m = torch.tensor([[-float("inf"), -float("inf"), 3.0, -900.0, 900.0]], dtype=torch.float64)
    for lowering in LOWERINGS:
        top, total = sf.scan(
            sf.operators.LogSumExp, m=m, s=torch.ones(1, 1, dtype=torch.float64), lowering=lowering
        )
        assert top.tolist() == m.cummax(1).values.tolist()
        assert total.tolist() == [[0, 0, 1, 1, 1]]
        assert torch.equal(top + total.log(), m.logcumsumexp(1))
