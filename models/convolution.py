"""The causal short convolution that stands before a scan, with its state."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import scanforge as sf

from . import arguments
from .mixer import state_dtype
from .segments import Segments

Tensor = torch.Tensor


class CausalConv1d(nn.Module):
    """y_t[d] = Σ_j w[d, width-1-j] x_{t-j}[d] + bias[d], over the last `width` real steps of t's sequence.

    Depthwise. Parameters are named and initialised as those of `nn.Conv1d(d, d, width, groups=d)`. The state
    (B, d, keep) holds the last `keep` inputs, the latest last, zeros before the first; `keep` is width - 1 if
    not given. Steps that the mask takes out are not in the window.

    Example:
        >>> import torch
        >>> from models.convolution import CausalConv1d
        >>> conv, x = CausalConv1d(3, 4), torch.randn(2, 9, 3)
        >>> y, window = conv(x[:, :5])
        >>> tail, window = conv(x[:, 5:], window)
        >>> torch.allclose(torch.cat([y, tail], 1), conv(x)[0], atol=1e-6)
        True
    """

    def __init__(
        self, d: int, width: int, bias: bool = True, keep: int | None = None,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        arguments.positive("CausalConv1d", d=d, width=width)
        self.d, self.width, self.keep = d, width, width - 1 if keep is None else keep
        if self.keep < width - 1:
            raise ValueError(
                f"CausalConv1d: keep={keep} is less than the {width - 1} inputs that a window of "
                f"width={width} reaches back."
            )
        made = nn.Conv1d(d, d, width, groups=d, bias=bias, device=device, dtype=dtype)
        self.weight, self.bias = made.weight, made.bias

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Zeros (batch, d, keep)."""
        made = dtype or state_dtype(self.weight.dtype)
        return torch.zeros(batch, self.d, self.keep, dtype=made, device=device or self.weight.device)

    def forward(
        self, x: Tensor, state: Tensor | None = None, segments: Segments | None = None
    ) -> tuple[Tensor, Tensor]:
        """x (B, T, d) -> (y (B, T, d), the state after the last step)."""
        arguments.sequence("CausalConv1d", x, self.d)
        segments = segments or Segments()
        batch = segments.batch(x)
        if state is None:
            state = self.initial_state(batch, state_dtype(x.dtype), x.device)
        arguments.state("CausalConv1d", "window", state, (batch, self.d, self.keep))
        if segments.group is not None:
            state, segments = entering(x, state, segments)
        if segments.none:
            return self._plain(x, state)
        x = segments.real(x)
        window = _Window(x, state, segments)
        taps = [window.lagged(j) for j in range(1, self.width)]
        weight = self.weight[:, 0].to(x.dtype)
        y = sum((taps[j - 1] * weight[:, -1 - j] for j in range(1, self.width)), x * weight[:, -1])
        y = y if self.bias is None else y + self.bias.to(x.dtype)
        return segments.real(y), window.after()

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """x_t (B, d) -> (y_t (B, d), the state after it)."""
        y, state = self(x_t[:, None], state)
        return y[:, 0], state

    def _plain(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        turned = x.transpose(1, 2)
        before = state[..., self.keep - self.width + 1 :]
        seen = torch.cat([before.to(x.dtype), turned], -1)
        # of no steps none is left, and yet the result depends on all that it depends on otherwise
        seen = seen if x.shape[1] else F.pad(seen, (0, 1))
        y = F.conv1d(seen, self.weight, self.bias, groups=self.d)[..., : x.shape[1]]
        last = torch.cat([state, turned.to(state.dtype)], -1)
        return y.transpose(1, 2), last[..., last.shape[-1] - self.keep :]


def entering(x: Tensor, state: Tensor, segments: Segments) -> tuple[Tensor, Segments]:
    """The window (N, d, keep) before this rank's first step, and the boundaries of its steps alone.

    `state` is the first rank's. Every rank sends its own last real inputs, and how many of the window's
    places they take: all where a sequence has begun anew.
    """
    steps, keep, own = x.shape[1], state.shape[-1], segments.own(x.shape[1], x.device)
    if not keep:
        return state, own
    start = state if segments.first else torch.zeros_like(state)
    if own.none or not steps:
        turned = x.transpose(1, 2).to(start.dtype).expand(start.shape[0], -1, -1)
        ended = torch.cat([start, turned], -1)[..., steps:]
        taken = torch.full_like(state[:, :1], min(steps, keep))
    else:
        window = _Window(own.real(x), start, own)
        ended, taken = window.after(), window.taken()[:, None, None].expand(-1, 1, keep).to(state.dtype)
    taken = torch.full_like(taken, keep) if segments.first else taken
    earlier = sf.distributed.before(torch.cat([ended, taken], 1), segments.group)
    entered = torch.cat([state[None], earlier[:, :, :-1]])[0]
    for message in earlier:
        places = torch.arange(keep, device=x.device) + message[:, -1:].detach().long()
        shifted = entered.gather(-1, places.clamp(max=keep - 1).expand(entered.shape))
        entered = torch.where(places < keep, shifted, message[:, :-1])
    return entered, own


class _Window:
    """The inputs before each step of a call with boundaries: found by rank among a sequence's real steps."""

    def __init__(self, x: Tensor, state: Tensor, segments: Segments) -> None:
        batch, steps = x.shape[:2]
        device = x.device
        no = torch.zeros(batch, steps, dtype=torch.bool, device=device)
        real = ~no if segments.mask is None else segments.mask
        self.x, self.state, self.keep = x, state, state.shape[-1]
        self.positions = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)  # of the k-th real step
        counts = _counted(real)  # (B, T + 1): real steps before each bound
        resets = _counted(no if segments.reset is None else segments.reset)
        if segments.cu_seqlens is None:
            self.batch = torch.arange(batch, device=device)
            begins, ends = torch.zeros_like(self.batch), torch.full_like(self.batch, steps)
            self.row = self.batch[:, None].expand(batch, steps)
        else:
            bounds = segments.cu_seqlens.long()
            begins, ends = bounds[:-1], bounds[1:]
            self.batch = torch.zeros_like(begins)
            self.row = torch.searchsorted(ends, torch.arange(steps, device=device), right=True)[None]
        self.rank, self.age = counts[:, :-1], resets[:, 1:]  # [B, T]: real steps before t; resets up to t
        self.first, self.young = counts[self.batch, begins], resets[self.batch, begins]  # [N]
        self.end, self.old = counts[self.batch, ends], resets[self.batch, ends]

    def lagged(self, j: int) -> Tensor:
        """(B, T, d): the input j real steps before each step, 0 before its sequence begins."""
        batch = torch.arange(self.x.shape[0], device=self.x.device)[:, None].expand_as(self.rank)
        return self._at(batch, self.row, self.rank, self.age, j).to(self.x.dtype)

    def after(self) -> Tensor:
        """(N, d, keep): the state after the last step of every sequence."""
        row = torch.arange(self.batch.numel(), device=self.x.device)
        last = [self._at(self.batch, row, self.end, self.old, j) for j in range(self.keep, 0, -1)]
        return torch.stack(last, -1).to(self.state.dtype) if last else self.state

    def taken(self) -> Tensor:
        """(N,): how many places of the window are of this call's own, all where a sequence begins anew."""
        return torch.where(self.old == self.young, self.end - self.first, self.keep).clamp(max=self.keep)

    def _at(self, batch: Tensor, row: Tensor, rank: Tensor, age: Tensor, j: int) -> Tensor:
        """What stood j real steps before `rank`, after `age` resets, in sequence `row` of line `batch`."""
        inside = rank - self.first[row] - j  # rank in the sequence; below 0 it lies in the state
        carried = (inside < 0) & (inside >= -self.keep) & (age == self.young[row])
        slots = (self.keep + inside).clamp(0, max(self.keep - 1, 0))
        old = self.state[row, :, slots]
        if not self.x.shape[1]:
            return torch.where(carried[..., None], old, 0.0)
        place = self.positions[batch, (rank - j).clamp(0, self.x.shape[1] - 1)]
        here = (inside >= 0) & (self.age[batch, place] == age)
        new = self.x[batch, place].to(self.state.dtype)
        return torch.where(here[..., None], new, torch.where(carried[..., None], old, 0.0))


def _counted(flags: Tensor) -> Tensor:
    """(B, T + 1): how many are true before each bound."""
    return F.pad(flags.long().cumsum(1), (1, 0))
