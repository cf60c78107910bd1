"""`make sanitize`: memcheck, racecheck and initcheck of compute-sanitizer over tests/gpu/test_sanitized.py.

The tools run side by side, after one run without any that compiles all kernels. Exit code 0: all clean.
1: a tool found something, or the tests fail by themselves. 3: a tool is not there or cannot run here; then
guard pages and 200 repeats under load, of tests/gpu/test_trust.py, stand in, and the report says so.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "initcheck")
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu")
SUBSET = (*PYTEST, "tests/gpu/test_sanitized.py")
STAND_IN = (*PYTEST, "tests/gpu/test_trust.py", "-k", "past_a_page or two_hundred_repeats")
FOUND = 9  # the exit code that a tool is told to have when it has found something
_SUMMARY = re.compile(r"^=+ *((?:RACECHECK |ERROR )?SUMMARY:.*|Error:.*|.*not supported.*)$", re.MULTILINE)
_COUNTS = re.compile(r"^(?:.*\b(?:passed|failed|error).* in .*s.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What a run with a tool came to: `clean`, `errors` or `could not run`, and its own words."""

    tool: str
    state: str
    said: str

    def __str__(self) -> str:
        return f"{self.tool}: {self.state}; {self.said}"


def candidates() -> Iterable[str]:
    """Where the tool may lie: on the path, in a CUDA toolkit, in a wheel of one."""
    yield shutil.which("compute-sanitizer") or ""
    for pattern in ("/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer", "/opt/nvidia/**/bin"):
        yield from sorted(glob.glob(f"{pattern}/compute-sanitizer", recursive=True), reverse=True)
    for folder in site.getsitepackages():
        yield from glob.glob(f"{folder}/**/compute-sanitizer", recursive=True)


def tool_path() -> str:
    """The first that can be executed; empty if there is none."""
    return next((c for c in candidates() if c and Path(c).is_file() and os.access(c, os.X_OK)), "")


def judged(tool: str, code: int | None, log: str) -> Outcome:
    """From the exit code (None: it was ended) and what was printed; tests must have run, and to their end."""
    said = "; ".join([*_SUMMARY.findall(log)[-2:], *_COUNTS.findall(log)[-1:]]) or log.strip()[-200:]
    if code == FOUND:
        return Outcome(tool, "errors", said)
    if code is None:
        return Outcome(tool, "could not run", f"it was ended after its time; {said}")
    if code == 0 and re.search(r"\b[1-9]\d* passed", log) and _SUMMARY.search(log):
        return Outcome(tool, "clean", said)
    return Outcome(tool, "could not run", f"exit code {code}; {said}")


def environment() -> dict[str, str]:
    """Every tensor has memory of its own, with what is outside of it outside."""
    return os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "2"}


def sanitized(path: str, seconds: float, logs: Path, command: Sequence[str] = SUBSET) -> list[Outcome]:
    """The tools side by side, each ended after so many seconds."""
    end, started = time.monotonic() + seconds, []
    for tool in TOOLS:
        log = (logs / f"sanitize-{tool}.log").open("w+", encoding="utf-8")
        options = ["--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "20"]
        run = subprocess.Popen(
            [path, *options, *command], stdout=log, stderr=subprocess.STDOUT, env=environment()
        )
        started.append((tool, run, log))
    found = []
    for tool, run, log in started:
        try:
            code: int | None = run.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            run.kill()
            run.wait()
            code = None
        log.seek(0)
        found.append(judged(tool, code, log.read()))
        log.close()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=75, help="for the tools, beside each other")
    parser.add_argument("--logs", type=Path, default=Path("build"), help="where sanitize-*.log go")
    options = parser.parse_args(arguments)
    options.logs.mkdir(parents=True, exist_ok=True)
    path = tool_path()
    found = [Outcome(t, "could not run", "compute-sanitizer is not on this machine") for t in TOOLS]
    if path:
        if code := subprocess.call(SUBSET, env=environment()):  # compiles, so that the tools only run
            print(f"The tests fail without any tool (exit code {code}).")
            return 1
        found = sanitized(path, options.seconds, options.logs)
    print(*found, sep="\n")
    states = {outcome.state for outcome in found}
    if "errors" in states:
        return 1
    if states == {"clean"}:
        return 0
    code = subprocess.call(STAND_IN)
    print(f"Guard pages and 200 repeats under load stand in: {'FAILED' if code else 'passed'}.")
    return 1 if code else 3


if __name__ == "__main__":
    raise SystemExit(main())
