"""Norms by name."""

from __future__ import annotations

from torch import nn

from . import arguments

NORMS = ("layernorm", "rmsnorm", "none")


def norm(where: str, kind: str, width: int, eps: float | None = None) -> nn.Module:
    """The norm of this name over the last axis; `eps` None is torch's default."""
    arguments.one_of(where, "norm", kind, NORMS)
    if kind == "layernorm":
        return nn.LayerNorm(width) if eps is None else nn.LayerNorm(width, eps)
    return nn.RMSNorm(width, eps) if kind == "rmsnorm" else nn.Identity()
