"""The list of operators that every suite walks: what to draw for them, and what may be asked of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

import scanforge as sf
from tests.loops import INITIAL, lanes, loop, prefix_loop

INF = float("inf")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One operator of the catalogue.

    `draw(generator, shape, dtype)` gives its leaves, `draw_initial` its states in declared order.
    """

    operator: type[sf.Operator]
    draw: Callable[[Generator, Shape, torch.dtype], dict[str, Tensor]]
    draw_initial: Callable[[Generator, Shape, torch.dtype], tuple[Tensor, ...]]
    float_leaves: tuple[str, ...]
    states: tuple[str, ...]
    float_states: tuple[str, ...]
    selects: bool = False  # only chooses among its inputs: bitwise exact in every dtype and order
    vector: bool = False  # a step mixes its states, so that their errors are relative to the length of all
    exact_on_grid: bool = (
        False  # exact in float64 on quarter integers, so that ties are the same in every order
    )

    @property
    def name(self) -> str:
        return self.operator.__name__

    def loop(
        self, tensors: dict[str, Tensor], initial: tuple[Tensor, ...] | None = None, reverse: bool = False
    ):
        """The sequential truth: `(states, finals)`."""
        return loop(self.name, tensors, initial, reverse)

    def prefix_loop(self, tensors: dict[str, Tensor], reverse: bool = False) -> dict[str, Tensor]:
        """The sequential truth of the composed elements."""
        return prefix_loop(self.name, tensors, reverse)

    def float_outputs(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Those of `outputs`, one for each state, that can carry a gradient."""
        return tuple(x for name, x in zip(self.states, outputs, strict=True) if name in self.float_states)


def normal(g: Generator, shape: Shape, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)


def uniform(g: Generator, shape: Shape, dtype: torch.dtype) -> Tensor:
    return torch.rand(shape, generator=g, dtype=torch.float64).to(dtype)


def chance(g: Generator, shape: Shape, p: float) -> Tensor:
    return torch.rand(shape, generator=g) < p


def modulus(g: Generator, shape: Shape) -> Tensor:
    """Gate moduli in float64: a quarter each of 1, 0.9999, [0, 1) and [0.5, 1); a few exactly 0."""
    kind = torch.randint(4, shape, generator=g)
    some = torch.rand(shape, generator=g, dtype=torch.float64)
    gate = torch.where(kind == 2, some, 0.5 + some / 2)
    gate = torch.where(kind == 0, 1.0, torch.where(kind == 1, 0.9999, gate))
    return torch.where(chance(g, shape, 0.03), 0.0, gate)


def draw_affine(g: Generator, shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    sign = torch.where(chance(g, shape, 0.5), 1.0, -1.0)
    return {"a": (sign * modulus(g, shape)).to(dtype), "b": normal(g, shape, dtype)}


def draw_min_max(g: Generator, shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    """Bounds in both orders, and open ones."""
    r, s = 0.5 + normal(g, shape, dtype), normal(g, shape, dtype) - 0.5
    return {"r": torch.where(chance(g, shape, 0.2), INF, r), "s": torch.where(chance(g, shape, 0.2), -INF, s)}


def draw_running_max(g: Generator, shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    value = torch.where(chance(g, shape, 0.1), -INF, normal(g, shape, dtype))
    time = torch.arange(shape[1]).reshape(1, -1, *[1] * (len(shape) - 2))
    return {"value": value, "index": time.expand(shape).contiguous()}


def draw_log_sum_exp(g: Generator, shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        "m": torch.where(chance(g, shape, 0.1), -INF, 3 * normal(g, shape, dtype)),
        "s": uniform(g, shape, dtype),
    }


def draw_last_flagged(g: Generator, shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    flag = torch.randint(1, 3, shape, generator=g, dtype=torch.int32)
    return {"flag": torch.where(chance(g, shape, 0.3), flag, 0), "value": normal(g, shape, dtype)}


def draw_complex_affine(g: Generator, shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    size, phase = modulus(g, shape), 2 * math.pi * uniform(g, shape, torch.float64)
    return {
        "a_re": (size * phase.cos()).to(dtype),
        "a_im": (size * phase.sin()).to(dtype),
        "b_re": normal(g, shape, dtype),
        "b_im": normal(g, shape, dtype),
    }


def draw_matrix_2x2(g: Generator, shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    """Rotations and reflections, which do not commute, shrunk by a modulus of at most 1."""
    size, phase = modulus(g, shape), 2 * math.pi * uniform(g, shape, torch.float64)
    mirror = torch.where(chance(g, shape, 0.5), 1.0, -1.0)
    cos, sin = size * phase.cos(), size * phase.sin()
    entries = {"m00": cos, "m01": -mirror * sin, "m10": sin, "m11": mirror * cos}
    return {name: entry.to(dtype) for name, entry in entries.items()}


def draw_max_plus(g: Generator, shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        "a": 0.5 * normal(g, shape, dtype),
        "b": torch.where(chance(g, shape, 0.2), -INF, normal(g, shape, dtype)),
    }


def draw_kalman(g: Generator, shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        "gain": (2 * uniform(g, shape, torch.float64) - 1).to(dtype),
        "offset": normal(g, shape, dtype),
        "noise": uniform(g, shape, dtype),
        "eta": normal(g, shape, dtype),
        "info": uniform(g, shape, dtype),
    }


def draw_normals(count: int):
    """`count` float states, each normal."""
    return lambda g, shape, dtype: tuple(normal(g, shape, dtype) for _ in range(count))


CASES = (
    Case(sf.operators.Affine, draw_affine, draw_normals(1), ("a", "b"), ("h",), ("h",)),
    Case(
        sf.operators.MinMax,
        draw_min_max,
        draw_normals(1),
        ("r", "s"),
        ("x",),
        ("x",),
        selects=True,
        exact_on_grid=True,
    ),
    Case(
        sf.operators.RunningMax,
        draw_running_max,
        lambda g, shape, dtype: (normal(g, shape, dtype), torch.randint(-9, -1, shape, generator=g)),
        ("value",),
        ("top", "at"),
        ("top",),
        selects=True,
        exact_on_grid=True,
    ),
    Case(
        sf.operators.LogSumExp,
        draw_log_sum_exp,
        lambda g, shape, dtype: (normal(g, shape, dtype), uniform(g, shape, dtype)),
        ("m", "s"),
        ("top", "total"),
        ("top", "total"),
    ),
    Case(
        sf.operators.LastFlagged,
        draw_last_flagged,
        draw_normals(1),
        ("value",),
        ("last",),
        ("last",),
        selects=True,
        exact_on_grid=True,
    ),
    Case(
        sf.operators.ComplexAffine,
        draw_complex_affine,
        draw_normals(2),
        ("a_re", "a_im", "b_re", "b_im"),
        ("h_re", "h_im"),
        ("h_re", "h_im"),
    ),
    Case(
        sf.operators.Matrix2x2,
        draw_matrix_2x2,
        draw_normals(2),
        ("m00", "m01", "m10", "m11"),
        ("x0", "x1"),
        ("x0", "x1"),
        vector=True,
    ),
    Case(
        sf.operators.MaxPlus, draw_max_plus, draw_normals(1), ("a", "b"), ("x",), ("x",), exact_on_grid=True
    ),
    Case(
        sf.operators.Kalman,
        draw_kalman,
        lambda g, shape, dtype: (normal(g, shape, dtype), uniform(g, shape, dtype)),
        ("gain", "offset", "noise", "eta", "info"),
        ("mean", "var"),
        ("mean", "var"),
    ),
)

BY_NAME = {case.name: case for case in CASES}


def on_grid(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The float tensors rounded to quarters, so that many are equal."""
    return {name: (x * 4).round() / 4 if x.is_floating_point() else x for name, x in tensors.items()}


def generator(seed: int) -> Generator:
    return torch.Generator().manual_seed(seed)


def draw(case: Case, shape: Shape, dtype: torch.dtype = torch.float64, seed: int = 0):
    """`(leaves, initial states)` of one case; time is axis 1 of `shape`."""
    g = generator(seed)
    leaves = case.draw(g, shape, dtype)
    return leaves, case.draw_initial(g, lanes(next(iter(leaves.values()))), dtype)


assert set(BY_NAME) == set(INITIAL)
