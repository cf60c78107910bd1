"""All states, and all composed steps, of a MinMax recurrence over time."""

from __future__ import annotations

import torch

import scanforge as sf

Tensor = torch.Tensor


def all_states(a: Tensor, b: Tensor, x0: Tensor, backend: str | None = None) -> Tensor:
    """x_0 ... x_T with x_{t+1} = max(min(a_t, x_t), b_t), for a and b of shape (B, T, D).

    x0 has shape (B, D) or broadcasts to it; the result is (B, T + 1, D). It is that of the loop bit for bit,
    since minimum and maximum do not round; so are its gradients, which at ties are torch's, half and half
    (composed prefixes have others there). NaN propagates.

    Example:
        >>> import torch
        >>> from models.minmax import minmax_scan
        >>> a, b = torch.tensor([[[5.0], [2.0], [9.0]]]), torch.tensor([[[1.0], [0.0], [3.0]]])
        >>> minmax_scan.all_states(a, b, torch.tensor([[6.0]])).flatten()
        tensor([6., 5., 2., 3.])
    """
    if a.ndim != 3 or a.shape != b.shape:
        raise ValueError(
            f"all_states: a and b have shapes {tuple(a.shape)} and {tuple(b.shape)}, expected one shape "
            "(B, T, D)."
        )
    x0 = x0.expand(a.shape[0], a.shape[2])
    states = sf.scan(sf.operators.MinMax, r=a, s=b, initial_state=x0, backend=backend)
    return torch.cat([x0[:, None].to(states.dtype), states], 1)


def all_prefixes(a: Tensor, b: Tensor, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """The one step (A_t, B_t) that steps 0 to t are together, for every t: each of a's shape (B, T, D).

    x_{t+1} = max(min(A_t, x_0), B_t). Pairs with A_t < B_t are legal, and are the constant B_t.

    Example:
        >>> import torch
        >>> from models.minmax import minmax_scan
        >>> a, b = torch.tensor([[[5.0], [2.0], [9.0]]]), torch.tensor([[[1.0], [0.0], [3.0]]])
        >>> [x.flatten().tolist() for x in minmax_scan.all_prefixes(a, b)]
        [[5.0, 2.0, 2.0], [1.0, 1.0, 3.0]]
    """
    prefix = sf.prefixes(sf.operators.MinMax, r=a, s=b, backend=backend)
    return prefix.r, prefix.s


def all_composition_prefixes(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """`all_prefixes` under the name that the original has.

    Example:
        >>> import torch
        >>> from models.minmax import minmax_scan
        >>> a, b = torch.tensor([[[5.0], [2.0]]]), torch.tensor([[[1.0], [0.0]]])
        >>> [x.flatten().tolist() for x in minmax_scan.all_composition_prefixes(a, b)]
        [[5.0, 2.0], [1.0, 1.0]]
    """
    return all_prefixes(a, b)
