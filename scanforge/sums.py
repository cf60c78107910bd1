"""Outputs that no single program of a kernel has in full: programs leave parts, and torch adds these up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch

from scanforge.tile import Tile
from scanforge.views import Lanes, View

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Sum:
    """Where a kernel writes an output: in place if it has all groups of lanes, else in parts to add up."""

    target: View
    view: View
    order: tuple[int, ...]  # the dimensions that the target has, as they stand in the parts
    parts: Tensor | None
    add: bool
    member: int = 0  # how far apart the parts of a ring's members are

    @classmethod
    def of(cls, target: View, lanes: Lanes, tile: Tile, computed: torch.dtype, *, fresh: bool) -> Self:
        """The place of an output; one without time is added to, unless it is fresh."""
        lacking = [
            g for g, axes in enumerate(lanes.groups) if axes and not any(target.has[1 + i] for i in axes)
        ]
        add = not target.has[0] and not fresh
        members = tile.members if not target.has[0] else 1
        if not lacking and not add and members == 1:
            return cls(target, target, (), None, False)
        sizes = list(lanes.sizes)
        sizes[-1] = -(-lanes.inner // tile.lanes)
        # packed sequences share a target's batch axis, of stride 0: their rows lie apart in time
        own = [i for i, has in enumerate(target.has) if has and (target.strides[i] or target.shape[i] == 1)]
        order = tuple(sorted(own, key=lambda i: -abs(target.strides[i])))
        ring = [members] * (members > 1)
        shape = [*ring, *(sizes[g] for g in lacking), *(target.shape[i] for i in order)]
        dtype = computed if target.tensor.is_floating_point() else target.tensor.dtype
        parts = target.tensor.new_empty(shape, dtype=dtype)
        strides = [0] * len(target.shape)
        first = len(ring) + len(lacking)
        for k, i in enumerate(order):
            strides[i] = parts.stride(first + k)
        for k, g in enumerate(lacking, len(ring)):
            strides[1 + lanes.groups[g][-1]] = parts.stride(k)
        view = replace(target, tensor=parts, offset=0, strides=tuple(strides))
        return cls(target, view, order, parts, add, parts.stride(0) if ring else 0)

    def settle(self) -> None:
        """Add the parts up, always in the same order."""
        if self.parts is not None:
            lead = self.parts.ndim - len(self.order)
            total = self.parts.sum(list(range(lead))) if lead else self.parts
            self.target.take(total, self.order, add=self.add)

    def settle_in_place(self) -> None:
        """The same, straight into the target where torch does that."""
        place = None if self.add else self.target.place(self.order)
        if self.parts is None or place is None or place.dtype != self.parts.dtype:
            return self.settle()
        over = list(range(self.parts.ndim - len(self.order)))
        torch.sum(self.parts, over, out=place)


class Sums:
    """What several launches add to the same outputs: their parts are added up, then summed once."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[Sum, Tensor]]] = {}

    def add(self, name: str, one: Sum) -> None:
        """Parts of an output, which another launch may have left before."""
        assert one.parts is not None
        for other, parts in self.found.setdefault(name, []):
            if (parts.shape, other.order) == (one.parts.shape, one.order):
                parts.add_(one.parts)
                return
        self.found[name].append((one, one.parts))

    def settle(self) -> None:
        """When all launches are made."""
        for found in self.found.values():
            for one, _ in found:
                one.settle()


def settle(found: Mapping[str, Sum], later: Sums | None) -> None:
    """After a launch: its sums, but for those to which others of several launches will be added."""
    for name, one in found.items():
        if later is None:
            one.settle()
        elif one.add:
            later.add(name, one)
        else:
            one.settle_in_place()
