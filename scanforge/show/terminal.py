"""Explanation -> a rich table, for a terminal."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from scanforge.show.explanation import Explanation

PROGRAMS = frozenset({"element", "step", "readout", "combine", "backward"})
_WHERE = re.compile(r"  +(\S+\.py:\d+)$")
_STYLES = (
    (r"\b(proved|tested on \d+ samples)\b", "green"),
    (r"\bbroken\b", "bold red"),
    (r"\b(float|int|bool)\b", "cyan"),
    (r"\b\d+(\.\d+)?( (GB|MB|kB|B))?\b", "magenta"),
)


def table(shown: Explanation) -> Table:
    """A row for each part: what it is called, and what it says."""
    from rich import box
    from rich.table import Table

    first = shown.parts[0]
    made = Table(title=first.title, title_justify="left", title_style="bold", show_header=False,
                 box=box.ROUNDED, show_lines=True, border_style="dim")  # fmt: skip
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for part in shown.parts:
        code = part.name in PROGRAMS
        lines = list(part.lines) if part.name != "plan" else [part.title, *part.lines]
        made.add_row(part.name, _text(lines, code=code))
    return made


def _text(lines: list[str], *, code: bool) -> Text:
    from rich.highlighter import ReprHighlighter
    from rich.text import Text

    whole = Text()
    for i, line in enumerate(lines):
        where = _WHERE.search(line) if code else None
        text = Text(line[: where.start()] if where else line)
        if code:
            ReprHighlighter().highlight(text)
        for pattern, style in () if code else _STYLES:
            text.highlight_regex(pattern, style)
        if where:
            text.append(f"  {where[1]}", "dim")
        whole.append("\n" if i else "").append_text(text)
    return whole
