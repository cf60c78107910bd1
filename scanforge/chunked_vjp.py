"""Program -> Program: the way back through a part of a matrix form, entry by entry.

A part's inputs lack axes, and their cotangents are sums over those. What a part does is done for each entry
alone, so the sums can wait until the end, where whoever runs the program takes them. Only a readout that has
sums of its own, over keys, keeps these and what they need.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program
from scanforge.ir.program import Program, Var, fresh
from scanforge.prune import drop_guards, tidy
from scanforge.vjp import pull_back


@dataclass(frozen=True, slots=True)
class WayBack:
    """From a part's inputs and the cotangents of its outputs to those of inputs.

    The program's outputs bear the names of the part's inputs; one is absent where its cotangent is 0.
    """

    program: Program
    cotangents: tuple[tuple[str, str], ...]  # output of the part -> input of the program

    @property
    def found(self) -> tuple[str, ...]:
        """The inputs of the part that have a cotangent."""
        return tuple(n for n, _ in self.program.outputs)

    def reads(self, output: str) -> bool:
        """Whether the cotangent of an output matters."""
        name = dict(self.cotangents).get(output)
        read = {a for x in self.program.lines for a in x.args} | {v for _, v in self.program.outputs}
        return name in read


def way_back(
    part: Program, wanted: Iterable[str], seeds: dict[str, tuple[str, ...]], summed: tuple[str, ...]
) -> WayBack:
    """The way back to the wanted inputs, from cotangents of outputs with their axes.

    Where the part has sums, those over the `summed` axes are taken where they arise.
    """
    kept = frozenset(summed) if any(x.op == "sum" for x in part.lines) else frozenset()
    alone = _narrowed(part, kept)
    taken = [v.name for v in part.inputs]
    names = {o: fresh(f"grad_{o}", taken) for o in seeds}
    builder = Builder(f"{part.name}.back", alone.axes, where="")
    given = {v.name: builder.input(v.name, v.kind, v.axes) for v in alone.inputs}
    values = builder.replay(alone, given)
    grads = {}
    for o, axes in seeds.items():
        own = tuple(a for a in alone.axes if a in axes)
        grad = builder.input(names[o], "float", own)
        over = tuple(a for a in own if a not in alone.output(o).axes)
        grads[o] = builder.sum(grad, over) if over else grad
    names_wanted = [v.name for v in alone.inputs if v.kind == "float" and v.name in set(wanted)]
    found = pull_back(builder, alone, values, grads, names_wanted)
    back = drop_guards(tidy(builder.finish(found)))
    full = {v.name: v.axes for v in part.inputs} | {names[o]: axes for o, axes in seeds.items()}
    return WayBack(_with_axes(back, part.axes, full), tuple(names.items()))


def _narrowed(program: Program, kept: frozenset[str]) -> Program:
    """The program of one entry along all axes but these."""

    def narrow(var: Var) -> Var:
        return replace(var, axes=tuple(a for a in var.axes if a in kept))

    return replace(
        program,
        axes=tuple(a for a in program.axes if a in kept),
        inputs=tuple(map(narrow, program.inputs)),
        lines=tuple(replace(x, var=narrow(x.var)) for x in program.lines),
    )


def _with_axes(program: Program, order: tuple[str, ...], axes: dict[str, tuple[str, ...]]) -> Program:
    """The program with its inputs' axes, and what follows from them."""
    builder = Builder(program.name, order, where="")
    given = {
        v.name: builder.input(v.name, v.kind, tuple(a for a in order if a in axes[v.name]))
        for v in program.inputs
    }
    return check_program(builder.finish(builder.inline(program, given)))
