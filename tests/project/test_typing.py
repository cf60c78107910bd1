"""Users' declarations pass a strict type checker, and a wrong one does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.subprocesses import ROOT

PROGRAM = """
from typing import Any
import torch
import scanforge as sf

class Average(sf.Operator):
    a = sf.Element(identity=1.0, domain="unit")
    b = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later: "Average") -> "Average":
        return Average(a=later.a * self.a, b=later.a * self.b + later.b)

    def apply(self, h: Any) -> Any:
        return sf.maximum(self.a * h + self.b, 0.0)

states = sf.scan(Average, a=torch.rand(1, 3), b=torch.rand(1, 3), reverse=True)
reveal_type(Average.a)
"""


def mypy(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_declaration_is_well_typed(tmp_path):
    done = mypy(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "scanforge.fields.Element" in done.stdout


def test_a_wrong_option_is_not(tmp_path):
    done = mypy(PROGRAM.replace("reverse=True", 'reverse="yes"'), tmp_path)
    assert done.returncode == 1
    assert 'Argument "reverse" to "scan"' in done.stdout
