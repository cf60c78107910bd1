"""Run Python in a fresh interpreter, for what only a fresh interpreter shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_python(*args: str, cwd: Path, path: Path | None = ROOT, timeout: float = 300) -> str:
    """Run `python *args` in `cwd` with `path` importable, and return what it printed to stdout.

    A failure is an AssertionError that shows stderr.
    """
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, *args], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"python {' '.join(args)[:200]}\n{done.stdout}{done.stderr}"
    return done.stdout
