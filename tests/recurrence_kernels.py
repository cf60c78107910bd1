"""What the suites of recurrences on generated kernels share: hostile memory, and combinations in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

import scanforge as sf
from tests.kernels import Place, guarded, wanting
from tests.recurrences import Entry, Initial
from tests.reference.compare import cotangent, many
from tests.reference.fused import Outcome, Tensors, assert_same, expected, named, single

Row = dict[str, Any]


def outcome(
    entry: Entry, tensors: Tensors, initial: Initial | None = None, losses: Sequence[str] = ("both",), *,
    place: Place = guarded, place_cotangent: Place | None = None, **options: Any,
) -> Outcome:  # fmt: skip
    """The kernels' outcome on the CPU, with every tensor where `place` puts it, those of the options too."""
    inputs = wanting({n: place(x.detach()) for n, x in tensors.items()})
    start = wanting({n: place(x.detach()) for n, x in named(entry, initial).items()})
    options = {n: place(x) if isinstance(x, Tensor) else x for n, x in options.items()}
    outputs, finals = sf.scan(
        entry.recurrence, **inputs, initial_state=single(tuple(start.values()) or None),
        return_final_state=True, backend="triton", **options,
    )  # fmt: skip
    outputs, finals = many(outputs), many(finals)
    wanted = {n: x for n, x in (inputs | start).items() if x.requires_grad}
    slopes = {loss: _slopes(outputs, finals, wanted, loss, place_cotangent or place) for loss in losses}
    return Outcome(tuple(x.detach().cpu() for x in outputs), tuple(x.detach().cpu() for x in finals), slopes)


def _slopes(outputs, finals, wanted: Tensors, loss: str, place: Place) -> Tensors:
    """By the cotangents that `expected` uses."""
    read = [*outputs, *finals]
    put = [place(cotangent(x, seed).to(x.dtype)) for seed, x in enumerate(read)]
    count = len(outputs)
    chosen = {"outputs": slice(count), "finals": slice(count, None), "both": slice(None)}[loss]
    found = torch.autograd.grad(read[chosen], list(wanted.values()), put[chosen], retain_graph=True)
    return {n: x.cpu() for n, x in zip(wanted, found, strict=True)}


def check(
    entry: Entry, tensors: Tensors, initial: Initial | None = None, losses: Sequence[str] = ("both",), *,
    quantities: tuple[str, str] = ("long", "long"), what: str = "", **options: Any,
) -> Outcome:  # fmt: skip
    """The kernels' outcome, once it agrees with the loop's in float64."""
    got = outcome(entry, tensors, initial, losses, **options)
    known = {n: options[n] for n in ("reverse", "reset", "mask") if n in options}
    assert_same(got, expected(entry, tensors, initial, losses, **known), quantities, f"{entry.name} {what}")
    return got


def assert_identical(got: Outcome, other: Outcome, what: str) -> None:
    """The same kernels on the same numbers: bit for bit, NaN equal to NaN."""
    pairs = list(zip((*got.outputs, *got.finals), (*other.outputs, *other.finals), strict=True))
    for loss, slopes in got.gradients.items():
        pairs += [(x, other.gradients[loss][n]) for n, x in slopes.items()]
    for x, y in pairs:
        assert torch.equal(x.nan_to_num(nan=1e30), y.nan_to_num(nan=1e30)), what


def in_pairs(factors: Mapping[str, Sequence[Any]]) -> list[Row]:
    """Rows in which any two levels of any two factors meet, chosen greedily; always the same ones."""
    names, counts = list(factors), [len(levels) for levels in factors.values()]
    open_pairs = {
        (i, a, j, b)
        for i, j in combinations(range(len(names)), 2)
        for a in range(counts[i])
        for b in range(counts[j])
    }
    rows = []
    while open_pairs:
        row = _row(counts, open_pairs)
        open_pairs -= {(i, row[i], j, row[j]) for i, j in combinations(range(len(names)), 2)}
        rows.append({n: levels[k] for (n, levels), k in zip(factors.items(), row, strict=True)})
    return rows


def _row(counts: list[int], open_pairs: set[tuple[int, int, int, int]]) -> list[int]:
    """One pair that is open, then level by level what closes most."""
    i, a, j, b = min(open_pairs)
    row: dict[int, int] = {i: a, j: b}
    for k, count in enumerate(counts):
        if k in row:
            continue

        def gain(level: int, k: int = k) -> int:
            met = ((i, a, k, level) if i < k else (k, level, i, a) for i, a in row.items())
            return sum(pair in open_pairs for pair in met)

        turned = [(level + len(open_pairs)) % count for level in range(count)]
        row[k] = max(turned, key=gain)
    return [row[k] for k in range(len(counts))]
