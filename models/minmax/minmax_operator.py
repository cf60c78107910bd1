"""One step of the MinMax recurrence and the composition of two, on tensors."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def apply(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """max(min(a, x), b): the state after the step with upper bound a and lower bound b.

    The shapes broadcast. The upper bound comes first, so a < b gives b. At ties the gradient is split in
    halves, as by torch; NaN in any argument gives NaN. Source: arXiv 2605.06384, with N = 1.

    Example:
        >>> import torch
        >>> from models.minmax import minmax_operator
        >>> minmax_operator.apply(torch.tensor(2.0), torch.tensor(-1.0), torch.tensor([-3.0, 0.0, 3.0]))
        tensor([-1.,  0.,  2.])
    """
    return torch.maximum(torch.minimum(a, x), b)


def compose(a2: Tensor, b2: Tensor, a1: Tensor, b1: Tensor) -> tuple[Tensor, Tensor]:
    """(min(a2, a1), max(min(a2, b1), b2)): the one step that is (a1, b1), and then (a2, b2).

    The shapes broadcast; `apply(a2, b2, apply(a1, b1, x))` is `apply(*compose(a2, b2, a1, b1), x)` exactly.

    Example:
        >>> import torch
        >>> from models.minmax import minmax_operator
        >>> minmax_operator.compose(*torch.tensor([2.0, 0.0, 5.0, 1.0]))
        (tensor(2.), tensor(1.))
    """
    return torch.minimum(a2, a1), apply(a2, b2, b1)
