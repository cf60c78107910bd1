"""One step of a recurrence in a CUDA graph, and what stands beside it: an empty kernel, and a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

import scanforge as sf
from benchmarks.layers import DRAWS, MAMBA
from tests.catalogue import normal
from tests.recurrences import Entry, Sizes
from tests.tolerances import TOLERANCES, err

SETS = 8  # of inputs and states, in turn, as in a model of so many layers
SIZES: dict[int, Sizes] = {b: {"b": b, "t": 1, "d": 2048, "n": 16} for b in (1, 64)}
TINY: Sizes = {"b": 2, "t": 1, "d": 5, "n": 3}


@triton.jit
def empty_kernel(pointer):
    pass


@dataclass(frozen=True)
class Decoding:
    """A step for several layers of one size, each with inputs and a state of its own."""

    entry: Entry
    sizes: Sizes
    inputs: list[dict[str, Tensor]]
    states: list[Tensor]

    def step(self) -> None:
        """Once for each layer; the states are overwritten."""
        with torch.no_grad():
            for inputs, state in zip(self.inputs, self.states, strict=True):
                sf.step(self.entry.recurrence, state, inplace=True, **inputs)

    def check(self) -> float:
        """The error of one step's output and state; an AssertionError beyond the table's bounds."""
        inputs, state = self.inputs[0], self.states[0].clone()
        doubles = {n: x.double() for n, x in inputs.items()}
        doubles = {
            n: x.unsqueeze(1) if "t" in self.entry.inputs[n].axes.split() else x for n, x in doubles.items()
        }
        with torch.device(state.device):
            (y,), (after,) = self.entry.loop(doubles, (state.double(),))
        with torch.no_grad():
            got, final = sf.step(self.entry.recurrence, state, inplace=True, **inputs)
        assert final.data_ptr() == state.data_ptr(), "the state was not written in place"
        errors = err(got, y[:, 0]), err(state, after)
        for error, dtype in zip(errors, (torch.bfloat16, torch.float32), strict=True):
            bound = TOLERANCES[dtype, "forward"].value
            assert error <= bound, f"errors {errors} of output and state, allowed {bound:.0e} in {dtype}"
        return max(errors)

    def nbytes(self) -> int:
        """Of one layer: the state read and written, the inputs read."""
        return 2 * self.states[0].nbytes + sum(x.nbytes for x in self.inputs[0].values())

    def empty(self) -> Callable[[], Any]:
        """As many launches of a kernel that does nothing."""

        def launch() -> None:
            for state in self.states:
                empty_kernel[(1,)](state)

        return launch

    def copies(self) -> Callable[[], Any]:
        """As many copies of as many bytes. By a kernel: a copy in a graph is slower."""
        count, device = self.nbytes() // 8, self.states[0].device
        pairs = [(torch.randn(count, device=device), torch.empty(count, device=device)) for _ in self.states]

        def copy() -> None:
            for source, target in pairs:
                torch.mul(source, 1.0, out=target)

        return copy


def prepare(sizes: Sizes, device: str, entry: Entry = MAMBA) -> Decoding:
    """Random inputs of the ranges of `layers.py`; the parameters are the same for all layers."""
    with torch.device(device):
        g = torch.Generator(device).manual_seed(0)
        drawn = [_one_step(entry, DRAWS[entry.name](g, sizes)) for _ in range(SETS)]
        inputs = [{n: x if n in step else drawn[0][n] for n, x in step.items()} for step in drawn]
        shape = next(iter(entry.states.values())).shape(sizes)
        states = [normal(g, shape, torch.float32) for _ in range(SETS)]
    return Decoding(entry, sizes, inputs, states)


def _one_step(entry: Entry, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: x.squeeze(1) if "t" in entry.inputs[n].axes.split() else x for n, x in inputs.items()}
