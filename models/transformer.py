"""A plain causal transformer with a key and value cache: what the recurrent models are compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from . import arguments
from .generation import Generates
from .recorded import Recorded

Tensor = torch.Tensor
Cache = dict[str, Tensor]  # "k" and "v", each (B, heads, steps so far, d_model / heads)


class TransformerBlock(Recorded, nn.Module):
    """x + W_o softmax(q kᵀ / √d_h + causal) v, then x + W_down(silu(W_gate x) ⊙ W_up x); RMSNorm before each.

    Queries and keys are rotated by their position (RoPE, arXiv 2104.09864, halves paired); the SwiGLU is
    arXiv 2002.05202's. No biases. The state is what attention has seen: {"k", "v"}, each (B, heads, T, d_h),
    in the dtype that the layer computes in.

    Raises ValueError: sizes below 1, heads that do not divide `d_model`, an odd d_h, dropout outside of
    [0, 1], and on a call a sequence that is longer than `max_seq_len` with what the cache holds.
    """

    def __init__(
        self, d_model: int, num_heads: int, d_ff: int, max_seq_len: int = 8192,
        dropout: float = 0.0, rope_theta: float = 10000.0,
    ) -> None:  # fmt: skip
        super().__init__()
        where = "TransformerBlock"
        arguments.positive(where, d_model=d_model, num_heads=num_heads, d_ff=d_ff, max_seq_len=max_seq_len)
        arguments.divides(where, ("num_heads", num_heads), ("d_model", d_model))
        if d_model // num_heads % 2:
            raise ValueError(
                f"{where}: d_model={d_model} over num_heads={num_heads} is odd, and RoPE pairs the two "
                "halves of a head: choose sizes that give an even number."
            )
        arguments.between(where, "dropout", dropout, 0, 1)
        self.d_model, self.num_heads, self.head_dim = d_model, num_heads, d_model // num_heads
        self.max_seq_len, self.rope_theta = max_seq_len, rope_theta
        self.norm1, self.norm2 = nn.RMSNorm(d_model, 1e-6), nn.RMSNorm(d_model, 1e-6)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )
        self.gate_proj, self.up_proj = (nn.Linear(d_model, d_ff, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: Cache | None = None, return_state: bool = False) -> Any:
        """x (B, T, d_model) -> y, or (y, state after the last step) with `return_state`."""
        arguments.sequence("TransformerBlock", x, self.d_model)
        past = self._checked(x.shape[0], state)
        seen = 0 if past is None else past["k"].shape[2]
        fits("TransformerBlock", seen + x.shape[1], self.max_seq_len)
        heads = [
            w(self.norm1(x)).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for w in (self.q_proj, self.k_proj, self.v_proj)
        ]
        table = rope_table(self.head_dim, seen, seen + x.shape[1], self.rope_theta, x.device)
        q, k, v = rotate(heads[0], table), rotate(heads[1], table), heads[2]
        if past is not None:
            k, v = torch.cat([past["k"].to(k.dtype), k], 2), torch.cat([past["v"].to(v.dtype), v], 2)
        attended = attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.o_proj(attended))
        n = self.norm2(x)
        x = x + self.dropout(self.down_proj(F.silu(self.gate_proj(n)) * self.up_proj(n)))
        return (x, {"k": k, "v": v}) if return_state else x

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Cache:
        """An empty cache."""
        like = self.q_proj.weight
        shape = (batch, self.num_heads, 0, self.head_dim)
        return {n: torch.zeros(shape, dtype=dtype or like.dtype, device=device or like.device) for n in "kv"}

    def _checked(self, batch: int, state: Cache | None) -> Cache | None:
        if state is None:
            return None
        steps = (
            state["k"].shape[2] if isinstance(state, dict) and "k" in state and state["k"].ndim == 4 else 0
        )
        shape = (batch, self.num_heads, steps, self.head_dim)
        return arguments.states("TransformerBlock", state, {"k": shape, "v": shape})


class TransformerLM(Generates, Recorded, nn.Module):
    """Embedding, blocks, RMSNorm and the embedding again as the head.

    Arguments, parameter names and values are those of cortexnet's baseline; every weight starts as
    N(0, 0.02²). `forward` returns a dict, whose "loss" is there when `labels` are given.

    Example:
        >>> import torch
        >>> from models.transformer import TransformerLM
        >>> model = TransformerLM(11, d_model=8, num_layers=1, num_heads=2, d_ff=12, max_seq_len=16)
        >>> tokens = torch.randint(11, (2, 7))
        >>> sorted(model(tokens, labels=tokens)), tuple(model.generate(tokens, 3).shape)
        (['logits', 'loss'], (2, 10))
    """

    def __init__(
        self, vocab_size: int = 32000, d_model: int = 512, num_layers: int = 4, num_heads: int = 8,
        d_ff: int = 1024, max_seq_len: int = 8192, dropout: float = 0.0, rope_theta: float = 10000.0,
    ) -> None:  # fmt: skip
        super().__init__()
        arguments.positive("TransformerLM", vocab_size=vocab_size, d_model=d_model, num_layers=num_layers)
        arguments.between("TransformerLM", "dropout", dropout, 0, 1)
        self.vocab_size, self.max_seq_len = vocab_size, max_seq_len
        self.embed = nn.Embedding(vocab_size, d_model)
        self.embed_dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            TransformerBlock(d_model, num_heads, d_ff, max_seq_len, dropout, rope_theta)
            for _ in range(num_layers)
        )
        self.final_norm = nn.RMSNorm(d_model, 1e-6)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)
        self.lm_head.weight = self.embed.weight
        for name, p in self.named_parameters():
            if "norm" not in name:
                nn.init.normal_(p, std=0.02)

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        state: list[Cache] | None = None,
        return_state: bool = False,
    ) -> Any:
        """input_ids (B, T) -> {"logits" (B, T, V)}, with `labels` (B, T) also "loss".

        The loss is the mean cross entropy, in nats, of `labels[:, 1:]` under the logits before them; labels
        of -100 do not count. With `return_state` (the dict, the state after the last step).
        Raises ValueError: T, with what the state has seen, beyond `max_seq_len`; labels of another shape.
        """
        arguments.tokens("TransformerLM", input_ids)
        if state is not None and (not isinstance(state, list) or len(state) != len(self.blocks)):
            raise ValueError(
                f"TransformerLM: state is a {type(state).__name__}, expected a list of {len(self.blocks)} "
                "caches: pass what forward, step or initial_state returned."
            )
        x, after = self.embed_dropout(self.embed(input_ids)), []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, state=None if state is None else state[i], return_state=True)
            after.append(cache)
        result = {"logits": self.lm_head(self.final_norm(x))}
        if labels is not None:
            result["loss"] = next_token_loss(result["logits"], labels)
        return (result, after) if return_state else result

    def step(self, token: Tensor, state: list[Cache]) -> tuple[Tensor, list[Cache]]:
        """token (B,) -> (logits (B, V), the state with it)."""
        result, state = self(token[:, None], state=state, return_state=True)
        return result["logits"][:, 0], state

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> list[Cache]:
        """Empty caches, one for each block."""
        made = []
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            made.append(block.initial_state(batch, dtype, device))
        return made


def fits(where: str, length: int, longest: int) -> None:
    """A sequence of `length` positions is within `max_seq_len`."""
    if length > longest:
        raise ValueError(
            f"{where}: {length} positions, cached ones included, are more than max_seq_len={longest}: "
            "give fewer, or build it with a greater max_seq_len."
        )


def rope_table(d: int, first: int, last: int, theta: float, device: torch.device) -> Tensor:
    """(last - first, d / 2, 2): cosine and sine of position · theta^(-2i/d), in fp32."""
    pairs = torch.arange(0, d, 2, dtype=torch.float32, device=device)
    angles = torch.outer(torch.arange(first, last, device=device).float(), 1.0 / theta ** (pairs / d))
    return torch.stack([angles.cos(), angles.sin()], -1)


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """x (B, h, T, d): entries i and i + d/2 turned by the angle of their pair; computed in fp32 or wider."""
    low, high = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, -1)
    cos, sin = table.to(low.dtype).unbind(-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of the last q.shape[2] positions to all: q (B, h, T, d), k and v (B, h, S, d)."""
    steps, seen = q.shape[2], k.shape[2]
    if steps in (0, 1):  # a single query is the last position, and sees everything
        return F.scaled_dot_product_attention(q, k, v) if steps else q
    if steps == seen:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    visible = torch.ones(steps, seen, dtype=torch.bool, device=q.device).tril(seen - steps)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of `labels[:, 1:]` under `logits[:, :-1]`; labels of -100 do not count."""
    if labels.shape != logits.shape[:2]:
        raise ValueError(
            f"next_token_loss: labels have shape {tuple(labels.shape)}, expected (B, T) = "
            f"{tuple(logits.shape[:2])}."
        )
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
