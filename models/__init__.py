"""Layers written as scanforge declarations: each module holds a declaration and a thin `nn.Module`."""

from .convolution import CausalConv1d
from .generation import generate
from .lm import RecurrentLM, ResidualStack
from .mixer import Mixer, set_backend
from .training import (
    GradientMonitor,
    check_gradients_finite,
    create_optimizer_and_scheduler,
    get_best_device,
    safe_clip_grad_norm_,
    set_seed,
)
from .transformer import TransformerBlock, TransformerLM

__all__ = [
    "CausalConv1d", "GradientMonitor", "Mixer", "RecurrentLM", "ResidualStack", "TransformerBlock",
    "TransformerLM", "check_gradients_finite", "create_optimizer_and_scheduler", "generate",
    "get_best_device", "safe_clip_grad_norm_", "set_backend", "set_seed",
]  # fmt: skip
