"""Every example in the docstrings of what users call runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import scanforge

MODULES = [
    m.name for m in pkgutil.iter_modules(scanforge.__path__, "scanforge.") if not m.name.endswith(".models")
]
FACE = ("scan", "step", "prefixes", "check", "explain", "source", "last_run", "Operator", "Recurrence")
FIELDS = ("Element", "State", "Input", "Output")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", [*FACE, *FIELDS])
def test_the_face_has_an_example(name):
    assert ">>> " in getattr(scanforge, name).__doc__
