"""What docs/stability.md promises: names that a release had stay, with their arguments.

`public_names.txt` holds the face of the newest release, a line for a name with its arguments. One goes only
when the changes say so; a release adds what is new with `python tests/project/test_public_names.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import models
import scanforge
from scanforge import distributed, maths, operators

FILE = Path(__file__).with_name("public_names.txt")
FACES = {
    "scanforge": scanforge, "scanforge.maths": maths, "scanforge.operators": operators, "models": models,
    "scanforge.distributed": distributed,
}  # fmt: skip


def arguments(value: Any) -> list[str]:
    """The arguments of a function or of a class's constructor, as a call may name them."""
    if not callable(value) or (isinstance(value, type) and issubclass(value, Exception)):
        return []
    if isinstance(value, type) and issubclass(value, scanforge.Operator | scanforge.Recurrence):
        return sorted(n for n, v in vars(value).items() if isinstance(v, scanforge.Element | scanforge.Input))
    return [
        f"*{p.name}" if p.kind in {p.VAR_POSITIONAL, p.VAR_KEYWORD} else p.name
        for p in inspect.signature(value).parameters.values()
    ]


def faces() -> Iterator[str]:
    """A line for each public name."""
    for module, owner in FACES.items():
        for name in sorted(owner.__all__):
            yield " ".join([f"{module}.{name}", *arguments(getattr(owner, name))])


LINES = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split(" ")[0])
def test_a_released_name_is_there(line: str):
    name, *released = line.split(" ")
    module, _, last = name.rpartition(".")
    assert last in FACES[module].__all__
    now = arguments(getattr(FACES[module], last))
    assert [a for a in now if a in released] == released, "an argument is gone, or another order"


def test_there_is_a_face():
    assert len(LINES) > 100
    assert {line.rsplit(".", 1)[0] for line in (x.split(" ")[0] for x in LINES)} == set(FACES)


if __name__ == "__main__":
    FILE.write_text("\n".join(faces()) + "\n", encoding="utf-8")
