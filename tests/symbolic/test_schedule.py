"""The programs of one step, as kernels run them: settled for the sums that follow, and cut into stages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import scanforge as sf
from scanforge import pipeline
from scanforge.adjoint import full_adjoint
from scanforge.ir.builder import Builder
from scanforge.ir.program import Program
from scanforge.ir.scan import TIME, Scan, dump
from scanforge.narrow import narrowed
from scanforge.schedule import (
    PARTS,
    NotLinearError,
    Stages,
    first,
    handed_on,
    next_state,
    settled,
    stages,
    step_program,
    whole_axes,
)
from scanforge.trace_recurrence import Call, trace_recurrence
from tests.recurrences import BY_NAME, ENTRIES, Entry
from tests.symbolic.programs import added_up, draw, run, scan_of, summed

every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
each_way = pytest.mark.parametrize("way", ["forward", "backward"])
NONE: frozenset[str] = frozenset()


def stepped(entry: Entry, way: str) -> tuple[Scan, Program]:
    """A scan and its step: of the recurrence, or of its adjoint."""
    scan = scan_of(entry)
    if way == "forward":
        return scan, step_program(scan)
    derived = full_adjoint(scan)
    return derived.scan, derived.step


def assert_same_outputs(scan: Scan, program: Program, other: Program, within: frozenset[str]) -> None:
    """The settled program's outputs, added up over the lanes, are the step's; its states are."""
    given = draw(other) | draw(program)
    before, after = run(program, given), run(other, given)
    assert before.keys() == after.keys()
    for output in scan.outputs:
        x = summed(scan, output, before[output.name])
        y = added_up(scan, output, after[output.name], within)
        torch.testing.assert_close(y, x.expand(y.shape), rtol=1e-10, atol=1e-10, equal_nan=True)
    for s in scan.states:
        x, y = (values[next_state(s.name)] for values in (before, after))
        torch.testing.assert_close(*torch.broadcast_tensors(y, x), rtol=1e-10, atol=1e-10, equal_nan=True)


class TestSettled:
    @every_entry
    @each_way
    def test_outputs_need_only_be_added_up(self, entry, way):
        """With as few axes within the step as can be, and with all of them."""
        scan, program = stepped(entry, way)
        lanes = frozenset(a for a in scan.lanes if a != "b")
        for within in {whole_axes(scan, program, NONE), lanes}:
            assert_same_outputs(scan, program, settled(scan, program, within), within)

    @every_entry
    @each_way
    def test_no_sum_is_left_but_over_what_is_within(self, entry, way):
        scan, program = stepped(entry, way)
        within = whole_axes(scan, program, NONE)
        sums = [line for line in settled(scan, program, within).lines if line.op == "sum"]
        assert {a for line in sums for a in line.over} <= within

    def test_what_is_added_to_a_summand_counts_once(self):
        """y = Σ_n C h + D u: D u is added at the first entry along n alone."""
        scan, program = stepped(BY_NAME["SelectiveSSM"], "forward")
        made = settled(scan, program, NONE)
        assert first("n") in {v.name for v in made.inputs}
        (where,) = [line for line in made.lines if line.op == "where"]
        assert where.args[0] == first("n")
        assert made.variables()[where.args[1]].axes == ("t", "b", "d")
        inside = settled(scan, program, frozenset("n"))
        assert first("n") not in {v.name for v in inside.inputs}

    def test_what_an_output_lacks_counts_once_too(self):
        """An output over time and batch alone, of a value without channels, in a scan with channels."""

        class Norm(sf.Recurrence):
            x, w = sf.Input("b t d"), sf.Input("b t")
            h = sf.State("b d")
            y, z = sf.Output("b t d"), sf.Output("b t")

            def element(self):
                return sf.Affine(a=0.5, b=self.x)

            def readout(self):
                return self.h, self.w

        scan = trace_recurrence(Norm, Call((), (("b", "t", "d"), ("b", "t")))).scan
        program = step_program(scan)
        made = settled(scan, program, NONE)
        assert first("d") in {v.name for v in made.inputs}
        assert_same_outputs(scan, program, made, NONE)

    @pytest.mark.parametrize(("name", "axes"), [("LinearAttention", "k"), ("LRU", "d")])
    def test_a_sum_that_is_not_linear(self, name, axes):
        """|Σ_k q z| in a divisor, and a state that depends on Σ_d B x."""
        scan, program = stepped(BY_NAME[name], "forward")
        with pytest.raises(NotLinearError, match=axes):
            settled(scan, program, NONE)

    @pytest.mark.parametrize("op", ["exp", "abs", "sigmoid"])
    def test_a_function_of_a_sum_is_not_linear(self, op):
        with pytest.raises(NotLinearError) as caught:
            settle_one(lambda x, s: s.call(op))
        assert caught.value.axes == frozenset("n")

    @pytest.mark.parametrize(
        "line",
        [
            lambda x, s: s * s,
            lambda x, s: x / s,
            lambda x, s: s / s,
            lambda x, s: s.call("maximum", x),
            lambda x, s: (s > x).call("where", x, x * x),
        ],
    )
    def test_products_quotients_and_choices_of_sums(self, line):
        with pytest.raises(NotLinearError):
            settle_one(line)

    @pytest.mark.parametrize(
        "line",
        [
            lambda x, s: -s,
            lambda x, s: s * x,
            lambda x, s: x * s,
            lambda x, s: s / x,
            lambda x, s: x - s,
            lambda x, s: s + s,
            lambda x, s: 2.0 - 3.0 * s,
            lambda x, s: (x > 0.0).call("where", s, x),
            lambda x, s: (x > 0.0).call("where", 0.0, s),
        ],
    )
    def test_lines_that_are_linear_work_on_summands(self, line):
        scan, program, made = settle_one(line)
        assert all(x.op != "sum" for x in made.lines)
        assert_same_outputs(scan, program, made, NONE)


def settle_one(line):
    """The readout line(x, Σ_n C h), settled with nothing within."""
    scan = scan_of(BY_NAME["SelectiveSSM"])
    builder = Builder("SelectiveSSM.step", scan.axes, where="")
    values = {v.name: builder.input(v.name, v.kind, v.axes) for v in step_program(scan).inputs}
    h = values["previous_h"]
    y = line(values["u"], builder.sum(values["C"] * h, ("n",)))
    program = builder.finish({next_state("h"): h * 1.5, scan.outputs[0].name: y})
    return scan, program, settled(scan, program, NONE)


WHOLE = {"LinearAttention": "k", "LRU": "d"}


class TestAxes:
    @every_entry
    def test_forward_sums_within_a_step(self, entry):
        scan, program = stepped(entry, "forward")
        assert whole_axes(scan, program, NONE) == frozenset(WHOLE.get(entry.name, ""))
        assert whole_axes(scan, program, frozenset("b")) >= frozenset("b")

    @every_entry
    def test_the_axis_that_a_thread_holds(self, entry):
        """Of states, but of no output over time, and nothing else needs a sum within the step."""
        held = {
            "SelectiveSSM": "n",
            "Mamba": "n",
            "HGRN2": "k",
            "GatedLinearAttention": "k",
            "Retention": "k",
        }
        assert pipeline.held_axis(dump(scan_of(entry))) == held.get(entry.name, "")


def in_parts(parts: Stages, program: Program, held: str) -> dict[str, torch.Tensor]:
    """Run part after part, with the sums over the held axis before the last."""
    env = draw(program)
    at = program.axes.index(held) if held else None
    results = {}
    for name in PARTS:
        part = parts.part(name)
        if name == "behind":
            env |= {total: env[summand].sum(at, keepdim=True) for total, summand in parts.sums}
        found = run(part, env)
        for output, variable in part.outputs:
            if output == handed_on(variable):
                env[variable] = found[output]
            else:
                results[output] = found[output]
    return results


def cut(entry: Entry, way: str) -> tuple[Program, Stages, str]:
    scan, program = stepped(entry, way)
    held = pipeline.held_axis(dump(scan_of(entry)))
    within = frozenset(held) if held else whole_axes(scan, program, NONE)
    made = narrowed(settled(scan, program, within))
    parts = stages(made, held)
    assert parts is not None
    return made, parts, held


HOLDING = [e for e in ENTRIES if e.name in {"SelectiveSSM", "Mamba", "HGRN2", "Retention"}]
LANES = [e for e in ENTRIES if e.name in {"RGLRU", "GatedMinMax", "LogSumExp", "Summing", "Heads"}]
each_kind = pytest.mark.parametrize("entry", [*HOLDING, *LANES], ids=lambda entry: entry.name)


class TestStages:
    @each_kind
    @each_way
    def test_the_parts_together_are_the_program(self, entry, way):
        made, parts, held = cut(entry, way)
        whole, found = run(made, draw(made)), in_parts(parts, made, held)
        assert whole.keys() == found.keys()
        for name, x in whole.items():
            torch.testing.assert_close(found[name], x, rtol=1e-12, atol=1e-12, equal_nan=True)

    @each_kind
    @each_way
    def test_each_line_stands_in_one_part(self, entry, way):
        made, parts, _ = cut(entry, way)
        placed = [x.var.name for p in PARTS for x in parts.part(p).lines if x.op != "const"]
        lines = [x.var.name for x in made.lines if x.op != "const"]
        totals = {total for total, _ in parts.sums}
        assert sorted(placed) == sorted(set(lines) - totals)

    @each_kind
    @each_way
    def test_what_a_part_may_depend_on(self, entry, way):
        """Before the loop nothing of time; ahead and behind nothing of the held axis; ahead no state."""
        _, parts, held = cut(entry, way)
        for name in ("once", "once_each"):
            part = parts.part(name)
            assert not any(TIME in v.axes for v in part.inputs)
            assert not any(TIME in x.var.axes for x in part.lines)
        for name in ("once", "ahead", "behind"):
            part = parts.part(name)
            assert not any(held in v.axes for v in part.variables().values() if held)
        if not held:
            assert not any(v.name.startswith("previous_") for v in parts.ahead.inputs)
            assert not parts.behind.lines

    def test_the_gate_of_mamba_is_computed_once_a_row(self):
        """softplus and silu are of a row and channel, exp(A_log) of a channel and entry, before the loop."""
        _, parts, _ = cut(BY_NAME["Mamba"], "forward")
        ops = {name: [line.op for line in parts.part(name).lines] for name in PARTS}
        assert "exp" in ops["once_each"]
        assert "softplus" in ops["ahead"]
        assert "silu" in ops["ahead"] + ops["behind"]
        assert set(ops["each"]) <= {"exp2", "mul", "add"}

    def test_tangled_entries(self):
        """An entry that depends on a sum over the entries has no stages."""
        builder = Builder("tangled.step", ("t", "d", "n"), where="")
        x = builder.input("x", "float", ("t", "d", "n"))
        total = builder.sum(x, ("n",))
        assert stages(builder.finish({"y": x * total}), "n") is None
        builder = Builder("straight.step", ("t", "d", "n"), where="")
        x = builder.input("x", "float", ("t", "d", "n"))
        total = builder.sum(x, ("n",))
        assert stages(builder.finish({"y": total * 2.0}), "n") is not None

    @each_way
    def test_linear_attention_is_tangled(self, way):
        """Its gradient divides the sums over k again by entries: it runs in blocks."""
        scan, program = stepped(BY_NAME["LinearAttention"], way)
        within = whole_axes(scan, program, frozenset("k"))
        made = stages(settled(scan, program, within), "k")
        assert (made is None) == (way == "backward")

    def test_outputs_are_of_a_row(self):
        """An output that does not change over time is stored at every row all the same."""
        builder = Builder("steady.step", ("t", "d"), where="")
        w = builder.input("w", "float", ("d",))
        parts = stages(builder.finish({"y": w.call("exp")}))
        assert parts is not None
        assert [n for n, _ in parts.once.outputs] == [handed_on("v0")]
        assert [n for p in ("ahead", "each") for n, _ in parts.part(p).outputs] == ["y"]


def test_a_step_shares_what_both_maps_need():
    """One softplus, though the element map and the readout both need it."""

    class Twice(sf.Recurrence):
        x = sf.Input("b t d")
        h = sf.State("b d")

        def element(self):
            return sf.Affine(a=0.5, b=sf.softplus(self.x))

        def readout(self):
            return self.h + sf.softplus(self.x)

    scan = trace_recurrence(Twice, Call((), (("b", "t", "d"),))).scan
    program = step_program(scan)
    assert [line.op for line in program.lines].count("softplus") == 1
    assert replace(program, name="") == replace(step_program(scan), name="")
