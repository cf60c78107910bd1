"""`make fuzz`: some hundred calls of it, and a fault that it finds, shrinks and prints as a program."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import scanforge as sf
from tests import spoilt
from tests.fuzz import judge
from tests.fuzz.__main__ import fuzz
from tests.fuzz.cases import Call, calls
from tests.fuzz.judge import faults
from tests.fuzz.program import TEXTS, program
from tests.fuzz.semidirect import ACTS, semidirect
from tests.random_recurrences import BINARY, UNARY
from tests.reference.compare import many
from tests.reference.fused import single
from tests.reference.test_random_operators import drawn

QUIET = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=200, phases=[Phase.generate], **QUIET)
@given(calls())
def test_random_calls(call: Call):
    assert not faults(call), call


@pytest.mark.parametrize("action", ACTS)
def test_semidirect_products_are_lawful(action):
    for monoid in ACTS[action]:
        made = semidirect(action, monoid, 2)
        sf.scan(made.operator(), **drawn(made, 3, 0)[0])
        assert all(row.ok for row in sf.check(made.operator(), show=False, t=7).rows)


def run(text: str) -> dict:
    names = {"__name__": "program"}
    exec(compile(text, "program.py", "exec"), names)
    return names


@settings(max_examples=12, phases=[Phase.generate], **QUIET)
@given(calls())
def test_a_program_is_its_call(call: Call):
    """The same class, numbers, strides and options: the same bits."""
    found = run(program(call, []))
    tensors, initial = call.tensors()
    for n, x in tensors.items():
        assert torch.equal(found["tensors"][n], x)
        assert found["tensors"][n].stride() == x.stride() or x.is_contiguous()
    mine, theirs = (
        sf.scan(one, **given, initial_state=single(tuple(start) or None), return_final_state=True, **options)
        for one, given, start, options in (
            (call.declared(), tensors, initial, call.options()),
            (found["Found"], found["tensors"], found["initial"], found["options"]),
        )
    )
    for xs, ys in zip(mine, theirs, strict=True):
        for x, y in zip(many(xs), many(ys), strict=True):
            assert torch.equal(x.nan_to_num(nan=7.0), y.nan_to_num(nan=7.0))


def test_every_function_has_a_text():
    assert set(TEXTS) <= {*UNARY, *BINARY}
    assert set(BINARY) <= set(TEXTS)
    assert all(hasattr(sf, op) for op in UNARY if op not in TEXTS)


def test_a_fault_is_found_shrunk_and_printed(monkeypatch):
    """A parallel form that takes the smaller of two: the program fails where it is broken, and only there."""

    def change(source: str) -> str:
        parallel = "in a number of passes logarithmic in time" in source
        return source.replace("torch.maximum(", "torch.minimum(") if parallel else source

    monkeypatch.setitem(judge.WAYS, "reference", ("parallel",))
    monkeypatch.setattr(judge, "sensitivity", lambda call: (0.0, 0.0))
    shifts = calls(st.just(semidirect("shift", "max", 1)))
    with spoilt.code(change, "load_module"):
        text = fuzz(20, 5, drawn=shifts)
        assert "# reference, parallel: values and gradients are off by" in text
        with pytest.raises(AssertionError):
            run(text)
    run(text)
    assert "class Found(sf.Operator):" in text
    assert max(x.numel() for x in run(text)["tensors"].values()) <= 4  # shrunk
