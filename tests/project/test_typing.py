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

class Layer(sf.Recurrence):
    u, gate = sf.Input("b t d"), sf.Input("b t d")
    w = sf.Input("d", domain="unit")
    h = sf.State("b d", initial=1.0)
    y = sf.Output("b t d")

    def element(self) -> Average:
        return Average(a=self.w * sf.sigmoid(self.gate), b=self.u)

    def readout(self) -> Any:
        return sf.where(sf.segment_start(), self.h, sf.sqrt(sf.previous(self.h), max_slope=10.0))

states = sf.scan(Average, a=torch.rand(1, 3), b=torch.rand(1, 3), reverse=True)
y, h = sf.step(Layer, None, u=torch.rand(1, 3), gate=torch.rand(1, 3), w=torch.rand(3))
sf.check(Layer, t=5)
reveal_type(Average.a)
"""


def mypy(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", str(path)]  # with what `make check` has found out
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_declaration_is_well_typed(tmp_path):
    done = mypy(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stdout
    assert "scanforge.fields.Element" in done.stdout


def test_a_wrong_option_is_not(tmp_path):
    done = mypy(PROGRAM.replace("reverse=True", 'reverse="yes"'), tmp_path)
    assert done.returncode == 1
    assert 'Argument "reverse" to "scan"' in done.stdout
