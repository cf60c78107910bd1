"""Mixers and feedforwards by name, for models that are built from a few words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from .mixer import Mixer

# Layers are imported where they are built: their packages hold converters, and those import `RecurrentLM`.


def _minmax(d_model: int, n_layers: int, args: Mapping[str, Any]) -> list[Mixer]:
    from .minmax.neuron import MinMaxNeuron
    from .minmax.part_configs import MinMaxNeuronConfig

    config = MinMaxNeuronConfig(_num_blocks=n_layers, **{"d_model": d_model, "d_state": d_model, **args})
    return [MinMaxNeuron(config) for _ in range(n_layers)]


def _ssm(d_model: int, n_layers: int, args: Mapping[str, Any]) -> list[Mixer]:
    from .ssm import SelectiveSSM

    return [SelectiveSSM(d_model, **args) for _ in range(n_layers)]


def _multiscale(d_model: int, n_layers: int, args: Mapping[str, Any]) -> list[Mixer]:
    from .ssm import MultiScaleSSM

    return [MultiScaleSSM(d_model, **args) for _ in range(n_layers)]


def _rglru(d_model: int, n_layers: int, args: Mapping[str, Any]) -> list[Mixer]:
    from .rglru import RGLRU

    return [RGLRU(d_model, **args) for _ in range(n_layers)]


def _griffin(d_model: int, n_layers: int, args: Mapping[str, Any]) -> list[Mixer]:
    from .rglru import RecurrentBlock

    return [RecurrentBlock(d_model, **args) for _ in range(n_layers)]


def _hgrn2(d_model: int, n_layers: int, args: Mapping[str, Any]) -> list[Mixer]:
    from .hgrn2 import HGRN2, share_lower_bounds

    made = [HGRN2(d_model, **args) for _ in range(n_layers)]
    if "lower_bound" not in args:
        share_lower_bounds(made)
    return list(made)


MIXERS: dict[str, Callable[[int, int, Mapping[str, Any]], list[Mixer]]] = {
    "minmax": _minmax,  # MinMaxNeuron; its d_state is d_model if not given
    "ssm": _ssm,  # SelectiveSSM
    "multiscale": _multiscale,  # MultiScaleSSM
    "rglru": _rglru,  # RGLRU
    "griffin": _griffin,  # RecurrentBlock
    "hgrn2": _hgrn2,  # HGRN2, whose layers learn their lower bounds together unless one is given
}


def feed_forward(kind: str, d_model: int, n_layers: int, factor: float, act: str) -> nn.Module:
    """A "gated" or "basic" feedforward of factor · d_model hidden units in a stack of `n_layers`."""
    from .minmax.feedforward import create_feedforward
    from .minmax.part_configs import FeedForwardConfig

    return create_feedforward(
        FeedForwardConfig(n_layers, d_model, proj_factor=factor, act_fn=act, ffn_type=kind)
    )
