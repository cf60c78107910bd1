"""What the suites of generated kernels share: tensors in hostile memory, and tiles that a test forces."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import scanforge as sf
from scanforge import plan, replay, tile, work
from scanforge.tile import Composed, Tile
from tests.catalogue import CASES, Case
from tests.reference.compare import (
    Loss,
    Outcome,
    assert_same_gradients,
    assert_same_values,
    cotangent,
    expected,
    many,
    named_initial,
)

LOWERINGS = ("ordered_tile", "split")
NAN = float("nan")
Place = Callable[[Tensor], Tensor]

every_operator = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_lowering = pytest.mark.parametrize("lowering", LOWERINGS)
both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])


def room(like: Tensor, shape: Sequence[int], guard: float) -> Tensor:
    """Memory full of guard values, of another tensor's dtype and device."""
    fill = guard if like.is_floating_point() else 77  # a flag that is set, an index that nobody draws
    return torch.full(tuple(shape), fill, dtype=like.dtype, device=like.device)


def guarded(x: Tensor, guard: float = NAN, shift: int = 0) -> Tensor:
    """A contiguous copy of x between guard values, more than a tile of them on either side."""
    if x.is_complex():
        return torch.view_as_complex(guarded(torch.view_as_real(x), guard, 2 * shift))
    margin = 2048 + 128 * (x.shape[-1] if x.ndim else 1)
    whole = room(x, (x.numel() + 2 * margin,), guard)
    inside = whole[margin + shift : margin + shift + x.numel()].view(x.shape)
    return inside.copy_(x)


def inner_slice(x: Tensor) -> Tensor:
    """A slice of a fused projection: three such tensors lie side by side along the last axis."""
    n = x.shape[-1]
    whole = room(x, (*x.shape[:-1], 3 * n), NAN)
    return whole[..., n : 2 * n].copy_(x)


def every_other(x: Tensor) -> Tensor:
    """Rows of time, or of a state's last axis, with a row of guard values between them."""
    axis = min(1, x.ndim - 1)
    shape = [2 * n + 1 if i == axis else n + 1 for i, n in enumerate(x.shape)]
    cut = tuple(slice(1, None, 2) if i == axis else slice(1, None) for i in range(x.ndim))
    return room(x, shape, NAN)[cut].copy_(x)


def time_first(x: Tensor) -> Tensor:
    """The first two axes change places in memory."""
    return x.transpose(0, 1).contiguous().transpose(0, 1) if x.ndim > 1 else x


def backwards(x: Tensor) -> Tensor:
    """The axes in memory in the opposite order: channels first."""
    axes = tuple(reversed(range(x.ndim)))
    return x.permute(axes).contiguous().permute(axes)


def flipped(x: Tensor) -> Tensor:
    """What `flip` gives: torch copies it, and strides stay positive."""
    return x.flip(0).flip(0)


LAYOUTS: dict[str, Place] = {
    "a slice of a fused projection": inner_slice,
    "every other row": every_other,
    "time first": time_first,
    "channels first": backwards,
    "flipped twice": flipped,
    "at an odd address": lambda x: guarded(x, shift=1),
}


def outcome(
    case: Case,
    leaves: dict[str, Tensor],
    initial: tuple[Tensor, ...] | None,
    loss: Loss,
    reverse: bool = False,
    *,
    place: Place = guarded,
    place_cotangent: Place | None = None,
    **options: Any,
) -> Outcome:
    """scanforge's outcome on the CPU, as compare.actual, with every tensor where `place` puts it."""
    tensors = wanting({name: place(x.detach()) for name, x in leaves.items()})
    start = wanting({name: place(x.detach()) for name, x in named_initial(case, initial).items()})
    first = tuple(start.values()) if len(start) > 1 else next(iter(start.values()), None)
    states, finals = sf.scan(
        case.operator, **tensors, initial_state=first, reverse=reverse, return_final_state=True,
        backend="triton", **options,
    )  # fmt: skip
    outputs = many(states), many(finals)
    read = [case.float_outputs(outputs[0])[i] for i in loss.states]
    read += [case.float_outputs(outputs[1])[i] for i in loss.finals]
    put = place_cotangent or place
    cotangents = [put(cotangent(x, seed).to(x.dtype)) for seed, x in enumerate(read)]
    wanted = {name: x for name, x in (tensors | start).items() if x.requires_grad}
    found = torch.autograd.grad(read, list(wanted.values()), cotangents)
    return Outcome(
        tuple(x.detach().cpu() for x in outputs[0]),
        tuple(x.detach().cpu() for x in outputs[1]),
        {name: x.cpu() for name, x in zip(wanted, found, strict=True)},
    )


def wanting(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The floats ask for gradients, in the memory where they lie."""
    return {n: x.requires_grad_(x.is_floating_point() or x.is_complex()) for n, x in tensors.items()}


def everything(case: Case) -> Loss:
    """All float states and all float final states."""
    indices = tuple(range(len(case.float_states)))
    return Loss(indices, indices)


def check(
    case: Case, leaves, initial, loss: Loss, reverse: bool = False, *, quantities=("forward", "gradient"),
    **options: Any,
) -> Outcome:  # fmt: skip
    """The kernels' outcome, once it agrees with the loop's in float64."""
    got = outcome(case, leaves, initial, loss, reverse, **options)
    truth = expected(case, leaves, initial, loss, reverse)
    assert_same_values(case, got, truth, quantities[0])
    assert_same_gradients(case, got, truth, quantities[1])
    return got


@dataclass(frozen=True)
class Tiles:
    """What a test forces: R, the backward kernels' R, lanes, stages, steps of a chunk, groups of threads."""

    rows: int = 8
    spacing: int = 4
    lanes: int = 32
    stages: int = 3
    chunk: int = 16
    groups: int = 1
    relay: bool = False  # of the backward kernels, whose groups are two; forward there are none

    def __str__(self) -> str:
        tile = f"R{self.rows} R{self.spacing} BD{self.lanes} NS{self.stages} C{self.chunk} G{self.groups}"
        return f"{tile} relay" if self.relay else tile

    def force(self, patch: pytest.MonkeyPatch) -> None:
        """Every module that plans finds these."""
        assert self.rows % self.spacing == 0
        assert self.chunk % self.rows == 0

        def tile_plan(
            steps: int, *_: Any, rows: int = 0, composed: Composed | None = None, backward: bool, **__: Any
        ) -> Tile:
            rows = rows or self.rows
            several = composed and steps >= self.groups * rows and (backward or not self.relay)
            groups = self.groups if several else 1
            return Tile(rows, self.lanes, self.stages, groups, self.relay and groups > 1)

        def spacing_of(_: Any, steps: int) -> int:
            return min(self.spacing, 1 << max(steps, 1).bit_length() - 1)

        ours = [module for name, module in sys.modules.items() if name.startswith("scanforge.")]
        for planner, function in ((tile, tile_plan), (plan, spacing_of)):
            planned = getattr(planner, function.__name__)
            for module in ours:
                if getattr(module, function.__name__, None) is planned:
                    patch.setattr(module, function.__name__, function)
        patch.setattr(plan, "CHUNK", self.chunk)
        replay.forget()


def launches_by(patch: pytest.MonkeyPatch, count: Callable[[Tile], int]) -> Counter[int]:
    """How many launches there are of each number that their tiles have."""
    found: Counter[int] = Counter()
    call = work.call

    def noted(function: Any, kernel: Any, placed: Any, tile: Tile, *rest: Any) -> None:
        found[count(tile)] += 1
        call(function, kernel, placed, tile, *rest)

    patch.setattr(work, "call", noted)
    return found
