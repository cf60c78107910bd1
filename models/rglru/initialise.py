"""How the decay starts."""

from __future__ import annotations

import torch

A_INITS = ("base", "power", "ring")


def decay_logit_(a_log: torch.Tensor, kind: str, low: float, high: float, c: float) -> None:
    """Fill with logit(a), so that a = σ(a_log) lies as `kind` says; in place, without gradient.

    "base"   a ~ U(low, high), what lrnnx's `a_init_range` says (its own start is sigmoid(log a), below 0.5)
    "power"  a^c ~ U(low, high), as Griffin's paper has it
    "ring"   a² ~ U(low², high²), uniform on the ring of these radii, as in recurrentgemma
    """
    wide = a_log.dtype if a_log.dtype == torch.float64 else torch.float32
    u = torch.empty(a_log.shape, dtype=wide, device=a_log.device)
    u.uniform_(low**2, high**2) if kind == "ring" else u.uniform_(low, high)
    log_a = u.log() / {"base": 1.0, "power": c, "ring": 2.0}[kind]
    with torch.no_grad():
        a_log.copy_(log_a - torch.log(-torch.expm1(log_a)))
