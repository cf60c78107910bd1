"""The MinMax network: layers in a residual stack, with a norm after them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .. import arguments
from ..mixer import Mixer, State, state_dtype
from ..norms import norm
from ..segments import Segments
from .configs import MinMaxRNCConfig
from .feedforward import create_feedforward
from .layer import MinMaxLayer, reset_norm

Tensor = torch.Tensor


class MinMaxRNC(Mixer):
    """y = norm(h + FFN(norm(h))) with h = layer_n(... layer_1(u)); the FFN only with `use_postlayers_ffn`.

    u (B, T, d_model) -> y of that shape. The state is a list with {"conv": (B, d_model), "neuron": (B,
    d_state)} for each layer, each also without B; `initial_state`, not called, stands for itself, as code
    for the original passes it. `unroll_steps` runs the sequence in pieces of so many steps, which changes
    nothing but memory. `cfg` says of which version of the original equations, initialisation and defaults
    are; state_dicts of both load by name.

    ValueError for a state, boundaries or unroll_steps that do not fit. Source: arXiv 2605.06384; 0.1.0 and
    0.3.0 of the minmaxrnc package.

    Example:
        >>> import torch
        >>> from models.minmax import MinMaxRNC, MinMaxRNCConfig
        >>> model = MinMaxRNC(MinMaxRNCConfig(d_model=6, n_layers=2, d_state=5)).eval()
        >>> u = torch.randn(2, 12, 6)
        >>> y, state = model(u[:, :8], return_state=True)
        >>> tail = model(u[:, 8:], unroll_steps=3, state=state)
        >>> torch.allclose(torch.cat([y, tail], 1), model(u), atol=1e-5)
        True
    """

    def __init__(self, cfg: MinMaxRNCConfig) -> None:
        super().__init__()
        self.cfg: Any = cfg  # a language model keeps its own kind here
        self.d_model = cfg.d_model
        self.layers = nn.ModuleList(MinMaxLayer(cfg.layer_cfg, first=i == 0) for i in range(cfg.n_layers))
        self.postlayers_norm = norm("MinMaxRNC", cfg.postlayers_norm, cfg.d_model)
        self.postlayers_ffn = create_feedforward(cfg.feedforward_cfg) if cfg.use_postlayers_ffn else None
        self.postlayers_ffn_norm = (
            norm("MinMaxRNC", cfg.norm, cfg.d_model) if cfg.use_postlayers_ffn else None
        )

    def forward(  # type: ignore[override]  # the original's order of arguments
        self,
        x: Tensor,
        unroll_steps: int | None = None,
        state: State = None,
        return_state: bool = False,
        reset: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
        sequence_group: Any = None,
    ) -> Any:
        """x (B, T, d_model) -> y (B, T, d_model), or (y, state after the last step)."""
        where = type(self).__name__
        arguments.sequence(where, x, self.d_model)
        segments = Segments.of(where, x, reset, cu_seqlens, mask, sequence_group)
        if unroll_steps is not None:
            arguments.positive(where, unroll_steps=unroll_steps)
            if sequence_group is not None:
                raise ValueError(
                    f"{where}: unroll_steps={unroll_steps} takes pieces one after another, and the ranks of "
                    "sequence_group= run at once: leave one of them out."
                )
        states, outputs = self._before(state, segments.batch(x), x), []
        for piece, flags in _pieces(x, segments, unroll_steps):
            y, states = self._through(piece, states, flags)
            outputs.append(y)
        y = segments.real(torch.cat(outputs, 1))
        return (y, states) if return_state else y

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """x_t (B, d_model) -> (y_t (B, d_model), state after it)."""
        arguments.token(type(self).__name__, x_t, self.d_model)
        before, after = self._before(state, x_t.shape[0], x_t), []
        for layer, own in zip(self._stack(), before, strict=True):
            x_t, own = layer.step(x_t, own)
            after.append(own)
        return self._finish(x_t), after

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> list[dict[str, Tensor]]:
        """The layers' initial states."""
        return [layer.initial_state(batch, dtype, device) for layer in self._stack()]

    def reset(self) -> None:
        """Draw all weights anew; the parameters stay the same objects, for optimizers that hold them."""
        for layer in self._stack():
            layer.reset()
        if self.postlayers_ffn is not None and self.postlayers_ffn_norm is not None:
            self.postlayers_ffn.reset()
            reset_norm(self.postlayers_ffn_norm)
        reset_norm(self.postlayers_norm)

    def _stack(self) -> Iterator[MinMaxLayer]:
        for layer in self.layers:
            assert isinstance(layer, MinMaxLayer)
            yield layer

    def _before(self, given: Any, batch: int, x: Tensor) -> list[Any]:
        """One state for each layer, which checks its own."""
        if given is None or (callable(given) and given == self.initial_state):
            return list(self.initial_state(batch, state_dtype(x.dtype), x.device))
        if not isinstance(given, list | tuple) or len(given) != len(self.layers):
            got = f"of length {len(given)}" if isinstance(given, list | tuple) else ""
            raise ValueError(
                f"{type(self).__name__}: state is a {type(given).__name__} {got}, expected a list of "
                f"{len(self.layers)}, one for each layer: pass what forward, step or initial_state returned."
            )
        return list(given)

    def _through(self, x: Tensor, states: list[Any], flags: dict[str, Any]) -> tuple[Tensor, list[Any]]:
        """One piece of the sequence."""
        after = []
        for layer, own in zip(self.layers, states, strict=True):
            x, own = layer(x, own, True, **flags)
            after.append(own)
        return self._finish(x), after

    def _finish(self, x: Tensor) -> Tensor:
        """What stands after the layers."""
        if self.postlayers_ffn is not None and self.postlayers_ffn_norm is not None:
            x = x + self.postlayers_ffn(self.postlayers_ffn_norm(x))
        y: Tensor = self.postlayers_norm(x)
        return y


def _pieces(x: Tensor, segments: Segments, steps: int | None) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """x in pieces of `steps` steps, each with its part of the boundaries.

    A packed sequence that lies outside a piece is an empty one there, through which its state passes.
    """
    length = x.shape[1]
    if steps is None:
        yield x, segments.flags
        return
    for first in range(0, max(length, 1), steps):
        end = min(first + steps, length)
        flags = segments.flags | {
            "reset": None if segments.reset is None else segments.reset[:, first:end],
            "cu_seqlens": None
            if segments.cu_seqlens is None
            else segments.cu_seqlens.clamp(first, end) - first,
            "mask": None if segments.mask is None else segments.mask[:, first:end],
        }
        yield x[:, first:end], flags
