"""What the parts of a MinMax layer have in common: how a call and its state are taken apart."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from .. import arguments
from ..mixer import Mixer, State, state_dtype
from ..segments import Segments

Tensor = torch.Tensor


class Cell(Mixer):
    """A mixer whose `forward` also has the original's form, forward(u, state) -> (y, state).

    `return_state` None answers in that form, a pair if a state was given. The state may also be
    `initial_state` itself, not called, as code for the original passes it.
    """

    def forward(
        self,
        x: Tensor,
        state: State = None,
        return_state: bool | None = None,
        reset: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
        sequence_group: Any = None,
    ) -> Any:
        """x (B, T, d_model) -> y (B, T, d_model), or (y, state after the last step)."""
        where = type(self).__name__
        arguments.sequence(where, x, self.d_model)
        segments = Segments.of(where, x, reset, cu_seqlens, mask, sequence_group)
        x = segments.real(x)
        y, after = self._run(x, self._before(state, segments.batch(x), x), segments)
        pair = state is not None if return_state is None else return_state
        return (segments.real(y), after) if pair else segments.real(y)

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """x_t (B, d_model) -> (y_t (B, d_model), state after it)."""
        arguments.token(type(self).__name__, x_t, self.d_model)
        return self._step(x_t, self._before(state, x_t.shape[0], x_t))

    def _before(self, given: State, batch: int, x: Tensor) -> State:
        """The checked state before the first step, for an input like x."""
        if given is None or (callable(given) and given == self.initial_state):
            return self.initial_state(batch, state_dtype(x.dtype), x.device)
        return self._checked(given, batch, x)

    @abstractmethod
    def _checked(self, given: Any, batch: int, x: Tensor) -> State:
        """A given state, its shape checked, with `batch` rows."""

    @abstractmethod
    def _run(self, x: Tensor, state: State, segments: Segments) -> tuple[Tensor, State]:
        """All steps."""

    @abstractmethod
    def _step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One step."""


class VectorCell(Cell):
    """A cell whose state is one vector (B, width), that starts from `_initial_state` (width,)."""

    _initial_state: Tensor
    part: str  # what the state is called in a layer's

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """`_initial_state` for every sequence, (batch, width)."""
        own = self._initial_state
        made = own.to(device or own.device, dtype or state_dtype(own.dtype))
        return made.repeat(batch, 1)

    def _checked(self, given: Any, batch: int, x: Tensor) -> Tensor:
        width = self._initial_state.numel()
        if isinstance(given, Tensor) and tuple(given.shape) in {(width,), (1, width)}:
            given = given.expand(batch, width)
        found = arguments.state(type(self).__name__, self.part, given, (batch, width))
        return found.to(state_dtype(x.dtype))
