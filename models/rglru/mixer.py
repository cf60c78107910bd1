"""What the blocks around an RG-LRU share: two branches, a convolution, gates, one fused scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import scanforge as sf

from .. import arguments
from ..convolution import CausalConv1d
from ..mixer import Mixer, State, state_dtype
from ..segments import Segments
from .gates import BlockDiagonalLinear
from .initialise import A_INITS, decay_logit_
from .recurrence import GELUS, declared
from .starts import first_steps

Tensor = torch.Tensor
GATES = ("dense", "block")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a block is made of.

    width     channels of the recurrence
    keep      inputs of the convolution in a state
    gates     "dense" or "block", the latter of `num_blocks` blocks
    a_init    "base", "power" or "ring": what is drawn in `a_init_range`
    gelu      "exact" (erf) or "tanh"
    """

    d_model: int
    width: int
    d_conv: int
    keep: int
    c: float
    a_init_range: tuple[float, float]
    conv_bias: bool
    bias: bool
    a_init: str
    gates: str
    num_blocks: int | None
    gelu: str
    unit_start: bool

    def check(self, where: str) -> None:
        """Raise a ValueError for what cannot be built."""
        arguments.positive(where, d_model=self.d_model, width=self.width, d_conv=self.d_conv)
        arguments.one_of(where, "a_init", self.a_init, A_INITS)
        arguments.one_of(where, "gates", self.gates, GATES)
        arguments.one_of(where, "gelu", self.gelu, GELUS)
        low, high = self.a_init_range
        if not 0 < low <= high < 1:
            raise ValueError(f"{where}: a_init_range={self.a_init_range!r} is not 0 < low <= high < 1.")
        if not self.c > 0:
            raise ValueError(f"{where}: c={self.c!r} is no power of a decay: write a number above 0.")
        if self.gates == "block":
            if self.num_blocks is None:
                raise ValueError(f"{where}: num_blocks=None with gates='block': write how many blocks.")
            arguments.positive(where, num_blocks=self.num_blocks)
            arguments.divides(where, ("num_blocks", self.num_blocks), ("width", self.width))
        elif self.num_blocks is not None:
            raise ValueError(
                f"{where}: num_blocks={self.num_blocks!r} needs gates='block', and gates='dense'."
            )


