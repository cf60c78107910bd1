"""Wheel and sdist carry what they should, and the wheel works where it alone is installed."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from tests.documents import python_blocks
from tests.subprocesses import ROOT, run_python

LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", ".*", "build", "dist", "*.egg-info", "scratch", "results", "shared"
)
PACKAGES = ("scanforge", "models")
FIRST_PROGRAM = python_blocks(ROOT / "README.md")[0].code


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, which building may write into."""
    copy = tmp_path_factory.mktemp("source") / "scanforge"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    return copy


def _build(source: Path, out: Path, *formats: str) -> list[Path]:
    """With the setuptools that is installed, so that nothing is fetched."""
    run_python(
        "-m", "build", "--no-isolation", *formats, "--outdir", str(out), str(source), cwd=out, path=None
    )  # fmt: skip
    return sorted(out.iterdir())


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    [built] = _build(source, tmp_path_factory.mktemp("sdist"), "--sdist")
    return built


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(target, filter="data")
    [folder] = target.iterdir()
    return folder


@pytest.fixture(scope="module")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the unpacked sdist: what is missing there is missing here."""
    [built] = _build(unpacked, tmp_path_factory.mktemp("dist"), "--wheel")
    return built


@pytest.fixture(scope="module", params=["with Triton", "without Triton"])
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The Python of an environment with the wheel in it, and of this one nothing but the dependencies."""
    home = tmp_path_factory.mktemp("environment")
    run_python("-m", "venv", "--without-pip", str(home), cwd=home, path=None)
    python = home / "bin" / "python"
    run_python(
        "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel),
        cwd=home, path=None,
    )  # fmt: skip
    dependencies = home / "dependencies"  # without what .pth files add: editable installs stay behind
    dependencies.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not (entry.name.startswith("triton") and request.param == "without Triton"):
            (dependencies / entry.name).symlink_to(entry)
    packages = home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    return python


def _run(python: Path, program: str, cwd: Path, *command: str) -> str:
    path = cwd / "program.py"
    path.write_text(program, encoding="utf-8")
    words = command or (str(path),)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(python), *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _in_repository() -> set[str]:
    """Files that git tracks or would."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    return set(listed.stdout.split("\n"))


class TestSdist:
    def test_it_carries_what_the_tests_need(self, unpacked: Path):
        names = {p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file()}
        wanted = {
            path.relative_to(ROOT).as_posix()
            for folder in (*PACKAGES, "tests", "docs", "examples")
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
        }
        wanted -= {n for n in wanted if n.startswith("tests/gpu/results/")}
        assert wanted <= names
        assert {"LICENSE", "README.md", "CITATION.cff", "constraints.txt", "Makefile", "mkdocs.yml"} <= names

    def test_it_carries_nothing_else(self, unpacked: Path):
        names = {p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file()}
        made = {n for n in names if n.startswith("scanforge.egg-info/")} | {"PKG-INFO", "setup.cfg"}
        if (ROOT / ".git").exists():
            assert names - made <= _in_repository()
        assert not {n for n in names if n.endswith((".pyc", ".so", ".html", ".pt"))}
        assert sum((unpacked / n).stat().st_size for n in names) < 8_000_000


class TestWheel:
    def test_req50_it_is_pure_python(self, wheel: Path):
        assert wheel.name.endswith("-py3-none-any.whl")

    def test_it_carries_the_two_packages_only(self, wheel: Path):
        names = zipfile.ZipFile(wheel).namelist()
        tops = {name.split("/")[0] for name in names}
        assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
        shipped = {
            path.relative_to(ROOT).as_posix() for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")
        }
        assert shipped | {"scanforge/py.typed", "models/py.typed"} <= set(names)

    def test_what_it_says_of_itself(self, wheel: Path):
        archive = zipfile.ZipFile(wheel)
        of = {n.split("/")[-1]: n for n in archive.namelist() if ".dist-info/" in n}
        said = message_from_string(archive.read(of["METADATA"]).decode())
        assert (said["Name"], said["License-Expression"]) == ("scanforge", "Apache-2.0")
        assert archive.read(of["LICENSE"]) == (ROOT / "LICENSE").read_bytes()
        assert "scanforge = scanforge.cli:main" in archive.read(of["entry_points.txt"]).decode()
        citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
        assert f"\nversion: {said['Version']}\n" in citation
        assert "\nlicense: Apache-2.0\n" in citation


class TestInstalled:
    def test_the_first_program_runs_beside_a_users_models(self, installed: Path, tmp_path: Path):
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "__init__.py").write_text("mine = True\n")
        check = f"""
import models, scanforge.models
assert models.mine
for module in (sf, scanforge.models):
    assert module.__file__.startswith({str(installed.parent.parent)!r}), module.__file__
assert torch.isfinite(r.grad).all() and r.grad.abs().sum() > 0
print(scanforge.models.MinMaxNeuron.__name__, tuple(states.shape))
"""
        out = _run(installed, FIRST_PROGRAM + check, tmp_path)
        assert out == "MinMaxNeuron (8, 512, 64)\n"

    def test_the_command_runs(self, installed: Path, tmp_path: Path):
        program = FIRST_PROGRAM.partition("device =")[0]
        words = ("-m", "scanforge.cli", "report", "program.py:MinMax", "t=64")
        assert _run(installed, program, tmp_path, *words) == "wrote MinMax.html\n"
        assert (installed.parent / "scanforge").exists()
        page = (tmp_path / "MinMax.html").read_text(encoding="utf-8")
        assert "laws and gradients hold" in page
        assert "triton, backward" in page  # kernels are shown where none can run


def _imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_every_import_is_a_dependency():
    """mpmath is SymPy's arithmetic; transformers is an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {re.split(r"[^A-Za-z0-9_-]", r)[0] for r in project["dependencies"]}
    used = set().union(*(_imported(p) for name in PACKAGES for p in (ROOT / name).rglob("*.py")))
    outside = used - set(sys.stdlib_module_names) - set(PACKAGES)
    assert outside - {"mpmath", "transformers"} == declared
