"""Models of Hugging Face's `MambaForCausalLM`, turned into ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .. import arguments
from ..lm import RecurrentLM

Tensor = torch.Tensor
NAME = "from_mamba"

THEIRS = {
    "embed": "backbone.embeddings",
    "stack": "backbone",
    "norm": "backbone.norm_f",
    "head": "lm_head",
}

# Where a configuration may leave out what is as in the published models.
DEFAULTS: dict[str, Any] = {
    "model_type": "mamba",
    "state_size": 16,
    "conv_kernel": 4,
    "expand": 2,
    "time_step_rank": "auto",
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}


def from_mamba(model: Any, state_dict: Mapping[str, Tensor] | None = None) -> RecurrentLM:
    """A `RecurrentLM` of `SelectiveSSM` layers with the weights, and so the logits, of a MambaForCausalLM.

    `model` is the transformers model, or its configuration (an object or the dict of its config.json) with
    the model's `state_dict` beside it: transformers itself is then not needed. Weights are copied, each in
    its own dtype and on its own device. In 16 bits the residual stream is that of the weights, where
    transformers keeps it in fp32 if its configuration says `residual_in_fp32`.

    Raises ValueError for another architecture, an activation other than silu, a configuration without a
    size, and weights that are missing, left over or of another shape.
    Source: Gu & Dao, Mamba (arXiv 2312.00752).

    Example:
        >>> import torch
        >>> from models import lm, ssm
        >>> config = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1}
        >>> ours = lm.RecurrentLM(11, 8, 1, "ssm", norm_eps=1e-5)
        >>> state_dict = {ssm.mamba_name(name): p for name, p in ours.named_parameters()}
        >>> tokens = torch.randint(11, (1, 6))
        >>> torch.equal(ssm.from_mamba(config, state_dict)(tokens), ours(tokens))
        True
    """
    if state_dict is None:
        if not hasattr(model, "config") or not hasattr(model, "state_dict"):
            raise ValueError(
                f"{NAME}: model is a {type(model).__name__}, expected a MambaForCausalLM, or its "
                "configuration and a state_dict."
            )
        model, state_dict = model.config, model.state_dict()
    config = _configuration(model)
    made = _started(config)
    weights = {k.replace("backbone.embedding.", "backbone.embeddings."): w for k, w in state_dict.items()}
    if config["tie_word_embeddings"]:
        weights.pop("lm_head.weight", None)
    _copy(made, weights)
    return made


def mamba_name(name: str) -> str:
    """What the parameter `name` of a `RecurrentLM` of `SelectiveSSM` layers is called in transformers.

    Example:
        >>> from models.ssm import mamba_name
        >>> mamba_name("stack.layers.0.mixer.A_log")
        'backbone.layers.0.mixer.A_log'
    """
    first, rest = name.split(".", 1)
    return f"{THEIRS[first]}.{rest}"


def _configuration(given: Any) -> dict[str, Any]:
    """What a configuration says, where it matters here."""
    said = given.to_dict() if hasattr(given, "to_dict") else given
    if not isinstance(said, Mapping):
        raise ValueError(
            f"{NAME}: the configuration is a {type(given).__name__}, expected a MambaConfig or the dict of a "
            "config.json."
        )
    for name in ("vocab_size", "hidden_size", "num_hidden_layers"):
        if name not in said:
            raise ValueError(f"{NAME}: the configuration has no {name!r}: pass that of the model.")
    config = {**DEFAULTS, **said}
    arguments.one_of(NAME, "model_type", config["model_type"], ("mamba",))
    arguments.one_of(NAME, "hidden_act", config["hidden_act"], ("silu", "swish"))
    return config


def _started(config: Mapping[str, Any]) -> RecurrentLM:
    """A model of this configuration, as it starts."""
    mixer_args = {
        "d_state": config["state_size"],
        "d_conv": config["conv_kernel"],
        "expand": config["expand"],
        "dt_rank": config["time_step_rank"],
        "conv_bias": config["use_conv_bias"],
        "bias": config["use_bias"],
    }
    return RecurrentLM(
        config["vocab_size"],
        config["hidden_size"],
        config["num_hidden_layers"],
        "ssm",
        mixer_args=mixer_args,
        norm="rmsnorm",
        norm_eps=config["layer_norm_epsilon"],
        tie_weights=config["tie_word_embeddings"],
    )


def _copy(made: RecurrentLM, weights: Mapping[str, Tensor]) -> None:
    """Every parameter takes its weight, dtype and device included; ties and flags of parameters stay."""
    wanted = {mamba_name(name): p for name, p in made.named_parameters()}
    missing, unknown = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing or unknown:
        raise ValueError(
            f"{NAME}: the state_dict does not fit the configuration: it lacks {missing}, and {unknown} "
            "belong nowhere."
        )
    for name, p in wanted.items():
        if weights[name].shape != p.shape:
            raise ValueError(
                f"{NAME}: {name} has shape {tuple(weights[name].shape)}, and the configuration asks for "
                f"{tuple(p.shape)}."
            )
        p.data = weights[name].detach().clone()
