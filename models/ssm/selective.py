"""SelectiveSSM: Mamba's block."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import scanforge as sf

from .. import arguments
from ..convolution import CausalConv1d
from ..mixer import Mixer, state_dtype
from ..segments import Segments
from .initial import before_softplus, time_steps
from .recurrence import recurrence

Tensor = torch.Tensor
NAME = "SelectiveSSM"


class SelectiveSSM(Mixer):
    """y = W_out[(C_t·h_t + D x_t) silu(z_t)], with h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t x_t.

    [x'|z] = W_in u; x = silu(conv(x')), causal, of width d_conv; [δ|B|C] = W_x x, δ of dt_rank numbers, by
    default d_model/16 rounded up; Δ = softplus(W_dt δ + bias); A = -exp(A_log), at the start -(1..N) in each
    of the d = expand·d_model channels. The d/n_groups channels of a group share B and C. u is
    (B, T, d_model), a state {"conv": (B, d, d_conv - 1), the last x', and "ssm": (B, d, d_state)}.

    Parameters have Mamba's names and initial values; with n_groups = 1 its `state_dict` loads. At the start
    Δ is log-uniform in [dt_min, dt_max] and at least dt_init_floor, and the weight of W_dt is uniform in
    ±dt_scale/√dt_rank (dt_init "random") or that number ("constant"). `bias` is that of W_in and W_out.

    discretisation: "euler" (Mamba's code) or "zoh" (its paper), where A⁻¹(exp(Δ A) - 1) stands for Δ before B

    Raises ValueError for sizes and options that are none, and where n_groups does not divide d.
    Source: Gu & Dao, Mamba (arXiv 2312.00752), section 3 and equations 1, 2 and 4.

    Example:
        >>> import torch
        >>> from models.ssm import SelectiveSSM
        >>> ssm, u = SelectiveSSM(8, d_state=4), torch.randn(2, 9, 8)
        >>> y, state = ssm(u[:, :8], return_state=True)
        >>> y_t, state = ssm.step(u[:, 8], state)
        >>> torch.allclose(y_t, ssm(u)[:, 8], atol=1e-6), {name: tuple(s.shape) for name, s in state.items()}
        (True, {'conv': (2, 16, 3), 'ssm': (2, 16, 4)})
    """

    def __init__(  # noqa: PLR0913 - Mamba's options
        self, d_model: int, d_state: int = 16, d_conv: int = 4, expand: float = 2,
        dt_rank: int | str = "auto", *, n_groups: int = 1, discretisation: str = "euler",
        dt_min: float = 1e-3, dt_max: float = 0.1, dt_init: str = "random", dt_scale: float = 1.0,
        dt_init_floor: float = 1e-4, conv_bias: bool = True, bias: bool = False,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        arguments.positive(NAME, d_model=d_model, d_state=d_state, d_conv=d_conv, n_groups=n_groups)
        d = _width(d_model, expand)
        rank = math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise ValueError(f"{NAME}: dt_rank={dt_rank!r} is no rank: write an int of at least 1 or 'auto'.")
        arguments.divides(NAME, ("n_groups", n_groups), ("expand·d_model", d))
        _check_time_steps(dt_min, dt_max, dt_init_floor, dt_scale)
        arguments.one_of(NAME, "dt_init", dt_init, ("random", "constant"))
        self.declaration = recurrence(NAME, discretisation, n_groups > 1)
        self.d_model, self.d_inner, self.d_state, self.dt_rank = d_model, d, d_state, rank
        self.n_groups, self.discretisation = n_groups, discretisation

        factory: Any = {"device": device, "dtype": dtype}
        self.in_proj = nn.Linear(d_model, 2 * d, bias=bias, **factory)
        self.conv1d = CausalConv1d(d, d_conv, bias=conv_bias, **factory)
        self.x_proj = nn.Linear(d, rank + 2 * n_groups * d_state, bias=False, **factory)
        self.dt_proj = nn.Linear(rank, d, **factory)
        self.out_proj = nn.Linear(d, d_model, bias=bias, **factory)
        with torch.no_grad():
            most = dt_scale / math.sqrt(rank)
            self.dt_proj.weight.uniform_(-most if dt_init == "random" else most, most)
            dt = time_steps(self.dt_proj.bias, dt_min, dt_max, dt_init_floor)
            self.dt_proj.bias.copy_(before_softplus(dt))
        kept: Any = {"device": device, "dtype": state_dtype(self.in_proj.weight.dtype)}
        self.A_log = nn.Parameter(torch.arange(1, d_state + 1, **kept).log().repeat(d, 1))
        self.D = nn.Parameter(torch.ones(d, **kept))
        self._exempt()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._exempt()  # torch copies a parameter without its attributes

    def forward(
        self,
        x: Tensor,
        state: dict[str, Tensor] | None = None,
        return_state: bool = False,
        reset: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
        sequence_group: Any = None,
    ) -> Any:
        arguments.sequence(NAME, x, self.d_model)
        segments = Segments.of(NAME, x, reset, cu_seqlens, mask, sequence_group)
        conv, ssm = self._parts(state, segments.batch(x), x)
        xs, z = self.in_proj(segments.real(x)).chunk(2, -1)
        xs, conv = self.conv1d(xs, conv, segments)
        y, ssm = segments.scan(
            self.declaration,
            **self._inputs(xs, z),
            initial_state=ssm,
            reset_state=None if reset is None else x.new_zeros(()),
            backend=self.backend,
        )
        y = segments.real(self.out_proj(self._whole(y, -2)))
        return (y, {"conv": conv, "ssm": self._whole(ssm, 1)}) if return_state else y

    def step(self, x_t: Tensor, state: dict[str, Tensor] | None) -> tuple[Tensor, dict[str, Tensor]]:
        arguments.token(NAME, x_t, self.d_model)
        if state is None:
            state = self.initial_state(x_t.shape[0], device=x_t.device)
        conv, ssm = self._parts(state, x_t.shape[0], x_t)
        assert conv is not None
        xs, z = self.in_proj(x_t).chunk(2, -1)
        xs, conv = self.conv1d.step(xs, conv)
        y, ssm = sf.step(self.declaration, ssm, **self._inputs(xs, z), backend=self.backend)
        return self.out_proj(self._whole(y, -2)), {"conv": conv, "ssm": self._whole(ssm, 1)}

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> dict[str, Tensor]:
        """Zeros: {"conv": (batch, d, d_conv - 1), "ssm": (batch, d, d_state)}."""
        conv = self.conv1d.initial_state(batch, dtype, device)
        return {"conv": conv, "ssm": conv.new_zeros(batch, self.d_inner, self.d_state)}

    def _exempt(self) -> None:
        for p in (self.A_log, self.D):
            p._no_weight_decay = True  # type: ignore[attr-defined]

    def _parts(self, state: object, batch: int, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The convolution's state and the recurrence's, its channels in groups."""
        if state is None:
            return None, None
        shapes: dict[str, tuple[int, ...]] = {
            "conv": (batch, self.d_inner, self.conv1d.keep),
            "ssm": (batch, self.d_inner, self.d_state),
        }
        given = arguments.states(NAME, state, shapes)
        conv, ssm = (given[name].to(state_dtype(x.dtype)) for name in shapes)
        return conv, self._grouped(ssm, 1)

    def _inputs(self, xs: Tensor, z: Tensor) -> dict[str, Any]:
        """What the declaration reads, for the convolved channels (..., d) and their gate."""
        xs = F.silu(xs)
        numbers = self.n_groups * self.d_state
        dt, B, C = self.x_proj(xs).split([self.dt_rank, numbers, numbers], -1)
        channels = {"x": xs, "z": z, "dt": F.linear(dt, self.dt_proj.weight)}
        channels |= {"bias": self.dt_proj.bias, "D": self.D}
        return {
            **{name: self._grouped(value, -1) for name, value in channels.items()},
            "A_log": self._grouped(self.A_log, 0),
            "B": self._grouped(B, -1),
            "C": self._grouped(C, -1),
        }

    def _grouped(self, x: Tensor, axis: int) -> Tensor:
        return x if self.n_groups == 1 else x.unflatten(axis, (self.n_groups, -1))

    def _whole(self, x: Tensor, axis: int) -> Tensor:
        return x if self.n_groups == 1 else x.flatten(axis, axis + 1)


def _check_time_steps(low: float, high: float, floor: float, scale: float) -> None:
    if not 0 < low <= high:
        raise ValueError(f"{NAME}: dt_min={low!r} and dt_max={high!r}, expected 0 < dt_min <= dt_max.")
    for name, value in (("dt_init_floor", floor), ("dt_scale", scale)):
        if value < 0:
            raise ValueError(f"{NAME}: {name}={value!r} is negative: write a number of at least 0.")


def _width(d_model: int, expand: float) -> int:
    """expand·d_model, where that is a whole number."""
    d = expand * d_model if isinstance(expand, int | float) else 0
    if d < 1 or d != int(d):
        raise ValueError(
            f"{NAME}: expand={expand!r} of d_model={d_model} is no number of channels: write a number whose "
            "product with d_model is an int of at least 1."
        )
    return int(d)
