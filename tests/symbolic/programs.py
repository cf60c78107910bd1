"""Programs as named-axis functions of tensors, for tests of the passes over them."""

from __future__ import annotations

import torch
from torch import Tensor

from scanforge.emit.torch_text import function
from scanforge.ir.program import Program
from scanforge.ir.scan import Output, Scan, is_outer
from scanforge.recurrence import fused
from scanforge.trace_recurrence import Call, trace_recurrence
from tests.catalogue import generator
from tests.recurrences import SIZES, Entry

Env = dict[str, Tensor]
LENGTHS = SIZES | {"t": 3}


def scan_of(entry: Entry) -> Scan:
    """The traced scan of a recurrence, called with full shapes."""
    names = fused(entry.recurrence).tensor_names()
    dims = tuple(tuple(entry.inputs[n].axes.split()) for n in names)
    return trace_recurrence(entry.recurrence, Call((), dims)).scan


def draw(program: Program, seed: int = 0) -> Env:
    """A tensor for each input, all axes in order, size 1 for one it lacks; `first_<axis>` is what it says."""
    g, found = generator(seed), {}
    for v in program.inputs:
        shape = [LENGTHS[a] if a in v.axes else 1 for a in program.axes]
        found[v.name] = torch.randn(shape, generator=g, dtype=torch.float64)
        if v.kind == "bool":
            found[v.name] = found[v.name] > 0
        if v.kind == "int":
            found[v.name] = (3 * found[v.name]).long()
        if v.name.startswith("first_"):
            found[v.name] = (torch.arange(LENGTHS[v.axes[0]]) == 0).reshape(shape)
    return found


def run(program: Program, given: Env) -> Env:
    """The program's outputs by name, by the text that is emitted for torch."""
    names: dict = {}
    exec("import torch\nfrom torch import inf, nan\n" + function(program, "f", ""), names)
    outputs = names["f"](*(given[v.name] for v in program.inputs))
    return dict(zip((n for n, _ in program.outputs), outputs, strict=True))


def summed(scan: Scan, output: Output, value: Tensor) -> Tensor:
    """What an output is by its meaning: every step and sequence counts, over other axes what is there."""
    full = [
        LENGTHS[a] if is_outer(a) or a in output.axes else n
        for a, n in zip(scan.axes, value.shape, strict=True)
    ]
    over = [i for i, a in enumerate(scan.axes) if a not in output.axes]
    value = value.expand(full)
    return value.sum(over, keepdim=True) if over else value


def added_up(scan: Scan, output: Output, value: Tensor, within: frozenset[str]) -> Tensor:
    """What a kernel makes of a settled output: every lane's value, added up over the axes it lacks."""
    full = [
        n if a in within and a not in output.axes else LENGTHS[a]
        for a, n in zip(scan.axes, value.shape, strict=True)
    ]
    over = [i for i, a in enumerate(scan.axes) if a not in output.axes]
    value = value.expand(full)
    return value.sum(over, keepdim=True) if over else value
