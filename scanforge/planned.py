"""(recurrence, sizes, dtype) -> Planned: what would run, what is kept and what is moved, as data to show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch

from scanforge import dtypes
from scanforge.adjoint import full_adjoint
from scanforge.chunked_choice import Choice, choice, plan_of
from scanforge.chunked_form import MatrixForm, matrix_form
from scanforge.chunked_plan import chunk_plan
from scanforge.chunked_swap import kernel_form
from scanforge.ir.scan import TIME, Input, Output, Scan, load
from scanforge.launch import Options, kept_states
from scanforge.pipeline import composed_of, inside_axes
from scanforge.plan import Chunks, Held, Plan, held_plan, keep_plan, kernel_plan, plan
from scanforge.schedule import step_program
from scanforge.tile import Tile, tile_plan
from scanforge.tuned import WAYS, Record, device_name, key, record


@dataclass(frozen=True, slots=True)
class Moved:
    """A tensor that a pass reads or writes once, and its bytes there."""

    name: str
    role: str  # given | state_before | cotangent | output
    axes: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a call of these sizes, for the CPU and for a GPU."""

    sizes: dict[str, int]
    dtype: torch.dtype
    computed: torch.dtype
    reference: Plan
    kernel: Plan
    chunks: Chunks | None
    lanes: tuple[str, ...]  # the axes that programs share out
    held: tuple[str, ...]  # the axes that a program has whole
    in_thread: bool  # in the registers of one thread
    forward: Tile | Held
    backward: Tile | Held
    not_chunked: str  # why no products over chunks run, where the recurrence has their form
    spacing: int  # a GPU's forward pass keeps the states before every so many steps
    outputs_kept: tuple[str, ...]  # states that the backward pass reads off an output
    stored: tuple[str, ...]  # states that are stored for it
    reads_and_writes: dict[str, tuple[Moved, ...]]  # forward, backward
    tuned: tuple[tuple[str, Record], ...] = ()  # what was found on this machine's GPU, by pass

    def bytes(self, which: str) -> int:
        """All that a pass reads and writes."""
        return sum(m.size for m in self.reads_and_writes[which])


def planned(text: str, sizes: dict[str, int], dtype: torch.dtype) -> Planned:
    """The plan of the recurrence of that text."""
    scan, inside = load(text), inside_axes(text)
    back, computed = full_adjoint(scan).scan, dtypes.computed([dtype])
    by_chunks = choice(text, sizes, Options(False, "", computed), packed=False)
    chosen = kernel_plan(scan, sizes, inside=inside.axes)
    spacing = _spacing(scan, text, sizes, dtype)
    outputs = [dtype if o.kind == "float" else torch.int64 for o in scan.outputs]
    stored = kept_states(scan, outputs, computed)
    tiles = {down: _tile(text, sizes, dtype, chosen.chunks, down=down) for down in (False, True)}
    held = walked if isinstance(walked := tiles[True], Held) else Held()
    made = Planned(
        sizes=sizes,
        dtype=dtype,
        computed=computed,
        reference=plan(scan, sizes),
        kernel=chosen.plan,
        chunks=chosen.chunks,
        lanes=tuple(a for a in scan.lanes if a not in inside.axes),
        held=held.axes,
        in_thread=bool(held.axis),
        forward=tiles[False],
        backward=tiles[True],
        not_chunked="" if isinstance(matrix_form(text), str) else by_chunks.why,
        spacing=spacing,
        outputs_kept=tuple(s.name for s in scan.states if s.name not in stored),
        stored=tuple(stored),
        reads_and_writes={
            "forward": _moved(scan, sizes, dtype, 1),
            "backward": _moved(back, sizes, dtype, spacing if inside.axes else 1),
        },
        tuned=_tuned(text, scan, sizes, dtype),
    )
    return by_products(made, kernel_form(text), by_chunks, back) if by_chunks.form else made


def by_products(made: Planned, form: MatrixForm, by_chunks: Choice, back: Scan) -> Planned:
    """The plan of products over chunks: a program has some values, and the first state alone is kept."""
    sizes, steps = made.sizes, made.sizes[TIME]
    dot = made.dtype if made.dtype == torch.bfloat16 else torch.float32
    tiles = chunk_plan(sizes[form.key_axis], sizes[form.value_axis], dot, made.computed)
    tile = Tile(tiles.steps, tiles.values, tiles.stages)
    backward = _moved(back, sizes, made.dtype, steps)
    return replace(
        made,
        kernel=plan_of(by_chunks),
        chunks=None,
        lanes=(*form.lanes, form.value_axis),
        held=(),
        in_thread=False,
        forward=tile,
        backward=tile,
        not_chunked="",
        spacing=steps,
        reads_and_writes=made.reads_and_writes | {"backward": backward},
    )


def _tuned(
    text: str, scan: Scan, sizes: dict[str, int], dtype: torch.dtype
) -> tuple[tuple[str, Record], ...]:
    if not torch.cuda.is_available() or not sizes[TIME]:
        return ()
    kinds = {"float": dtype, "int": torch.int64, "bool": torch.bool}
    inputs, device = [kinds[i.kind] for i in scan.inputs], device_name(torch.device("cuda"))
    found = [(way, record(key(text, way, sizes, inputs, device))) for way in WAYS]
    return tuple((way, known) for way, known in found if known)


def _tile(
    text: str, sizes: dict[str, int], dtype: torch.dtype, chunks: Chunks | None, *, down: bool
) -> Tile | Held:
    scan, inside = load(text), inside_axes(text)
    steps, lanes = (chunks.length, chunks.count) if chunks else (sizes[TIME], 1)
    held = held_plan(inside, sizes, steps, backward=down)
    if held.axes:
        return held
    lanes *= prod(sizes[a] for a in scan.lanes if a not in inside.axes)
    rows = _spacing(scan, text, sizes | {TIME: steps}, dtype) if down else 0
    fields = len(scan.inputs) + down
    items = (dtype.itemsize,) * fields
    derived = full_adjoint(scan)
    parts = (derived.scan, derived.step) if down else (scan, step_program(scan))
    composed = None if chunks else composed_of(*parts)
    return tile_plan(steps, lanes, 1, items, backward=down, rows=rows, composed=composed)


def _spacing(scan: Scan, text: str, sizes: dict[str, int], dtype: torch.dtype) -> int:
    inside = inside_axes(text)
    fields: list[Input | Output] = [*scan.inputs, *scan.outputs]
    moved = sum(2 * dtype.itemsize * prod(sizes[a] for a in f.axes) for f in fields if f.kind == "float")
    split = kernel_plan(scan, sizes, inside=inside.axes).chunks is not None
    return keep_plan(scan, sizes, inside, moved, "", split=split).spacing


def _moved(scan: Scan, sizes: dict[str, int], dtype: torch.dtype, spacing: int) -> tuple[Moved, ...]:
    """Inputs and outputs; of the states before a step only those every `spacing` steps."""
    found, computed = [], dtypes.computed([dtype])
    fields: list[Input | Output] = [*scan.inputs, *scan.outputs]
    for field in fields:
        role = field.role if isinstance(field, Input) else "output"
        before = role == "state_before"
        item = {"float": (computed if before else dtype).itemsize, "int": 8, "bool": 1}[field.kind]
        size = item * prod(sizes[a] for a in field.axes) // (spacing if before else 1)
        found.append(Moved(field.name, role, field.axes, size))
    return tuple(found)


_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B"))


def readable(size: int) -> str:
    """A number of bytes with a unit."""
    return next(f"{size / unit:.3g} {name}" for unit, name in _UNITS if size >= unit or unit == 1)
