"""The backward pass of the lowering `chunked`, from the inputs and the first state that were kept.

The operands of chunks are made again. A walk up leaves the state before each chunk, a walk down the cotangent
of the state after each and the values' gradients; from both a kernel makes the gates' gradients, chunk by
chunk. What values and outputs are made of beside that is pointwise, and so is the way back through it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, reduce
from operator import and_

import torch

from scanforge.adjoint import Adjoint
from scanforge.chunked_form import MatrixForm, matrix_form
from scanforge.chunked_run import (
    alone,
    along_values,
    contract,
    first_state,
    gradient_views,
    nothing,
    over_time,
    run_program,
    setting_of,
)
from scanforge.chunked_setting import Setting
from scanforge.chunked_swap import kernel_form, seed_of
from scanforge.chunked_vjp import WayBack, way_back
from scanforge.chunked_work import (
    Found,
    Operands,
    States,
    gate_gradients,
    gates_back,
    operands,
    part_count,
    states_between,
    walk,
)
from scanforge.emit import chunk_gradient
from scanforge.ir.builder import Builder
from scanforge.ir.program import Program, fresh
from scanforge.ir.scan import TIME, Scan, load
from scanforge.launch import Options, output_dtypes
from scanforge.views import View, aligned
from scanforge.work import Views, Work

Tensor = torch.Tensor


def backward(text: str, derived: Adjoint, work: Work, sizes: dict[str, int], options: Options) -> None:
    """Write the gradients; the views are in the order of the forward pass."""
    scan, work = load(text), alone(work)
    shown = output_dtypes(scan, [work.inputs[i.name].tensor for i in scan.inputs], options.dtype)
    timed = [d for o, d in zip(scan.outputs, shown, strict=True) if TIME in o.axes]
    call = setting_of(text, work, sizes, options, timed)
    form, inputs = call.form, work.inputs
    targets = {i: work.outputs[g] for i, g in derived.gradients}
    found = Gradients(call, scan, targets)
    begin = States.of(call, first_state(call, work.kept[form.state]))
    seeds = [States.of(call, v) for v in work.starts.values()]
    ends = [States.of(call, v) for v in work.ends.values()]
    seed, end = (*seeds, _zeros(call))[0], (*ends, _room(call.walking))[0]
    contracted = None if form.plain_readout else over_time(call, scan, form.shown_axis, call.computed)
    given = {o: inputs[g] for o, g in derived.cotangents}
    before, after = states_between(call), states_between(call)
    values = along_values(call, scan, inputs, "value")

    if form.reader is None:
        made = operands(call, inputs, gradients=True)
        walk(call, made, values, contracted, begin, _room(call.walking), kept=before)
        reads = _through_readout(call, scan, found, inputs, contracted, given)
    else:
        if contracted is not None:
            contract(call, scan, inputs, contracted, begin, _room(call.walking))
        inputs = inputs | {seed_of(form): _through_readout(call, scan, found, inputs, contracted, given)}
        made, reads = operands(call, inputs, gradients=True), along_values(call, scan, inputs, "read")
        to_reads = found.along_values("read")
        walk(call, made, values, to_reads, begin, _room(call.walking), kept=before)
        found.from_values("read", inputs, to_reads)
    to_values = found.along_values("value")
    walk(call, made, reads, to_values, seed, end, down=True, kept=after)
    found.from_values("value", inputs, to_values)
    back = gates_back(call.text, frozenset(targets))
    if back.found:
        _gates(call, made, gradient_views(call, inputs, values, reads), (before, after), found, back)
    found.settle()


@lru_cache(maxsize=1024)
def values_back(text: str, part: str, wanted: frozenset[str]) -> WayBack:
    """The way back through what values, or what reads them, are made of."""
    form = kernel_form(text)
    axes = (TIME, *form.lanes, form.value_axis)
    return way_back(form.part(part), wanted, {part: axes}, ())


@lru_cache(maxsize=1024)
def readout_back(
    text: str, wanted: frozenset[str], seeds: tuple[tuple[str, tuple[str, ...]], ...]
) -> WayBack:
    """The way back through the readout, from cotangents of outputs with their axes."""
    form = _form(text)
    return way_back(form.readout, wanted | {form.contracted}, dict(seeds), (form.key_axis, form.value_axis))


def _form(text: str) -> MatrixForm:
    form = matrix_form(text)
    assert isinstance(form, MatrixForm)
    return form


class Gradients:
    """Where parts of the way back leave gradients: in place, or beside it where something is to be summed."""

    def __init__(self, call: Setting, scan: Scan, targets: Views) -> None:
        self.call, self.scan, self.targets = call, scan, targets
        self.parts = call.form.parts
        self.found: dict[str, list[tuple[Tensor, tuple[str, ...]]]] = {n: [] for n in targets}
        self.placed: set[str] = set()

    def place(self, name: str, axes: Iterable[str], dtype: torch.dtype) -> View:
        """Where a gradient that has these axes is written."""
        axes = tuple(axes)
        dims = self.call.timed(axes) if TIME in axes else self.scan.order(axes)
        target = self.targets[name]
        lacking = [a for a, has in zip(self.call.axes, target.has, strict=True) if a in dims and not has]
        readers = sum(name in {v.name for v in p.inputs} for p in self.parts)
        if readers == 1 and not lacking:
            self.placed.add(name)
            return target
        tensor = self.call.like.new_zeros([self.call.sizes[a] for a in dims], dtype=dtype)
        self.found[name].append((tensor, dims))
        return aligned(self.scan, dims, tensor, self.call.sizes)

    def add(self, name: str, tensor: Tensor, dims: tuple[str, ...]) -> None:
        """A gradient, or parts of it along axes that the input lacks."""
        self.found[name].append((tensor, dims))

    def along_values(self, part: str) -> View:
        """Where a walk leaves the gradients of a part along values."""
        call, form = self.call, self.call.form
        plain = form.plain(part)
        axes = (TIME, *form.lanes, form.value_axis)
        if plain and plain in self.targets:
            return self.place(plain, axes, call.computed)
        return over_time(call, self.scan, form.value_axis, call.computed)

    def from_values(self, part: str, inputs: Views, shown: View) -> None:
        """From the gradients of such a part to those of what it is made of."""
        if not self.call.form.plain(part):
            back = values_back(self.call.text, part, frozenset(self.targets))
            self.run(back, inputs, {part: shown})

    def run(self, back: WayBack, inputs: Views, cotangents: Views) -> None:
        """The way back through a pointwise part."""
        if back.found:
            given = inputs | {name: cotangents[o] for o, name in back.cotangents}
            own = {n: self.place(n, self.own_axes(n), self.call.computed) for n in back.found}
            run_program(self.call, back.program, given, own)

    def own_axes(self, name: str) -> tuple[str, ...]:
        """The axes of an input's tensor."""
        found = [a for a, has in zip(self.call.axes, self.targets[name].has, strict=True) if has]
        return self.call.timed(found) if TIME in found else tuple(found)

    def settle(self) -> None:
        """Add up, in the order in which parts came; what nothing reads is 0."""
        for name, target in self.targets.items():
            if name in self.placed:
                continue
            own = self.own_axes(name)
            total = self.call.like.new_zeros([self.call.sizes[a] for a in own], dtype=self.call.computed)
            for tensor, dims in self.found[name]:
                over = [i for i, d in enumerate(dims) if d not in own]
                kept = [d for d in dims if d in own]
                part = tensor.sum(over) if over else tensor
                total += part.permute([kept.index(a) for a in own])
            target.take(total, [self.call.axes.index(a) for a in own])


