"""The MinMax network as a language model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .. import arguments
from ..generation import Generates
from ..mixer import State
from ..segments import Segments
from .backbone import MinMaxRNC
from .configs import MinMaxRNCLMConfig
from .initialisers import small_init_init_

Tensor = torch.Tensor


class MinMaxRNC_LM(Generates, MinMaxRNC):  # noqa: N801 - the original's name
    """logits = W_head dropout(MinMaxRNC(W_emb[tokens]))

    tokens (B, T) int -> logits (B, T, vocab_size). State, unroll_steps and boundaries are those of
    `MinMaxRNC`; `step` takes tokens (B,) and answers logits (B, vocab_size). With `cfg.tie_weights` the head
    is the embedding, else it is drawn by itself; both with small_init_init_. `generate` continues a prompt.
    Parameters: `token_emb`, `lm_head`, and the backbone's. ValueError for tokens that are no (B, T) of
    integers, and as `MinMaxRNC`. Source: 0.1.0 and 0.3.0 of the minmaxrnc package.

    Example:
        >>> import torch
        >>> from models.minmax import MinMaxRNC_LM, MinMaxRNCConfig, MinMaxRNCLMConfig
        >>> backbone = MinMaxRNCConfig(d_model=6, n_layers=2, d_state=5)
        >>> model = MinMaxRNC_LM(13, MinMaxRNCLMConfig(backbone)).eval()
        >>> logits, state = model(torch.tensor([[1, 5, 12]]), return_state=True)
        >>> logits_t, state = model.step(logits[:, -1].argmax(-1), state)
        >>> logits.shape, logits_t.shape, model.generate(torch.tensor([[1, 5]]), 4).shape
        (torch.Size([1, 3, 13]), torch.Size([1, 13]), torch.Size([1, 6]))
    """

    def __init__(self, vocab_size: int, cfg: MinMaxRNCLMConfig) -> None:
        arguments.positive("MinMaxRNC_LM", vocab_size=vocab_size)
        super().__init__(cfg.backbone_cfg)
        self.cfg, self.vocab_size = cfg, vocab_size
        self.token_emb = nn.Embedding(vocab_size, self.d_model)
        self.lm_head = nn.Linear(self.d_model, vocab_size, bias=False)
        if cfg.tie_weights:
            self.lm_head.weight = self.token_emb.weight
        self.head_dropout = nn.Dropout(cfg.head_dropout)
        self._reset_vocabulary()

    def forward(  # type: ignore[override]  # the original's order of arguments
        self,
        tokens: Tensor,
        unroll_steps: int | None = None,
        state: State = None,
        return_state: bool = False,
        reset: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
        sequence_group: Any = None,
    ) -> Any:
        """tokens (B, T) -> logits (B, T, vocab_size), or (logits, state after the last step)."""
        arguments.tokens("MinMaxRNC_LM", tokens)
        segments = Segments.of("MinMaxRNC_LM", tokens, reset, cu_seqlens, mask, sequence_group)
        embedded = self.token_emb(segments.real(tokens))  # any number may stand at padding
        y, after = super().forward(embedded, unroll_steps, state, True, **segments.flags)
        logits = self._head(y)  # 0 at padding, where y is
        return (logits, after) if return_state else logits

    def step(self, token: Tensor, state: State) -> tuple[Tensor, State]:
        """token (B,) -> (logits (B, vocab_size), state after it)."""
        if token.ndim != 1:
            raise ValueError(f"MinMaxRNC_LM: token has shape {tuple(token.shape)}, expected (B,).")
        arguments.tokens("MinMaxRNC_LM", token[:, None], "token")
        y, after = super().step(self.token_emb(token), state)
        return self._head(y), after

    def reset(self) -> None:
        """Draw all weights anew; the parameters stay the same objects, for optimizers that hold them."""
        super().reset()
        self._reset_vocabulary()

    def _head(self, y: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.head_dropout(y))
        return logits

    def _reset_vocabulary(self) -> None:
        small_init_init_(self.token_emb.weight, self.d_model)
        if not self.cfg.tie_weights:
            small_init_init_(self.lm_head.weight, self.d_model)
