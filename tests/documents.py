"""The Python programs that stand in the project's Markdown pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.subprocesses import ROOT

_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced program, and where it begins."""

    page: str
    line: int
    code: str


def python_blocks(page: Path) -> list[Block]:
    """Every fenced Python program of a page, in order."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    return [Block(name, text.count("\n", 0, m.start()) + 1, m.group(1)) for m in _BLOCK.finditer(text)]


def pages() -> list[Path]:
    """README.md and every page under docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
