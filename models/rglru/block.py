"""The recurrent block of Griffin, as recurrentgemma builds it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .. import arguments
from ..mixer import State
from ..segments import Segments
from .mixer import Parts, RGLRUMixer

Tensor = torch.Tensor


class RecurrentBlock(RGLRUMixer):
    """y = W_out(gelu(W_gate x) ⊙ RG-LRU(conv(W_in x))), as in recurrentgemma.

    a_t = σ(a_log)^(c σ(r_t)),  h_t = a_t h_{t-1} + m_t σ(i_t) xc_t,  m_t = sqrt(1 - a_t²), and 1 at the first
    step of every sequence (`unit_start`). r and i are block-diagonal projections of xc in `num_heads` blocks,
    gelu is the tanh form or `gelu="exact"`. `width` is d_model if None.

    Starts as recurrentgemma: W_gate, W_in ~ N(0, 1/d_model), W_out ~ N(0, out_variance/width), gates ~
    N(0, 1/block), convolution ~ N(0, 0.01/d_conv), biases 0, a² ~ U(0.9², 0.999²) (`a_init="ring"`).
    x and y are (B, T, d_model). Raises ValueError for sizes and options that do not fit.
    Source: De et al., Griffin (2024), section 2; recurrentgemma.

    Example:
        >>> import torch
        >>> from models.rglru import RecurrentBlock
        >>> block, x = RecurrentBlock(8, num_heads=2), torch.randn(3, 10, 8)
        >>> y, state = block(x, return_state=True)
        >>> y_next, state = block.step(torch.randn(3, 8), state)
        >>> y.shape, y_next.shape
        (torch.Size([3, 10, 8]), torch.Size([3, 8]))
    """

    def __init__(  # noqa: PLR0913 - one option of the block each
        self,
        d_model: int,
        width: int | None = None,
        num_heads: int = 1,
        d_conv: int = 4,
        *,
        c: float = 8.0,
        a_init: str = "ring",
        a_init_range: tuple[float, float] = (0.9, 0.999),
        gelu: str = "tanh",
        unit_start: bool = True,
        out_variance: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        width = d_model if width is None else width
        arguments.positive("RecurrentBlock", d_model=d_model, width=width, num_heads=num_heads)
        arguments.divides("RecurrentBlock", ("num_heads", num_heads), ("width", width))
        if out_variance < 0:
            raise ValueError(
                f"RecurrentBlock: out_variance={out_variance!r} is no variance: write at least 0."
            )
        parts = Parts(
            d_model, width, d_conv, d_conv - 1, c, a_init_range, conv_bias=True, bias=True,
            a_init=a_init, gates="block", num_blocks=num_heads, gelu=gelu, unit_start=unit_start,
        )  # fmt: skip
        super().__init__(parts, device, dtype)
        spreads = {
            self.gate_proj: 1 / d_model,
            self.in_proj: 1 / d_model,
            self.out_proj: out_variance / width,
            self.conv1d: 0.01 / d_conv,
            self.recurrent_gate_proj: num_heads / width,
            self.input_gate_proj: num_heads / width,
        }
        for module, variance in spreads.items():
            nn.init.normal_(module.get_parameter("weight"), std=variance**0.5)
            nn.init.zeros_(module.get_parameter("bias"))

    def forward(
        self,
        x: Tensor,
        state: State = None,
        return_state: bool = False,
        reset: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
        sequence_group: Any = None,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """x (B, T, d_model) -> y (B, T, d_model), or (y, state) with `return_state`."""
        segments = Segments.of(type(self).__name__, x, reset, cu_seqlens, mask, sequence_group)
        y, after = self.mix(x, state, segments)
        return (y, after) if return_state else y

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """x_t (B, d_model) -> (y_t (B, d_model), the state after it)"""
        return self.mix_step(x_t, state)
