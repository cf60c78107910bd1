"""Operators by themselves, on the shapes that are aimed at, and over lengths of time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import scanforge as sf
from benchmarks import truths
from benchmarks.cases import Row
from benchmarks.problems import OUTPUT, Problem, Truth, own_calls

OPERATORS: dict[str, type[sf.Operator]] = {
    "Affine": sf.operators.Affine,
    "MinMax": sf.operators.MinMax,
    "MaxPlus": sf.operators.MaxPlus,
}
WIDE = ((8, 2048, 2048), (32, 512, 2048), (8, 4096, 1024), (8, 2049, 2000))  # b, t, d: lanes fill the device
LONG = ((1, 65536, 1024), (1, 1048576, 64), (2, 8192, 512))  # they do not
TURNED = ((8, 2048, 2048), (1, 65536, 1024), (32, 512, 2048))  # with time contiguous
FLOATS = (torch.float32, torch.bfloat16)
LENGTHS = tuple(2**n for n in range(10, 21))
SERIES_LANES = 1024
TINY = (2, 37, 16)
LANES = 32  # that are compared


def rows() -> list[Row]:
    """The most telling first."""
    found = [Row(name, size, dtype) for size in (*WIDE, *LONG) for dtype in FLOATS for name in OPERATORS]
    return found + [Row(name, s, dtype, "bdt") for s in TURNED for dtype in FLOATS for name in OPERATORS]


def series() -> list[Row]:
    """Affine over lengths of time, its lanes the same; (b, t, d)."""
    return [Row("Affine", (1, t, SERIES_LANES), dtype) for dtype in FLOATS for t in LENGTHS]


def prepare(row: Row, device: str, section: str = "bare") -> Problem:
    """Random leaves. The initial state is given and the final one returned, so that a call is its kernels."""
    with torch.device(device):
        g = torch.Generator(device).manual_seed(0)
        (b, _, d), dtype = row.size, row.dtype
        inputs = {n: x.to(dtype) for n, x in DRAWS[row.operator](g, row.shape).items()}
        x0 = {"Affine": torch.zeros, "MinMax": partial(torch.randn, generator=g)}.get(row.operator)
        initial = x0(b, d).to(dtype).float() if x0 else torch.full((b, d), float("-inf"))
        cotangent = torch.randn(row.shape, generator=g).to(dtype)
    operator, options = OPERATORS[row.operator], {"initial_state": initial, "dim": row.dim}

    def scan(**leaves: Tensor) -> Tensor:
        return sf.scan(operator, **leaves, **options, return_final_state=True)[0]

    return Problem(
        section=section,
        operator=row.operator,
        size=row.size,
        layout=row.layout,
        dtype=dtype,
        inputs=inputs,
        cotangent=cotangent,
        find=partial(_truth, row, inputs, initial, cotangent),
        ours=partial(own_calls, scan, inputs, cotangent),
        initial=initial,
        exact=row.operator == "MinMax",
    )


Draw = Callable[[torch.Generator, tuple[int, ...]], dict[str, Tensor]]


def draw_affine(g: torch.Generator, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Decays of 0.93 in the mean, none of which is 0: some peers take their logarithms."""
    return {
        "a": torch.sigmoid(torch.randn(shape, generator=g) + 3),
        "b": torch.randn(shape, generator=g),
    }


def draw_min_max(g: torch.Generator, shape: tuple[int, ...]) -> dict[str, Tensor]:
    return {n: torch.randn(shape, generator=g) for n in ("r", "s")}


def draw_max_plus(g: torch.Generator, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """On a grid, where sums are exact: what a maximum takes is then the same in any order."""
    a = torch.rand(shape, generator=g).mul_(256).floor_().div_(-256)
    return {"a": a, "b": torch.randn(shape, generator=g).mul_(32).round_().div_(32).clamp_(-3.75, 3.75)}


DRAWS: dict[str, Draw] = {"Affine": draw_affine, "MinMax": draw_min_max, "MaxPlus": draw_max_plus}


def _truth(row: Row, inputs: dict[str, Tensor], initial: Tensor, cotangent: Tensor) -> Truth:
    b, _, d = row.size
    some = torch.randint(b * d, (LANES - 2,), generator=torch.Generator().manual_seed(1))
    flat = torch.cat([torch.tensor([0, b * d - 1]), some]).unique().to(initial.device)

    def cut(name: str, x: Tensor) -> Tensor:
        return x.detach().movedim(row.dim, -1)[flat // d, flat % d]

    given = {n: cut(n, x).double() for n, x in inputs.items()}
    x0 = initial[flat // d, flat % d].double()
    states, gradients = truths.bare(row.operator, given, x0, cut(OUTPUT, cotangent).double())
    return Truth({OUTPUT: states} | gradients, cut)
