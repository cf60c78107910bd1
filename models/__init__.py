"""Layers written as scanforge declarations: each module holds a declaration and a thin `nn.Module`."""

from .convolution import CausalConv1d
from .generation import generate
from .hgrn2 import HGRN2, BitLinear, HGRN2Attention, LowerBounds, share_lower_bounds
from .lm import RecurrentLM, ResidualStack
from .minmax import (
    BasicConv,
    BasicConvConfig,
    FeedForward,
    FeedForwardConfig,
    GatedConv,
    GatedConvConfig,
    GatedFeedForward,
    MinMaxLayer,
    MinMaxLayerConfig,
    MinMaxNeuron,
    MinMaxNeuronConfig,
    MinMaxRNC,
    MinMaxRNC_LM,
    MinMaxRNCConfig,
    MinMaxRNCLMConfig,
    create_feedforward,
    minmax_matrix,
)
from .mixer import Mixer, set_backend
from .rglru import RGLRU, BlockDiagonalLinear, RecurrentBlock, from_recurrent_gemma
from .saving import from_pretrained, load_state, save_pretrained, save_state
from .ssm import MultiScaleSSM, SelectiveSSM, from_mamba
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
    "HGRN2", "RGLRU", "BasicConv", "BasicConvConfig", "BitLinear", "BlockDiagonalLinear", "CausalConv1d",
    "FeedForward", "FeedForwardConfig", "GatedConv", "GatedConvConfig", "GatedFeedForward",
    "GradientMonitor", "HGRN2Attention", "LowerBounds", "MinMaxLayer", "MinMaxLayerConfig",
    "MinMaxNeuron", "MinMaxNeuronConfig", "MinMaxRNC", "MinMaxRNCConfig", "MinMaxRNCLMConfig",
    "MinMaxRNC_LM", "Mixer", "MultiScaleSSM", "RecurrentBlock", "RecurrentLM", "ResidualStack",
    "SelectiveSSM", "TransformerBlock", "TransformerLM", "check_gradients_finite", "create_feedforward",
    "create_optimizer_and_scheduler", "from_mamba", "from_pretrained", "from_recurrent_gemma",
    "generate", "get_best_device", "load_state", "minmax_matrix", "safe_clip_grad_norm_",
    "save_pretrained", "save_state", "set_backend", "set_seed", "share_lower_bounds",
]  # fmt: skip
