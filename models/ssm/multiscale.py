"""MultiScaleSSM: a selective SSM whose channels forget at several scales."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import scanforge as sf

from .. import arguments
from ..mixer import Mixer, state_dtype
from ..segments import Segments
from .initial import before_softplus, time_steps
from .recurrence import recurrence

Tensor = torch.Tensor
NAME = "MultiScaleSSM"


class MultiScaleSSM(Mixer):
    """y = W_out[(C_t·h_t + D x_t) silu(z_t)] σ(output_gate), with h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t x_t.

    [x|z] = W_in u; B, C and Δ = softplus(W_dt x + bias) are linear in x; A = -exp(A_log). At the start
    A_log = log((n + 1) 2^i) for state n and scale i: the d = expand_factor·d_model channels stand in
    num_scales equal blocks, and a higher scale forgets faster. u is (B, T, d_model), a state (B, d, N).

    cortexnet's layer: its arguments, its `state_dict`, and its `past_state` and `use_cache` as other names of
    `state` and `return_state`. It trains through a scan that loses inputs; here the numbers are right.
    Its argument `state_size`, N, is the attribute `d_state`: `state_size` counts what one state holds.

    discretisation: "euler" (the original's) or "zoh", where A⁻¹(exp(Δ A) - 1) stands for Δ before B
    dt_init: "log" (the original's bias log Δ, which starts at log(1 + Δ)) or "exact", for Δ in [0.001, 0.1]

    Raises ValueError for sizes and options that are none, and where num_scales does not divide d.
    Source: cortexnet 3.2; Gu & Dao, Mamba (arXiv 2312.00752), equations 1, 2 and 4.

    Example:
        >>> import torch
        >>> from models.ssm import MultiScaleSSM
        >>> ssm, u = MultiScaleSSM(8, num_scales=2, state_size=4), torch.randn(2, 9, 8)
        >>> y, state = ssm(u[:, :8], use_cache=True)
        >>> y_t, state = ssm.step(u[:, 8], state)
        >>> torch.allclose(y_t, ssm(u)[:, 8], atol=1e-6), state.shape
        (True, torch.Size([2, 16, 4]))
    """

    def __init__(
        self,
        d_model: int,
        num_scales: int = 4,
        state_size: int = 16,
        expand_factor: int = 2,
        *,
        discretisation: str = "euler",
        dt_init: str = "log",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        sizes = {"d_model": d_model, "num_scales": num_scales, "state_size": state_size}
        arguments.positive(NAME, **sizes, expand_factor=expand_factor)
        d = d_model * expand_factor
        arguments.divides(NAME, ("num_scales", num_scales), ("expand_factor·d_model", d))
        arguments.one_of(NAME, "dt_init", dt_init, ("log", "exact"))
        self.declaration = recurrence(NAME, discretisation)
        self.d_model, self.d_inner, self.d_state = d_model, d, state_size
        self.num_scales, self.discretisation = num_scales, discretisation

        def linear(width: int, out: int, bias: bool = False) -> nn.Linear:
            return nn.Linear(width, out, bias=bias, device=device, dtype=dtype)

        self.in_proj, self.out_proj = linear(d_model, 2 * d), linear(d, d_model)
        self.B_proj, self.C_proj = linear(d, state_size), linear(d, state_size)
        self.dt_proj = linear(d, d, bias=True)
        # The rates span 2^num_scales · state_size: too far for 16 bits to start from.
        kept = state_dtype(self.in_proj.weight.dtype)
        self.A_log = nn.Parameter(self._rates().log().to(device=device, dtype=kept))
        self.A_log._no_weight_decay = True  # type: ignore[attr-defined]
        self.D = nn.Parameter(torch.ones(d, device=device, dtype=kept))
        self.output_gate = nn.Parameter(torch.zeros(1, device=device, dtype=kept))
        with torch.no_grad():
            dt = time_steps(self.dt_proj.bias, 1e-3, 0.1)
            self.dt_proj.bias.copy_(dt.log() if dt_init == "log" else before_softplus(dt))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.A_log._no_weight_decay = True  # type: ignore[attr-defined]  # torch copies no attributes

    def forward(  # noqa: PLR0913 - the protocol's and the original's
        self,
        x: Tensor,
        state: Tensor | None = None,
        return_state: bool = False,
        reset: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
        sequence_group: Any = None,
        *,
        past_state: Tensor | None = None,
        use_cache: bool = False,
    ) -> Any:
        arguments.sequence(NAME, x, self.d_model)
        if state is not None and past_state is not None:
            raise ValueError(f"{NAME}: state and past_state are two names of one argument: pass one of them.")
        segments = Segments.of(NAME, x, reset, cu_seqlens, mask, sequence_group)
        y, after = segments.scan(
            self.declaration,
            **self._inputs(segments.real(x)),
            initial_state=self._checked(past_state if state is None else state, segments.batch(x), x),
            reset_state=None if reset is None else x.new_zeros(()),
            backend=self.backend,
        )
        y = segments.real(self._projected(y))
        return (y, after) if return_state or use_cache else y

    def step(self, x_t: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        arguments.token(NAME, x_t, self.d_model)
        state = self._checked(state, x_t.shape[0], x_t)
        y, after = sf.step(self.declaration, state, **self._inputs(x_t), backend=self.backend)
        return self._projected(y), after

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Zeros (batch, d, N)."""
        made = dtype or state_dtype(self.in_proj.weight.dtype)
        return torch.zeros(batch, self.d_inner, self.d_state, dtype=made, device=device or self.A_log.device)

    def _rates(self) -> Tensor:
        n = torch.arange(1, self.d_state + 1, dtype=torch.float64)
        scale = torch.arange(self.num_scales).repeat_interleave(self.d_inner // self.num_scales)
        return n * 2.0 ** scale[:, None]  # [d, n]

    def _checked(self, state: object, batch: int, x: Tensor) -> Tensor | None:
        if state is None:
            return None
        shape = (batch, self.d_inner, self.d_state)
        return arguments.state(NAME, "state", state, shape).to(state_dtype(x.dtype))

    def _inputs(self, x: Tensor) -> dict[str, Any]:
        """What the declaration reads, for x (..., d_model)."""
        xs, z = self.in_proj(x).chunk(2, -1)
        return {
            "x": xs,
            "z": z,
            "dt": F.linear(xs, self.dt_proj.weight),
            "bias": self.dt_proj.bias,
            "B": self.B_proj(xs),
            "C": self.C_proj(xs),
            "A_log": self.A_log,
            "D": self.D,
        }

    def _projected(self, y: Tensor) -> Tensor:
        # On the weight, not on y, the gate is not rounded to 16 bits and costs no pass over the sequence.
        gated = self.out_proj.weight * torch.sigmoid(self.output_gate)
        return F.linear(y, gated.to(self.out_proj.weight.dtype))
