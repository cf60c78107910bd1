"""Every layer of `models` in one process, kept, and the same layer on the ranks of a group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import models
from models import MinMaxNeuronConfig, RecurrentLM
from models.mixer import tensors
from models.named import MIXERS
from tests.catalogue import chance, generator
from tests.models.protocol import rows, seeded
from tests.models.test_lm_mixers import ARGS
from tests.reference.compare import cotangent
from tests.tolerances import assert_close

D, VOCABULARY = 8, 11
NEURON = MinMaxNeuronConfig(1, D, 5, train_init=True)
BACKBONE = models.MinMaxRNCConfig(D, 2, 4, ffn_dropout=0.0)
SHARES = {"num_heads": 2, "conv_size": 4}


def _language_model(name: str, **slow: Any) -> RecurrentLM:
    args = ARGS[name] | slow
    return RecurrentLM(VOCABULARY, D, 2, name, mixer_args=args, ffn="gated", init_std=0.5)


LAYERS: dict[str, Callable[[], Any]] = {
    "MinMaxNeuron": lambda: models.MinMaxNeuron(NEURON),
    "GatedConv": lambda: models.GatedConv(models.GatedConvConfig(D)),
    "BasicConv": lambda: models.BasicConv(models.BasicConvConfig(D)),
    "MinMaxLayer": lambda: models.MinMaxLayer(BACKBONE.layer_cfg),
    "MinMaxRNC": lambda: models.MinMaxRNC(BACKBONE),
    "MinMaxRNC_LM": lambda: models.MinMaxRNC_LM(VOCABULARY, models.MinMaxRNCLMConfig(BACKBONE)),
    "MultiScaleSSM": lambda: models.MultiScaleSSM(D, 2, 3),
    "SelectiveSSM": lambda: models.SelectiveSSM(D, 3, n_groups=2),
    "RGLRU": lambda: models.RGLRU(D, unit_start=True),
    "RecurrentBlock": lambda: models.RecurrentBlock(D, num_heads=2),
    "HGRN2": lambda: models.HGRN2(D, **SHARES),
    "HGRN2Attention": lambda: models.HGRN2Attention(hidden_size=D, **SHARES),
    "bidirectional": lambda: models.HGRN2Attention(hidden_size=D, bidirectional=True, **SHARES),
    **{f"RecurrentLM {name}": lambda name=name: _language_model(name) for name in MIXERS},
}

# Gates that forget a ten-thousandth a step, or nothing: errors of a carry stay.
SLOW: dict[str, Callable[[], Any]] = {
    "minmax": lambda: _language_model("minmax"),
    "rglru": lambda: _language_model("rglru", a_init_range=(0.9999, 0.9999), c=1.0),
    "griffin": lambda: _language_model("griffin", a_init_range=(0.9999, 0.9999), c=1.0),
    "ssm": lambda: _language_model("ssm", dt_min=1e-4, dt_max=1e-4, dt_scale=0.0),
    "multiscale": lambda: _faded(_language_model("multiscale")),
    "hgrn2": lambda: _language_model("hgrn2", lower_bound=0.9999, conv_size=4),
    "HGRN2Attention": lambda: models.HGRN2Attention(hidden_size=D, lower_bound=0.9999, **SHARES),
    "MinMaxRNC": lambda: models.MinMaxRNC(BACKBONE),
}


def _faded(model: RecurrentLM) -> RecurrentLM:
    with torch.no_grad():
        for layer in model.stack.layers:
            layer.mixer.A_log.sub_(9.0)
    return model


@dataclass
class LayerRun:
    """A layer's call, and what one process makes of it."""

    name: str
    steps: int
    slow: bool = False
    carried: bool = False  # whether it goes on from a state
    flags: dict[str, Tensor] = field(default_factory=dict)
    y: Tensor | None = None
    after: Any = None
    gradients: list[Tensor] = field(default_factory=list)

    def layer(self) -> Any:
        return seeded((SLOW if self.slow else LAYERS)[self.name])()

    def inputs(self, layer: Any) -> tuple[Tensor, Any]:
        """x or tokens, and the state to go on from."""
        batch, sequences = (1, self.flags["cu_seqlens"].numel() - 1) if "cu_seqlens" in self.flags else (2, 2)
        if getattr(layer, "vocab_size", None):
            x = torch.randint(VOCABULARY, (batch, self.steps), generator=generator(1))
        else:
            x = torch.randn(batch, self.steps, D, dtype=torch.float64, generator=generator(1))
        if not self.carried:
            return x, None
        made = layer.initial_state(sequences)
        noise = generator(2)
        state = rows(made, lambda s: s.detach() + torch.randn(s.shape, generator=noise, dtype=s.dtype))
        return x, _with_flags_of_its_own(state)

    def run(self, layer: Any, x: Tensor, state: Any, **options: Any) -> tuple[Tensor, Any]:
        if getattr(layer, "bidirectional", False):
            return layer(x, **options), {}
        return layer(x, state=state, return_state=True, **options)

    def solved(self) -> LayerRun:
        """With the results of one process."""
        layer = self.layer()
        x, state = self.inputs(layer)
        x = x.requires_grad_(x.is_floating_point())
        y, after = self.run(layer, x, state, **self.flags)
        found = _gradients(layer, x, [y, *tensors(after)], [cotangent(z, k) for k, z in _numbered(y, after)])
        return replace(self, y=y.detach(), after=rows(after, torch.detach), gradients=found)


