"""A part in waves, and two steps in one."""

from __future__ import annotations

import pytest
import torch

from scanforge.adjoint import full_adjoint
from scanforge.ir.builder import Builder
from scanforge.ir.program import Program
from scanforge.schedule import handed_on, stages, states_only, together
from scanforge.waves import waves
from tests.recurrences import ENTRIES
from tests.symbolic.programs import draw, run, scan_of

SLOW = {"exp", "sigmoid", "sqrt", "div", "tanh", "softplus"}


def chain() -> Program:
    """Three slow primitives behind each other, and one beside them."""
    builder = Builder("chain", ("t", "d"), where="")
    x, y = (builder.input(n, "float", ("t", "d")) for n in "xy")
    gate = (2.0 * x).call("sigmoid")
    decay = (-3.0 * gate).call("exp")
    other = y.call("sigmoid")
    root = (1.0 - decay * decay).call("sqrt")
    return builder.finish({"decay": decay, "both": root * other * y, "gate": gate})


def follow(parts: list[Program], given: dict) -> dict:
    """Run programs one after another, each on what those before it hand on."""
    known, found = dict(given), {}
    for part in parts:
        made = run(part, {v.name: known[v.name] for v in part.inputs})
        for name, variable in part.outputs:
            (known if name == handed_on(variable) else found)[
                variable if name == handed_on(variable) else name
            ] = made[name]
            if name != handed_on(variable):
                known.setdefault(variable, made[name])
    return found


def test_no_slow_primitive_waits_within_a_wave():
    parts = waves(chain())
    assert [sorted(x.op for x in p.lines if x.op in SLOW) for p in parts] == [
        ["sigmoid", "sigmoid"], ["exp"], ["sqrt"], [],
    ]  # fmt: skip
    for part in parts:
        slow = {x.var.name for x in part.lines if x.op in SLOW}
        assert not any(set(x.args) & slow for x in part.lines)


def test_waves_one_after_another_are_the_part():
    program = chain()
    given = draw(program, 0)
    got, want = follow(waves(program), given), run(program, given)
    assert got.keys() == want.keys()
    for name, y in want.items():
        torch.testing.assert_close(got[name], y, rtol=0, atol=0)


def test_an_output_that_a_later_wave_needs_is_handed_on_too():
    """`decay` leaves the second wave as an output, and the third one reads it."""
    second = waves(chain())[1]
    names = [n for n, _ in second.outputs]
    assert "decay" in names
    assert any(n == handed_on(v) and n != "decay" for n, v in second.outputs)


def test_a_part_without_slow_primitives_is_one_wave():
    builder = Builder("fast", ("t",), where="")
    x = builder.input("x", "float", ("t",))
    assert len(waves(builder.finish({"y": 2.0 * x + 1.0}))) == 1


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_two_steps_in_one_share_their_lines(entry):
    """The adjoint's step and the states again, as a backward kernel runs them."""
    scan = scan_of(entry)
    adjoint, again = full_adjoint(scan).step, states_only(scan)
    both = together(adjoint, again)
    given = draw(both, 0)
    want = run(adjoint, given) | run(again, given)
    got = run(both, given)
    assert got.keys() == want.keys()
    for name, y in want.items():
        torch.testing.assert_close(got[name], y, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert len(both.lines) <= len(adjoint.lines) + len(again.lines)


def test_each_for_some_outputs_reads_what_they_need():
    scan = scan_of(next(e for e in ENTRIES if e.name == "RGLRU"))
    parts = stages(together(full_adjoint(scan).step, states_only(scan)))
    assert parts is not None
    states = parts.each_for(["next_h"])
    assert [n for n, _ in states.each.outputs] == ["next_h"]
    assert {v.name for v in states.each.inputs} < {v.name for v in parts.each.inputs}
    assert not any(v.name.startswith("grad_") for v in states.each.inputs)
