"""What scanforge and its peers compute side by side: tensors, the truth in float64, the least work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import dtype_name
from benchmarks.tables import BACKWARD, BOTH, FORWARD
from tests.tolerances import TOLERANCES, err

OUTPUT = "output"
QUANTITIES = {FORWARD: "forward", BACKWARD: "gradient", BOTH: "gradient"}


@dataclass(frozen=True)
class Truth:
    """Some entries of the output and of gradients, by name, and how to cut the same from whole tensors."""

    values: dict[str, Tensor]  # "output" and names of inputs
    cut: Callable[[str, Tensor], Tensor]


@dataclass(frozen=True)
class Calls:
    """How one implementation computes a problem. A direction that it lacks says why in `lacks`.

    `read` turns what a call gave into the problem's own tensors, by name: the output, gradients by input.
    """

    calls: dict[str, Callable[[], Any]]  # by direction
    read: Callable[[str, Any], dict[str, Tensor]]
    lacks: dict[str, str] = field(default_factory=dict)
    wait: Callable[[Any], None] | None = None  # for a result, where it is not on torch's stream

    def found(self, direction: str) -> dict[str, Tensor]:
        """What one call gives."""
        return self.read(direction, self.calls[direction]())


@dataclass(frozen=True)
class Problem:
    """One recurrence on one shape."""

    section: str
    operator: str
    size: tuple[int, ...]
    layout: str
    dtype: torch.dtype
    inputs: dict[str, Tensor]
    cotangent: Tensor  # of the output
    find: Callable[[], Truth]
    ours: Callable[[], Calls]
    initial: Tensor | None = None  # state, where it is not 0
    exact: bool = False  # its states are among the inputs
    products: int = 0  # entries of the state, over all steps
    exponentials: int = 0

    def at(self) -> dict[str, Any]:
        """The columns of a row that say which problem it is of."""
        name = dtype_name(self.dtype)
        return {"section": self.section, "operator": self.operator, "size": list(self.size),
                "layout": self.layout, "dtype": name}  # fmt: skip

    @cached_property
    def truth(self) -> Truth:
        return self.find()

    def nbytes(self, direction: str) -> int:
        """Inputs read once, output written once; backward inputs, the output's cotangent, gradients."""
        inputs, output = sum(x.nbytes for x in self.inputs.values()), self.cotangent.nbytes
        forward, backward = inputs + output, 2 * inputs + output
        return {FORWARD: forward, BACKWARD: backward, BOTH: forward + backward}[direction]

    def flops(self, direction: str) -> int:
        """Of the products that no form can do without: two of the state forward, five more backward."""
        return 2 * self.products * {FORWARD: 2, BACKWARD: 5, BOTH: 7}[direction]

    @property
    def bounds(self) -> dict[str, float]:
        """What scanforge may err by: the tests' table."""
        found = {d: TOLERANCES[self.dtype, kind].value for d, kind in QUANTITIES.items()}
        return found | ({FORWARD: 0.0} if self.exact else {})

    def errors(self, direction: str, found: dict[str, Tensor], bounds: dict[str, float]) -> dict[str, float]:
        """Of what a call in a direction gave; an AssertionError where it is wrong."""
        for name, x in found.items():
            assert bool(x.isfinite().all()), f"{_said(name)}: some elements are missing, or no numbers"
        wanted = {OUTPUT} if direction == FORWARD else set(self.inputs)
        assert wanted == set(found), f"only {sorted(found)} were computed, not {sorted(wanted)}"
        errors = {n: err(self.truth.cut(n, found[n]), self.truth.values[n]) for n in sorted(found)}
        for name, error in errors.items():
            allowed = bounds[direction]
            assert error <= allowed, f"{_said(name)} error {error:.2g}, allowed {allowed:.0e}"
        return errors


def own_calls(scan: Callable[..., Tensor], inputs: dict[str, Tensor], cotangent: Tensor) -> Calls:
    """`scan(**inputs)` in every direction; a backward pass has its forward pass behind it."""
    leaves = {n: x.detach().requires_grad_() for n, x in inputs.items()}

    def gradients(y: Tensor, *, keep: bool = False) -> tuple[Tensor, ...]:
        return torch.autograd.grad(y, list(leaves.values()), cotangent, retain_graph=keep)

    made: list[Tensor] = []

    def backward() -> tuple[Tensor, ...]:
        if not made:
            made.append(scan(**leaves))
        return gradients(made[0], keep=True)

    def read(direction: str, found: Any) -> dict[str, Tensor]:
        return {OUTPUT: found} if direction == FORWARD else dict(zip(leaves, found, strict=True))

    calls = {FORWARD: lambda: scan(**inputs), BACKWARD: backward, BOTH: lambda: gradients(scan(**leaves))}
    return Calls(calls, read)


def _said(name: str) -> str:
    return name if name == OUTPUT else f"d{name}"