class RGLRUMixer(Mixer):
    """y = W_out(gelu(W_gate x) ⊙ h), h the RG-LRU of xc = conv(W_in x) with gates from xc.

    Parameters have the names of lrnnx's RGLRU. The state is a dict: `conv_state` (B, width, keep), the last
    inputs of the convolution; `lrnn_state` (B, width, 1), h; with `unit_start` also `started` (B, 1), 1
    after a sequence's first step and 0 before.
    """

    def __init__(
        self, parts: Parts, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        parts.check(type(self).__name__)
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        d_model, width = parts.d_model, parts.width
        self.parts, self.d_model, self.c = parts, d_model, parts.c
        self.options = f"{float(parts.c)!r} {parts.gelu} {parts.unit_start}"  # of the recurrence
        self.gate_proj = nn.Linear(d_model, width, bias=parts.bias, **made)
        self.in_proj = nn.Linear(d_model, width, bias=parts.bias, **made)
        self.conv1d = CausalConv1d(width, parts.d_conv, parts.conv_bias, parts.keep, **made)
        self.recurrent_gate_proj = self._gate(made)
        self.input_gate_proj = self._gate(made)
        self.a_log = nn.Parameter(torch.empty(width, 1, **made))
        self.a_log._no_weight_decay = True  # type: ignore[attr-defined]
        self.out_proj = nn.Linear(width, d_model, bias=parts.bias, **made)
        decay_logit_(self.a_log, parts.a_init, *parts.a_init_range, parts.c)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy's decay is exempt too: torch copies a parameter without its attributes."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.a_log._no_weight_decay = True  # type: ignore[attr-defined]

    def _gate(self, made: dict[str, Any]) -> nn.Module:
        width, blocks = self.parts.width, self.parts.num_blocks
        return (
            nn.Linear(width, width, **made) if blocks is None else BlockDiagonalLinear(width, blocks, **made)
        )

    @property
    def recurrence(self) -> type[sf.Recurrence]:
        """The declaration that the layer scans."""
        return _recurrence(self.options)

    @property
    def decay(self) -> Tensor:
        """a = σ(a_log), (width,): the slowest decay is a^(c r) at r = 0, the fastest a^c at r = 1."""
        return torch.sigmoid(self.a_log[:, 0])

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> dict[str, Tensor]:
        """Zeros."""
        weight = self.in_proj.weight
        made: dict[str, Any] = {
            "dtype": dtype or state_dtype(weight.dtype), "device": device or weight.device,
        }  # fmt: skip
        return {name: torch.zeros(shape, **made) for name, shape in self._shapes(batch).items()}

    def mix(self, x: Tensor, state: State, segments: Segments) -> tuple[Tensor, dict[str, Tensor]]:
        """x (B, T, d_model) -> (y (B, T, d_model), the state after it); `state` None is the initial one."""
        where = type(self).__name__
        arguments.sequence(where, x, self.d_model)
        n = segments.batch(x)
        if state is None:
            state = self.initial_state(n, state_dtype(x.dtype), x.device)
        given = arguments.states(where, state, self._shapes(n))
        x = segments.real(x)
        xc, window = self.conv1d(self.in_proj(x), given["conv_state"], segments)
        inputs, after = self._inputs(x, xc), {"conv_state": window}
        if self.parts.unit_start:
            flags = first_steps(x.shape[0], x.shape[1], given["started"], segments)
            inputs["first"], after["started"] = flags
        h = given["lrnn_state"][..., 0]
        y, h = segments.scan(
            self.recurrence, **inputs, initial_state=h, reset_state=torch.zeros_like(h[:1]),
            backend=self.backend,
        )  # fmt: skip
        return segments.real(self.out_proj(y)), {**after, "lrnn_state": h[..., None]}

    def mix_step(self, x_t: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """x_t (B, d_model) -> (y_t (B, d_model), the state after it)"""
        where = type(self).__name__
        arguments.token(where, x_t, self.d_model)
        given = arguments.states(where, state, self._shapes(x_t.shape[0]))
        xc, window = self.conv1d.step(self.in_proj(x_t), given["conv_state"])
        inputs, after = self._inputs(x_t, xc), {"conv_state": window}
        if self.parts.unit_start:
            inputs["first"] = given["started"][:, 0] == 0
            after["started"] = torch.ones_like(given["started"])
        h = given["lrnn_state"][..., 0]
        y, h = sf.step(self.recurrence, h, **inputs, backend=self.backend)
        return self.out_proj(y), {**after, "lrnn_state": h[..., None]}

    def _inputs(self, x: Tensor, xc: Tensor) -> dict[str, Any]:
        return {
            "x": xc,
            "r": self.recurrent_gate_proj(xc),
            "i": self.input_gate_proj(xc),
            "gate": self.gate_proj(x),
            "a_log": self.a_log[:, 0],
        }

    def _shapes(self, batch: int) -> dict[str, tuple[int, ...]]:
        width = self.parts.width
        shapes: dict[str, tuple[int, ...]] = {
            "conv_state": (batch, width, self.parts.keep), "lrnn_state": (batch, width, 1),
        }  # fmt: skip
        return {**shapes, "started": (batch, 1)} if self.parts.unit_start else shapes


def _recurrence(options: str) -> type[sf.Recurrence]:
    """The declaration for these options: in a graph a text is a constant, and a number may be a symbol."""
    c, gelu, unit_start = options.split()
    return declared(float(c), gelu, unit_start == "True")


# No graph can make a class. What torch.compiler.assume_constant_result writes, which imports the compiler.
_recurrence._dynamo_marked_constant = True  # type: ignore[attr-defined]
