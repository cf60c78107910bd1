"""Texts are keys, in memory and on disk, so they are the same in every process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import scanforge as sf
from scanforge.adjoint import full_adjoint
from scanforge.ir.scan import dump
from scanforge.pipeline import Wanted, backward
from scanforge.trace import Signature, prefix_scan, trace
from tests.recurrences import ENTRIES
from tests.subprocesses import ROOT, run_python

OPERATORS = [getattr(sf.operators, name) for name in sf.operators.__all__]
PRINT = "import json, tests.symbolic.test_equal_text as here; print(json.dumps(here.texts()))"


def scans() -> Iterator[str]:
    """What is traced, and the backward pass of it."""
    for operator in OPERATORS:
        leaves = operator.__scanforge__.leaves
        made = trace(operator, Signature(("t", "b", "d"), (("b", "t", "d"),) * len(leaves)))
        outputs = frozenset(o.name for o in made.scan.outputs if o.kind == "float")
        wanted = frozenset(x.name for x in leaves if x.kind == "float")
        yield f"{made.text} {made.operators[0]} {dump(prefix_scan(made).scan)}"
        yield backward(made.text, Wanted(wanted, outputs, True), ("float64",) * len(leaves))[0]


def adjoints() -> Iterator[str]:
    """Two of each operator, with what goes in and comes out."""
    for operator in OPERATORS:
        signature = Signature(("t", "b", "d"), (("b", "t", "d"),) * len(operator.__scanforge__.leaves))
        first = full_adjoint(trace(operator, signature).scan)
        for x in (first, full_adjoint(first.scan)):
            yield f"{dump(x.scan)} {x.states_before} {x.cotangents} {x.gradients} {x.initial}"


def explanations() -> Iterator[str]:
    for operator in OPERATORS:
        yield sf.explain(operator, b=2, t=64, d=8)


def kernels() -> Iterator[str]:
    for entry in ENTRIES:
        for which in ("forward", "backward"):
            yield sf.source(entry.recurrence, which, backend="triton")


def texts() -> dict[str, list[str]]:
    return {part.__name__: list(part()) for part in (scans, adjoints, explanations, kernels)}


def test_equal_text_in_every_process(monkeypatch: pytest.MonkeyPatch):
    printed = []
    for seed in ("0", "4711"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        printed.append(json.loads(run_python("-c", PRINT, cwd=ROOT)))
    for part, text in printed[0].items():
        assert len(text) >= len(OPERATORS)
        assert printed[1][part] == text, part
    assert printed[0]["scans"] == list(scans())
    assert printed[0]["adjoints"] == list(adjoints())
