"""Tensors as kernels see them: a pointer, a shape with time first, and strides, also 0 or negative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

import torch

from scanforge.ir.scan import Scan

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class View:
    """A window on a tensor. Time is dimension 0 but for views of states, which have lanes alone."""

    tensor: Tensor
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """All of a tensor."""
        return cls(tensor, 0, tuple(tensor.shape), tuple(tensor.stride()))

    def pointer(self) -> Tensor:
        """A tensor whose data pointer is the view's."""
        if self.offset == 0:
            return self.tensor
        return self.tensor.as_strided((1,), (1,), self.tensor.storage_offset() + self.offset)

    def flipped(self) -> Self:
        """From the last step to the first."""
        step = self.strides[0]
        return replace(
            self, offset=self.offset + (self.shape[0] - 1) * step, strides=(-step, *self.strides[1:])
        )

    def steps(self, start: int, count: int) -> Self:
        """Some steps of time."""
        return replace(self, offset=self.offset + start * self.strides[0], shape=(count, *self.shape[1:]))

    def chunks(self, count: int) -> Self:
        """Time cut into chunks of equal length; the chunks become the first lane axis."""
        length, step = self.shape[0] // count, self.strides[0]
        return replace(
            self, shape=(length, count, *self.shape[1:]), strides=(step, length * step, *self.strides[1:])
        )


def aligned(scan: Scan, dims: Sequence[str], tensor: Tensor, sizes: dict[str, int]) -> View:
    """The tensor with the scan's axes in order and in full, stride 0 for those that it lacks."""
    present = [d for d in dims if d != "1"]
    named = tensor.squeeze([i for i, d in enumerate(dims) if d == "1"]) if "1" in dims else tensor
    ordered = named.permute([present.index(a) for a in scan.axes if a in present])
    shaped = ordered[tuple(slice(None) if a in present else None for a in scan.axes)]
    return View.of(shaped.expand([sizes[a] for a in scan.axes]))


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


def lay_out(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> Lanes:
    """Innermost is the axis that most tensors are contiguous along; neighbours collapse if they can."""
    axes = [i for i, size in enumerate(shape) if size != 1]
    axes.sort(key=lambda i: (sum(s[i] == 1 for s in strides), -sum(abs(s[i]) for s in strides)))
    groups: list[list[int]] = []
    for axis in axes:
        if groups and all(s[groups[-1][-1]] == s[axis] * shape[axis] for s in strides):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    found = tuple(tuple(group) for group in groups) or ((),)
    return Lanes(found, tuple(prod(shape[i] for i in group) for group in found))
