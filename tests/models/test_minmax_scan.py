"""The MinMax operator, its states and its prefixes: the loop bit for bit, with the loop's gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.minmax import all_composition_prefixes, all_prefixes, all_states, minmax_operator, minmax_scan
from tests.catalogue import generator
from tests.models.golden import golden
from tests.models.protocol import F64, refused

GOLDEN = golden("minmax_scan")
CASES = sorted({key.split("/")[0] for key in GOLDEN})
TYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INF, NAN = float("inf"), float("nan")


def drawn(*shape, seed=0, dtype=F64):
    return torch.randn(shape, generator=generator(seed), dtype=F64).to(dtype)


def loop(a, b, x):
    """max(min(a, x), b), one step after another."""
    states = [x]
    for t in range(a.shape[1]):
        states.append(np.maximum(np.minimum(a[:, t], states[-1]), b[:, t]))
    return np.stack(states, 1)


@pytest.mark.parametrize("case", CASES)
def test_golden_states_and_prefixes_bit_for_bit(case):
    a, b, x0 = (GOLDEN[f"{case}/{name}"] for name in ("a", "b", "x0"))
    assert torch.equal(all_states(a, b, x0), GOLDEN[f"{case}/states"])
    for prefixes in (all_prefixes, all_composition_prefixes):
        made = prefixes(a, b)
        assert torch.equal(made[0], GOLDEN[f"{case}/a_prefix"])
        assert torch.equal(made[1], GOLDEN[f"{case}/b_prefix"])


@pytest.mark.parametrize("case", CASES)
def test_golden_gradients_of_the_loop_also_at_ties(case):
    leaves = [GOLDEN[f"{case}/{name}"].clone().requires_grad_() for name in ("a", "b", "x0")]
    (all_states(*leaves) * GOLDEN[f"{case}/cotangent"]).sum().backward()
    for name, leaf in zip(("a", "b", "x0"), leaves, strict=True):
        torch.testing.assert_close(leaf.grad, GOLDEN[f"{case}/grad_{name}"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_thousand_steps_are_the_loop_bit_for_bit_in_every_dtype(dtype):
    a, b, x0 = (drawn(2, *shape, seed=i, dtype=dtype) for i, shape in enumerate([(1000, 5), (1000, 5), (5,)]))
    states = all_states(a, b, x0)
    assert states.dtype == dtype
    want = loop(a.double().numpy(), b.double().numpy(), x0.double().numpy())
    assert np.array_equal(states.double().numpy(), want)


def test_ties_split_the_gradient_in_halves():
    a, b, x0 = (torch.tensor([[[1.0]]], dtype=F64).requires_grad_() for _ in range(3))
    all_states(a, b, x0[:, 0])[:, 1].sum().backward()  # max(min(1, 1), 1)
    assert [float(x.grad) for x in (a, b, x0)] == [0.25, 0.5, 0.25]


def test_nan_propagates_until_bounds_without_memory_end_it():
    a = torch.tensor([[5.0, NAN, 5.0, INF, -1.0]])[..., None]
    b = torch.tensor([[0.0, 0.0, NAN, -INF, 1.0]])[..., None]
    states = all_states(a, b, torch.zeros(1, 1)).flatten()
    assert states.isnan().tolist() == [False, False, True, True, True, True]
    assert minmax_operator.apply(a, b, torch.full((), NAN)).isnan().all()


def test_composition_is_two_steps_and_associates_exactly():
    (a1, b1, x), (a2, b2, _), (a3, b3, _) = (drawn(3, 200, seed=i) for i in range(3))
    twice = minmax_operator.apply(a2, b2, minmax_operator.apply(a1, b1, x))
    assert torch.equal(minmax_operator.apply(*minmax_operator.compose(a2, b2, a1, b1), x), twice)
    left = minmax_operator.compose(a3, b3, *minmax_operator.compose(a2, b2, a1, b1))
    right = minmax_operator.compose(*minmax_operator.compose(a3, b3, a2, b2), a1, b1)
    assert all(torch.equal(p, q) for p, q in zip(left, right, strict=True))
    crossed = minmax_operator.apply(*torch.tensor([[-1.0], [2.0], [0.0]]))
    assert crossed.item() == 2.0  # the lower bound comes last


@pytest.mark.parametrize("steps", [0, 1, 2, 17])
def test_req27_short_sequences(steps):
    a, b = (drawn(2, steps, 3, seed=i).requires_grad_() for i in range(2))
    x0 = drawn(2, 3, seed=2).requires_grad_()
    states = all_states(a, b, x0)
    assert states.shape == (2, steps + 1, 3)
    states.sum().backward()
    assert all(x.grad.isfinite().all() for x in (a, b, x0))
    assert [p.shape for p in all_prefixes(a, b)] == [(2, steps, 3)] * 2


def test_prefixes_are_the_states_of_any_start():
    a, b, x0 = drawn(2, 30, 4, seed=0), drawn(2, 30, 4, seed=1), drawn(2, 4, seed=2)
    upper, lower = all_prefixes(a, b)
    assert torch.equal(torch.maximum(torch.minimum(upper, x0[:, None]), lower), all_states(a, b, x0)[:, 1:])


def test_one_start_serves_all():
    a, b = drawn(3, 4, 2, seed=0), drawn(3, 4, 2, seed=1)
    assert torch.equal(all_states(a, b, torch.zeros(2)), all_states(a, b, torch.zeros(3, 2)))


def test_shapes_that_do_not_fit_are_refused():
    refused(
        lambda: minmax_scan.all_states(drawn(2, 3, 4), drawn(2, 3, 5), drawn(2, 4)), "(2, 3, 4)", "(B, T, D)"
    )
