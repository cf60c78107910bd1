"""Where sequences start and which steps are padding: checked once a call, read by every part of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Segments:
    """The boundaries of one call over x of shape (B, T, ...).

    reset       (B, T) bool: a new sequence starts at t, from the layer's own initial state
    cu_seqlens  (N + 1,) int: N sequences behind each other in a batch of one, with N states
    mask        (B, T) bool: false is padding; state passes through, outputs and gradients are 0
    """

    reset: Tensor | None = None
    cu_seqlens: Tensor | None = None
    mask: Tensor | None = None

    @staticmethod
    def of(
        where: str, x: Tensor, reset: Tensor | None, cu_seqlens: Tensor | None, mask: Tensor | None
    ) -> Segments:
        """The options of a forward call; flags of any dtype, where a number that is not 0 counts as true."""
        flags = {"reset": reset, "mask": mask}
        for name, flag in flags.items():
            if flag is not None and tuple(flag.shape) != tuple(x.shape[:2]):
                raise ValueError(
                    f"{where}: {name} has shape {tuple(flag.shape)}, expected (B, T) = {tuple(x.shape[:2])}."
                )
        if cu_seqlens is not None and x.shape[0] != 1:
            raise ValueError(
                f"{where}: cu_seqlens packs sequences into a batch of one, and x has shape {tuple(x.shape)}: "
                "put them behind each other in time."
            )
        if cu_seqlens is not None and (cu_seqlens.ndim != 1 or cu_seqlens.numel() < 1):
            raise ValueError(
                f"{where}: cu_seqlens has shape {tuple(cu_seqlens.shape)}, expected (N + 1,): write 0, then "
                "where each of the N sequences ends."
            )
        return Segments(
            None if reset is None else reset != 0, cu_seqlens, None if mask is None else mask != 0
        )

    @property
    def none(self) -> bool:
        """Whether the call has no boundaries but its ends."""
        return self.reset is None and self.cu_seqlens is None and self.mask is None

    def batch(self, x: Tensor) -> int:
        """How many sequences there are, each with a state."""
        return x.shape[0] if self.cu_seqlens is None else self.cu_seqlens.numel() - 1

    def real(self, x: Tensor) -> Tensor:
        """x (B, T, ...), and 0 at padded steps, whatever stood there; no gradient passes there."""
        if self.mask is None:
            return x
        mask = self.mask.reshape(*self.mask.shape, *([1] * (x.ndim - 2)))
        return torch.where(mask, x, torch.zeros((), dtype=x.dtype, device=x.device))

    def options(self, reset_state: Any = None) -> dict[str, Any]:
        """Keywords for `sf.scan`. `reset_state` is the layer's own initial state.

        A layer that hands a carried state to `sf.scan` must give it, zeros too: without it resets start from
        the state that was carried in.
        """
        options: dict[str, Any] = {"cu_seqlens": self.cu_seqlens, "mask": self.mask}
        if self.reset is not None:
            options |= {"reset": self.reset, "reset_state": reset_state}
        return options
