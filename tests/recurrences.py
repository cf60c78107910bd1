"""The list of recurrences that every suite walks: what to draw for them, and their loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

import scanforge as sf
from tests import recurrence_declarations as declared
from tests import recurrence_loops as loops
from tests.catalogue import Shape, chance, generator, normal, uniform

Sizes = dict[str, int]
Initial = tuple[Tensor, ...]
SIZES: Sizes = {"b": 2, "t": 5, "d": 3, "n": 2, "h": 2, "k": 3, "v": 2}


@dataclass(frozen=True)
class Part:
    """The axes of an input or a state, and how to draw one; a state's value where none is given."""

    axes: str
    draw: Callable[[Generator, Shape, torch.dtype], Tensor] = normal
    number: float = 0.0

    def shape(self, sizes: Sizes, without: str = "") -> Shape:
        return tuple(sizes[a] for a in self.axes.split() if a != without)


@dataclass(frozen=True)
class Entry:
    """One recurrence of the catalogue.

    `outputs` are the axes of the outputs; those that lack b or t are summed over it.
    `step` is its row in `tests/recurrence_loops.py`.
    """

    recurrence: type[sf.Recurrence]
    step: Callable
    inputs: dict[str, Part]
    states: dict[str, Part]
    outputs: tuple[str, ...] = ("b t d",)

    @property
    def name(self) -> str:
        return self.recurrence.__name__

    def draw(self, g: Generator, sizes: Sizes, dtype: torch.dtype) -> dict[str, Tensor]:
        return {name: part.draw(g, part.shape(sizes), dtype) for name, part in self.inputs.items()}

    def draw_initial(self, g: Generator, sizes: Sizes, dtype: torch.dtype) -> Initial:
        return tuple(part.draw(g, part.shape(sizes), dtype) for part in self.states.values())

    def sizes(self, tensors: dict[str, Tensor], initial: Initial | None = None) -> Sizes:
        """The size of every axis; an axis of size 1 in one tensor may be longer in another."""
        found: Sizes = {}
        shapes = [(part, tensors[name].shape) for name, part in self.inputs.items()]
        shapes += [(p, x.shape) for p, x in zip(self.states.values(), initial or (), strict=False)]
        for part, shape in shapes:
            for axis, size in zip(part.axes.split(), shape, strict=True):
                found[axis] = size if found.get(axis, 1) == 1 else found[axis]
        return found

    def fresh(self, sizes: Sizes, dtype: torch.dtype) -> Initial:
        """The states where none is given."""
        return tuple(torch.full(p.shape(sizes), p.number, dtype=dtype) for p in self.states.values())

    def loop(
        self, tensors: dict[str, Tensor], initial: Initial | None = None,
        reverse: bool = False, reset: Tensor | None = None, mask: Tensor | None = None,
    ) -> tuple[tuple[Tensor, ...], Initial]:  # fmt: skip
        """The sequential truth: `(outputs, final states)`, both tuples."""
        sizes = self.sizes(tensors, initial)
        dtype = next(x.dtype for x in tensors.values() if x.is_floating_point())
        fresh = self.fresh(sizes, dtype)
        start = fresh if initial is None else initial
        start = tuple(x.expand(y.shape) for x, y in zip(start, fresh, strict=True))
        full = {n: tensors[n].expand(part.shape(sizes)) for n, part in self.inputs.items()}
        rows = loops.rows_of(full, {n: part.axes for n, part in self.inputs.items()}, sizes["t"])
        history, finals = loops.walk(self.step, rows, start, reverse, reset, mask)
        outputs = []
        for index, axes in enumerate(self.outputs):
            column = [row[index] for row in history]
            left = tuple(i for i, axis in enumerate("bt") if axis not in axes.split())
            if not column:
                y = torch.zeros(Part(axes).shape(sizes), dtype=dtype)
            else:
                y = torch.stack(column, 1)
                y = y.sum(left) if left else y
            outputs.append(y)
        return tuple(outputs), finals


def between(low: float, high: float):
    return lambda g, shape, dtype: (low + (high - low) * uniform(g, shape, torch.float64)).to(dtype)


def draw_bool(g: Generator, shape: Shape, dtype: torch.dtype) -> Tensor:
    return chance(g, shape, 0.7)


def draw_count(g: Generator, shape: Shape, dtype: torch.dtype) -> Tensor:
    return torch.randint(0, 6, shape, generator=g)


