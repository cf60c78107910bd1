"""ir.Scan -> the program of one time step, element map, apply and readout in one, equal lines shared."""

from __future__ import annotations

from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program
from scanforge.ir.program import Program
from scanforge.ir.scan import Scan, before
from scanforge.prune import tidy


def step_program(scan: Scan) -> Program:
    """Reads the inputs and the states before the step; gives `next_<state>` and the outputs.

    What stands before the cut at the scan is visible after it, so a line that the element map and the
    readout both need is computed once.
    """
    builder = Builder(f"{scan.name}.step", scan.axes, where="")
    values = {i.name: builder.input(i.name, i.kind, scan.order(i.axes)) for i in scan.inputs}
    states = {
        before(s.name): builder.input(before(s.name), s.kind, scan.order(("t", *s.axes))) for s in scan.states
    }
    values |= states
    leaves = builder.inline(scan.element, {v.name: values[v.name] for v in scan.element.inputs})
    previous = {s.name: states[before(s.name)] for s in scan.states}
    after = builder.inline(scan.operator.apply, leaves | previous)
    read = values | after
    outputs = builder.inline(scan.readout, {v.name: read[v.name] for v in scan.readout.inputs})
    steps = {next_state(name): value for name, value in after.items()}
    return check_program(tidy(builder.finish(steps | outputs)))


def next_state(state: str) -> str:
    """How a step program names the state after the step."""
    return f"next_{state}"
