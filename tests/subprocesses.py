"""Run Python in another process: a fresh one, or one that has imported torch and scanforge already."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_python(*args: str, cwd: Path, path: Path | None = ROOT, timeout: float = 300) -> str:
    """Run `python *args` in `cwd` with `path` importable, and return what it printed to stdout.

    A failure is an AssertionError that shows stderr. For what only a fresh interpreter shows: imports,
    hash seeds, what is installed.
    """
    done = subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env=_environment(path),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"python {' '.join(args)[:200]}\n{done.stdout}{done.stderr}"
    return done.stdout


def run_warm(*args: str, cwd: Path, path: Path | None = ROOT, timeout: int = 300) -> str:
    """As `run_python`, without the second and a half in which a process imports torch and scanforge."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdout", "stderr")]
        request = {
            "words": args, "cwd": str(cwd), "environment": _environment(path), "timeout": timeout,
            "streams": [os.devnull, *map(str, files)],
        }  # fmt: skip
        server = _server()
        assert server.stdin
        assert server.stdout
        print(json.dumps(request), file=server.stdin, flush=True)
        status = server.stdout.readline().strip()
        out, err = (file.read_text(encoding="utf-8") for file in files)
    assert status == "0", f"python {' '.join(args)[:200]}\n{status or 'the server ended'}\n{out}{err}"
    return out


def _environment(path: Path | None) -> dict[str, str]:
    given = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return given if path is None else given | {"PYTHONPATH": str(path)}


@cache
def _server() -> subprocess.Popen[str]:
    """One for this process, which ends with it."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.warm"], cwd=ROOT, env=_environment(ROOT), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    atexit.register(server.communicate)
    return server
