"""The size budgets: past them, a file or a function is two things."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.subprocesses import ROOT

FILE_LINES, FUNCTION_LINES = 300, 50
SOURCES = sorted(p for folder in ("scanforge", "models") for p in (ROOT / folder).rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, first line and length of every function, nested ones included; decorators count."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            assert node.end_lineno is not None
            yield node.name, first, node.end_lineno - first + 1


def test_there_are_sources():
    assert len(SOURCES) >= 2


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_file_is_short(path: Path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES, (
        f"{_name(path)} has {lines} lines, the budget is {FILE_LINES}: split it into two files."
    )


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_functions_are_short(path: Path):
    long = [
        f"{_name(path)}:{line} {name} has {length} lines"
        for name, line, length in _functions(path)
        if length > FUNCTION_LINES
    ]
    assert not long, f"The budget is {FUNCTION_LINES} lines a function; split these:\n" + "\n".join(long)
