"""What a training loop needs beside the model: a watch on gradients, an optimiser, its schedule, a seed."""

from __future__ import annotations

import math
import random

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from . import arguments

Tensor = torch.Tensor

STATISTICS = ("mean", "std", "max", "min", "norm")
RATES = ("a_log",)  # last part of the names of parameters that are the logarithm or logit of a decay rate


class GradientMonitor:
    """Statistics of every parameter's gradient in the last backward pass.

    Hooks reduce each gradient to five numbers on its own device; nothing is copied to the host before
    `get_stats` or `get_summary`. The deviation of a gradient of one entry is 0.

    Example:
        >>> import torch
        >>> from models.training import GradientMonitor
        >>> layer = torch.nn.Linear(2, 1, bias=False)
        >>> monitor = GradientMonitor(layer)
        >>> layer(torch.tensor([[3.0, 4.0]])).sum().backward()
        >>> monitor.get_stats()["weight"]["norm"], monitor.get_summary()["num_params_tracked"]
        (5.0, 1)
    """

    def __init__(self, model: nn.Module) -> None:
        self._seen: dict[str, Tensor] = {}
        self._hooks = [
            p.register_hook(lambda gradient, name=name: self._record(name, gradient))
            for name, p in model.named_parameters()
            if p.requires_grad
        ]

    def _record(self, name: str, gradient: Tensor) -> None:
        g = gradient.detach().reshape(-1)
        g = g if g.dtype == torch.float64 else g.float()
        if g.numel():
            std = g.std() if g.numel() > 1 else torch.zeros_like(g[0])
            self._seen[name] = torch.stack([g.mean(), std, g.max(), g.min(), g.norm()])

    def get_stats(self) -> dict[str, dict[str, float]]:
        """{parameter: {mean, std, max, min, norm}} of those that the last backward passes reached."""
        return {name: dict(zip(STATISTICS, row.tolist(), strict=True)) for name, row in self._seen.items()}

    def get_summary(self) -> dict[str, float]:
        """Mean, largest and smallest norm over the parameters, and how many there are; zeros before any."""
        norms = [row["norm"] for row in self.get_stats().values()]
        return {
            "grad_norm_mean": sum(norms) / len(norms) if norms else 0.0,
            "grad_norm_max": max(norms, default=0.0),
            "grad_norm_min": min(norms, default=0.0),
            "num_params_tracked": len(norms),
        }

    def remove_hooks(self) -> None:
        """Stop watching; what was seen stays readable."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def check_gradients_finite(model: nn.Module) -> bool:
    """Whether no gradient holds an infinity or a NaN; parameters without one do not count."""
    flags = [p.grad.isfinite().all() for p in model.parameters() if p.grad is not None]
    return all(bool(flag) for flag in flags)


def set_seed(seed: int = 42) -> None:
    """Seed python, NumPy and torch on every device, and have cuDNN choose deterministic algorithms."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def get_best_device() -> torch.device:
    """CUDA before MPS before the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def learning_rate_factor(step: int, warmup_steps: int, total_steps: int, min_lr_ratio: float) -> float:
    """What the learning rate is multiplied with at a step, counted from 0.

    step / warmup before `warmup_steps`; then m + (1 - m) (1 + cos π p) / 2, where p goes from 0 to 1 at
    `total_steps` and stays there, so that the factor stays at its floor m = `min_lr_ratio`.
    """
    if step < warmup_steps:
        return step / warmup_steps
    past = min((step - warmup_steps) / max(total_steps - warmup_steps, 1), 1.0)
    return min_lr_ratio + (1 - min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * past))


def _decays(name: str, p: Tensor) -> bool:
    lower = name.lower()
    kept = p.ndim < 2 or "bias" in lower or "norm" in lower or lower.rpartition(".")[2] in RATES
    return not (kept or getattr(p, "_no_weight_decay", False))


def create_optimizer_and_scheduler(
    model: nn.Module,
    lr: float = 3e-4,
    weight_decay: float = 0.01,
    warmup_steps: int = 500,
    total_steps: int = 10000,
    min_lr_ratio: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.95),
) -> tuple[torch.optim.AdamW, LambdaLR]:
    """AdamW, and a schedule that warms up from 0 and follows a cosine down to `min_lr_ratio` and stays there.

    No weight decay for parameters of less than two axes, for those with "bias" or "norm" in their names,
    for decay rates (`A_log`, `a_log`), and for those marked `_no_weight_decay`. Call `scheduler.step()`
    after every `optimizer.step()`.

    Raises ValueError: negative rates, decay or warm-up, no steps, or a floor that is not in [0, 1].

    Example:
        >>> import torch
        >>> from models.training import create_optimizer_and_scheduler
        >>> optimizer, scheduler = create_optimizer_and_scheduler(torch.nn.Linear(2, 2), warmup_steps=4)
        >>> [group["weight_decay"] for group in optimizer.param_groups]
        [0.01, 0.0]
    """
    where = "create_optimizer_and_scheduler"
    arguments.between(where, "lr", lr, 0, math.inf)
    arguments.between(where, "weight_decay", weight_decay, 0, math.inf)
    arguments.between(where, "warmup_steps", warmup_steps, 0, math.inf)
    arguments.positive(where, total_steps=total_steps)
    arguments.between(where, "min_lr_ratio", min_lr_ratio, 0, 1)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for name, p in named if _decays(name, p)], "weight_decay": weight_decay},
        {"params": [p for name, p in named if not _decays(name, p)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas)
    schedule = LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, warmup_steps, total_steps, min_lr_ratio)
    )
    return optimizer, schedule


def safe_clip_grad_norm_(model: nn.Module, max_norm: float = 1.0, norm_type: float = 2.0) -> float:
    """Scale the gradients to a joint norm of at most `max_norm`; returns the norm before that.

    A parameter's gradient that holds an infinity or a NaN is zeroed whole first, so that it neither
    counts nor is applied.
    """
    for p in model.parameters():
        if p.grad is not None:
            p.grad.masked_fill_(~p.grad.isfinite().all(), 0.0)
    return float(nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type))
