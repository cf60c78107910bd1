"""The configurations of whole MinMax networks, with the three published sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from .. import arguments, norms
from .part_configs import (
    ACTIVATIONS,
    FFN_INITS,
    FFN_TYPES,
    BasicConvConfig,
    FeedForwardConfig,
    GatedConvConfig,
    MinMaxLayerConfig,
    MinMaxNeuronConfig,
    SRInitType,
)
from .versions import GATES, LATEST, NEURON_INPUTS, VERSIONS, check

CONV_TYPES = ("gated", "basic")


@dataclass(frozen=True)
class MinMaxRNCConfig:
    """`MinMaxRNC`: `n_layers` layers of `d_model` channels and `d_state` states each.

    `version` "0.3.0" or "0.1.0" chooses the equations, initialisation and defaults of that version of the
    minmaxrnc package. Where `conv_type`, `ffn_dropout`, `gate` or `neuron_input` is None, it is the
    version's; written out, it wins.

    | | 0.3.0 | 0.1.0 |
    | --- | --- | --- |
    | gate of the neuron's output | "sigmoid" | "linear" |
    | neuron_input: the neuron reads | "conv+ffn": norm(u + c + f) | "ffn": norm(u + f) |
    | conv_type | "basic", small_init_init_ | "gated"; "basic" has torch's initialisation |
    | ffn_dropout | 0.1 | 0 |
    | wang_init_ goes by | the layer's own width | d_model |
    | weights of the output gate | small_init_init_ | torch's initialisation |

    `prelayers_dropout` stands in for `ffn_dropout` in the first layer. `train_init` learns the neurons'
    initial states. A bad value is a ValueError that names it.

    Example:
        >>> from models.minmax import MinMaxRNC, MinMaxRNCConfig
        >>> model = MinMaxRNC(MinMaxRNCConfig.small(version="0.1.0"))
        >>> sum(p.numel() for p in model.parameters())
        95032
    """

    d_model: int
    n_layers: int
    d_state: int
    norm: str = "layernorm"
    postlayers_norm: str = "layernorm"
    ffn_type: str = "gated"
    ffn_proj_factor: float = 1.3
    ffn_act_fn: str = "relu"
    ffn_dropout: float | None = None
    ffn_init: str = "scaled"
    output_gate: bool = True
    train_init: bool = False
    neuron_dropout: float = 0.0
    s_r_init: str = "small_init"
    conv_type: str | None = None
    conv_init_val: float = 0.0
    prelayers_dropout: float = 0.0
    use_postlayers_ffn: bool = False
    version: str = LATEST
    gate: str | None = None
    neuron_input: str | None = None

    def __post_init__(self) -> None:
        where = "MinMaxRNCConfig"
        arguments.positive(where, d_model=self.d_model, n_layers=self.n_layers, d_state=self.d_state)
        check(where, self.version)
        for name, allowed in (
            ("norm", norms.NORMS),
            ("postlayers_norm", norms.NORMS),
            ("ffn_type", FFN_TYPES),
            ("ffn_act_fn", ACTIVATIONS),
            ("ffn_init", FFN_INITS),
            ("s_r_init", get_args(SRInitType)),
            ("conv_type", (None, *CONV_TYPES)),
            ("gate", (None, *GATES)),
            ("neuron_input", (None, *NEURON_INPUTS)),
        ):
            arguments.one_of(where, name, getattr(self, name), allowed)
        for name in ("neuron_dropout", "prelayers_dropout", "ffn_dropout"):
            if getattr(self, name) is not None:
                arguments.between(where, name, getattr(self, name), 0, 1)

    @classmethod
    def small(cls, n_layers: int = 2, version: str = LATEST) -> MinMaxRNCConfig:
        """90 channels, 40 states: 127 432 trainable parameters with 2 layers, 95 032 in 0.1.0."""
        return cls(90, n_layers, 40, version=version)

    @classmethod
    def medium(cls, n_layers: int = 8, version: str = LATEST) -> MinMaxRNCConfig:
        """512 channels, 512 states: 20 827 552 trainable parameters with 8 layers, 16 633 248 in 0.1.0."""
        return cls(512, n_layers, 512, version=version)

    @classmethod
    def large(cls, n_layers: int = 12, version: str = LATEST) -> MinMaxRNCConfig:
        """728 channels, 1456 states: 88 598 512 trainable parameters with 12 layers, 75 878 896 in 0.1.0."""
        return cls(728, n_layers, 1456, version=version)

    @property
    def feedforward_cfg(self) -> FeedForwardConfig:
        """Of every feedforward block."""
        dropout = VERSIONS[self.version].ffn_dropout if self.ffn_dropout is None else self.ffn_dropout
        return FeedForwardConfig(
            _num_blocks=self.n_layers,
            embedding_dim=self.d_model,
            proj_factor=self.ffn_proj_factor,
            act_fn=self.ffn_act_fn,
            dropout=dropout,
            ffn_type=self.ffn_type,
            init=self.ffn_init,
            version=self.version,
        )

    @property
    def layer_cfg(self) -> MinMaxLayerConfig:
        """Of every layer."""
        kind = self.conv_type or VERSIONS[self.version].conv_type
        conv: BasicConvConfig | GatedConvConfig = (
            GatedConvConfig(self.d_model, self.conv_init_val)
            if kind == "gated"
            else BasicConvConfig(self.d_model, VERSIONS[self.version].conv_init)
        )
        neuron = MinMaxNeuronConfig(
            _num_blocks=self.n_layers,
            d_model=self.d_model,
            d_state=self.d_state,
            dropout=self.neuron_dropout,
            train_init=self.train_init,
            output_gate=self.output_gate,
            s_r_init=self.s_r_init,
            version=self.version,
            gate=self.gate,
        )
        return MinMaxLayerConfig(
            neuron=neuron,
            conv=conv,
            d_model=self.d_model,
            first_in_dropout=self.prelayers_dropout,
            feedforward=self.feedforward_cfg,
            norm=self.norm,
            version=self.version,
            neuron_input=self.neuron_input,
        )


@dataclass(frozen=True)
class MinMaxRNCLMConfig:
    """`MinMaxRNC_LM`: a backbone, and the head's dropout and weights, its own or the embedding's.

    `output_gate`, `conv_type` and `ffn_dropout`, where they are written, win over the backbone's. In 0.3.0
    of the original they always do, with its defaults, whatever the backbone says; here None leaves it alone.
    """

    backbone: MinMaxRNCConfig
    head_dropout: float = 0.0
    tie_weights: bool = True
    output_gate: bool | None = None
    conv_type: str | None = None
    ffn_dropout: float | None = None

    def __post_init__(self) -> None:
        arguments.between("MinMaxRNCLMConfig", "head_dropout", self.head_dropout, 0, 1)
        if self.conv_type is not None:
            arguments.one_of("MinMaxRNCLMConfig", "conv_type", self.conv_type, CONV_TYPES)
        if self.ffn_dropout is not None:
            arguments.between("MinMaxRNCLMConfig", "ffn_dropout", self.ffn_dropout, 0, 1)

    @property
    def backbone_cfg(self) -> MinMaxRNCConfig:
        """The backbone with what is written here."""
        own = self.backbone
        return replace(
            own,
            output_gate=own.output_gate if self.output_gate is None else self.output_gate,
            conv_type=self.conv_type or own.conv_type,
            ffn_dropout=own.ffn_dropout if self.ffn_dropout is None else self.ffn_dropout,
        )
