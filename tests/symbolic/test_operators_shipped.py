"""The shipped operators as declarations: fields, size, documentation. No tensors."""

from __future__ import annotations

import ast
import inspect

import pytest

import scanforge as sf
from scanforge import operators
from scanforge.declare import declaration
from tests.loops import IDENTITY, INITIAL

OPERATORS = [getattr(operators, name) for name in operators.__all__]
STATES = {
    "Affine": ["h"],
    "MinMax": ["x"],
    "RunningMax": ["top", "at"],
    "LogSumExp": ["top", "total"],
    "LastFlagged": ["last"],
    "ComplexAffine": ["h_re", "h_im"],
    "Matrix2x2": ["x0", "x1"],
    "MaxPlus": ["x"],
    "Kalman": ["mean", "var"],
}

every_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda x: x.__name__)


def fields(operator, kind):
    return {name: field for name, field in vars(operator).items() if isinstance(field, kind)}


def test_the_list_is_complete():
    assert set(operators.__all__) == set(IDENTITY) == set(STATES) == set(INITIAL)
    assert operators.__all__ == sorted(operators.__all__)


@every_operator
def test_fields_in_declared_order(operator):
    name = operator.__name__
    leaves, states = fields(operator, sf.Element), fields(operator, sf.State)
    assert {n: x.identity for n, x in leaves.items()} == IDENTITY[name]
    assert list(leaves) == list(IDENTITY[name])
    assert list(states) == STATES[name]
    assert tuple(x.initial for x in declaration(operator).states) == INITIAL[name]


@every_operator
def test_documentation(operator):
    """The first line is the equation; identity, source and an example follow."""
    doc = inspect.getdoc(operator)
    assert "`" in doc.splitlines()[0]
    for word in (
        "dentity",
        "Source: ",
        ">>> import torch, scanforge as sf",
        f"sf.operators.{operator.__name__}",
    ):
        assert word in doc


@every_operator
def test_it_is_short(operator):
    """Twenty lines but for the docstring."""
    (node,) = ast.parse(inspect.getsource(operator)).body
    doc = node.body[0]
    assert (node.end_lineno - node.lineno + 1) - (doc.end_lineno - doc.lineno + 1) <= 20


def test_the_module_imports_what_a_user_could():
    modules = {
        node.module
        for node in ast.walk(ast.parse(inspect.getsource(operators)))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("scanforge")
    }
    assert modules <= {"scanforge.declare", "scanforge.fields", "scanforge.maths"}
