"""`scanforge.models` is the shipped `models` package, also where a user's folder takes the name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.subprocesses import ROOT, run_python

SHIPPED = ROOT / "models"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A copy of the two packages' skeleton, with one layer to import."""
    folder = tmp_path / "library"
    (folder / "scanforge").mkdir(parents=True)
    (folder / "scanforge" / "__init__.py").write_text("")
    alias = ROOT / "scanforge" / "models.py"
    (folder / "scanforge" / "models.py").write_text(alias.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "models").mkdir()
    (folder / "models" / "__init__.py").write_text("shipped = True\n")
    (folder / "models" / "layer.py").write_text("from . import shipped\nclass Layer: pass\n")
    return folder


def _users_models(folder: Path, *, kind: str) -> None:
    if kind == "file":
        (folder / "models.py").write_text("mine = True\n")
    else:
        (folder / "models").mkdir(parents=True)
        (folder / "models" / ("__init__.py" if kind == "package" else "plain.py")).write_text("mine = True\n")


def test_alias_is_the_very_module(library: Path, tmp_path: Path):
    code = """
import scanforge.models, models
assert scanforge.models is models
import scanforge.models.layer, models.layer
assert scanforge.models.layer is models.layer
assert models.layer.__spec__.name == models.layer.__name__ == "models.layer"
from scanforge.models import layer
from scanforge.models.layer import Layer
assert layer.Layer is Layer is models.layer.Layer
"""
    run_python("-c", code, cwd=tmp_path, path=library)


@pytest.mark.parametrize("first", ["models.layer", "scanforge.models.layer"])
def test_order_of_import_does_not_matter(first: str, library: Path, tmp_path: Path):
    code = f"""
import {first}
import scanforge.models.layer as one
import models.layer as other
assert one is other
"""
    run_python("-c", code, cwd=tmp_path, path=library)


def test_a_missing_layer_is_a_module_not_found_error(library: Path, tmp_path: Path):
    code = """
import importlib.util, scanforge.models
assert importlib.util.find_spec("scanforge.models.nothing") is None
try:
    import scanforge.models.nothing
except ModuleNotFoundError as error:
    print(error)
"""
    assert "models.nothing" in run_python("-c", code, cwd=tmp_path, path=library)


@pytest.mark.parametrize("kind", ["package", "file"])
@pytest.mark.parametrize("loaded_first", [True, False])
def test_a_users_models_stays_the_users(kind: str, loaded_first: bool, library: Path, tmp_path: Path):
    mine = tmp_path / "mine"
    mine.mkdir()
    _users_models(mine, kind=kind)
    code = f"""
{"import models" if loaded_first else ""}
import scanforge.models
from scanforge.models.layer import Layer
import models
assert models.mine and not hasattr(models, "shipped")
assert scanforge.models.shipped and not hasattr(scanforge.models, "mine")
assert Layer.__module__ == "scanforge.models.layer"
"""
    run_python("-c", code, cwd=mine, path=library)


def test_a_plain_folder_does_not_shadow(library: Path, tmp_path: Path):
    """A folder without `__init__.py` gives way to a package, so both names are the shipped one."""
    mine = tmp_path / "mine"
    _users_models(mine, kind="folder")
    run_python(
        "-c", "import models, scanforge.models; assert models is scanforge.models", cwd=mine, path=library
    )


def test_the_shipped_package_is_found_here(tmp_path: Path):
    code = "import scanforge.models as m; print(m.__file__, m.__all__ is not None)"
    assert run_python("-c", code, cwd=tmp_path).split() == [str(SHIPPED / "__init__.py"), "True"]
