"""The configurations of the parts of a MinMax network: frozen, checked when written."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import Literal, get_args

from .. import arguments, norms
from .versions import GATES, LATEST, NEURON_INPUTS, VERSIONS, check

SRInitType = Literal["small_init", "kaiming", "asymmetric"]
FFN_TYPES = ("gated", "basic")
FFN_INITS = ("scaled", "basic")
CONV_INITS = ("scaled", "default")
ACTIVATIONS = ("relu", "relu^2", "gelu", "swish", "sigmoid", "selu")


@dataclass(frozen=True)
class GatedConvConfig:
    """`GatedConv` on `embedding_dim` channels, its gate's parameter filled with `init_val`."""

    embedding_dim: int
    init_val: float = 0.0

    def __post_init__(self) -> None:
        arguments.positive("GatedConvConfig", embedding_dim=self.embedding_dim)


@dataclass(frozen=True)
class BasicConvConfig:
    """`BasicConv` on `embedding_dim` channels.

    `init` is "scaled", small_init_init_ and no bias, or "default", torch's own, which 0.1.0 had.
    """

    embedding_dim: int
    init: str = "scaled"

    def __post_init__(self) -> None:
        arguments.positive("BasicConvConfig", embedding_dim=self.embedding_dim)
        arguments.one_of("BasicConvConfig", "init", self.init, CONV_INITS)


@dataclass(frozen=True)
class FeedForwardConfig:
    """`FeedForward` or `GatedFeedForward`: what `create_feedforward` makes is said by `ffn_type`.

    `embedding_dim` -1 is filled in by the layer that holds it, `embedding_dim_out` -1 is `embedding_dim`.
    `proj_up_dim`, the width between, is proj_factor · embedding_dim rounded to a multiple, up or down.
    `init` "scaled" is small_init_init_ up and wang_init_ down, "basic" torch's own. `version` says by which
    width wang_init_ goes.
    """

    _num_blocks: int
    embedding_dim: int = -1
    embedding_dim_out: int = -1
    proj_factor: float = 1.3
    act_fn: str = "relu"
    bias: bool = True
    dropout: float = 0.0
    ffn_type: str = "gated"
    init: str = "scaled"
    round_proj_up_to_multiple_of: int = 2
    round_proj_up_dim_up: bool = True
    version: str = LATEST

    def __post_init__(self) -> None:
        where = "FeedForwardConfig"
        arguments.positive(
            where,
            _num_blocks=self._num_blocks,
            round_proj_up_to_multiple_of=self.round_proj_up_to_multiple_of,
        )
        for name, width in (
            ("embedding_dim", self.embedding_dim),
            ("embedding_dim_out", self.embedding_dim_out),
        ):
            if width != -1:
                arguments.positive(where, **{name: width})
        arguments.one_of(where, "act_fn", self.act_fn, ACTIVATIONS)
        arguments.one_of(where, "ffn_type", self.ffn_type, FFN_TYPES)
        arguments.one_of(where, "init", self.init, FFN_INITS)
        arguments.between(where, "dropout", self.dropout, 0, 1)
        check(where, self.version)
        if self.embedding_dim != -1 and self.proj_up_dim < 1:
            raise ValueError(
                f"{where}: proj_factor={self.proj_factor!r} leaves no hidden channels: write a larger one."
            )

    @property
    def proj_up_dim(self) -> int:
        """How many hidden channels there are."""
        multiple = self.round_proj_up_to_multiple_of
        rounded = ceil if self.round_proj_up_dim_up else floor
        return multiple * rounded(self.proj_factor * self.embedding_dim / multiple)


@dataclass(frozen=True)
class MinMaxNeuronConfig:
    """`MinMaxNeuron` of `d_state` states on `d_model` channels; `_num_blocks` scales the output's weights.

    `train_init` learns the initial state. `s_r_init` initialises the bounds: "small_init", "kaiming", or
    "asymmetric": the lower one kaiming with bias 1, the upper one small_init. `gate` is the form of the
    output gate, "sigmoid" or "linear"; None is the version's ("sigmoid", and "linear" in 0.1.0).
    """

    _num_blocks: int
    d_model: int
    d_state: int
    dropout: float = 0.0
    train_init: bool = False
    output_gate: bool = True
    s_r_init: str = "small_init"
    version: str = LATEST
    gate: str | None = None

    def __post_init__(self) -> None:
        where = "MinMaxNeuronConfig"
        arguments.positive(where, _num_blocks=self._num_blocks, d_model=self.d_model, d_state=self.d_state)
        arguments.between(where, "dropout", self.dropout, 0, 1)
        arguments.one_of(where, "s_r_init", self.s_r_init, get_args(SRInitType))
        check(where, self.version)
        if self.gate is not None:
            arguments.one_of(where, "gate", self.gate, GATES)

    @property
    def gate_form(self) -> str:
        """ "sigmoid", "linear", or "none" without an output gate."""
        return (self.gate or VERSIONS[self.version].gate) if self.output_gate else "none"


@dataclass(frozen=True)
class MinMaxLayerConfig:
    """`MinMaxLayer`: the parts, and the norm before each of them.

    `first_in_dropout` stands in for the feedforward's dropout in a network's first layer. `neuron_input` is
    what the neuron reads, norm(u + c + f) for "conv+ffn" and norm(u + f) for "ffn"; None is the version's
    ("conv+ffn", and "ffn" in 0.1.0). Each part has a version of its own.
    """

    neuron: MinMaxNeuronConfig
    conv: BasicConvConfig | GatedConvConfig
    d_model: int
    first_in_dropout: float = 0.0
    feedforward: FeedForwardConfig | None = None
    norm: str = "layernorm"
    version: str = LATEST
    neuron_input: str | None = None

    def __post_init__(self) -> None:
        where = "MinMaxLayerConfig"
        arguments.positive(where, d_model=self.d_model)
        arguments.between(where, "first_in_dropout", self.first_in_dropout, 0, 1)
        arguments.one_of(where, "norm", self.norm, norms.NORMS)
        check(where, self.version)
        if self.neuron_input is not None:
            arguments.one_of(where, "neuron_input", self.neuron_input, NEURON_INPUTS)
        if self.feedforward is None:
            raise ValueError(f"{where}: feedforward=None, and a layer has one: write a FeedForwardConfig.")
        widths = {
            "neuron.d_model": (self.neuron.d_model,),
            "conv.embedding_dim": (self.conv.embedding_dim,),
            "feedforward.embedding_dim": (self.feedforward.embedding_dim, -1),
            "feedforward.embedding_dim_out": (self.feedforward.embedding_dim_out, -1),
        }
        for name, (width, *filled) in widths.items():
            if width != self.d_model and width not in filled:
                raise ValueError(
                    f"{where}: {name}={width} is not d_model={self.d_model}: write the same width in both."
                )

    @property
    def adds_conv(self) -> bool:
        """Whether the neuron reads the convolution's output too."""
        return (self.neuron_input or VERSIONS[self.version].neuron_input) == "conv+ffn"
