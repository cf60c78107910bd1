"""What both HGRN2 layers share: lower bounds, short convolutions, the scan, its state and single steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import scanforge as sf

from .. import arguments
from ..convolution import CausalConv1d
from ..mixer import Mixer, State, state_dtype
from ..segments import Segments
from . import lower_bounds
from .lower_bounds import LowerBounds
from .recurrences import Form, recurrence

Tensor = torch.Tensor


class HeadMixer(Mixer):
    """A layer of heads that remember outer products; derived classes project, and make y of the readout.

    The state is a dict: "S" (B, h, k, v), or (B, h, v, k) with a decay on the value axis, and for a short
    convolution of q, k, v or f its last inputs as "q_window" and so on, (B, d, width - 1).

    `projections` names the linear layer of each of the recurrence's inputs; a convolution behind `q_proj` is
    `q_conv1d`.
    """

    lower_bound: float | Tensor | LowerBounds
    bidirectional: bool = False

    def __init__(self, d_model: int, form: Form, projections: dict[str, str]) -> None:
        super().__init__()
        self.d_model, self.form, self.projections = d_model, form.checked(self._name), projections
        self.convolved: dict[str, str] = {}
        self.options = form.options

    @abstractmethod
    def answer(self, o: Tensor, x: Tensor) -> Tensor:
        """y (B, T, d_model) of the readout o (B, T, h v) and the layer's input."""

    @property
    def _name(self) -> str:
        return type(self).__name__

    def bind(self, lower_bound: float | Tensor | LowerBounds, layer_idx: int) -> None:
        """Set the lower bound: a number, a tensor (kept, and learned if a Parameter), or a stack's."""
        made = lower_bounds.checked(self._name, lower_bound, layer_idx, self.form.decaying)
        if hasattr(self, "lower_bound"):
            del self.lower_bound
        if isinstance(made, Tensor) and not isinstance(made, nn.Parameter):
            self.register_buffer("lower_bound", made)
        else:
            self.lower_bound = made
        self.layer_idx = layer_idx

    @property
    def recurrence(self) -> type[sf.Recurrence]:
        """The declaration that the layer scans; never held, so that layers can be pickled."""
        return recurrence(self.options)

    def convolve(self, size: int, bias: bool) -> None:
        """Put a causal convolution of this width behind every projection; 0 is none."""
        if not size:
            return
        arguments.positive(self._name, conv_size=size)
        for name, projection in self.projections.items():
            width = self.get_submodule(projection).out_features
            assert isinstance(width, int)
            self.convolved[name] = projection.replace("_proj", "_conv1d")
            self.add_module(self.convolved[name], CausalConv1d(width, size, bias))

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> dict[str, Tensor]:
        """Zeros."""
        self._causal("initial_state")
        weight = next(self.parameters())
        dtype, device = dtype or state_dtype(weight.dtype), device or weight.device
        shapes = self._shapes(batch)
        return {n: torch.zeros(shape, dtype=dtype, device=device) for n, shape in shapes.items()}

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """x_t (B, d_model) -> (y_t (B, d_model), the state after it)."""
        self._causal("step")
        arguments.token(self._name, x_t, self.d_model)
        given = arguments.states(self._name, state, self._shapes(x_t.shape[0]))
        inputs, windows = self._inputs(x_t[:, None], given, Segments())
        now: dict[str, Any] = {n: y if n == "lower" else y[:, 0] for n, y in inputs.items()}
        o, S = sf.step(self.recurrence, given["S"], backend=self.backend, **now)
        return self.answer(o.flatten(1), x_t), {"S": S, **windows}

    def mix(self, x: Tensor, state: State, return_state: bool, segments: Segments) -> Any:
        """y, or (y, state): the whole of `forward`."""
        if state is not None or return_state:
            self._causal("return_state" if return_state else "state")
        batch = segments.batch(x)
        given = {} if state is None else arguments.states(self._name, state, self._shapes(batch))
        x = segments.real(x)
        inputs, windows = self._inputs(x, given, segments)
        o, S = self._scan(inputs, given.get("S"), segments)
        y = segments.real(self.answer(o.flatten(2), x))
        return (y, {"S": S, **windows}) if return_state else y

    def _scan(self, inputs: dict[str, Tensor], S: Tensor | None, segments: Segments) -> tuple[Tensor, Tensor]:
        """The readout (B, T, h, v) and the state after the last step."""
        # A reset starts from zeros, not from the state that the call goes on from.
        options: dict[str, Any] = {"reset_state": None if S is None else S.new_zeros(1, *S.shape[1:])}
        options |= {"backend": self.backend, **inputs}
        o: Tensor
        o, after = segments.scan(self.recurrence, initial_state=S, **options)
        if self.bidirectional:
            o = o + segments.scan(self.recurrence, reverse=True, **options)[0]
        return o, after

    def _inputs(
        self, x: Tensor, given: Mapping[str, Tensor], segments: Segments
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What the recurrence takes, by head, and the convolutions' windows after it."""
        made = {name: self.get_submodule(layer)(x) for name, layer in self.projections.items()}
        windows: dict[str, Tensor] = {}
        for name, layer in self.convolved.items():
            window = f"{name}_window"
            made[name], windows[window] = self.get_submodule(layer)(made[name], given.get(window), segments)
        lower = self._bounds(x)
        if self.form.keys == "tied" and self.form.decay == "value":
            made["k"] = (1 - lower.flatten()).to(made["f"]) * torch.sigmoid(-made["f"])
        heads = {n: y.unflatten(-1, (self.form.heads, -1)) for n, y in made.items()}
        return heads | {"lower": lower}, windows

    def _bounds(self, x: Tensor) -> Tensor:
        """(heads, size of the decaying axis), or (1, 1), in the dtype of the computation."""
        bound, dtype = self.lower_bound, state_dtype(x.dtype)
        if isinstance(bound, LowerBounds):
            learned: Tensor = bound()
            bound = learned[self.layer_idx].reshape(self.form.decaying)
        if isinstance(bound, Tensor):
            return bound.to(dtype)
        return torch.full((1, 1), bound, dtype=dtype, device=x.device)

    @staticmethod
    def normed(norm: nn.Module, o: Tensor) -> Tensor:
        """The norm in the dtype of its weight, which under autocast is wider than that of o."""
        weight = getattr(norm, "weight", None)
        y: Tensor = norm(o if weight is None else o.to(weight.dtype))
        return y

    def _shapes(self, batch: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {"S": (batch, *self.form.state)}
        for name, layer in self.convolved.items():
            conv = self.get_submodule(layer)
            assert isinstance(conv, CausalConv1d)
            shapes[f"{name}_window"] = (batch, conv.d, conv.keep)
        return shapes

    def _causal(self, what: str) -> None:
        if self.bidirectional:
            raise ValueError(
                f"{self._name}: {what} was asked of a layer with bidirectional=True, which reads both ways "
                "and carries no state: call it on whole sequences, or build it with bidirectional=False."
            )
