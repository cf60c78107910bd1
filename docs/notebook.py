"""The tutorial as a notebook: python docs/notebook.py"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE, NOTEBOOK = HERE / "tutorial.md", HERE / "tutorial.ipynb"
_PROGRAM = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def notebook(page: str) -> dict[str, Any]:
    """The cells of a page, in nbformat 4.5: text and programs by turns, nothing run yet."""
    cells: list[dict[str, Any]] = []
    for i, text in enumerate(_PROGRAM.split(page)):
        code = i % 2 == 1
        # Marks stand for what a program prints, which a notebook shows itself; links are the site's.
        body = text.strip() if code else _LINK.sub(r"\1", _MARK.sub("", text)).strip()
        if body:
            cells.append(_cell(f"cell-{len(cells)}", "code" if code else "markdown", body))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _cell(name: str, kind: str, body: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": name, "metadata": {}, "source": body.splitlines(True)}
    return cell | {"execution_count": None, "outputs": []} if kind == "code" else cell


def text(page: str) -> str:
    """The notebook's file."""
    return json.dumps(notebook(page), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(text(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {NOTEBOOK.name}")
