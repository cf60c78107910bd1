"""`make sanitize` tells what its tools came to: clean, errors, or not run at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import sanitize
from tests.subprocesses import ROOT

FAKE = """#!{python}
import sys, subprocess
tool, command = sys.argv[sys.argv.index("--tool") + 1], sys.argv[sys.argv.index("20") + 1:]
{body}
"""
RUNS = "code = subprocess.call(command)\nprint('========= {summary}')\nsys.exit(code)"
CLEAN = RUNS.format(summary="ERROR SUMMARY: 0 errors")
PASSES = (sys.executable, "-c", "print('9 passed in 1.2s')")


def fake(tmp_path: Path, body: str) -> str:
    path = tmp_path / "compute-sanitizer"
    path.write_text(FAKE.format(python=sys.executable, body=body))
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("body", "command", "state"),
    [
        (CLEAN, PASSES, "clean"),
        ("print('========= ERROR SUMMARY: 3 errors')\nsys.exit(9)", PASSES, "errors"),
        ("print('========= RACECHECK SUMMARY: 1 hazard displayed')\nsys.exit(9)", PASSES, "errors"),
        ("print('========= Error: Device not supported')\nsys.exit(0)", PASSES, "could not run"),
        ("sys.exit(subprocess.call(command))", PASSES, "could not run"),  # no summary: nothing was checked
        (CLEAN, (sys.executable, "-c", "print('2 skipped in 1.2s')"), "could not run"),
        (CLEAN, (sys.executable, "-c", "print('1 failed in 1.2s'); exit(1)"), "could not run"),
        ("import time; time.sleep(60)", PASSES, "could not run"),
    ],
    ids=["clean", "errors", "hazards", "no device", "no summary", "skipped", "failed", "ended"],
)
def test_what_a_tool_came_to(tmp_path, body, command, state):
    found = sanitize.sanitized(fake(tmp_path, body), 4.0 if "sleep" not in body else 0.5, tmp_path, command)
    assert [outcome.tool for outcome in found] == list(sanitize.TOOLS)
    assert {outcome.state for outcome in found} == {state}, found
    assert (tmp_path / "sanitize-memcheck.log").exists()


@pytest.mark.parametrize(("stand_in", "code"), [("0", 3), ("1", 1)])
def test_where_there_is_no_tool_something_stands_in_and_it_is_said(
    monkeypatch, tmp_path, capsys, stand_in, code
):
    monkeypatch.setattr(sanitize, "tool_path", lambda: "")
    monkeypatch.setattr(sanitize, "STAND_IN", (sys.executable, "-c", f"exit({stand_in})"))
    assert sanitize.main(["--logs", str(tmp_path)]) == code
    printed = capsys.readouterr().out
    assert printed.count("could not run; compute-sanitizer is not on this machine") == 3
    assert f"200 repeats under load stand in: {'FAILED' if code == 1 else 'passed'}." in printed


def test_what_stands_in_is_there():
    """Both names that are asked for name tests."""
    done = subprocess.run([*sanitize.STAND_IN, "--collect-only"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "test_nothing_is_read_or_written_past_a_page" in done.stdout
    assert "test_req49_two_hundred_repeats_under_load" in done.stdout
