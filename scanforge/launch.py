"""Run a planned scan on tensors: align the inputs, run the generated module, settle the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from scanforge import dtypes
from scanforge.ir.scan import TIME, Output, Scan, State, is_outer, load
from scanforge.packed import one_by_one
from scanforge.pipeline import executable
from scanforge.plan import Plan, plan, state_outputs

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Options:
    """What a call decides besides the recurrence."""

    reverse: bool
    lowering: str  # empty: the plan's choice
    dtype: torch.dtype  # that floats are computed in
    backend: str = "reference"
    memory: str = ""  # "low": fewer states are kept for the backward pass


@dataclass(frozen=True, slots=True)
class Result:
    """Outputs in the user's dims; final states; states after each step, in the scan's order of axes."""

    outputs: list[Tensor]
    finals: list[Tensor]
    kept: list[Tensor]


@dataclass(frozen=True, slots=True)
class LastRun:
    """What the newest call ran."""

    recurrence: str
    plan: Plan


_LAST: ContextVar[LastRun | None] = ContextVar("last_run", default=None)


def ran(run: LastRun) -> None:
    """Note what runs."""
    _LAST.set(run)


def last_run() -> LastRun | None:
    """What the newest forward or backward pass of this thread ran: recurrence, backend, lowering, why.

    Example:
        >>> import torch, scanforge as sf
        >>> _ = sf.scan(sf.operators.Affine, a=torch.ones(1, 3), b=torch.ones(1, 3))
        >>> sf.last_run().plan.backend
        'reference'
    """
    return _LAST.get()


def sizes_of(scan: Scan, tensors: Sequence[Tensor], initial: Sequence[Tensor]) -> dict[str, int]:
    """The size of each axis, read off the inputs and states that have it."""
    sizes: dict[str, int] = {}
    for state, x0 in zip(scan.states, initial, strict=False):
        sizes.update(zip(scan.order(state.axes), x0.shape, strict=True))
    for given, tensor in zip(scan.inputs, tensors, strict=True):
        sizes.update({d: tensor.shape[i] for i, d in enumerate(given.dims) if d != "1"})
    return sizes


def kept_states(scan: Scan, output_dtypes: Sequence[torch.dtype], computed: torch.dtype) -> list[str]:
    """The states that are stored for the backward pass: those that no output holds in full precision."""
    held = state_outputs(scan)
    dtype = dict(zip((o.name for o in scan.outputs), output_dtypes, strict=True))
    return [s.name for s in scan.states if s.kind != "float" or dtype.get(held.get(s.name, "")) != computed]


def output_dtypes(scan: Scan, tensors: Sequence[Tensor], computed: torch.dtype) -> list[torch.dtype]:
    """Promoted from the inputs that have time, or the computed one, or the one that the output names."""
    by_name = {i.name: t.dtype for i, t in zip(scan.inputs, tensors, strict=True)}
    floats = [i for i in scan.inputs if i.kind == "float"]
    timed = [i for i in floats if TIME in i.axes] or floats
    promoted = {
        "float": dtypes.promoted((by_name[i.name] for i in timed), computed),
        "int": dtypes.promoted((by_name[i.name] for i in scan.inputs if i.kind == "int"), torch.int64),
        "bool": torch.bool,
    }
    known = {"inputs": promoted, "state": promoted | {"float": computed}}
    return [known[o.dtype][o.kind] if o.dtype in known else dtypes.named(o.dtype) for o in scan.outputs]


def state_dtypes(scan: Scan, tensors: Sequence[Tensor], computed: torch.dtype) -> list[torch.dtype]:
    """The dtype that each state is carried in."""
    given = zip(scan.inputs, tensors, strict=False)  # the flag of segments' starts is last, and comes later
    ints = dtypes.promoted((t.dtype for i, t in given if i.kind == "int"), torch.int64)
    kinds = {"float": computed, "int": dtypes.computed_int(ints), "bool": torch.bool}
    return [kinds[s.kind] for s in scan.states]


def run(
    text: str, tensors: Sequence[Tensor], initial: Sequence[Tensor], options: Options, keep: bool,
    bounds: Tensor | None = None,
) -> Result:  # fmt: skip
    """The recurrence of `text` on these inputs and initial states (of full shape, in the states' dtypes).

    Packed sequences (`bounds`) run one after another. Of an output of the batch axis alone each has a row.
    """
    if bounds is not None:
        return _run_packed(text, tensors, initial, options, keep, bounds)
    scan = load(text)
    sizes = sizes_of(scan, tensors, initial)
    result_dtypes = output_dtypes(scan, tensors, options.dtype)
    kept = kept_states(scan, result_dtypes, options.dtype) if keep else []
    if sizes[TIME] == 0:
        empty = [_empty(o, sizes, d, tensors[0]) for o, d in zip(scan.outputs, result_dtypes, strict=True)]
        return Result(empty, [x.clone() for x in initial], [_no_steps(initial, scan, s) for s in kept])
    chosen = plan(scan, sizes, options.lowering)
    ran(LastRun(scan.name, chosen))
    shown, finals, states = evaluate(text, tensors, initial, chosen.lowering, options)
    after = dict(zip((s.name for s in scan.states), states, strict=True))
    return _own(Result(shown, finals, [after[s] for s in kept]), [*tensors, *initial])


def _run_packed(
    text: str, tensors: Sequence[Tensor], initial: Sequence[Tensor], options: Options, keep: bool,
    bounds: Tensor,
) -> Result:  # fmt: skip
    kept: list[list[Tensor]] = []

    def part(inputs: list[Tensor], states: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        result = run(text, inputs, states, options, keep)
        kept.append(result.kept)
        return result.outputs, result.finals

    outputs, finals = one_by_one(load(text), part, tensors, initial, bounds.tolist())
    return Result(outputs, finals, [torch.cat(rows) for rows in zip(*kept, strict=True)])


def evaluate(
    text: str, tensors: Sequence[Tensor], initial: Sequence[Tensor], lowering: str, options: Options
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Outputs, final states and the states after every step, in plain torch, which can differentiate it."""
    scan = load(text)
    sizes, result_dtypes = sizes_of(scan, tensors, initial), output_dtypes(scan, tensors, options.dtype)
    program = executable(text, lowering)
    aligned = [_align(scan, i.dims, t, options.dtype) for i, t in zip(scan.inputs, tensors, strict=True)]
    starts = [_all_lanes(scan, s, x0) for s, x0 in zip(scan.states, initial, strict=True)]
    outputs, finals, states = program(*aligned, *starts, steps=sizes[TIME], reverse=options.reverse)
    finals = [_own_axes(scan, s, x) for s, x in zip(scan.states, finals, strict=True)]
    states = [_own_axes(scan, s, x, over_time=True) for s, x in zip(scan.states, states, strict=True)]
    shown = [
        _settle(scan, o, x, sizes, d) for o, x, d in zip(scan.outputs, outputs, result_dtypes, strict=True)
    ]
    return shown, finals, states


def _align(scan: Scan, dims: Sequence[str], tensor: Tensor, computed: torch.dtype) -> Tensor:
    """The tensor with the scan's axes in order, size 1 for those it lacks, in the dtype computed in."""
    named = tensor.squeeze([i for i, d in enumerate(dims) if d == "1"]) if "1" in dims else tensor
    present = [d for d in dims if d != "1"]
    ordered = named.permute([present.index(a) for a in scan.axes if a in present])
    shaped = ordered[tuple(slice(None) if a in present else None for a in scan.axes)]
    if tensor.is_floating_point():
        return shaped.to(computed)
    return shaped if tensor.dtype == torch.bool else shaped.to(dtypes.computed_int(tensor.dtype))


def _all_lanes(scan: Scan, state: State, x0: Tensor) -> Tensor:
    """A state with every lane axis, size 1 for those it lacks."""
    return x0[tuple(slice(None) if a in state.axes else None for a in scan.lanes)]


def _own_axes(scan: Scan, state: State, x: Tensor, *, over_time: bool = False) -> Tensor:
    """The opposite: without the axes that the state lacks, which are all of size 1."""
    return x.squeeze([i + over_time for i, a in enumerate(scan.lanes) if a not in state.axes])


def _settle(scan: Scan, output: Output, value: Tensor, sizes: dict[str, int], dtype: torch.dtype) -> Tensor:
    """Sum over the axes that the output lacks, then the user's order of dims."""
    factor = 1
    for position, axis in enumerate(scan.axes):
        if axis in output.axes:
            continue
        if is_outer(axis) and value.shape[position] != sizes[axis]:
            factor *= sizes[axis]
        elif value.shape[position] != 1:
            value = value.sum(position, keepdim=True)
    if factor != 1:
        value = value * factor
    value = value.expand([sizes[a] if a in output.axes else 1 for a in scan.axes])
    kept = [scan.axes.index(d) for d in output.dims if d != "1"]
    rest = [i for i in range(len(scan.axes)) if i not in kept]
    value = value.permute([*kept, *rest]).reshape([sizes[scan.axes[i]] for i in kept])
    return value[tuple(None if d == "1" else slice(None) for d in output.dims)].to(dtype)


def _empty(output: Output, sizes: dict[str, int], dtype: torch.dtype, like: Tensor) -> Tensor:
    """No steps: outputs over time are empty, sums over no steps are 0."""
    return like.new_zeros([1 if d == "1" else sizes[d] for d in output.dims], dtype=dtype)


def _no_steps(initial: Sequence[Tensor], scan: Scan, state: str) -> Tensor:
    x0 = initial[[s.name for s in scan.states].index(state)]
    return x0.new_empty((0, *x0.shape))


def _own(result: Result, given: Sequence[Tensor]) -> Result:
    """Every returned tensor contiguous and in a storage of its own, as an op's outputs must be."""
    seen = {t.untyped_storage().data_ptr() for t in given}

    def own(x: Tensor) -> Tensor:
        x = x.contiguous()
        place = x.untyped_storage().data_ptr()
        if place in seen:
            return x.clone(memory_format=torch.contiguous_format)
        seen.add(place)
        return x

    return Result(
        [own(x) for x in result.outputs], [own(x) for x in result.finals], [own(x) for x in result.kept]
    )
