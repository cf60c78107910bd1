"""What the two published versions of the MinMax network do differently, as data."""

from __future__ import annotations

from dataclasses import dataclass

from .. import arguments

GATES = ("sigmoid", "linear")
NEURON_INPUTS = ("conv+ffn", "ffn")


@dataclass(frozen=True, slots=True)
class Version:
    """The equations, initialisation and defaults of one version of the minmaxrnc package.

    gate          of the neuron's output: "sigmoid" is σ(W_g u + b_g), "linear" is W_g u + b_g
    neuron_input  the neuron reads norm(u + c + f), "conv+ffn", or norm(u + f), "ffn"
    fan_in        wang_init_ of W_o and of the feedforward's W_down by their own widths, small_init_init_ of
                  W_g; else wang_init_ by d_model, and torch's own initialisation of W_g
    conv_type, conv_init, ffn_dropout   what a configuration has that does not name them
    """

    gate: str
    neuron_input: str
    fan_in: bool
    conv_type: str
    conv_init: str
    ffn_dropout: float


VERSIONS = {
    "0.1.0": Version("linear", "ffn", False, "gated", "default", 0.0),
    "0.3.0": Version("sigmoid", "conv+ffn", True, "basic", "scaled", 0.1),
}
LATEST = "0.3.0"


def check(where: str, version: object) -> None:
    """`version` is one of those that there are."""
    arguments.one_of(where, "version", version, VERSIONS)
