"""The rows that are measured, and what each moves at the least."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import scanforge as sf
from tests import catalogue

FORWARD, TRAINING, BACKWARD = "forward", "forward, training", "backward"
DIRECTIONS = (FORWARD, TRAINING, BACKWARD)
ELEMENTWISE = ("Affine", "MinMax")
SIZES = ((8, 2048, 2048), (32, 512, 2048), (8, 4096, 1024))  # b, t, d: 33.6 million elements each
LONG = (1, 65536, 1024)
FLOATS = (torch.float32, torch.bfloat16)
TINY = (2, 37, 16)  # at most, in a dry run


@dataclass(frozen=True)
class Row:
    """One operator on one shape; `layout` "btd" has the lanes contiguous, "bdt" time."""

    operator: str
    size: tuple[int, int, int]  # b, t, d whatever the layout
    dtype: torch.dtype
    layout: str = "btd"

    @property
    def shape(self) -> tuple[int, int, int]:
        b, t, d = self.size
        return (b, t, d) if self.layout == "btd" else (b, d, t)

    @property
    def dim(self) -> int:
        """The time axis."""
        return self.layout.index("t")

    def __str__(self) -> str:
        return f"{self.operator} {'x'.join(map(str, self.shape))} {self.layout} {dtype_name(self.dtype)}"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def rows() -> list[Row]:
    """All of them, the most telling first."""
    two = [Row(name, size, dtype) for size in (*SIZES, LONG) for dtype in FLOATS for name in ELEMENTWISE]
    turned = [Row(name, SIZES[0], dtype, "bdt") for dtype in FLOATS for name in ELEMENTWISE]
    others = [c.name for c in catalogue.CASES if c.name not in ELEMENTWISE]
    return [*two, *turned, *(Row(name, SIZES[0], torch.float32) for name in others)]


def tiny(row: Row) -> Row:
    """The same row small enough for the reference on a CPU."""
    b, t, d = (min(n, most) for n, most in zip(row.size, TINY, strict=True))
    return Row(row.operator, (b, t, d), row.dtype, row.layout)


@dataclass(frozen=True)
class Work:
    """A row's tensors. Initial states are given and final states returned, so that a call is its kernels."""

    row: Row
    leaves: dict[str, Tensor]
    initial: tuple[Tensor, ...]  # in float32, and ints
    cotangents: tuple[Tensor, ...]  # of the float states, then of the float final states

    @property
    def case(self) -> catalogue.Case:
        return catalogue.BY_NAME[self.row.operator]

    def scan(self, leaves: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """`sf.scan`: all states, then all final states."""
        initial = self.initial if len(self.initial) > 1 else self.initial[0]
        states, finals = sf.scan(
            self.case.operator, **leaves, dim=self.row.dim, initial_state=initial, return_final_state=True
        )
        return (states, finals) if isinstance(states, Tensor) else (*states, *finals)

    def floats(self, results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Those of `scan`'s results that have a gradient."""
        count = len(self.case.states)
        return self.case.float_outputs(results[:count]) + self.case.float_outputs(results[count:])

    def trainable(self) -> dict[str, Tensor]:
        """The leaves, the float ones with `requires_grad`."""
        learnt = self.case.float_leaves
        return {n: x.detach().requires_grad_() if n in learnt else x for n, x in self.leaves.items()}

    def gradients(self, results: tuple[Tensor, ...], leaves: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """Of the float leaves, by one backward pass; the graph stays."""
        wanted = [leaves[n] for n in self.case.float_leaves]
        return torch.autograd.grad(self.floats(results), wanted, self.cotangents, retain_graph=True)

    def call(self, direction: str) -> Callable[[], Any]:
        """What a direction times, of the leaves alone; a backward pass has its forward pass behind it."""
        if direction == FORWARD:
            return lambda: self.scan(self.leaves)
        leaves = self.trainable()
        if direction == TRAINING:
            return lambda: self.scan(leaves)
        results = self.scan(leaves)
        return lambda: self.gradients(results, leaves)

    def nbytes(self, direction: str) -> int:
        """The least to move: each input read once, each output written once.

        A backward pass reads the inputs and the cotangents and writes the gradients. What a training pass
        keeps is extra, and so is reading it: a way to keep less would be worth as much as a faster kernel.
        """
        inputs = sum(x.nbytes for x in self.leaves.values())
        if direction == BACKWARD:
            gradients = sum(self.leaves[n].nbytes for n in self.case.float_leaves)
            return inputs + gradients + sum(x.nbytes for x in self.cotangents[: len(self.case.float_states)])
        outputs = {"float": self.row.dtype.itemsize, "int": 8}
        lanes = self.leaves[self.case.float_leaves[0]].numel()
        kinds = ["float" if s in self.case.float_states else "int" for s in self.case.states]
        return inputs + lanes * sum(outputs[kind] for kind in kinds)


def prepare(row: Row, device: str, seed: int = 0) -> Work:
    """Random tensors of the catalogue's ranges, drawn where they are used."""
    case, (b, _, d) = catalogue.BY_NAME[row.operator], row.size
    with torch.device(device):
        generator = torch.Generator(device).manual_seed(seed)
        leaves = DRAWS.get(row.operator, case.draw)(generator, row.size, row.dtype)
        # Drawn in the row's dtype, so that an output can hold it: what only selects is then exact.
        initial = case.draw_initial(generator, (b, d), row.dtype)
        if case.exact_on_grid and not case.selects:  # else rounding may choose another branch of a maximum
            leaves, start = catalogue.on_grid(leaves), catalogue.on_grid(dict(enumerate(initial)))
            initial = tuple(start.values())
        initial = tuple(x.float() if x.is_floating_point() else x for x in initial)
        leaves = {n: x.contiguous() if row.layout == "btd" else _turned(x) for n, x in leaves.items()}
        kinds = (row.dtype,) * len(case.float_states) + (torch.float32,) * len(case.float_states)
        shapes = (row.shape,) * len(case.float_states) + ((b, d),) * len(case.float_states)
        cotangents = tuple(
            catalogue.normal(generator, shape, dtype) for shape, dtype in zip(shapes, kinds, strict=True)
        )
    return Work(row, leaves, initial, cotangents)


def _turned(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous()


def draw_isometries(g: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
    """The catalogue's matrices without its gates of 0, after which a product stays 0 to the end."""
    phase = 2 * torch.pi * catalogue.uniform(g, shape, torch.float64)
    mirror = torch.where(catalogue.chance(g, shape, 0.5), 0.99, -0.99)
    cos, sin = 0.99 * phase.cos(), 0.99 * phase.sin()
    entries = {"m00": cos, "m01": -mirror * phase.sin(), "m10": sin, "m11": mirror * phase.cos()}
    return {name: entry.to(dtype) for name, entry in entries.items()}


DRAWS = {"Matrix2x2": draw_isometries}
