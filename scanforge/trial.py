"""A call on random tensors, whose passes run one by one with a choice forced, and what they must give.

A choice is right if its results are those of the shipped kernel and of the loop in float64 on the same
numbers, to within a few times what the shipped kernel's own rounding is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from scanforge import launch, launch_triton
from scanforge.declare import Operator
from scanforge.example import Example, fields_of
from scanforge.launch import Options
from scanforge.pipeline import Wanted, kernel_adjoint
from scanforge.plan import Choice
from scanforge.prepared import prepare
from scanforge.recurrence import Recurrence
from scanforge.timing import LARGE
from scanforge.tuned import BACKWARD, FORWARD, KEEPING, forcing
from scanforge.validate import SEED, draw

Tensor = torch.Tensor
TIMES = 8  # the shipped kernel's own error that another order of sums may have
ROUNDINGS = 2  # of a result to its dtype
STEPS = 64  # roundings of fp32 that steps may add


class Trial:
    """A call of these sizes on a device."""

    def __init__(
        self, operator: type[Operator] | type[Recurrence], example: Example, dtype: torch.dtype, device: str
    ) -> None:
        random = torch.Generator().manual_seed(SEED)
        tensors = {}
        for f in fields_of(example.declared):
            x = draw(f.kind, f.domain, example.tensors[f.name].shape, random).detach()
            tensors[f.name] = x.to(device, dtype) if x.is_floating_point() else x.to(device)
        initial = example.initial and tuple(torch.zeros(x.shape, device=device) for x in example.initial)
        self.call = prepare(operator, tensors, initial)
        self.options = Options(False, "", self.call.dtype, "triton")
        scan = self.call.scan
        floats = [frozenset(x.name for x in of if x.kind == "float") for of in (scan.inputs, scan.outputs)]
        self.wanted = Wanted(floats[0], floats[1], bool(scan.states))
        self.adjoint = kernel_adjoint(self.call.text, self.wanted)
        self.usual: dict[str, list[Tensor]] = {}

    def run(self, way: str, choice: Choice | None) -> list[Tensor]:
        """The results of a pass: outputs and final states, or gradients of inputs and initial states."""
        if way == BACKWARD:
            prior, seeds, cotangents = self.kept, self.seeds, self.cotangents
            with forcing({way: choice}):
                slopes, ends = launch_triton.backward(
                    self.call.text, self.wanted, self.call.inputs, prior, cotangents, seeds, self.options
                )
            return [*slopes, *ends]
        with forcing({way: choice}):
            found = launch_triton.forward(
                self.call.text, self.call.inputs, self.call.initial, self.options, way == KEEPING
            )
        return [*found.outputs, *found.finals, *found.kept]

    @cached_property
    def kept(self) -> list[Tensor]:
        """What the shipped forward pass keeps for the backward pass."""
        with forcing({}):
            found = launch_triton.forward(
                self.call.text, self.call.inputs, self.call.initial, self.options, True
            )
        return found.kept or [x[None] for x in self.call.initial]

    @cached_property
    def seeds(self) -> list[Tensor]:
        """The cotangents of the final states: none."""
        starts = dict(zip((s.name for s in self.call.scan.states), self.call.initial, strict=True))
        return [torch.zeros_like(starts[state]) for state, _ in self.adjoint.initial]

    @cached_property
    def cotangents(self) -> list[Tensor]:
        """Random ones of the outputs, in their dtypes."""
        random = torch.Generator().manual_seed(SEED + 1)
        with forcing({}):
            found = launch_triton.forward(
                self.call.text, self.call.inputs, self.call.initial, self.options, False
            )
        outputs = dict(zip((o.name for o in self.call.scan.outputs), found.outputs, strict=True))
        made = [outputs[name] for name, _ in self.adjoint.cotangents]
        return [torch.randn(x.shape, generator=random, dtype=torch.float64).to(x) for x in made]

    @cached_property
    def truth(self) -> dict[str, list[Tensor]]:
        """The same of the loop in float64, under torch's autograd; what is kept is not in it."""
        with torch.enable_grad():
            return self.of_loop(_doubled(self.call.inputs), _doubled(self.call.initial))

    def of_loop(self, inputs: list[Tensor], initial: list[Tensor]) -> dict[str, list[Tensor]]:
        """The results of the loop on these tensors."""
        call = self.call
        options = Options(False, "loop", torch.float64)
        outputs, finals, _ = launch.evaluate(call.text, inputs, initial, "loop", options)
        found = {FORWARD: [*outputs, *finals], KEEPING: [*outputs, *finals]}
        if not self.adjoint.gradients:
            return found
        by_name = dict(zip((o.name for o in call.scan.outputs), outputs, strict=True))
        starts = dict(zip((s.name for s in call.scan.states), initial, strict=True))
        given = dict(zip((i.name for i in call.scan.inputs), inputs, strict=True))
        leaves = [given[i] for i, _ in self.adjoint.gradients] + [starts[s] for s, _ in self.adjoint.initial]
        read = [by_name[o] for o, _ in self.adjoint.cotangents]
        cotangents = [x.double() for x in self.cotangents]
        slopes = torch.autograd.grad(read, leaves, cotangents, materialize_grads=True)
        return found | {BACKWARD: list(slopes)}

    def wrong(self, way: str, choice: Choice) -> str:
        """What is wrong with a choice's results, empty if nothing is."""
        usual, mine = self.shipped(way), self.run(way, choice)
        true = [*self.truth[way], *usual[len(self.truth[way]) :]]  # of states that are kept
        own = max((_apart(x, y) for x, y in zip(usual, true, strict=True)), default=0.0)
        for k, x in enumerate(mine):
            bound = TIMES * own + ROUNDINGS * _eps(x.dtype) + STEPS * torch.finfo(torch.float32).eps
            for other, name in ((true[k], "the loop's in float64"), (usual[k], "the shipped kernel's")):
                error = _apart(x, other)
                if not error <= bound:
                    return f"result {k} is {error:.1e} apart from {name}, where {bound:.1e} is rounding"
        return ""

    def shipped(self, way: str) -> list[Tensor]:
        """The results of the shipped kernels."""
        if way not in self.usual:
            self.usual[way] = self.run(way, None)
        return self.usual[way]


def _doubled(tensors: Sequence[Tensor]) -> list[Tensor]:
    """In float64, and asking for gradients."""
    return [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in tensors]


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def _apart(x: Tensor, other: Tensor) -> float:
    """The largest distance of two numbers, relative beyond 1; NaN where one of them alone is a NaN."""
    a, b = x.detach().double(), other.detach().double()
    far = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs() / (1 + b.abs()))
    far = far[~(b.abs() >= LARGE)]
    return float(far.max()) if far.numel() else 0.0
