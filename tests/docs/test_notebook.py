"""The tutorial's notebook is the tutorial, and runs."""

from __future__ import annotations

from pathlib import Path

import nbclient
import nbformat
import pytest

from docs.notebook import NOTEBOOK, PAGE, text
from tests.documents import python_blocks
from tests.subprocesses import ROOT


def test_the_notebook_is_the_tutorial():
    assert NOTEBOOK.read_text(encoding="utf-8") == text(PAGE.read_text(encoding="utf-8")), (
        "run docs/notebook.py"
    )
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    programs = [cell.source for cell in cells if cell.cell_type == "code"]
    assert programs == [block.code.strip() for block in python_blocks(PAGE)]


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [out for cell in book.cells for out in cell.get("outputs", [])]
    printed = "".join(out.get("text", "") + out.get("data", {}).get("text/plain", "") for out in outputs)
    assert "Peak: WRONG" in printed
    assert "Peak: ok" in printed
    assert "factors [0.5, 0.8" in printed
