"""The MinMax recurrence of the paper on a state of N entries, with a matrix in the min-max algebra."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, reduce
from typing import Any

import torch

import scanforge as sf

from .. import arguments

Tensor = torch.Tensor
INF = float("inf")


@cache
def minmax_matrix(n: int) -> type[sf.Operator]:
    """The operator x_t = (A_t ⊗ x_{t-1}) ⊕ b_t on N entries: min is the product, max is the sum.

    x_t[i] = max(max_j min(A_t[i,j], x_{t-1}[j]), b_t[i]), and
    (A, b) ∘ (A', b') = (A' ⊗ A, (A' ⊗ b) ⊕ b') with (A' ⊗ A)[i,j] = max_k min(A'[i,k], A[k,j]).

    Elements are N² + N scalar fields a00, a01, ..., b0, ... and states x0, ..., so N is small. The
    identity has +inf on the diagonal and -inf elsewhere. It only selects, so it is exact; a maximum of N
    values is one of two, from left to right, and each splits a tie in halves. N = 1 is
    `sf.operators.MinMax`. The same class comes back for the same N. ValueError for an N that is no size.
    Source: arXiv 2605.06384, the recurrence with a min-max matrix.

    Example:
        >>> import torch, scanforge as sf
        >>> from models.minmax import minmax_matrix
        >>> swap = {"a01": torch.full((1, 3), 9.0), "a10": torch.full((1, 3), 9.0)}
        >>> rest = {name: torch.full((1, 3), -9.0) for name in ("a00", "a11", "b0", "b1")}
        >>> start = torch.tensor([1.0]), torch.tensor([2.0])
        >>> sf.scan(minmax_matrix(2), **swap, **rest, initial_state=start)
        (tensor([[2., 1., 2.]]), tensor([[1., 2., 1.]]))
    """
    arguments.positive("minmax_matrix", n=n)
    across = range(n)
    fields: dict[str, Any] = {
        f"a{_at(n, i, j)}": sf.Element(identity=INF if i == j else -INF) for i in across for j in across
    }
    fields |= {f"b{i}": sf.Element(identity=-INF) for i in across}
    fields |= {f"x{i}": sf.State() for i in across}

    def times(matrix: Any, column: list[Any]) -> list[Any]:
        rows = [[getattr(matrix, f"a{_at(n, i, j)}") for j in across] for i in across]
        return [_largest(sf.minimum(a, x) for a, x in zip(row, column, strict=True)) for row in rows]

    def combine(self: Any, later: Any) -> Any:
        columns = [times(later, [getattr(self, f"a{_at(n, k, j)}") for k in across]) for j in across]
        product = {f"a{_at(n, i, j)}": columns[j][i] for i in across for j in across}
        shifted = times(later, [getattr(self, f"b{i}") for i in across])
        return operator(
            **product, **{f"b{i}": sf.maximum(shifted[i], getattr(later, f"b{i}")) for i in across}
        )

    def apply(self: Any, *x: Any) -> Any:
        after = tuple(sf.maximum(y, getattr(self, f"b{i}")) for i, y in enumerate(times(self, list(x))))
        return after if n > 1 else after[0]

    methods = {"combine": combine, "apply": apply, "__doc__": f"x_t = (A_t ⊗ x_(t-1)) ⊕ b_t, {n} entries"}
    operator = type(f"MinMaxMatrix{n}", (sf.Operator,), fields | methods)
    return operator


def matrix_states(a: Tensor, b: Tensor, x0: Tensor | None = None, backend: str | None = None) -> Tensor:
    """All states x_1 ... x_T of the min-max matrix recurrence on whole tensors.

    a (B, T, ..., N, N), b (B, T, ..., N), x0 (B, ..., N), by default zeros -> (B, T, ..., N). The rule at
    ties is that of `minmax_matrix`. ValueError for shapes that do not fit.

    Example:
        >>> import torch
        >>> from models.minmax import matrix_states
        >>> a = torch.tensor([[-9.0, 9.0], [9.0, -9.0]]).expand(1, 3, 2, 2)
        >>> matrix_states(a, torch.full((1, 3, 2), -9.0), torch.tensor([[1.0, 2.0]]))
        tensor([[[2., 1.],
                 [1., 2.],
                 [2., 1.]]])
    """
    n = b.shape[-1] if b.ndim else 0
    if b.ndim < 3 or tuple(a.shape) != (*b.shape, n):
        raise ValueError(
            f"matrix_states: a and b have shapes {tuple(a.shape)} and {tuple(b.shape)}, expected "
            "(B, T, ..., N, N) and (B, T, ..., N)."
        )
    leaves: dict[str, Any] = {f"a{_at(n, i, j)}": a[..., i, j] for i in range(n) for j in range(n)}
    leaves |= {f"b{i}": b[..., i] for i in range(n)}
    start = None
    if x0 is not None:
        arguments.state("matrix_states", "x0", x0, (b.shape[0], *b.shape[2:]))
        start = x0.unbind(-1) if n > 1 else x0[..., 0]
    states = sf.scan(minmax_matrix(n), initial_state=start, backend=backend, **leaves)
    return torch.stack(states if n > 1 else [states], -1)


def _at(n: int, i: int, j: int) -> str:
    """The name of a place in the matrix: two digits, or with a line between from 11 entries on."""
    return f"{i}{j}" if n <= 10 else f"{i}_{j}"


def _largest(values: Iterable[Any]) -> Any:
    return reduce(sf.maximum, values)
