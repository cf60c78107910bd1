"""The compiler on one page. Every step is a pure function from one frozen value to the next.

A recurrence travels as text from `front` on: the text is the key of every cache and the argument of
the torch op. The step's name here is its name in `explain` and in the documentation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from scanforge.adjoint import Adjoint, adjoint, full_adjoint
from scanforge.cache import load_kernel, load_module
from scanforge.compose import carry, on_itself
from scanforge.declare import Operator, declaration
from scanforge.emit import block, ordered_tile
from scanforge.emit.form import Form, Kernel
from scanforge.emit.groups import Composition
from scanforge.emit.reference import module
from scanforge.facts import expanded_axes
from scanforge.ir.builder import Builder
from scanforge.ir.program import Program
from scanforge.ir.scan import TIME, Leaf, Output, Scan, before, dump, load
from scanforge.laws import ensure
from scanforge.plan import Inside, composes
from scanforge.prune import drop_unread_inputs
from scanforge.recurrence import Recurrence
from scanforge.schedule import settled, stages, step_program, whole_axes
from scanforge.tile import Composed
from scanforge.trace import Signature, Traced, trace
from scanforge.trace_recurrence import Call, trace_recurrence
from scanforge.waves import SLOW


def front(cls: type[Operator], signature: Signature) -> Traced:
    """What happens at a call, before any tensor is touched."""
    # class -> Declaration
    declaration(cls)
    # class, Signature -> Traced, which holds the ir.Scan and its text
    traced = trace(cls, signature)
    # text of the operator -> LawResults, or a LawError
    for operator in traced.operators:
        ensure(operator)
    return traced


def front_recurrence(cls: type[Recurrence], call: Call) -> Traced:
    """The same of a recurrence."""
    # class, Call -> Traced
    traced = trace_recurrence(cls, call)
    # text of each operator -> LawResults, or a LawError
    for operator in traced.operators:
        ensure(operator)
    return traced


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which gradients a backward pass computes, and from which outputs' cotangents."""

    inputs: frozenset[str]
    present: frozenset[str]
    initial: bool


@lru_cache(maxsize=4096)
def backward(text: str, wanted: Wanted, input_dtypes: tuple[str, ...]) -> tuple[str, Adjoint]:
    """The adjoint recurrence for the gradients wanted, from the cotangents present."""
    # text -> ir.Scan
    scan = load(text)
    # ir.Scan -> Adjoint, whose ir.Scan runs the other way
    derived = adjoint(scan, wanted.inputs, wanted.present, wanted.initial)
    # a gradient has its input's dtype
    typed = _with_dtypes(derived.scan, dict(zip((i.name for i in scan.inputs), input_dtypes, strict=True)))
    # ir.Scan -> text
    return dump(typed), derived


@lru_cache(maxsize=4096)
def executable(text: str, lowering: str) -> Callable[..., Any]:
    """The function that runs a recurrence on aligned tensors."""
    # text -> ir.Scan
    scan = load(text)
    # ir.Scan -> Python text
    source = module(scan, lowering)
    # Python text -> names
    names = load_module(source)
    run: Callable[..., Any] = names["run"]
    return run


@lru_cache(maxsize=4096)
def inside_axes(text: str) -> Inside:
    """The axes that a program holds whole: expanded ones, and those of sums that outputs cannot take."""
    scan = load(text)
    derived = full_adjoint(scan)
    parts = ((scan, step_program(scan)), (derived.scan, derived.step))
    within = frozenset(expanded_axes(scan))
    for part, step in parts:
        within |= whole_axes(part, step, within)
    axes = scan.order(within)
    cut = len(axes) == 1 and all(stages(settled(part, step, within), axes[0]) for part, step in parts)
    return Inside(axes, cut)


def held_axis(text: str) -> str:
    """The axis whose entries one thread of a kernel can hold, if there is one."""
    inside = inside_axes(text)
    return inside.axes[0] if inside.held else ""


@lru_cache(maxsize=4096)
def forward_kernel(text: str, form: Form) -> tuple[Kernel, Any]:
    """The forward kernel of a recurrence, and the function to launch."""
    # text -> ir.Scan
    scan = load(text)
    # ir.Scan -> Kernel, Triton text
    kernel = (
        block.forward_kernel(scan, form)
        if form.whole
        else ordered_tile.forward_kernel(scan, form, _composition(scan, form))
    )
    # Triton text -> module on disk
    return kernel, load_kernel(kernel.source)


def _composition(scan: Scan, form: Form) -> Composition | None:
    """What the groups of a tile compose and carry."""
    return Composition(on_itself(scan), carry(scan)) if form.groups > 1 and not form.relay else None


