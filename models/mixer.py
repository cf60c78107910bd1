"""The protocol of every sequence layer: one pass, chunks and single steps give the same numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from .recorded import Recorded

Tensor = torch.Tensor
State = Any  # a tensor, or dicts, lists and tuples of them; the first axis of each is the batch


class Mixer(Recorded, nn.Module, ABC):
    """A layer (B, T, d_model) -> (B, T, d_model) that carries a state over time.

    `backend` goes to every `sf.scan` and `sf.step`: None chooses by device, "reference" or "triton" forces.
    A state is fp32 for 16-bit and fp32 layers, and fp64 for fp64 ones; no call changes one that it is given.
    """

    d_model: int
    backend: str | None = None

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        state: State = None,
        return_state: bool = False,
        reset: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
        sequence_group: Any = None,
    ) -> Any:
        """y, or (y, state after the last step) with `return_state`.

        `state` None is `initial_state`. `reset` (B, T): a new sequence starts at t, from `initial_state`.
        `cu_seqlens` (N + 1,): N sequences packed into a batch of one; states then have N rows.
        `mask` (B, T): false is padding on any side: the state passes through, outputs and gradients are 0.
        `sequence_group`: x is this rank's stretch of a sequence that lies over the ranks of a process group
        (or a device mesh of one dimension), as `reset` and `mask` are; `cu_seqlens` counts the whole. The
        first rank's `state` is read, and a rank gets the state after its own steps.
        """

    @abstractmethod
    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One time step, x_t (B, d_model) -> (y_t, state after it), equal to `forward` over one step."""

    @abstractmethod
    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> State:
        """The state before the first step; `dtype` and `device` are by default the layer's own."""

    @property
    def state_size(self) -> int:
        """How many numbers the state of one sequence holds."""
        return sum(x.numel() for x in tensors(self.initial_state(1)))


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the state of a layer that computes in `dtype`."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def tensors(state: State) -> list[Tensor]:
    """The tensors of a state, in order."""
    if isinstance(state, Tensor):
        return [state]
    values = state.values() if isinstance(state, dict) else state
    return [x for value in values for x in tensors(value)]


def set_backend(model: nn.Module, backend: str | None) -> None:
    """Run every mixer of a model on this backend: "reference", "triton", or None to choose by device."""
    for module in model.modules():
        if isinstance(module, Mixer):
            module.backend = backend
