"""RGLRU with the arguments, the parameters and the cache of lrnnx's layer of this name."""

from __future__ import annotations

from typing import Any

import torch

from .. import arguments
from ..mixer import State
from ..segments import Segments
from .mixer import Parts, RGLRUMixer

Tensor = torch.Tensor
OFFSET = "seqlen_offset"


class RGLRU(RGLRUMixer):
    """y = W_out(gelu(W_gate x) ⊙ h), h the RG-LRU of xc = conv(W_in x).

    a_t = σ(a_log)^(c σ(r_t)),  h_t = a_t h_{t-1} + sqrt(1 - a_t²) σ(i_t) xc_t,  r and i projections of xc,
    in d = expand · d_model channels. x and y are (B, T, d_model). The arguments down to `dtype` are lrnnx's,
    and its `state_dict` loads. `use_fast_path` is stored: the scan is always fused.

    a_init      what lies in `a_init_range` at first: "base" a, "power" a^c, "ring" a with a² uniform
    gates       "dense", or "block" of `num_blocks` blocks
    gelu        "exact" (erf) or "tanh"
    unit_start  the input enters with weight 1 at the first step of every sequence, as in recurrentgemma

    There are two ways to go on. The protocol's: `state` in and, with `return_state`, out; a dict of
    `conv_state` (B, d, d_conv), the inputs of the convolution, and `lrnn_state` (B, d, 1); never changed.
    lrnnx's: `inference_cache`, the dict of `allocate_inference_cache`, which forward and step write into.
    Raises ValueError for sizes and options that do not fit.
    Source: De et al., Griffin (2024), equations 1 to 4; lrnnx 1.0.0.

    Example:
        >>> import torch
        >>> from models.rglru import RGLRU
        >>> layer, x = RGLRU(8), torch.randn(3, 10, 8)
        >>> cache = layer.allocate_inference_cache(3, 10)
        >>> with torch.no_grad():
        ...     prompt = layer(x[:, :9], inference_cache=cache)
        ...     y, cache = layer.step(x[:, 9:], cache)
        >>> y.shape, cache["seqlen_offset"]
        (torch.Size([3, 1, 8]), 10)
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the original's arguments
        self,
        d_model: int,
        d_conv: int = 4,
        expand: float = 1,
        c: float = 8.0,
        a_init_range: tuple[float, float] = (0.9, 0.999),
        conv_bias: bool = True,
        bias: bool = False,
        use_fast_path: bool = True,
        layer_idx: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        a_init: str = "base",
        gates: str = "dense",
        num_blocks: int | None = None,
        gelu: str = "exact",
        unit_start: bool = False,
    ) -> None:
        arguments.positive("RGLRU", d_model=d_model)
        if expand <= 0 or int(expand * d_model) != expand * d_model:
            raise ValueError(
                f"RGLRU: expand={expand!r} of d_model={d_model} gives {expand * d_model:g} channels, "
                "expected an int of at least 1."
            )
        parts = Parts(
            d_model, int(expand * d_model), d_conv, d_conv, c, a_init_range, conv_bias, bias,
            a_init=a_init, gates=gates, num_blocks=num_blocks, gelu=gelu, unit_start=unit_start,
        )  # fmt: skip
        super().__init__(parts, device, dtype)
        self.d_conv, self.expand, self.a_init_range = d_conv, expand, a_init_range
        self.use_fast_path, self.layer_idx = use_fast_path, layer_idx

    def forward(  # type: ignore[override]  # noqa: PLR0913 - the original's arguments come first
        self,
        hidden_states: Tensor,
        integration_timesteps: Tensor | None = None,
        lengths: Tensor | None = None,
        inference_cache: dict[str, Any] | None = None,
        *,
        state: State = None,
        return_state: bool = False,
        reset: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
        sequence_group: Any = None,
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        """x (B, T, d_model) -> y (B, T, d_model), or (y, state) with `return_state`.

        `lengths` (B,): how many steps of each sequence are real, the rest is padding on the right.
        `inference_cache`: go on from it (from the start, if its `seqlen_offset` is 0), and write the state
        after the last step into it. `integration_timesteps` changes nothing, as in the original.
        """
        x = hidden_states
        arguments.sequence("RGLRU", x, self.d_model)
        if lengths is not None:
            mask = self._mask(x, lengths, mask, sequence_group)
        segments = Segments.of("RGLRU", x, reset, cu_seqlens, mask, sequence_group)
        if inference_cache is not None:
            if sequence_group is not None:
                raise ValueError(
                    "RGLRU: inference_cache= holds the state of a whole sequence, and with sequence_group= a "
                    "rank has its own steps only: write state= and return_state=True."
                )
            if state is not None:
                raise ValueError("RGLRU: state= and inference_cache= are both given: write one of them.")
            state = self._carried(inference_cache, segments.batch(x), fresh=not inference_cache.get(OFFSET))
        y, after = self.mix(x, state, segments)
        if inference_cache is not None:
            _write(inference_cache, after, x.shape[1])
        return (y, after) if return_state else y

    def step(self, hidden_states: Tensor, cache: State) -> tuple[Tensor, State]:
        """x_t (B, 1, d_model) or (B, d_model) -> (y_t of the same rank, cache).

        `cache` is the dict of `allocate_inference_cache`, which is written into and returned, or a state of
        the protocol, which is left as it is.
        """
        x_t = hidden_states
        if x_t.ndim == 3:
            if x_t.shape[1] != 1:
                raise ValueError(
                    f"RGLRU: a step has shape {tuple(x_t.shape)}, expected (B, 1, {self.d_model})."
                )
            y, cache = self.step(x_t[:, 0], cache)
            return y[:, None], cache
        if not isinstance(cache, dict) or OFFSET not in cache:
            return self.mix_step(x_t, cache)
        y, after = self.mix_step(x_t, self._carried(cache, x_t.shape[0], fresh=False))
        _write(cache, after, 1)
        return y, cache

    def allocate_inference_cache(
        self, batch_size: int, max_seqlen: int, dtype: torch.dtype | None = None
    ) -> dict[str, Any]:
        """{conv_state (B, d, d_conv), lrnn_state (B, d, 1), seqlen_offset 0}; `started` with `unit_start`.

        `max_seqlen` changes nothing: a state does not grow. `dtype` None is fp32, or fp64 for such a layer.
        """
        return {**self.initial_state(batch_size, dtype), OFFSET: 0}

    def _carried(self, cache: dict[str, Any], batch: int, fresh: bool) -> dict[str, Tensor] | None:
        """The state that a cache holds, apart from it while a gradient may need what it held."""
        held = {name: x for name, x in cache.items() if name != OFFSET}
        given = arguments.states("RGLRU", held, self._shapes(batch))
        if fresh:
            return None
        return {n: x.clone() for n, x in given.items()} if torch.is_grad_enabled() else given

    def _mask(self, x: Tensor, lengths: Tensor, mask: Tensor | None, group: Any) -> Tensor:
        if mask is not None:
            raise ValueError("RGLRU: lengths= and mask= say the same thing: write one of them.")
        if tuple(lengths.shape) != (x.shape[0],):
            raise ValueError(
                f"RGLRU: lengths has shape {tuple(lengths.shape)}, expected (B,) = ({x.shape[0]},)."
            )
        steps = torch.arange(x.shape[1], device=x.device) + Segments(group=group).begin(x.shape[1], x.device)
        return steps < lengths[:, None]


def _write(cache: dict[str, Any], after: dict[str, Tensor], steps: int) -> None:
    """The state into the cache's own tensors: whoever holds them, a captured graph too, sees it."""
    for name, x in after.items():
        cache[name].copy_(x.detach())
    cache[OFFSET] += steps
