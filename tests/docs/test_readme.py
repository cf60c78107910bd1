"""Every Python program in the README and the docs runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import Block, pages, python_blocks
from tests.subprocesses import ROOT, run_python

BLOCKS = [block for page in pages() for block in python_blocks(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: f"{b.page}:{b.line}")
def test_program_runs(block: Block, tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(block.code, encoding="utf-8")
    run_python(str(program), cwd=tmp_path)


def test_readme_begins_with_a_program():
    first = python_blocks(ROOT / "README.md")[0]
    assert first.line <= 20
    assert "states.sum().backward()" in first.code
    assert "triton" not in first.code


def test_commands_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in readme
        assert f"\n{target}:" in makefile
