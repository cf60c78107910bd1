"""Tensors as kernels see them: a pointer, a shape with time first, and strides, also 0 or negative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

import torch

from scanforge.ir.scan import BATCH, TIME, Scan, State

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class View:
    """A window on a tensor. Time is dimension 0 but for views of states, which have lanes alone.

    A dimension that the tensor does not have (`has` is false there) has its full size and stride 0.
    """

    tensor: Tensor
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    has: tuple[bool, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """All of a tensor."""
        return cls(tensor, 0, tuple(tensor.shape), tuple(tensor.stride()), (True,) * tensor.ndim)

    def pointer(self) -> Tensor:
        """A tensor whose data pointer is the view's."""
        if self.offset == 0:
            return self.tensor
        return self.tensor.as_strided((1,), (1,), self.tensor.storage_offset() + self.offset)

    def place(self, order: Sequence[int]) -> Tensor | None:
        """A tensor of the dimensions in this order; None where one runs backwards, as torch's cannot."""
        sizes, strides = [self.shape[i] for i in order], [self.strides[i] for i in order]
        if any(stride < 0 for stride in strides):
            return None
        return self.tensor.as_strided(sizes, strides, self.tensor.storage_offset() + self.offset)

    def take(self, source: Tensor, order: Sequence[int], *, add: bool = False) -> None:
        """Write, or add, a tensor of the dimensions in this order."""
        backwards = [k for k, i in enumerate(order) if self.strides[i] < 0]
        view = self
        for i in (order[k] for k in backwards):
            view = view.turned(i)
        target = view.place(order)
        assert target is not None
        source = source.flip(backwards) if backwards else source
        target.add_(source) if add else target.copy_(source)

    def turned(self, dim: int) -> Self:
        """From the last entry of a dimension to the first."""
        strides = [*self.strides]
        strides[dim] = -strides[dim]
        offset = self.offset - (self.shape[dim] - 1) * strides[dim]
        return replace(self, offset=offset, strides=tuple(strides))

    def flipped(self) -> Self:
        """From the last step to the first."""
        return self.turned(0)

    def steps(self, start: int, count: int) -> Self:
        """Some steps of time."""
        return replace(self, offset=self.offset + start * self.strides[0], shape=(count, *self.shape[1:]))

    def row(self, k: int) -> Self:
        """One step of time, without the dimension."""
        return replace(
            self,
            offset=self.offset + k * self.strides[0],
            shape=self.shape[1:],
            strides=self.strides[1:],
            has=self.has[1:],
        )

    def like(self) -> Self:
        """The same window on a tensor of its own."""
        own = [i for i, has in enumerate(self.has) if has]
        tensor = self.tensor.new_empty([self.shape[i] for i in own])
        strides = [0] * len(self.shape)
        for k, i in enumerate(own):
            strides[i] = tensor.stride(k)
        return replace(self, tensor=tensor, offset=0, strides=tuple(strides))

    def over(self, count: int) -> Self:
        """The same for each of so many chunks, as the first lane axis."""
        return replace(self, shape=(count, *self.shape), strides=(0, *self.strides), has=(True, *self.has))

    def chunks(self, count: int) -> Self:
        """Time cut into chunks of equal length; the chunks become the first lane axis."""
        length, step = self.shape[0] // count, self.strides[0]
        return replace(
            self,
            shape=(length, count, *self.shape[1:]),
            strides=(step, length * step, *self.strides[1:]),
            has=(self.has[0], *self.has),
        )


def aligned(scan: Scan, dims: Sequence[str], tensor: Tensor, sizes: dict[str, int]) -> View:
    """The tensor with the scan's axes in order and in full, stride 0 for those that it lacks."""
    return _aligned(scan.axes, dims, tensor, sizes)


def of_state(
    scan: Scan,
    state: State,
    tensor: Tensor,
    sizes: dict[str, int],
    *,
    over: bool = False,
    alone: bool = False,
) -> View:
    """A state's tensor, its axes in the scan's order, on all lanes; `over` time or tiles if that is first.

    With `alone` it has one row for all sequences of the batch.
    """
    lead = (TIME,) * over
    rows = {TIME: tensor.shape[0]} if over else {}
    own = ("1" if alone and a == BATCH else a for a in scan.order(state.axes))
    return _aligned((*lead, *scan.lanes), (*lead, *own), tensor, sizes | rows)


def _aligned(axes: Sequence[str], dims: Sequence[str], tensor: Tensor, sizes: dict[str, int]) -> View:
    at = {d: i for i, d in enumerate(dims) if d != "1"}
    return View(
        tensor,
        0,
        tuple(sizes[a] for a in axes),
        tuple(tensor.stride(at[a]) if a in at else 0 for a in axes),
        tuple(a in at for a in axes),
    )


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lane axes as a kernel sees them: groups of axes that collapse, the innermost group last."""

    groups: tuple[tuple[int, ...], ...]  # positions among the lane axes
    sizes: tuple[int, ...]

    @property
    def inner(self) -> int:
        """The lanes that programs share out in blocks."""
        return self.sizes[-1]

    @property
    def outer(self) -> tuple[int, ...]:
        """The sizes of the other groups."""
        return self.sizes[:-1]

    def strides(self, strides: Sequence[int]) -> list[int]:
        """A tensor's stride along each group: that of its last axis."""
        return [strides[group[-1]] if group else 0 for group in self.groups]


def lay_out(
    shape: Sequence[int],
    strides: Sequence[Sequence[int]],
    *,
    apart: frozenset[int] = frozenset(),
    first: int | None = None,
) -> Lanes:
    """Innermost is the axis that most tensors are contiguous along; neighbours collapse if they can.

    Axes that are kept `apart` are in no group; the `first` one is a group of its own, the outermost.
    """
    axes = [i for i, size in enumerate(shape) if size != 1 and i not in apart and i != first]
    axes.sort(key=lambda i: (sum(s[i] == 1 for s in strides), -sum(abs(s[i]) for s in strides)))
    groups: list[list[int]] = []
    for axis in axes:
        if groups and all(s[groups[-1][-1]] == s[axis] * shape[axis] for s in strides):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    found = tuple(tuple(group) for group in groups) or ((),)
    found = found if first is None else ((first,), *found)
    return Lanes(found, tuple(prod(shape[i] for i in group) for group in found))


def across_time(views: dict[str, View], lanes: Lanes, inside: dict[str, int]) -> frozenset[str]:
    """What changes with the length of time, so that a kernel takes it as an argument and supposes nothing.

    That is the strides of lanes, and of the axes `inside` a program, between which all of time lies; and
    where the last step begins, of a tensor whose contiguous time is walked from there (`ptr`).
    """
    found = set()
    for name, view in views.items():
        time, *own = map(abs, view.strides)
        strides = {"sd": lanes.strides(own)[-1]} | {s: own[at] for s, at in inside.items()}
        found |= {f"{s}_{name}" for s, stride in strides.items() if view.has[0] and 0 < time < stride}
        found |= {f"ptr_{name}"} if view.has[0] and view.strides[0] == -1 else set()
    return frozenset(found)
