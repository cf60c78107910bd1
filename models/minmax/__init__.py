"""MinMax: x_t = max(min(r_t, x_{t-1}), s_t), its neuron, layers, network and language model.

Under the names of the minmaxrnc package, whose versions 0.1.0 and 0.3.0 a configuration's `version` names.
"""

from . import minmax_operator, minmax_scan
from .backbone import MinMaxRNC
from .configs import MinMaxRNCConfig, MinMaxRNCLMConfig
from .convolutions import BasicConv, GatedConv
from .feedforward import FeedForward, GatedFeedForward, create_feedforward
from .initialisers import small_init_init_, wang_init_
from .layer import MinMaxLayer
from .lm import MinMaxRNC_LM
from .matrix import matrix_states, minmax_matrix
from .minmax_scan import all_composition_prefixes, all_prefixes, all_states
from .neuron import MinMaxNeuron
from .part_configs import (
    BasicConvConfig,
    FeedForwardConfig,
    GatedConvConfig,
    MinMaxLayerConfig,
    MinMaxNeuronConfig,
    SRInitType,
)

__all__ = [
    "BasicConv",
    "BasicConvConfig",
    "FeedForward",
    "FeedForwardConfig",
    "GatedConv",
    "GatedConvConfig",
    "GatedFeedForward",
    "MinMaxLayer",
    "MinMaxLayerConfig",
    "MinMaxNeuron",
    "MinMaxNeuronConfig",
    "MinMaxRNC",
    "MinMaxRNCConfig",
    "MinMaxRNCLMConfig",
    "MinMaxRNC_LM",
    "SRInitType",
    "all_composition_prefixes",
    "all_prefixes",
    "all_states",
    "create_feedforward",
    "matrix_states",
    "minmax_matrix",
    "minmax_operator",
    "minmax_scan",
    "small_init_init_",
    "wang_init_",
]