@lru_cache(maxsize=4096)
def composed(text: str, wanted: Wanted | None = None) -> Composed | None:
    """What groups of a tile would compose, of a recurrence or of its adjoint; None: they cannot."""
    if inside_axes(text).axes:
        return None
    if wanted is None:
        scan = load(text)
        return composed_of(scan, step_program(scan))
    derived = kernel_adjoint(text, wanted)
    return composed_of(derived.scan, derived.step)


def composed_of(scan: Scan, step: Program) -> Composed | None:
    """The same of a scan that holds no axes, and of its step."""
    slow = any(x.op in SLOW for x in step.lines)
    return Composed(len(scan.operator.leaves), slow) if composes(scan) else None


@lru_cache(maxsize=4096)
def kernel_adjoint(text: str, wanted: Wanted) -> Adjoint:
    """The adjoint that kernels run."""
    return adjoint(load(text), wanted.inputs, wanted.present, wanted.initial)


@lru_cache(maxsize=4096)
def backward_kernel(text: str, wanted: Wanted, form: Form) -> tuple[Kernel, Any]:
    """The backward kernel of a recurrence, and the function to launch."""
    # text -> ir.Scan; ir.Scan -> Adjoint
    scan, derived = load(text), kernel_adjoint(text, wanted)
    # Adjoint, ir.Scan -> Kernel, Triton text
    adjoint_scan, step = derived.scan, derived.step
    kernel = (
        block.backward_kernel(adjoint_scan, step, scan, form)
        if form.whole
        else ordered_tile.backward_kernel(adjoint_scan, step, scan, form, _composition(adjoint_scan, form))
    )
    # Triton text -> module on disk
    return kernel, load_kernel(kernel.source)


@lru_cache(maxsize=4096)
def states_only(text: str) -> str:
    """The recurrence without outputs: what runs again to have states."""
    scan = load(text)
    builder = Builder(f"{scan.name}.states", scan.axes, where="")
    for v in scan.readout.inputs:
        builder.input(v.name, v.kind, v.axes)
    bare = replace(scan, name=f"{scan.name}.states", readout=builder.finish({}), outputs=())
    return dump(drop_unread_inputs(bare))


@dataclass(frozen=True, slots=True)
class Chunked:
    """The two scans beside a recurrence that runs in chunks, as text, and the names in them."""

    leaves: tuple[
        tuple[Leaf, str, tuple[str, ...]], ...
    ]  # of the aggregate, the states that compose them, axes
    aggregate: str
    carry: str


@lru_cache(maxsize=4096)
def chunked(text: str) -> Chunked:
    """A recurrence's aggregate of a chunk, and its carry over chunks."""
    return _chunked(load(text))


@lru_cache(maxsize=4096)
def chunked_adjoint(text: str, wanted: Wanted) -> Chunked:
    """The same of a recurrence's adjoint."""
    return _chunked(kernel_adjoint(text, wanted).scan)


def _chunked(scan: Scan) -> Chunked:
    aggregate = on_itself(scan)
    leaves = tuple((x, s.name, s.axes) for x, s in zip(scan.operator.leaves, aggregate.states, strict=True))
    return Chunked(leaves, dump(aggregate), dump(carry(scan)))


@lru_cache(maxsize=4096)
def backward_aggregate(text: str, wanted: Wanted, form: Form) -> tuple[Kernel, Any]:
    """The kernel that composes the adjoint's elements of a chunk, downwards."""
    # text -> ir.Scan
    scan = load(text)
    # ir.Scan -> Adjoint -> the ir.Scan of its operator on itself
    aggregate = on_itself(kernel_adjoint(text, wanted).scan)
    # ir.Scan, ir.Scan -> Kernel, Triton text
    emitter = block if form.whole else ordered_tile
    kernel = emitter.backward_kernel(aggregate, step_program(aggregate), scan, form)
    # Triton text -> module on disk
    return kernel, load_kernel(kernel.source)


@lru_cache(maxsize=4096)
def states_before(text: str) -> str:
    """The same recurrence, read out as its states before each step: what a second derivative goes through."""
    scan = load(text)
    builder = Builder(f"{scan.name}.states", scan.axes, where="")
    made = {v.name: builder.input(v.name, v.kind, v.axes) for v in scan.readout.inputs}
    readout = builder.finish({before(s.name): made[before(s.name)] for s in scan.states})
    outputs = tuple(Output(before(s.name), s.kind, scan.order((TIME, *s.axes)), "state") for s in scan.states)
    return dump(replace(scan, name=f"{scan.name}.states", readout=readout, outputs=outputs))


def _with_dtypes(scan: Scan, own: dict[str, str]) -> Scan:
    return replace(scan, outputs=tuple(replace(o, dtype=own[o.dtype]) for o in scan.outputs))
