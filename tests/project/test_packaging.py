"""The wheel is pure Python, carries what it should, and works where it is installed."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from tests.documents import python_blocks
from tests.subprocesses import ROOT, run_python

SOURCES = ["pyproject.toml", "README.md", "scanforge", "models", "tests", "examples", "docs", "benchmarks"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, so that the checkout stays clean."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source / name)
    run_python(
        "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(source),
        cwd=source, path=None,
    )  # fmt: skip
    [built] = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh folder with the wheel in it and nothing else."""
    target = tmp_path_factory.mktemp("installed")
    run_python(
        "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel),
        cwd=target, path=None,
    )  # fmt: skip
    return target


def test_req50_wheel_is_pure_python(wheel: Path):
    assert wheel.name.endswith("-py3-none-any.whl")


def test_wheel_carries_the_two_packages_only(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"scanforge", "models"}
    shipped = {
        path.relative_to(ROOT).as_posix()
        for folder in ("scanforge", "models")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert shipped | {"scanforge/py.typed", "models/py.typed"} <= set(names)


def test_installed_wheel_runs_beside_a_users_models(installed: Path, tmp_path: Path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("mine = True\n")
    check = f"""
import models, scanforge.models
assert models.mine
assert scanforge.__file__.startswith({str(installed)!r}), scanforge.__file__
assert scanforge.models.__file__.startswith({str(installed)!r}), scanforge.models.__file__
"""
    program = tmp_path / "program.py"
    program.write_text(python_blocks(ROOT / "README.md")[0].code + check, encoding="utf-8")
    run_python(str(program), cwd=tmp_path, path=installed)


def test_command_is_declared(wheel: Path):
    archive = zipfile.ZipFile(wheel)
    [entry] = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    assert "scanforge = scanforge.cli:main" in archive.read(entry).decode()


def test_installed_wheel_checks_itself(installed: Path, tmp_path: Path):
    """The reference here, and kernels in Triton's interpreter in a process of their own."""
    targets = ["scanforge.operators:MinMax", "scanforge.models.rglru.recurrence:RGLRUScan"]
    shown = run_python("-m", "scanforge.cli", "selfcheck", *targets, cwd=tmp_path, path=installed)
    assert "reference on cpu: ok" in shown
    assert "triton on cpu in its interpreter: ok" in shown
