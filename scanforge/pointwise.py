"""Programs without states as recurrences: the ordered-tile kernels run them, and sum what outputs lack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

import torch

from scanforge.affine import affine_operator
from scanforge.ir.check import check_scan
from scanforge.ir.program import Program
from scanforge.ir.scan import Input, Output, Scan, dump, load
from scanforge.pipeline import forward_kernel, inside_axes
from scanforge.plan import held_plan
from scanforge.views import View
from scanforge.work import Work, launch

Tensor = torch.Tensor


def pointwise(program: Program, outputs: Sequence[tuple[str, tuple[str, ...]]]) -> str:
    """The text of a recurrence whose outputs, of these axes, are a program's; it has no states."""
    name = program.name
    axes = {a for v in program.inputs for a in v.axes} | {a for _, own in outputs for a in own}
    order = tuple(a for a in program.axes if a in axes)
    kinds = program.variables()
    found = dict(program.outputs)
    return dump(
        check_scan(
            Scan(
                name=name,
                axes=order,
                inputs=tuple(Input(v.name, v.kind, v.axes) for v in program.inputs),
                states=(),
                operator=affine_operator(name, (), {}),
                element=Program(f"{name}.element", order, (), (), ()),
                readout=Program(program.name, order, program.inputs, program.lines, program.outputs),
                outputs=tuple(Output(n, kinds[found[n]].kind, own, "state") for n, own in outputs),
            )
        )
    )


@lru_cache(maxsize=1024)
def _scan(text: str) -> Scan:
    return load(text)


def run_pointwise(
    text: str, inputs: Mapping[str, View], outputs: Mapping[str, View], sizes: dict[str, int],
    computed: torch.dtype,
) -> None:  # fmt: skip
    """Write the outputs. Views are over the axes of the recurrence of the text, time first.

    What lacks time is added to what is there.
    """
    scan = _scan(text)
    work = Work(scan.lanes, dict(inputs), dict(outputs), {}, {}, {})
    held = held_plan(inside_axes(text), sizes, work.steps, backward=False)
    launch(partial(forward_kernel, text), work, computed, held)