def parts(*names: str, **others: Part) -> dict[str, Part]:
    """`parts("x r: b t d", ...)`: several inputs with the same axes, drawn from the normal distribution."""
    found = {}
    for line in names:
        fields, axes = line.split(":")
        found |= {name: Part(axes.strip()) for name in fields.split()}
    return found | others


NEGATIVE, GATE = between(-2, -0.1), between(0.5, 1)
SSM_STATE, MATRIX = {"h": Part("b d n")}, {"S": Part("b h k v")}
CHANNELS, VALUES = {"h": Part("b d")}, ("b t h v",)

ENTRIES = (
    Entry(
        declared.RGLRU,
        loops.rg_lru,
        parts("x r i: b t d", Lambda=Part("d", between(-3, 0))),
        CHANNELS,
    ),
    Entry(
        declared.RGLRUDocuments,
        loops.rg_lru_documents,
        parts("x r i: b t d", Lambda=Part("d", between(-3, 0))),
        CHANNELS,
    ),
    Entry(
        declared.SelectiveSSM,
        loops.selective_ssm,
        parts("u: b t d", "B C: b t n", "D: d", dt=Part("b t d", uniform), A=Part("d n", NEGATIVE)),
        SSM_STATE,
    ),
    Entry(
        declared.Mamba,
        loops.mamba,
        parts("u dt z: b t d", "B C: b t n", "bias D: d", "A_log: d n"),
        SSM_STATE,
    ),
    Entry(
        declared.HGRN2,
        loops.hgrn2,
        parts("q f: b t h k", "v: b t h v", lower=Part("h k", uniform)),
        MATRIX,
        VALUES,
    ),
    Entry(
        declared.GatedLinearAttention,
        loops.gated_linear_attention,
        parts("q k g: b t h k", "v: b t h v"),
        MATRIX,
        VALUES,
    ),
    Entry(
        declared.Retention,
        loops.retention,
        parts("q k: b t h k", "v: b t h v", gamma=Part("h", GATE)),
        MATRIX,
        VALUES,
    ),
    Entry(
        declared.LinearAttention,
        loops.linear_attention,
        parts("q k: b t h k", "v: b t h v"),
        MATRIX | {"z": Part("b h k")},
        VALUES,
    ),
    Entry(
        declared.GatedMinMax,
        loops.gated_min_max,
        parts(
            "u gate: b t d",
            "w_r w_s: d",
            b_r=Part("d", between(-1, 0.5)),
            temperature=Part("", between(0.5, 1)),
        ),
        {"x": Part("b d")},
    ),
    Entry(declared.Decay, loops.decay, parts("x: b t d", "w: d"), CHANNELS),
    Entry(
        declared.LogSumExp,
        loops.log_sum_exp,
        parts("score weight: b t d", temperature=Part("d", uniform)),
        {"top": Part("b d", number=float("-inf")), "total": Part("b d", GATE)},
    ),
    Entry(
        declared.Counted,
        loops.counted,
        parts("x f: b t d", keep=Part("b t", draw_bool), count=Part("b t", draw_count)),
        CHANNELS,
    ),
    Entry(declared.Innovation, loops.innovation, parts("x: b t d", "w: d"), {"level": Part("b d")}),
    Entry(
        declared.TwoOutputs, loops.two_outputs, parts("x: b t d", "B C: b t n"), SSM_STATE, ("b t d", "b t n")
    ),
    Entry(
        declared.Summing,
        loops.summing,
        parts("x: b t d", w=Part("d", GATE)),
        CHANNELS,
        ("b t", "d", "b t d"),
    ),
    Entry(
        declared.Heads,
        loops.heads,
        parts("x: b t h d", "gate: b t h", "w: h d"),
        {"s": Part("b h d")},
        ("b t d h",),
    ),
    Entry(declared.Positional, loops.positional, parts("x: b t d", "p: t d", "w: b d"), CHANNELS),
    Entry(
        declared.LRU,
        loops.lru,
        parts("x: b t d", "B_re B_im C_re C_im: d n", "D: d", "theta: n", nu=Part("n", NEGATIVE)),
        {"h_re": Part("b n"), "h_im": Part("b n")},
    ),
)

BY_NAME = {entry.name: entry for entry in ENTRIES}


def draw(entry: Entry, dtype: torch.dtype = torch.float64, seed: int = 0, **sizes: int):
    """`(inputs, initial states)` of one entry, of the sizes above where no other is given."""
    g, whole = generator(seed), SIZES | sizes
    return entry.draw(g, whole, dtype), entry.draw_initial(g, whole, dtype)
