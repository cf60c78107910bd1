"""Nothing that ships reads pickled data, which runs whatever it says: files are text, JSON or safetensors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.project.test_layering import LAYERS, SOURCES, imported_modules
from tests.subprocesses import ROOT

MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {
    ("torch", "load"), ("torch", "save"), ("numpy", "load"), ("np", "load"),
    ("dist", "all_gather_object"), ("dist", "broadcast_object_list"), ("dist", "recv_object_list"),
}  # fmt: skip


def unpickling(path: Path) -> list[str]:
    """What of a file reads pickles, or writes what would have to be read as one."""
    found = [
        f"line {line}: imports {name}"
        for line, name in imported_modules(path, "scanforge")
        if name.split(".")[0] in MODULES
    ]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if (name, node.func.attr) in CALLS or node.func.attr.endswith("_object_list"):
                found.append(f"line {node.lineno}: calls {name}.{node.func.attr}")
    return found


@pytest.mark.parametrize("path", [*SOURCES, *LAYERS], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_nothing_unpickles(path):
    assert not unpickling(path)


def test_what_unpickles_is_found(tmp_path):
    file = tmp_path / "x.py"
    file.write_text("import torch\nfrom pickle import loads\n\ny = torch.load('y.pt')\n")
    assert unpickling(file) == ["line 2: imports pickle.loads", "line 4: calls torch.load"]
