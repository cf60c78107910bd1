"""HGRN2Attention: free keys, a decay on the value axis and a gate on the output, with every choice open."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .. import arguments
from ..mixer import State
from ..norms import norm as named_norm
from ..segments import Segments
from .bitlinear import BitLinear
from .heads import HeadMixer
from .lower_bounds import LowerBounds
from .recurrences import Form, head_size

Tensor = torch.Tensor
OUTPUT_GATES = ("silu", "none")


class HGRN2Attention(HeadMixer):
    """y = W_o dropout(norm(o) ⊙ silu(W_g x)),  o_t = S_t q_t,  S_t = diag(f_t) S_{t-1} + v_t k_tᵀ

    f = lb + (1-lb) σ(W_f x + b_f) along the value axis; the norm is over all heads together.

    The arguments are a config object with the attributes hidden_size, num_heads, and if it has them dropout,
    use_bitnet, hgrn2_lower_bound and mode, or these as keywords. hidden_size is a multiple of num_heads.
    `mode` ("encoder" or "decoder") is kept and changes nothing: the layer is causal. Beyond them:

    bidirectional  y reads the sum of a run forwards and one backwards, each with its own step in it, so a
                   step reads itself twice; such a layer carries no state. Short convolutions stay causal.
    lower_bound    a number, a tensor of (num_heads, size) entries, or `LowerBounds` and `layer_idx`
    decay          "value", or "key" as in the paper; keys "free", or "tied" to 1 - f (there is no k_proj)
    q_activation   "none", "silu" or "sigmoid"; scale of o: a number, None is k^-1/2
    norm           "layernorm", "rmsnorm" or "none"; output_gate "silu" or "none" (there is no g_proj)
    expand_k, _v   a head's k and v in units of hidden_size / num_heads
    bias           of q, k, v, g, out; forget_bias of forget_proj
    use_bitnet     projections are `BitLinear`; forget_proj too unless bitnet_forget is False
    conv_size      width of causal convolutions behind q, k, v and forget_proj, 0 for none

    Shapes: x and y (B, T, hidden_size), state a dict, see `HeadMixer`. Raises ValueError for arguments and
    states that do not fit.
    Source: Qin et al., HGRN2 (arXiv 2404.07904), with the deviations that the equation shows.

    Example:
        >>> import torch
        >>> from models.hgrn2 import HGRN2Attention
        >>> layer, x = HGRN2Attention(hidden_size=8, num_heads=2, lower_bound=0.5), torch.randn(2, 9, 8)
        >>> y, state = layer(x, return_state=True)
        >>> y.shape, state["S"].shape
        (torch.Size([2, 9, 8]), torch.Size([2, 2, 4, 4]))
        >>> y_t, state = layer.step(torch.randn(2, 8), state)
    """

    def __init__(  # noqa: PLR0913 - options by keyword
        self, config: Any = None, *, hidden_size: int | None = None, num_heads: int | None = None,
        dropout: float | None = None, use_bitnet: bool | None = None,
        lower_bound: float | Tensor | LowerBounds | None = None, mode: str | None = None, layer_idx: int = 0,
        bidirectional: bool = False, decay: str = "value", keys: str = "free", q_activation: str = "none",
        scale: float | None = 1.0, norm: str = "layernorm", output_gate: str = "silu", expand_k: float = 1.0,
        expand_v: float = 1.0, bias: bool = False, forget_bias: bool = True, bitnet_forget: bool = True,
        conv_size: int = 0,
    ) -> None:  # fmt: skip
        where = type(self).__name__
        hidden = _either(where, config, "hidden_size", hidden_size)
        heads = _either(where, config, "num_heads", num_heads)
        rate = _either(where, config, "dropout", dropout, 0.0)
        use_bitnet = bool(_either(where, config, "use_bitnet", use_bitnet, False))
        arguments.positive(where, hidden_size=hidden, num_heads=heads)
        arguments.divides(where, ("num_heads", heads), ("hidden_size", hidden))
        arguments.between(where, "dropout", rate, 0, 1)
        arguments.one_of(where, "output_gate", output_gate, OUTPUT_GATES)
        width = hidden // heads
        k, v = (
            head_size(where, factor, width) for factor in (("expand_k", expand_k), ("expand_v", expand_v))
        )
        projections = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "f": "forget_proj"}
        if keys == "tied":
            del projections["k"]
        super().__init__(hidden, Form(heads, k, v, decay, keys, q_activation, scale), projections)
        self.bind(_either(where, config, "hgrn2_lower_bound", lower_bound, 0.0, "lower_bound"), layer_idx)
        self.hidden_size, self.num_heads, self.head_dim, self.total_dim = hidden, heads, width, heads * v
        self.mode = _either(where, config, "mode", mode, "encoder")
        arguments.one_of(where, "mode", self.mode, ("encoder", "decoder"))
        self.bidirectional, self.output_gate, self.use_bitnet = bidirectional, output_gate, use_bitnet
        linear = BitLinear if use_bitnet else nn.Linear
        self.q_proj = linear(hidden, heads * k, bias)
        if keys == "free":
            self.k_proj = linear(hidden, heads * k, bias)
        self.v_proj = linear(hidden, heads * v, bias)
        forgetting = self.form.decaying[0] * self.form.decaying[1]
        self.forget_proj = (linear if bitnet_forget else nn.Linear)(hidden, forgetting, forget_bias)
        if output_gate != "none":
            self.g_proj = linear(hidden, heads * v, bias)
        self.out_proj = linear(heads * v, hidden, bias)
        self.norm = named_norm(where, norm, heads * v, 1e-5)
        self.dropout = nn.Dropout(rate)
        self.convolve(conv_size, bias=False)

    def forward(  # type: ignore[override]
        self, x: Tensor, logical_layer_idx: int | None = None, state: State = None,
        return_state: bool = False, reset: Tensor | None = None, cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None, sequence_group: Any = None,
    ) -> Any:  # fmt: skip
        """y, or (y, state); `logical_layer_idx` is taken and not read, the rest is as in `Mixer.forward`."""
        arguments.sequence(type(self).__name__, x, self.hidden_size)
        segments = Segments.of(type(self).__name__, x, reset, cu_seqlens, mask, sequence_group)
        return self.mix(x, state, return_state, segments)

    def answer(self, o: Tensor, x: Tensor) -> Tensor:
        """Norm, gate, dropout, projection."""
        o = self.normed(self.norm, o)
        if self.output_gate != "none":
            o = o * F.silu(self.g_proj(x))
        y: Tensor = self.out_proj(self.dropout(o))
        return y


def _either(
    where: str, config: Any, name: str, given: Any, default: Any = None, keyword: str | None = None
) -> Any:
    """The keyword's value or the config's, which may not both be there; the default if neither is."""
    keyword = keyword or name
    if given is not None and config is not None and hasattr(config, name):
        raise ValueError(
            f"{where}: {keyword}={given!r} is given beside a config with {name}={getattr(config, name)!r}: "
            "leave one of them out."
        )
    found = getattr(config, name, None) if given is None else given
    found = default if found is None else found
    if found is None:
        raise ValueError(
            f"{where}: {name} is missing: write {where}({keyword}=...), or give a config that has it."
        )
    return found
