"""Recurrent blocks of transformers' `RecurrentGemmaForCausalLM`, replaced in place by ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..mixer import state_dtype
from .block import RecurrentBlock

Tensor = torch.Tensor
GELU_OF = {"gelu": "exact", "gelu_pytorch_tanh": "tanh", "gelu_new": "tanh"}


class RecurrentGemmaBlock(nn.Module):
    """A `RecurrentBlock` behind the interface of transformers' `RecurrentGemmaRecurrentBlock`.

    A position of 0 starts a document: the state and the convolution begin anew there, and the input enters
    with weight 1. Between calls with `use_cache` the block keeps its state, as the one that it replaces does:
    for one batch at a time, without gradient, and not reordered in a beam search.
    """

    def __init__(self, block: RecurrentBlock) -> None:
        super().__init__()
        self.block = block
        self.state: dict[str, Tensor] | None = None

    def forward(
        self,
        input_states: Tensor,
        position_ids: Tensor,
        attention_mask: Any = None,
        use_cache: bool | None = True,
        cache: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """input_states (B, T, d_model), position_ids (B or 1, T) -> (y (B, T, d_model), None)

        `attention_mask`, `cache` and other keywords belong to the attention blocks, and are not read.
        """
        batch, steps = input_states.shape[:2]
        if not use_cache or self.state is None or self.state["lrnn_state"].shape[0] != batch:
            self._setup_cache(batch, input_states.device, input_states.dtype)
        reset = position_ids.to(input_states.device).expand(batch, steps) == 0
        y, after = self.block(input_states, state=self.state, return_state=True, reset=reset)
        self.state = {name: x.detach() for name, x in after.items()} if use_cache else None
        return y, None

    def _setup_cache(self, batch: int, device: torch.device, dtype: torch.dtype) -> None:
        """Zeros, from which only a position of 0 is a first step: the model calls this before a prompt."""
        state = self.block.initial_state(batch, state_dtype(dtype), device)
        self.state = {**state, "started": torch.ones_like(state["started"])}


def from_recurrent_gemma(model: nn.Module) -> nn.Module:
    """Put our blocks in the place of a RecurrentGemma model's own, in place, and return the model.

    `model` is a `RecurrentGemmaForCausalLM` or its inner `RecurrentGemmaModel`; its weights are copied, and
    forward, loss and `generate` give the same numbers. Beyond that, a prompt may be fed in chunks, positions
    that start anew inside a row (packed documents, padding on the left) also cut the convolution, and
    `lru_width` may differ from `hidden_size`. `state_dict` keys of these blocks become ours.
    Raises ValueError for a model without such blocks, and for an activation that is no gelu.
    Source: transformers' modeling_recurrent_gemma; recurrentgemma.

    Example, with transformers installed:
        model = from_recurrent_gemma(RecurrentGemmaForCausalLM(config))
        model.generate(tokens, max_new_tokens=20)
    """
    holders = [m for m in model.modules() if hasattr(getattr(m, "temporal_block", None), "rg_lru")]
    if not holders:
        raise ValueError(
            f"from_recurrent_gemma: a {type(model).__name__} has no recurrent blocks left to replace: pass a "
            "RecurrentGemmaForCausalLM of transformers."
        )
    config: Any = model.config
    activation = config.hidden_activation
    if activation not in GELU_OF:
        raise ValueError(
            f"from_recurrent_gemma: hidden_activation={activation!r} is no gelu that a RecurrentBlock has, "
            f"and the choices are {', '.join(map(repr, GELU_OF))}."
        )
    for holder in holders:
        theirs: Any = holder.temporal_block
        ours = RecurrentGemmaBlock(_copied(theirs, GELU_OF[activation]))
        holder.temporal_block = ours.train(theirs.training)
    return model


def _copied(theirs: Any, gelu: str) -> RecurrentBlock:
    """Our block with the weights of theirs, in their dtype and on their device."""
    rg_lru, weight = theirs.rg_lru, theirs.linear_x.weight
    ours = RecurrentBlock(
        weight.shape[1], weight.shape[0], rg_lru.num_attention_heads, theirs.conv1d_width, gelu=gelu,
        device=weight.device, dtype=weight.dtype,
    )  # fmt: skip
    linear = {"gate_proj": theirs.linear_y, "in_proj": theirs.linear_x, "out_proj": theirs.linear_out}
    modules = {**linear, "conv1d": theirs.conv_1d}
    weights = {f"{name}.{p}": getattr(m, p) for name, m in modules.items() for p in ("weight", "bias")}
    gates = {f"{g}_gate_proj.{p}": getattr(rg_lru, f"{g}_gate_{p}")
             for g in ("recurrent", "input") for p in ("weight", "bias")}  # fmt: skip
    decay = {"a_log": -rg_lru.recurrent_param[:, None]}  # theirs is softplus(p), ours softplus(-a_log)
    ours.load_state_dict({**weights, **gates, **decay})
    return ours
