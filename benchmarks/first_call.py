"""How long the first forward and backward pass of a new operator take: run in a process of its own.

`measure` runs this file twice, with empty caches on disk and then with what the first run left there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHAPE = {"cuda": (8, 2048, 2048), "cpu": (2, 64, 16)}


def measure() -> dict[str, dict[str, float]]:
    """Seconds, for "cold" and "warm" caches."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: str(Path(folder, name)) for name in ("SCANFORGE_CACHE", "TRITON_CACHE_DIR")}
        env = os.environ | caches | {"PYTHONPATH": os.pathsep.join([str(ROOT), *_given_path()])}
        found = {}
        for name in ("cold", "warm"):
            done = subprocess.run(
                [sys.executable, __file__], env=env, capture_output=True, text=True, timeout=300
            )
            if done.returncode:
                raise RuntimeError(f"The first call failed: {done.stderr[-600:]}")
            found[name] = json.loads(done.stdout.splitlines()[-1])
        return found


def _given_path() -> list[str]:
    return [p for p in [os.environ.get("PYTHONPATH", "")] if p]


def run() -> dict[str, float]:
    """Seconds of each stage, in this process, after torch is imported and the device has begun to work."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    shape = SHAPE[device]
    a, b, c = (torch.rand(shape, device=device, requires_grad=True) for _ in range(3))
    settle()
    marks = [time.perf_counter()]

    import scanforge as sf

    class Floor(sf.Operator):
        """x_t = max(a_t x_{t-1} + b_t, c_t): an affine step that never falls under c."""

        a = sf.Element(identity=1.0, domain="positive")
        b = sf.Element(identity=0.0)
        c = sf.Element(identity=float("-inf"))
        x = sf.State()

        def combine(self, later):
            return Floor(
                a=later.a * self.a,
                b=later.a * self.b + later.b,
                c=sf.maximum(later.a * self.c + later.b, later.c),
            )

        def apply(self, x):
            return sf.maximum(self.a * x + self.b, self.c)

    marks.append(time.perf_counter())
    states = sf.scan(Floor, a=a, b=b, c=c)
    settle()
    marks.append(time.perf_counter())
    states.sum().backward()
    settle()
    marks.append(time.perf_counter())
    sf.scan(Floor, a=a, b=b, c=c).sum().backward()
    settle()
    marks.append(time.perf_counter())
    stages = ("import and declare", "first forward", "first backward", "both again")
    seconds = dict(zip(stages, (b - a for a, b in pairwise(marks)), strict=True))
    return seconds | {"first forward and backward": seconds["first forward"] + seconds["first backward"]}


if __name__ == "__main__":
    print(json.dumps(run()))
