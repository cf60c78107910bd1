"""A recurrence's meaning, walked step by step in float64 torch: no plan, no pass, no generated text.

    e_t = element(inputs_t);  x_t = apply(e_t, x_{t-1});  y_t = readout(x_t, x_{t-1}, inputs_t)

Each line of each program is one call of torch's own function, and torch's autograd differentiates it. This
is what kernels on a user's machine are held against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch

from scanforge.ir.primitives import primitive
from scanforge.ir.program import Line, Program
from scanforge.ir.scan import TIME, Output, Scan, State, before, is_outer, load

Tensor = torch.Tensor


def sequential(
    text: str, inputs: Sequence[Tensor], initial: Sequence[Tensor], *, reverse: bool = False,
    dtype: torch.dtype = torch.float64,
) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
    """Outputs and final states of a recurrence on a call's real tensors (`Prepared.inputs`, `.initial`).

    In another `dtype` it shows what a loop loses by rounding.
    """
    scan = load(text)
    given = {i.name: _aligned(scan, i.dims, x, dtype) for i, x in zip(scan.inputs, inputs, strict=True)}
    sizes = {a: _size([x.shape[k] for x in given.values()]) for k, a in enumerate(scan.axes)}
    for s, x0 in zip(scan.states, initial, strict=True):
        sizes.update(zip(scan.order(s.axes), x0.shape, strict=True))
    now = {s.name: _whole(scan, s, x0, dtype) for s, x0 in zip(scan.states, initial, strict=True)}
    rows: list[dict[str, Tensor]] = [{} for _ in range(sizes[TIME])]
    for t in reversed(range(sizes[TIME])) if reverse else range(sizes[TIME]):
        here = {n: x.narrow(0, t if x.shape[0] > 1 else 0, 1) for n, x in given.items()}
        leaves = _outcomes(scan.element, here, sizes, dtype)
        after = _outcomes(scan.operator.apply, leaves | now, sizes, dtype)
        previous = {before(n): x for n, x in now.items()}
        now = {n: after[n].expand(x.shape) for n, x in now.items()}
        rows[t] = _outcomes(scan.readout, here | now | previous, sizes, dtype)
    outputs = [_settled(scan, o, [row[o.name] for row in rows], sizes, dtype) for o in scan.outputs]
    lanes = {s.name: [k for k, a in enumerate(scan.axes) if a not in s.axes] for s in scan.states}
    return outputs, [x.squeeze(lanes[n]) for n, x in now.items()]


def _size(sizes: Sequence[int]) -> int:
    """Where some are 1: no step is fewer than one."""
    return next((n for n in sizes if n != 1), 1)


def _outcomes(
    program: Program, values: Mapping[str, Tensor], sizes: Mapping[str, int], dtype: torch.dtype
) -> dict[str, Tensor]:
    """A program's outputs; tensors have all axes of the scan in order, size 1 for one that is lacking."""
    known, dtypes = dict(values), _dtypes(dtype)
    for line in program.lines:
        arguments = [known[a] for a in line.args]
        if line.value is not None:
            known[line.var.name] = torch.tensor(line.value, dtype=dtypes[line.var.kind])
        elif line.op == "sum":
            known[line.var.name] = _sum(program, line, arguments[0], sizes)
        else:
            known[line.var.name] = _function(line.op, dtype)(*arguments)
    return {name: known[variable] for name, variable in program.outputs}


def _dtypes(floats: torch.dtype) -> dict[str, torch.dtype]:
    return {"float": floats, "int": torch.int64, "bool": torch.bool}


def _sum(program: Program, line: Line, x: Tensor, sizes: Mapping[str, int]) -> Tensor:
    """Over axes; an operand that lacks one counts as often as that axis is long."""
    has = program.variables()[line.args[0]].axes
    for axis in line.over:
        x = x.sum(program.axes.index(axis), keepdim=True) if axis in has else x * sizes[axis]
    return x


@cache
def _function(op: str, dtype: torch.dtype) -> Callable[..., Tensor]:
    """torch's function for a primitive, as its row spells it."""
    text = primitive(op).torch.format("x", "y", "z")
    names = {"torch": torch, "dtype": dtype}
    found: Callable[..., Tensor] = eval(f"lambda x, y=None, z=None: {text}", names)
    return found


def _aligned(scan: Scan, dims: Sequence[str], x: Tensor, dtype: torch.dtype) -> Tensor:
    """All axes of the scan in order, size 1 for one that is lacking, floats in one dtype."""
    x = x.squeeze([k for k, d in enumerate(dims) if d == "1"])
    present = [d for d in dims if d != "1"]
    x = x.permute([present.index(a) for a in scan.axes if a in present])
    x = x[tuple(slice(None) if a in present else None for a in scan.axes)]
    return x.to(dtype) if x.is_floating_point() else x if x.dtype == torch.bool else x.long()


def _whole(scan: Scan, state: State, x0: Tensor, dtype: torch.dtype) -> Tensor:
    """A state with all axes of the scan, time of size 1."""
    return _aligned(scan, scan.order(state.axes), x0, dtype)


def _settled(
    scan: Scan, output: Output, column: list[Tensor], sizes: Mapping[str, int], dtype: torch.dtype
) -> Tensor:
    """The steps side by side, broadcast to batch and time, summed over what the output lacks, in its dims."""
    shape = [sizes[a] if a in output.axes or is_outer(a) else 0 for a in scan.axes]
    shape[0] = 1
    none = torch.zeros([0, *(n or 1 for n in shape[1:])], dtype=_dtypes(dtype)[output.kind])
    steps = [] if column else [none]
    for x in column:
        x = x.reshape([*[1] * (len(shape) - x.ndim), *x.shape])
        steps.append(x.expand([n or m for n, m in zip(shape, x.shape, strict=True)]))
    y = torch.cat(steps)
    lacking = [k for k, a in enumerate(scan.axes) if a not in output.axes]
    y = y.sum(lacking) if lacking else y
    left = [a for a in scan.axes if a in output.axes]
    y = y.permute([left.index(d) for d in output.dims if d != "1"])
    return y[tuple(None if d == "1" else slice(None) for d in output.dims)]
