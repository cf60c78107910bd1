"""The two commands set up what they need, from exact pins, and nothing when an interpreter is given."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib

from tests.subprocesses import ROOT


def _dry_run(*args: str) -> str:
    # A make above this one hands its own PYTHON= down in MAKEFLAGS.
    env = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}}
    # Without -B a stamp newer than its sources would hide the installation.
    done = subprocess.run(
        ["make", "-n", "-B", *args], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_test_command_checks_first():
    commands = _dry_run("PYTHON=python3", "test")
    order = [commands.index(word) for word in ("ruff format --check", "ruff check", "mypy", "-m pytest -n")]
    assert order == sorted(order)


def test_a_given_interpreter_installs_nothing():
    for target in ("demo", "test", "test-all"):
        commands = _dry_run("PYTHON=python3", target)
        assert "pip" not in commands
        assert "venv" not in commands


def test_without_one_the_pins_are_installed():
    for target in ("demo", "test", "test-all"):
        commands = _dry_run(target)
        assert "-c constraints.txt" in commands
        assert ("[transformers]" in commands) == (target == "test-all")


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-")


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in pins)
    installed = [*extras["test"], *extras["demo"], *extras["transformers"]]
    wanted = {_name(r) for r in [*project["dependencies"], *installed]}
    assert wanted <= {_name(pin) for pin in pins}
