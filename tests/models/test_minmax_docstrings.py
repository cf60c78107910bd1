"""Every example in the docstrings of `models.minmax` runs, and every public class and function has one."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from models import minmax

MODULES = [m.name for m in pkgutil.iter_modules(minmax.__path__, "models.minmax.")]
SHOWN = [
    name
    for name in minmax.__all__
    if callable(getattr(minmax, name)) and not name.endswith(("Config", "SRInitType"))
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", [*SHOWN, "MinMaxRNCConfig"])
def test_there_is_an_example(name):
    assert ">>> " in getattr(minmax, name).__doc__
