"""The min-max matrix recurrence of the paper against loops over entries, its laws and its derivatives."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from models.minmax import matrix_states, minmax_matrix
from tests.catalogue import generator
from tests.models.protocol import F64, refused

SIZES = [1, 2, 3]


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=generator(seed), dtype=F64)


def product(matrix, other):
    """The matrix product with min for times and max for plus, entry by entry."""
    rows, inner, columns = len(matrix), len(other), len(other[0])
    return [
        [max(min(matrix[i][k], other[k][j]) for k in range(inner)) for j in range(columns)]
        for i in range(rows)
    ]


def loop(a, b, x):
    """x_t = max(A_t ⊗ x_{t-1}, b_t), one entry after another, on numbers."""
    states = []
    for matrix, shift in zip(a.tolist(), b.tolist(), strict=True):
        x = [max(y, s) for (y,), s in zip(product(matrix, [[v] for v in x]), shift, strict=True)]
        states.append(x)
    return torch.tensor(states, dtype=F64).reshape(b.shape)


@pytest.mark.parametrize("n", SIZES)
def test_laws_gradients_and_lowerings(n):
    assert sf.check(minmax_matrix(n), show=False).ok


@pytest.mark.slow
def test_eleven_entries():
    a, b, x0 = drawn(1, 3, 11, 11), drawn(1, 3, 11, seed=1) - 1, drawn(1, 11, seed=2)
    assert torch.equal(matrix_states(a, b, x0)[0], loop(a[0], b[0], x0[0].tolist()))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("steps", [0, 1, 40])
def test_states_are_the_loop_s_bit_for_bit(n, steps):
    a, b, x0 = drawn(2, steps, n, n), drawn(2, steps, n, seed=1) - 1, drawn(2, n, seed=2)
    want = torch.stack([loop(a[i], b[i], x0[i].tolist()) for i in range(2)])
    assert torch.equal(matrix_states(a, b, x0), want)
    assert torch.equal(matrix_states(a, b), matrix_states(a, b, torch.zeros(2, n, dtype=F64)))


@pytest.mark.parametrize("n", SIZES)
def test_prefixes_are_matrix_products(n):
    a = drawn(1, 6, n, n)
    fields = {f"a{i}{j}": a[..., i, j] for i in range(n) for j in range(n)}
    fields |= {f"b{i}": torch.full((1, 6), float("-inf"), dtype=F64) for i in range(n)}
    made = sf.prefixes(minmax_matrix(n), **fields)
    want = a[0, 0].tolist()
    for t in range(1, 6):
        want = product(a[0, t].tolist(), want)
    got = [[getattr(made, f"a{i}{j}")[0, -1].item() for j in range(n)] for i in range(n)]
    assert got == want


@pytest.mark.parametrize("n", SIZES)
def test_gradcheck(n):
    leaves = [drawn(2, 5, n, n), drawn(2, 5, n, seed=1) - 1, drawn(2, n, seed=2)]
    assert torch.autograd.gradcheck(matrix_states, [x.requires_grad_() for x in leaves])


def test_heads_are_further_axes():
    a, b, x0 = drawn(2, 7, 4, 3, 3), drawn(2, 7, 4, 3, seed=1), drawn(2, 4, 3, seed=2)
    whole = matrix_states(a, b, x0)
    for h in range(4):
        assert torch.equal(whole[:, :, h], matrix_states(a[:, :, h], b[:, :, h], x0[:, h]))


def test_one_entry_is_minmax():
    r, s = drawn(2, 20), drawn(2, 20, seed=1)
    want = sf.scan(sf.operators.MinMax, r=r, s=s)
    assert torch.equal(sf.scan(minmax_matrix(1), a00=r, b0=s), want)


def test_a_diagonal_matrix_is_minmax_of_every_entry():
    r, s = drawn(2, 20, 3), drawn(2, 20, 3, seed=1)
    diagonal = torch.where(torch.eye(3, dtype=torch.bool), r[..., None], -torch.inf)
    assert torch.equal(matrix_states(diagonal, s), sf.scan(sf.operators.MinMax, r=r, s=s))


def test_the_class_is_made_once():
    assert minmax_matrix(3) is minmax_matrix(3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: minmax_matrix(0), ("n=0", "at least 1")),
        (lambda: matrix_states(drawn(2, 3, 4), drawn(2, 3, 4)), ("(2, 3, 4)", "(B, T, ..., N, N)")),
        (lambda: matrix_states(drawn(2, 3, 2, 2), drawn(2, 3, 2), drawn(2, 3)), ("x0", "(2, 3)", "(2, 2)")),
    ],
)
def test_what_is_refused(make, words):
    refused(make, *words)
