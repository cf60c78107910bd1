"""The recurrences that are measured with gates and readout: their tensors, and the least bytes they move."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.functional import softplus

import scanforge as sf
from benchmarks.tables import BACKWARD, BOTH, FORWARD, TRAINING
from tests.catalogue import normal, uniform
from tests.recurrences import BY_NAME, Entry, Sizes

BF16 = torch.bfloat16
RG_LRU, MAMBA = BY_NAME["RGLRU"], BY_NAME["Mamba"]
SIZES: dict[str, Sizes] = {
    RG_LRU.name: {"b": 8, "t": 2048, "d": 2048},
    MAMBA.name: {"b": 8, "t": 2048, "d": 2048, "n": 16},
}
TINY: Sizes = {"b": 2, "t": 13, "d": 5, "n": 3}  # in a dry run

Draw = Callable[[Generator, Sizes], dict[str, Tensor]]
Run = Callable[[Entry, dict[str, Tensor], Tensor, str | None], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Layer:
    """A recurrence's tensors. The initial state is given and the final one returned, as in `cases.Work`."""

    entry: Entry
    sizes: Sizes
    inputs: dict[str, Tensor]
    initial: Tensor
    cotangents: tuple[Tensor, Tensor]  # of the output and of the final state
    run: Run
    memory: str | None = None

    def scan(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The output and the final state."""
        return self.run(self.entry, inputs, self.initial, self.memory)

    def trainable(self) -> dict[str, Tensor]:
        return {n: x.detach().requires_grad_() for n, x in self.inputs.items()}

    def gradients(self, results: tuple[Tensor, Tensor], inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Of all inputs, by one backward pass; the graph stays."""
        return torch.autograd.grad(results, list(inputs.values()), self.cotangents, retain_graph=True)

    def call(self, direction: str) -> Callable[[], Any]:
        """What a direction times; a backward pass has its forward pass behind it."""
        if direction == FORWARD:
            return lambda: self.scan(self.inputs)
        inputs = self.trainable()
        if direction == TRAINING:
            return lambda: self.scan(inputs)
        if direction == BOTH:
            return lambda: self.gradients(self.scan(inputs), inputs)
        results = self.scan(inputs)
        return lambda: self.gradients(results, inputs)

    def nbytes(self, direction: str) -> int:
        """Each input read once and the output written once; backward, inputs, its cotangent and gradients."""
        inputs, output = sum(x.nbytes for x in self.inputs.values()), self.cotangents[0].nbytes
        forward, backward = inputs + output, inputs + output + inputs
        return {FORWARD: forward, TRAINING: forward, BACKWARD: backward}.get(direction, forward + backward)

    def resident(self) -> int:
        """The bytes of inputs, output, and the gradients of both."""
        return 2 * sum(x.nbytes for x in (*self.inputs.values(), self.cotangents[0]))


def fused(
    entry: Entry, inputs: dict[str, Tensor], initial: Tensor, memory: str | None
) -> tuple[Tensor, Tensor]:
    """All of it in `sf.scan`."""
    y, final = sf.scan(
        entry.recurrence, **inputs, initial_state=initial, return_final_state=True, memory=memory
    )
    return y, final


def bare(
    entry: Entry, inputs: dict[str, Tensor], initial: Tensor, memory: str | None
) -> tuple[Tensor, Tensor]:
    """RG-LRU's gates as PyTorch operations around the scan of an affine operator.

    The decay stays in fp32, as Λ is: rounded to bf16, 0.999 is 1, and the states are wrong by a fifth.
    """
    x, r, i = inputs["x"], inputs["r"], inputs["i"]
    log_a = -8 * softplus(inputs["Lambda"]) * torch.sigmoid(r)
    multiplier = torch.sqrt(-torch.expm1(2 * log_a)).to(x.dtype)
    b = multiplier * torch.sigmoid(i) * x
    y, final = sf.scan(sf.Affine, a=torch.exp(log_a), b=b, initial_state=initial, return_final_state=True)
    return y.to(x.dtype), final


def draw_rg_lru(g: Generator, sizes: Sizes) -> dict[str, Tensor]:
    """Λ so that a channel with its gate open forgets a thousandth to a tenth in a step, as Griffin begins."""
    tokens = {n: normal(g, RG_LRU.inputs[n].shape(sizes), BF16) for n in ("x", "r", "i")}
    a = 0.9 + 0.099 * uniform(g, (sizes["d"],), torch.float64)
    return tokens | {"Lambda": torch.log(torch.expm1(-a.log() / 8)).float()}


def draw_mamba(g: Generator, sizes: Sizes) -> dict[str, Tensor]:
    """A = -1 .. -n, and a bias with which softplus(dt) is about a thousandth to a tenth, as Mamba begins."""
    drawn = {n: normal(g, MAMBA.inputs[n].shape(sizes), BF16) for n in ("u", "dt", "z", "B", "C")}
    step = torch.exp(math.log(1e-3) + math.log(100) * uniform(g, (sizes["d"],), torch.float64))
    decay = torch.arange(1, sizes["n"] + 1, dtype=torch.float64).log().expand(sizes["d"], -1)
    drawn["dt"] = 0.5 * drawn["dt"]
    own = {"bias": torch.log(torch.expm1(step)), "A_log": decay, "D": torch.ones(sizes["d"])}
    return drawn | {n: x.float().contiguous() for n, x in own.items()}


DRAWS: dict[str, Draw] = {RG_LRU.name: draw_rg_lru, MAMBA.name: draw_mamba}


def prepare(entry: Entry, device: str, *, tiny: bool = False, run: Run = fused) -> Layer:
    """Random tensors, drawn where they are used; the same for every `run`."""
    sizes = {a: min(n, TINY[a]) if tiny else n for a, n in SIZES[entry.name].items()}
    with torch.device(device):
        g = torch.Generator(device).manual_seed(0)
        inputs = DRAWS[entry.name](g, sizes)
        state = next(iter(entry.states.values())).shape(sizes)
        shape = (sizes["b"], sizes["t"], sizes["d"])
        cotangents = normal(g, shape, BF16), normal(g, state, torch.float32)
        return Layer(entry, sizes, inputs, normal(g, state, torch.float32), cotangents, run)
