"""HGRN2 as in the paper: the key axis decays, k = 1 - f, and the output gate is q."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .. import arguments
from ..mixer import State
from ..norms import norm as named_norm
from ..segments import Segments
from .heads import HeadMixer
from .lower_bounds import LowerBounds
from .recurrences import Form, head_size

Tensor = torch.Tensor
WIDEST = 128  # of a head, if neither num_heads nor expand_ratio is given


class HGRN2(HeadMixer):
    """y = W_o norm(S_tᵀ silu(W_q x)),  S_t = diag(f_t) S_{t-1} + (1-f_t) (W_i x)ᵀ,  f = γ + (1-γ) σ(W_f x)

    num_heads, expand_ratio  heads, and the width of one: their product is d_model, and either follows from
                             the other; without both, heads are 128 wide (one head if d_model is smaller)
    expand_k, expand_v       a head's k and v in units of its width; S has num_heads · k · v entries
    lower_bound              γ: `LowerBounds` shared by a stack (`share_lower_bounds` makes it), where this is
                             layer `layer_idx`; or a number, or a tensor of (num_heads, k) entries
    q_activation             "silu", "sigmoid" or "none"; scale of the readout: a number, None is k^-1/2
    norm                     over all heads, "rmsnorm", "layernorm" or "none"
    output_gate              "none"; "silu" multiplies the normed readout by silu(W_g x)
    conv_size, conv_bias     causal convolutions behind q, f and i, 0 for none
    bias                     of the projections
    init_std                 None for torch's initialisation, else weights N(0, init_std²), 0.02 in the
                             published models, and biases 0

    Shapes: x and y (B, T, d_model); state {"S": (B, num_heads, k, v)} and windows, see `HeadMixer`. Raises
    ValueError for arguments and states that do not fit.
    Source: Qin et al., HGRN2: Gated Linear RNNs with State Expansion (arXiv 2404.07904), section 3.

    Example:
        >>> import torch
        >>> from models.hgrn2 import HGRN2
        >>> layer, x = HGRN2(16, num_heads=2, expand_v=0.5), torch.randn(2, 9, 16)
        >>> y, state = layer(x[:, :8], return_state=True)
        >>> y_t, state = layer.step(x[:, 8], state)
        >>> torch.allclose(y_t, layer(x)[:, 8], atol=1e-5), state["S"].shape
        (True, torch.Size([2, 2, 8, 4]))
    """

    def __init__(  # noqa: PLR0913 - options by keyword
        self, d_model: int, num_heads: int | None = None, expand_ratio: int | None = None, *,
        lower_bound: float | Tensor | LowerBounds = 0.0, layer_idx: int = 0, expand_k: float = 1.0,
        expand_v: float = 1.0, q_activation: str = "silu", scale: float | None = 1.0, norm: str = "rmsnorm",
        norm_eps: float = 1e-5, output_gate: str = "none", conv_size: int = 0, conv_bias: bool = False,
        bias: bool = False, init_std: float | None = None,
    ) -> None:  # fmt: skip
        where = type(self).__name__
        arguments.positive(where, d_model=d_model)
        num_heads, width = _heads(where, d_model, num_heads, expand_ratio)
        arguments.one_of(where, "output_gate", output_gate, ("none", "silu"))
        k, v = (
            head_size(where, factor, width) for factor in (("expand_k", expand_k), ("expand_v", expand_v))
        )
        form = Form(num_heads, k, v, activation=q_activation, scale=scale)
        super().__init__(d_model, form, {"q": "q_proj", "f": "f_proj", "v": "i_proj"})
        self.bind(lower_bound, layer_idx)
        self.num_heads, self.expand_ratio, self.output_gate = num_heads, width, output_gate
        self.q_proj = nn.Linear(d_model, num_heads * k, bias)
        self.f_proj = nn.Linear(d_model, num_heads * k, bias)
        self.i_proj = nn.Linear(d_model, num_heads * v, bias)
        if output_gate != "none":
            self.g_proj = nn.Linear(d_model, num_heads * v, bias)
        self.g_norm = named_norm(where, norm, num_heads * v, norm_eps)
        self.o_proj = nn.Linear(num_heads * v, d_model, bias)
        self.convolve(conv_size, conv_bias)
        if init_std is not None:
            self.reset_parameters(init_std)

    def reset_parameters(self, std: float) -> None:
        """Weights of the projections N(0, std²), their biases 0."""
        if std < 0:
            raise ValueError(f"{type(self).__name__}: init_std={std!r} is negative: write at least 0.")
        for layer in self.children():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=std)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(
        self, x: Tensor, state: State = None, return_state: bool = False, reset: Tensor | None = None,
        cu_seqlens: Tensor | None = None, mask: Tensor | None = None, sequence_group: Any = None,
    ) -> Any:  # fmt: skip
        """y, or (y, state); see `Mixer.forward`."""
        arguments.sequence(type(self).__name__, x, self.d_model)
        segments = Segments.of(type(self).__name__, x, reset, cu_seqlens, mask, sequence_group)
        return self.mix(x, state, return_state, segments)

    def answer(self, o: Tensor, x: Tensor) -> Tensor:
        """Norm, the gate if there is one, projection."""
        o = self.normed(self.g_norm, o)
        if self.output_gate != "none":
            o = o * F.silu(self.g_proj(x))
        y: Tensor = self.o_proj(o)
        return y


def _heads(where: str, d_model: int, num_heads: int | None, expand_ratio: int | None) -> tuple[int, int]:
    """How many heads, and how wide: num_heads · expand_ratio = d_model."""
    for name, n in (("num_heads", num_heads), ("expand_ratio", expand_ratio)):
        if n is not None:
            arguments.positive(where, **{name: n})
            if num_heads is None or expand_ratio is None:
                arguments.divides(where, (name, n), ("d_model", d_model))
    if num_heads is None:
        expand_ratio = expand_ratio or min(WIDEST, d_model)
        arguments.divides(where, ("expand_ratio", expand_ratio), ("d_model", d_model))
        num_heads = d_model // expand_ratio
    expand_ratio = expand_ratio or d_model // num_heads
    if num_heads * expand_ratio != d_model:
        raise ValueError(
            f"{where}: num_heads={num_heads} times expand_ratio={expand_ratio} is not d_model={d_model}: "
            "leave one of the two out, and set a head's k and v by expand_k and expand_v."
        )
    return num_heads, expand_ratio
