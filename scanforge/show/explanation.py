"""Explanation: text that also shows itself as a table on a terminal, as drawings and as a page."""

from __future__ import annotations

from typing import Any

import torch

from scanforge.errors import ArgumentError
from scanforge.example import Example
from scanforge.ir.scan import Scan
from scanforge.planned import Planned, planned
from scanforge.report import Section, sections

PICTURES = ("dataflow", "tiles", "bytes")


class Explanation(str):
    """What `sf.explain` returns: a string, with other ways to look at it.

    `print` shows the text. In a notebook the last line of a cell shows drawings and tables;
    `rich.print` colours the text. `svg` and `html` are files to keep.

    Example:
        >>> import scanforge as sf
        >>> sf.explain(sf.Affine).svg("tiles").startswith("<svg")
        True
    """

    parts: tuple[Section, ...]
    plan: Planned
    scan: Scan

    def svg(self, picture: str = "dataflow") -> str:
        """A drawing: "dataflow" of a step and its adjoint, "tiles" of the kernels, or "bytes" moved.

        Raises ArgumentError for another name.
        """
        return self.drawing(picture, alone=True)

    def html(self) -> str:
        """One self-contained page with the drawings and the text."""
        from scanforge.show.page import fragment, page

        return page(self.scan.name, fragment(self))

    def drawing(self, picture: str, *, alone: bool) -> str:
        """A drawing; `alone` brings its style along, else it is for a page that has it."""
        from scanforge.show.dataflow import dataflow
        from scanforge.show.tiles import moved, tiles

        if picture not in PICTURES:
            raise ArgumentError(
                f"{self.scan.name}: there is no picture {picture!r}: write 'dataflow', 'tiles' or 'bytes'."
            )
        if picture == "dataflow":
            return dataflow(self.scan, alone=alone)
        return (tiles if picture == "tiles" else moved)(self.plan, alone=alone)

    def part(self, name: str) -> Section | None:
        """The section of that name, if there is one: declaration, element, step, laws, plan and so on."""
        return next((p for p in self.parts if p.name == name), None)

    def _repr_html_(self) -> str:
        from scanforge.show.page import fragment

        return fragment(self)

    def __rich__(self) -> Any:
        from scanforge.show.terminal import table

        return table(self)


def explanation(example: Example, doc: str, dtype: torch.dtype) -> Explanation:
    """The explanation of a call with tensors of a dtype."""
    plan = planned(example.traced.text, example.sizes, dtype)
    parts = sections(example, doc, plan)
    made = Explanation("\n\n".join(map(str, parts)))
    made.parts, made.plan, made.scan = parts, plan, example.traced.scan
    return made
