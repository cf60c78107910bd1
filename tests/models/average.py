"""The smallest mixer: a learned exponential average of each channel."""

from __future__ import annotations

import torch
from torch import nn

import scanforge as sf
from models import arguments
from models.mixer import Mixer, state_dtype
from models.segments import Segments


class Average(Mixer):
    """h_t = σ(decay) h_{t-1} + x_t, y = W h"""

    def __init__(self, d_model: int, expand: int = 1) -> None:
        super().__init__()
        self.d_model, self.d = d_model, d_model * expand
        self.decay = nn.Parameter(torch.linspace(-1, 3, self.d))
        self.up, self.out = nn.Linear(d_model, self.d), nn.Linear(self.d, d_model)

    def forward(self, x, state=None, return_state=False, reset=None, cu_seqlens=None, mask=None):
        segments = Segments.of("Average", x, reset, cu_seqlens, mask)
        x = segments.real(x)
        if state is None:
            state = self.initial_state(segments.batch(x), state_dtype(x.dtype))
        state = arguments.state("Average", "h", state, (segments.batch(x), self.d))
        u = self.up(x)
        h, after = segments.scan(
            sf.operators.Affine, a=self.decay.sigmoid().to(u.dtype).expand_as(u), b=u, initial_state=state,
            reset_state=torch.zeros_like(state[:1]), backend=self.backend,
        )  # fmt: skip
        y = segments.real(self.out(h.to(u.dtype)))
        return (y, after) if return_state else y

    def step(self, x_t, state):
        y, state = self(x_t[:, None], state=state, return_state=True)
        return y[:, 0], state

    def initial_state(self, batch, dtype=None, device=None):
        kind = dtype or state_dtype(self.decay.dtype)
        return torch.zeros(batch, self.d, dtype=kind, device=device or self.decay.device)
