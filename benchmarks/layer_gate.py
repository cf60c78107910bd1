"""No speed is reported for a layer that is wrong: outputs and gradients against the loop in float64.

Two cuts of the call that is timed are walked by the loop of `tests/recurrences.py`: some channels of all
sequences, which have every gradient that names a channel, and all channels of one sequence, which have those
that are summed over channels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from benchmarks.gate import poisoned
from benchmarks.layers import BF16, Layer
from benchmarks.tables import FORWARD, TRAINING
from tests.recurrences import Entry
from tests.tolerances import TOLERANCES, err

CUTS = {"d": 4, "b": 1}  # entries of an axis that one cut has


@dataclass(frozen=True)
class Truth:
    """The loop's results for some entries of an axis: output, final state, gradients by input."""

    axis: str
    picks: Tensor
    results: tuple[Tensor, Tensor]
    gradients: dict[str, Tensor]


def truths(layer: Layer) -> list[Truth]:
    """What the layer should give, by both cuts."""
    return [_truth(layer, axis, most) for axis, most in CUTS.items()]


def _truth(layer: Layer, axis: str, most: int) -> Truth:
    entry, device = layer.entry, layer.initial.device
    with torch.device(device):
        size = layer.sizes[axis]
        picks = torch.linspace(0, size - 1, min(most, size)).round().long()
        given = {n: _cut(x, entry.inputs[n].axes, axis, picks) for n, x in layer.inputs.items()}
        inputs = {n: x.double().requires_grad_() for n, x in given.items()}
        (y,), (final,) = entry.loop(inputs, (_cut(layer.initial, _state_axes(entry), axis, picks).double(),))
        seeds = [
            _cut(g, axes, axis, picks).double()
            for g, axes in zip(layer.cotangents, _result_axes(entry), strict=True)
        ]
        found = torch.autograd.grad((y, final), list(inputs.values()), seeds)
    whole = {n: g for n, g in zip(inputs, found, strict=True) if axis in entry.inputs[n].axes.split()}
    return Truth(axis, picks, (y.detach(), final.detach()), whole)


def _state_axes(entry: Entry) -> str:
    return next(iter(entry.states.values())).axes


def _result_axes(entry: Entry) -> tuple[str, str]:
    return entry.outputs[0], _state_axes(entry)


def _cut(x: Tensor, axes: str, axis: str, picks: Tensor) -> Tensor:
    """Some entries of an axis, where the tensor has it."""
    names = axes.split()
    return x.detach().index_select(names.index(axis), picks) if axis in names else x.detach()


def check_forward(layer: Layer, expected: list[Truth], bound: float | None = None) -> float:
    """The largest error of output and final state, with and without what a backward pass needs."""
    with poisoned():
        found = {kind: layer.scan(given) for kind, given in _ways(layer).items()}
    for kind, results in found.items():
        assert all(bool(x.isfinite().all()) for x in results), (
            f"{kind}: some elements are missing, or no numbers"
        )
    errors = {
        f"{part} cut along {truth.axis}, {kind}": err(_cut(x, axes, truth.axis, truth.picks), y)
        for truth in expected
        for kind, results in found.items()
        for part, x, y, axes in zip(
            ("output", "final state"), results, truth.results, _result_axes(layer.entry), strict=True
        )
    }
    return within("forward", errors, bound)


def _ways(layer: Layer) -> dict[str, dict[str, Tensor]]:
    """The inputs of a call that needs no gradient, and of one that does."""
    return {"without gradients": layer.inputs, "with gradients": layer.trainable()}


def check_gradients(layer: Layer, expected: list[Truth], bound: float | None = None) -> float:
    """The largest error of a gradient."""
    inputs = layer.trainable()
    with poisoned():
        found = dict(zip(inputs, layer.gradients(layer.scan(inputs), inputs), strict=True))
    for name, x in found.items():
        assert bool(x.isfinite().all()), f"d{name}: some elements are missing, or no numbers"
    errors = {
        f"d{name} cut along {truth.axis}": err(
            _cut(found[name], layer.entry.inputs[name].axes, truth.axis, truth.picks), y
        )
        for truth in expected
        for name, y in truth.gradients.items()
    }
    compared = {name for truth in expected for name in truth.gradients}
    assert compared == set(inputs), f"only the gradients of {sorted(compared)} were compared"
    return within("gradient", errors, bound)


def within(quantity: str, errors: dict[str, float], bound: float | None) -> float:
    """The largest, if it is within the bound: the table's for bfloat16, where no other is given."""
    allowed = TOLERANCES[BF16, quantity].value if bound is None else bound
    name = max(errors, key=lambda n: errors[n])
    assert errors[name] <= allowed, f"{quantity} error of {name} {errors[name]:.2g}, allowed {allowed:.0e}"
    return errors[name]


@dataclass
class Gated:
    """A layer and its truth, which is found when it is first asked for, and so are the errors."""

    layer: Layer
    bound: float | None = None
    expected: list[Truth] = field(default_factory=list)

    def errors(self, direction: str) -> dict[str, float]:
        """Of what the direction computes; an AssertionError where the layer is wrong."""
        if not self.expected:
            self.expected += truths(self.layer)  # what `replace` made shares it
        found = {"forward": self.forward}
        return found if direction in {FORWARD, TRAINING} else found | {"gradient": self.gradient}

    @cached_property
    def forward(self) -> float:
        return check_forward(self.layer, self.expected, self.bound)

    @cached_property
    def gradient(self) -> float:
        return check_gradients(self.layer, self.expected, self.bound)
