"""The gradients that groups of lanes leave: parts of one tensor, or shares of a sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from scanforge.ir.scan import Scan

Tensor = torch.Tensor


class Slopes:
    """Gradients of the inputs that `needs` names; those of inputs without the axis are added up.

    Kernels write the former into their places. Shares of a sum are in the dtype of the computation until all
    are added.
    """

    def __init__(
        self, scan: Scan, axis: str, inputs: Sequence[Tensor], needs: Sequence[bool], computed: torch.dtype
    ) -> None:
        self.names, self.like, self.computed = [i.name for i in scan.inputs], inputs, computed
        self.at = {
            i.name: i.dims.index(axis) if axis in i.dims else -1
            for i, need in zip(scan.inputs, needs, strict=True)
            if need
        }
        self.whole = {
            i.name: torch.empty_like(x, memory_format=torch.contiguous_format)
            for i, x in zip(scan.inputs, inputs, strict=True)
            if self.at.get(i.name, -1) >= 0
        }
        self.total: dict[str, Tensor] = {}

    def places(self, begin: int, count: int) -> dict[str, Tensor]:
        """Where the gradients of a group may be written."""
        made = {n: x.narrow(self.at[n], begin, count) for n, x in self.whole.items()}
        for n, x in zip(self.names, self.like, strict=True):
            if n in self.at and n not in made and x.dtype != self.computed:
                made[n] = x.new_empty(x.shape, dtype=self.computed)
        return made

    def add(self, found: Sequence[Tensor | None], places: Mapping[str, Tensor]) -> None:
        """A group's gradients, which are in their places, or are brought there."""
        for n, g in zip(self.names, found, strict=True):
            if g is None:
                continue
            if n not in self.whole:
                share = g.to(self.computed)
                self.total[n] = self.total[n] + share if n in self.total else share
            elif g is not places[n]:
                places[n].copy_(g)

    def found(self) -> list[Tensor | None]:
        """The gradients, each in the dtype of its input."""
        of = self.whole | self.total
        return [of[n].to(x.dtype) if n in of else None for n, x in zip(self.names, self.like, strict=True)]