def _with_flags_of_its_own(state: Any) -> Any:
    """RG-LRU's `started` is 0 or 1."""
    if isinstance(state, dict):
        return {n: (s > 0).to(s) if n == "started" else _with_flags_of_its_own(s) for n, s in state.items()}
    return [_with_flags_of_its_own(s) for s in state] if isinstance(state, list) else state


def _numbered(y: Tensor, after: Any) -> list[tuple[int, Tensor]]:
    return list(enumerate([y, *tensors(after)]))


def _gradients(layer: Any, x: Tensor, results: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
    """By x if it is differentiable, then by every parameter; 0 where nothing depends on one."""
    leaves = ([x] if x.requires_grad else []) + list(layer.parameters())
    read = [(z, w) for z, w in zip(results, weights, strict=True) if z.requires_grad]
    outputs, given = zip(*read, strict=True)
    found = torch.autograd.grad(outputs, leaves, given, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(leaves, found, strict=True)]


def check_layer(run: LayerRun, shards: list[int], rank: int, group: Any, device: str = "cpu") -> None:
    """This rank's part equals the one process's run; parameters' gradients do once they are summed."""
    assert sum(shards) == run.steps
    begin, end, last = sum(shards[:rank]), sum(shards[: rank + 1]), rank == len(shards) - 1
    layer = run.layer().to(device)
    x, state = run.inputs(run.layer())
    state = None if state is None else rows(state, lambda s: s.to(device))
    own = x[:, begin:end].to(device, copy=True).requires_grad_(x.is_floating_point())
    if rank:  # not read
        state = rows(state, lambda s: torch.full_like(s, 7)) if run.carried else None
    flags = {n: (f if n == "cu_seqlens" else f[:, begin:end]).to(device) for n, f in run.flags.items()}
    y, after = run.run(layer, own, state, sequence_group=group, **flags)
    what = f"{run.name}, rank {rank} of {shards}, {[*flags]}{', carried' if run.carried else ''}"
    assert run.y is not None
    assert_close(y.cpu(), run.y[:, begin:end], "forward", what)
    if last:
        for k, (s, whole) in enumerate(zip(tensors(after), tensors(run.after), strict=True)):
            assert_close(s.cpu(), whole, "forward", f"{what}: state {k}")
    weights = [cotangent(run.y, 0)[:, begin:end]]
    weights += [cotangent(whole, 1 + k) * last for k, whole in enumerate(tensors(run.after))]
    found = _gradients(layer, own, [y, *tensors(after)], [w.to(device) for w in weights])
    wanted = list(run.gradients)
    if own.requires_grad:
        assert_close(found.pop(0).cpu(), wanted.pop(0)[:, begin:end], "gradient", f"{what}: x")
    for (name, _), g, whole in zip(layer.named_parameters(), found, wanted, strict=True):
        dist.all_reduce(g, group=group)
        assert_close(g.cpu(), whole, "gradient", f"{what}: {name}")


def boundaries(steps: int) -> list[dict[str, Tensor]]:
    """Resets and padding around the borders of shards; packed sequences that span ranks, some empty."""
    reset, mask = chance(generator(3), (2, steps), 0.15), chance(generator(4), (2, steps), 0.6)
    cu = torch.tensor([0, 0, 2, steps - 5, steps - 5, steps])
    row = {"reset": reset[:1], "mask": mask[1:], "cu_seqlens": cu}
    return [{}, {"reset": reset, "mask": mask}, {"cu_seqlens": cu}, row]
