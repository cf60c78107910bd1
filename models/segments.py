"""Where sequences start, what is padding, which ranks hold steps: checked once, read by all of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import scanforge as sf

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Segments:
    """The boundaries of one call over x of shape (B, T, ...).

    reset       (B, T) bool: a new sequence starts at t, from the layer's own initial state
    cu_seqlens  (N + 1,) int: N sequences behind each other in a batch of one, with N states
    mask        (B, T) bool: false is padding; state passes through, outputs and gradients are 0
    group       over whose ranks time is split; x, reset and mask are of a rank's steps, cu_seqlens of all
    """

    reset: Tensor | None = None
    cu_seqlens: Tensor | None = None
    mask: Tensor | None = None
    group: Any = None

    @staticmethod
    def of(
        where: str,
        x: Tensor,
        reset: Tensor | None,
        cu_seqlens: Tensor | None,
        mask: Tensor | None,
        group: Any = None,
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
            None if reset is None else reset != 0, cu_seqlens, None if mask is None else mask != 0, group
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

    @property
    def flags(self) -> dict[str, Any]:
        """Keywords for the `forward` of a layer within these boundaries; a mixer need not know of groups."""
        boundaries = {"reset": self.reset, "cu_seqlens": self.cu_seqlens, "mask": self.mask}
        return boundaries if self.group is None else boundaries | {"sequence_group": self.group}

    def scan(self, recurrence: Any, /, *, reset_state: Any = None, **options: Any) -> Any:
        """(outputs, final state) of a recurrence within these boundaries, and over the ranks of the group.

        `reset_state` is the layer's own initial state. A layer that hands on a carried state must give it,
        zeros too: without it resets start from the state that was carried in.
        """
        options |= {"cu_seqlens": self.cu_seqlens, "mask": self.mask, "return_final_state": True}
        if self.reset is not None:
            options |= {"reset": self.reset, "reset_state": reset_state}
        if self.group is None:
            return sf.scan(recurrence, **options)
        return sf.distributed.scan(recurrence, group=self.group, **options)

    @property
    def first(self) -> bool:
        """Whether the sequence begins with this rank's steps."""
        return self.group is None or sf.distributed.place(self.group) == 0

    def begin(self, steps: int, device: torch.device) -> Tensor | int:
        """Where in the sequence this rank's steps begin."""
        if self.group is None:
            return 0
        return sf.distributed.before(torch.tensor(steps, device=device), self.group).sum()

    def own(self, steps: int, device: torch.device) -> Segments:
        """The boundaries of this rank's steps alone, for what knows already how the ranks before it end."""
        bounds = self.cu_seqlens
        if bounds is not None:
            bounds = (bounds - self.begin(steps, device)).clamp(0, steps)
        return Segments(self.reset, bounds, self.mask)