def _through_readout(
    call: Setting, scan: Scan, found: Gradients, inputs: Views, contracted: View | None, given: Views
) -> View:
    """The cotangent of what was contracted."""
    form = call.form
    if contracted is None:
        return _real(call, scan, inputs, next(iter(given.values()), nothing(call)))
    axes = tuple((o.name, o.axes) for o in scan.outputs if o.name in given)
    back = readout_back(call.text, frozenset(found.targets), axes)
    if not back.found:
        return nothing(call)
    grad = (
        over_time(call, scan, form.shown_axis, call.dot) if form.contracted in back.found else nothing(call)
    )
    given = inputs | {form.contracted: contracted} | {name: given[o] for o, name in back.cotangents}
    own = {
        n: grad if n == form.contracted else found.place(n, found.own_axes(n), call.computed)
        for n in back.found
    }
    run_program(call, back.program, given, own)
    return _real(call, scan, inputs, grad)


def _real(call: Setting, scan: Scan, inputs: Views, grad: View) -> View:
    """The cotangent of what was contracted, 0 at steps of padding: NaN there would reach the whole chunk."""
    program = real_steps(call.text)
    if program is None:
        return grad
    kept = over_time(call, scan, call.form.shown_axis, call.dot)
    run_program(call, program, inputs | {program.inputs[-1].name: grad}, {"real": kept})
    return kept


@lru_cache(maxsize=1024)
def real_steps(text: str) -> Program | None:
    """What selects a cotangent, its last input, at steps that are no padding; None without padding."""
    form = _form(text)
    names = {x.args[0] for x in form.gates.lines if x.op == "guard"}
    masks = [v for v in form.gates.inputs if v.name in names]
    if not masks:
        return None
    builder = Builder(f"{form.gates.name}.real", form.readout.axes, where="")
    conditions = [builder.input(v.name, v.kind, v.axes) for v in masks]
    full = {TIME, *form.lanes, form.value_axis}
    axes = tuple(a for a in form.readout.axes if a in full)
    grad = builder.input(fresh("grad", [v.name for v in masks]), "float", axes)
    return builder.finish({"real": reduce(and_, conditions).call("where", grad, 0.0)})


def _gates(
    call: Setting, made: Operands, read: list[Found], states: tuple[Tensor, Tensor], found: Gradients,
    back: WayBack,
) -> None:  # fmt: skip
    """The gradients of what gates are made of."""
    form, padded = call.form, call.plan.padded
    axes = (TIME, *form.lanes, form.key_axis)
    left = [
        (t, found.place(t.name[4:], axes, call.computed), form.key_axis)
        for t in chunk_gradient.gradient_tiles(form, back)
    ]
    rooms = []
    for tile in chunk_gradient.parts(form, back):
        parts = part_count(call)
        size = (parts, call.length) if tile.timed else (call.chunks, padded if tile.column else parts)
        part = call.like.new_zeros((*call.lanes, *size), dtype=call.computed)
        rooms.append(part)
        cut = part[..., : call.sizes[form.key_axis]] if tile.column else part
        dims = (form.key_axis, TIME) if tile.timed else (TIME, form.key_axis)
        found.add(tile.name, cut, (*form.lanes, *dims))
    gate_gradients(call, frozenset(found.targets), made, read, states, left, rooms)


def _room(call: Setting) -> States:
    """Room for a last state that nobody wants."""
    form = call.form
    shape = (*call.lanes, call.sizes[form.key_axis], call.sizes[form.value_axis])
    tensor = call.empty(*shape, dtype=call.computed)
    return States(tensor, tensor.stride()[:-2], tensor.stride(-2), 1)


def _zeros(call: Setting) -> States:
    """A state of 0."""
    return States(call.like.new_zeros(1, dtype=call.computed), (0,) * len(call.lanes), 0, 0)
