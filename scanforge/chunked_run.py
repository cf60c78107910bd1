"""The lowering `chunked`: a recurrence of matrix form runs as products over chunks of steps.

The gates kernel makes the operands of every chunk, the walk takes them with the values. What the values and
the outputs are made of beside that runs as pointwise kernels, where it is not the identity. Where values
decay, they and the keys change places (chunked_swap.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from scanforge.chunked_setting import Setting, setting
from scanforge.chunked_swap import kernel_form, seed_of
from scanforge.chunked_work import (
    Found,
    States,
    gate_gradients,
    gate_views,
    gates_back,
    head_walk,
    operands,
    states_between,
    walk,
)
from scanforge.emit import chunk_heads
from scanforge.emit.chunk_gradient import GIVEN, GRAD, gradient_tiles
from scanforge.ir.program import Program
from scanforge.ir.scan import BATCH, TIME, Scan, load
from scanforge.launch import Options
from scanforge.pointwise import pointwise, run_pointwise
from scanforge.views import View, aligned
from scanforge.work import Work

Tensor = torch.Tensor


def forward(text: str, work: Work, sizes: dict[str, int], options: Options) -> None:
    """Run a recurrence; the views are in the order of processing."""
    scan, work = load(text), alone(work)
    shown = [v.tensor.dtype for v in work.outputs.values() if v.has[0]]
    call = setting_of(text, work, sizes, options, shown)
    form = call.form
    begin, end = (States.of(call, views[form.state]) for views in (work.starts, work.ends))
    whole = {TIME, *form.lanes, form.shown_axis} == {a for o in scan.outputs for a in o.axes}
    if form.plain_readout and whole:  # else the output is a sum
        (target,) = work.outputs.values()
        contract(call, scan, work.inputs, target, begin, end)
    else:
        contracted = over_time(call, scan, form.shown_axis, call.computed)
        contract(call, scan, work.inputs, contracted, begin, end)
        given = work.inputs | {form.contracted: contracted}
        run_program(call, form.readout, given, work.outputs)
    for name, view in work.kept.items():  # what the backward pass begins with
        first = first_state(call, view)
        first.take(_tensor(work.starts[name]), range(len(first.shape)))


def contract(
    call: Setting, scan: Scan, inputs: dict[str, View], target: View, begin: States, end: States
) -> None:
    """What the readout contracts; where keys and values have changed places, as the queries' gradient."""
    form = call.form
    if chunk_heads.applies(form):
        return head_walk(call, inputs, along_values(call, scan, inputs, "value"), target, begin, end)
    if form.reader is None:
        made, values = operands(call, inputs), along_values(call, scan, inputs, "value")
        return walk(call, made, values, target, begin, end)
    seed = seed_of(form)
    inputs = inputs | {seed: nothing(call)}
    made, before = operands(call, inputs), states_between(call)
    values, reads = (along_values(call, scan, inputs, part) for part in ("value", "read"))
    walk(call, made, values, None, begin, end, kept=before)
    wanted = frozenset([seed])
    (tile,) = gradient_tiles(form, gates_back(call.text, wanted))
    read = gradient_views(call, inputs, values, reads)
    left = [(tile, target, form.key_axis)]
    return gate_gradients(call, wanted, made, read, (before, before), left, [])


def gradient_views(call: Setting, inputs: dict[str, View], values: View, grad: View) -> list[Found]:
    """What the kernels of the gates' gradients read."""
    pair = ((GIVEN, values), (GRAD, grad))
    return [*gate_views(call, inputs), *((t, v, call.form.value_axis) for t, v in pair)]


def alone(work: Work) -> Work:
    """The work with all packed sequences as one; states have a row for each still."""
    if work.bounds is None:
        return work
    at = 1 + work.axes.index(BATCH)

    def one(view: View) -> View:
        return replace(view, shape=(*view.shape[:at], 1, *view.shape[at + 1 :]))

    return work.over_time(one, lambda v: v)


def first_state(call: Setting, kept: View) -> View:
    """The state that was kept, or the first one of each packed sequence."""
    view = kept.row(0)
    if call.packing is None:
        return view
    at = call.axes.index(BATCH) - 1
    strides = (*view.strides[:at], kept.strides[0], *view.strides[at + 1 :])
    return replace(view, shape=(*view.shape[:at], call.packing.count, *view.shape[at + 1 :]), strides=strides)


def setting_of(
    text: str, work: Work, sizes: dict[str, int], options: Options, shown: Sequence[torch.dtype]
) -> Setting:
    """The setting of a pass, whose outputs over time have types `shown`."""
    axes = (TIME, *load(text).lanes)
    dtype = shown[0] if shown else options.dtype
    return setting(text, kernel_form(text), axes, sizes, dtype, options.dtype, work)


def along_values(call: Setting, scan: Scan, inputs: dict[str, View], part: str) -> View:
    """The `value` that is written, or what `read`s it: an input as it is, or made of some."""
    plain = call.form.plain(part)
    if plain:
        return inputs[plain]
    made = over_time(call, scan, call.form.value_axis, call.dot)
    run_program(call, call.form.part(part), inputs, {part: made})
    return made


def nothing(call: Setting) -> View:
    """A tensor of 0 over all axes."""
    shape = tuple(call.sizes[a] for a in call.axes)
    zero = call.like.new_full((), 0.0, dtype=call.dot)
    return View(zero, 0, shape, (0,) * len(shape), (False,) * len(shape))


def over_time(call: Setting, scan: Scan, column: str, dtype: torch.dtype) -> View:
    """Room for something of all steps and lanes along one axis, in the order of processing."""
    dims = call.timed((TIME, *call.form.lanes, column))
    tensor = call.empty(*(call.sizes[a] for a in dims), dtype=dtype)
    return aligned(scan, dims, tensor, call.sizes)


def run_program(call: Setting, program: Program, inputs: dict[str, View], outputs: dict[str, View]) -> None:
    """A program without states, its views over the lanes of the whole recurrence."""
    own = [(n, tuple(a for a, has in zip(call.axes, v.has, strict=True) if has)) for n, v in outputs.items()]
    text = pointwise(program, own)
    kept = load(text).axes
    at = [call.axes.index(a) for a in kept]

    def narrow(view: View) -> View:
        return replace(
            view,
            shape=tuple(view.shape[i] for i in at),
            strides=tuple(view.strides[i] for i in at),
            has=tuple(view.has[i] for i in at),
        )

    read = {v.name: narrow(inputs[v.name]) for v in program.inputs}
    run_pointwise(text, read, {n: narrow(v) for n, v in outputs.items()}, call.sizes, call.computed)


def _tensor(view: View) -> Tensor:
    """A view of states as a tensor."""
    start = view.tensor.storage_offset() + view.offset
    return view.tensor.as_strided(view.shape, view.strides, start)
