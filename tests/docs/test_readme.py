"""Every Python program in the README and the docs runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents import Block, pages, python_blocks
from tests.subprocesses import ROOT, run_warm

BLOCKS = [block for page in pages() for block in python_blocks(page)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: f"{b.page}:{b.line}")
def test_program_runs(block: Block, tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(block.code, encoding="utf-8")
    run_warm(str(program), cwd=tmp_path)


def test_readme_begins_with_a_program():
    first = python_blocks(ROOT / "README.md")[0]
    assert first.line <= 20
    assert "states.sum().backward()" in first.code
    assert "triton" not in first.code


def test_what_explain_prints_is_what_it_prints(tmp_path: Path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"<!-- explain -->\n```\n(.*?)```", readme, re.DOTALL)
    assert shown
    program = tmp_path / "minmax.py"
    code = python_blocks(ROOT / "README.md")[0].code
    before = "sf.explain(MinMax), sf.source(MinMax, 'backward')"  # lines are the user's, whatever ran before
    program.write_text(f"{code}\n{before}\nprint(sf.explain(MinMax))\n", encoding="utf-8")
    printed = run_warm("minmax.py", cwd=tmp_path)
    parts = [part for part in re.split(r"^\.\.\.\n", shown[1], flags=re.MULTILINE) if part]
    assert parts, "a line of three dots stands for what is left out; something is to be left"
    for part in parts:
        assert f"\n{part}" in f"\n{printed}", f"The README shows\n{part}\nand explain prints\n{printed}"


def test_commands_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in readme
        assert f"\n{target}:" in makefile
