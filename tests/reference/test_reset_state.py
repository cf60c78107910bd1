"""`reset_state`: what resets start from where the first segment goes on from a carried state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import scanforge as sf
from tests.catalogue import generator
from tests.recurrence_declarations import LinearAttention
from tests.tolerances import assert_close

F64 = torch.float64
RESETS = torch.tensor([[0, 0, 1, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0, 1]], dtype=torch.bool)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=generator(seed)).requires_grad_()


def loop(a: Tensor, b: Tensor, carried: Tensor, fresh: Tensor, resets: Tensor) -> Tensor:
    h, states = carried, []
    for t in range(a.shape[1]):
        h = a[:, t] * torch.where(resets[:, t, None], fresh, h) + b[:, t]
        states.append(h)
    return torch.stack(states, 1)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_the_first_segment_goes_on_and_later_ones_start_anew(reverse):
    a, b, carried = drawn(2, 7, 3, seed=0), drawn(2, 7, 3, seed=1), drawn(2, 3, seed=2)
    fresh, weight = drawn(3, seed=3), drawn(2, 7, 3, seed=4).detach()
    got = sf.scan(
        sf.Affine, a=a, b=b, initial_state=carried, reset=RESETS, reset_state=fresh, reverse=reverse
    )
    if reverse:  # a boundary before t restarts the state at t - 1
        between = torch.cat([RESETS[:, 1:], torch.zeros(2, 1, dtype=torch.bool)], 1)
        want = loop(a.flip(1), b.flip(1), carried, fresh, between.flip(1)).flip(1)
    else:
        want = loop(a, b, carried, fresh, RESETS)
    leaves = (a, b, carried, fresh)
    assert_close(got, want.detach(), "forward")
    pairs = zip(*(torch.autograd.grad(y, leaves, weight) for y in (got, want)), strict=True)
    for x, y in pairs:
        assert_close(x, y, "gradient")


def test_without_it_resets_start_from_the_initial_state():
    a, b, h0 = drawn(2, 7, 3, seed=0), drawn(2, 7, 3, seed=1), drawn(2, 3, seed=2)
    both = [
        sf.scan(sf.Affine, a=a, b=b, initial_state=h0, reset=RESETS, **more)
        for more in ({}, {"reset_state": h0})
    ]
    assert torch.equal(*both)


def test_steps_of_two_states_are_the_scan():
    q, k, v = (drawn(2, 7, 1, n, seed=s).detach() for s, n in enumerate((3, 3, 4)))
    carried = drawn(2, 1, 3, 4, seed=5).detach(), drawn(2, 1, 3, seed=6).detach()
    fresh = drawn(1, 3, 4, seed=7).detach(), drawn(1, 3, seed=8).detach()
    whole = sf.scan(LinearAttention, q=q, k=k, v=v, initial_state=carried, reset=RESETS, reset_state=fresh)
    state, steps = carried, []
    for t in range(7):
        inputs = {"q": q[:, t], "k": k[:, t], "v": v[:, t]}
        y, state = sf.step(LinearAttention, state, reset=RESETS[:, t], reset_state=fresh, **inputs)
        steps.append(y)
    assert_close(torch.stack(steps, 1), whole, "forward")


def test_packed_sequences_each_go_on_from_their_own():
    a, b = drawn(1, 7, 3, seed=0), drawn(1, 7, 3, seed=1)
    carried, fresh = drawn(2, 3, seed=2), drawn(3, seed=3)
    cu, resets = torch.tensor([0, 3, 7]), RESETS[:1]
    options = {"reset_state": fresh, "reset": resets}
    got = sf.scan(sf.Affine, a=a, b=b, initial_state=carried, cu_seqlens=cu, **options)
    parts = [
        loop(a[:, f:e], b[:, f:e], carried[i : i + 1], fresh, resets[:, f:e])
        for i, (f, e) in enumerate([(0, 3), (3, 7)])
    ]
    assert_close(got, torch.cat(parts, 1).detach(), "forward")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"reset_state": torch.zeros(3)}, ("reset_state=", "no reset=", "write reset=starts")),
        ({"reset_state": torch.zeros(4), "reset": RESETS}, ("reset_state of h", "(4,)", "(2, 3)")),
        ({"reset_state": (), "reset": RESETS}, ("reset_state has 0 tensor(s)", "write reset_state=h")),
    ],
)
def test_what_is_refused(options, words):
    x = torch.ones(2, 7, 3)
    with pytest.raises(sf.InputError) as refusal:
        sf.scan(sf.Affine, a=x, b=x, **options)
    assert all(w in str(refusal.value) for w in words), refusal.value
