"""What a peer is: its name, where it comes from, what it refuses, and its calls for a problem."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from benchmarks.problems import OUTPUT, Calls, Problem
from benchmarks.tables import BOTH, FORWARD

# A peer is compared where it is less exact, too: one that scans in bf16, or splits a tie otherwise.
# Beyond these it computes something else, and has no time.
BOUNDS = {
    torch.float32: {FORWARD: 1e-4, BOTH: 1e-3},
    torch.bfloat16: {FORWARD: 2e-2, BOTH: 6e-2},
}


def nothing(problem: Problem) -> str:
    return ""


def no_gpu() -> str:
    return "" if torch.cuda.is_available() else "it needs a GPU"


@dataclass(frozen=True)
class Peer:
    """Another implementation of some operators.

    `prepare` makes its calls; `refuses` says why it has none for a problem, empty for no reason. `whole`: it
    compiles in its own way, so that a process that compiles ahead calls it as it is.
    """

    name: str
    module: str  # what is imported
    distribution: str  # what is installed
    operators: tuple[str, ...]
    prepare: Callable[[Problem], Calls]
    refuses: Callable[[Problem], str] = nothing
    needs: Callable[[], str] = lambda: ""  # beside its package; why it cannot run, empty for no reason
    whole: bool = False

    def available(self) -> str:
        """Why it cannot run here; empty for no reason."""
        if importlib.util.find_spec(self.module) is None:
            return f"{self.distribution} is not installed"
        return self.needs()

    def version(self) -> str:
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError:
            return ""


def calls(
    forward: Callable[..., Tensor],
    given: dict[str, Tensor],
    cotangent: Tensor,
    output: Callable[[Tensor], Tensor] = lambda y: y,
    gradients: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda found: found,
    lacks: dict[str, str] | None = None,
) -> Calls:
    """Calls of a torch function of tensors in its own form.

    `output` and `gradients` turn what it gives into the problem's tensors; they are not timed.
    """
    leaves = {n: x.detach().requires_grad_() for n, x in given.items()}

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward(**leaves), list(leaves.values()), cotangent)

    def read(direction: str, found: Any) -> dict[str, Tensor]:
        if direction == FORWARD:
            return {OUTPUT: output(found)}
        return gradients(dict(zip(leaves, found, strict=True)))

    made = {FORWARD: lambda: forward(**given), BOTH: both}
    missing = lacks or {}
    return Calls({d: call for d, call in made.items() if d not in missing}, read, missing)
