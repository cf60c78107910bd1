"""The checker that runs between passes: what must hold of every Program and Scan. It asserts, for us."""

from __future__ import annotations

from scanforge.ir.primitives import TABLE
from scanforge.ir.program import Program
from scanforge.ir.scan import Scan
from scanforge.ir.typing import axes_of, signature


def check_program(program: Program) -> Program:
    """Each name is assigned once, before use, with the kind and axes that typing gives."""
    known = {v.name: v for v in program.inputs}
    assert len(known) == len(program.inputs), f"{program.name}: two inputs share a name"
    for line in program.lines:
        name = line.var.name
        assert name not in known, f"{program.name}: {name} is assigned twice"
        assert all(a in known for a in line.args), (
            f"{program.name}: {name} reads a name that is not assigned yet"
        )
        args = [known[a] for a in line.args]
        assert set(line.var.axes) <= set(program.axes), f"{program.name}: {name} has an unknown axis"
        if line.op == "const":
            assert line.value is not None and not args, f"{program.name}: {name} has no number"
        elif line.op == "sum":
            kept = tuple(a for a in args[0].axes if a not in line.over)
            assert line.over and line.var.axes == kept, f"{program.name}: {name} sums to the wrong axes"
        else:
            wanted, kind = signature(TABLE[line.op], [a.kind for a in args])
            assert [a.kind for a in args] == list(wanted), (
                f"{program.name}: {name} has an argument of the wrong kind"
            )
            axes = axes_of(TABLE[line.op], program.axes, [a.axes for a in args])
            assert (line.var.kind, line.var.axes) == (kind, axes), (
                f"{program.name}: {name} has the wrong type"
            )
        known[name] = line.var
    assert all(v in known for _, v in program.outputs), f"{program.name}: an output names nothing"
    return program


def check_scan(scan: Scan) -> Scan:
    """The programs fit together: element -> leaves -> apply -> states -> readout -> outputs."""
    operator = scan.operator
    for program in (scan.element, scan.readout, operator.combine, operator.apply):
        check_program(program)
    leaves, states = [x.name for x in operator.leaves], [x.name for x in operator.states]
    assert [n for n, _ in scan.element.outputs] == leaves, f"{scan.name}: the element map has other leaves"
    assert [n for n, _ in operator.combine.outputs] == leaves, f"{scan.name}: combine has other leaves"
    assert [n for n, _ in operator.apply.outputs] == states, f"{scan.name}: apply has other states"
    assert [s.name for s in scan.states] == states, f"{scan.name}: the states have other names"
    assert [n for n, _ in scan.readout.outputs] == [o.name for o in scan.outputs], (
        f"{scan.name}: other outputs"
    )
    assert [v.name for v in operator.apply.inputs] == [*leaves, *states], f"{scan.name}: apply's arguments"
    paired = [f"{when}_{n}" for when in ("earlier", "later") for n in leaves]
    assert [v.name for v in operator.combine.inputs] == paired, f"{scan.name}: combine's arguments"
    for leaf in operator.leaves:
        assert scan.element.output(leaf.name).kind == leaf.kind, f"{scan.name}: {leaf.name} has another kind"
    for state in operator.states:
        assert operator.apply.output(state.name).kind == state.kind, (
            f"{scan.name}: {state.name} has another kind"
        )
    return scan
