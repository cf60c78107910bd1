"""(recurrence, sizes, dtype) -> Planned: what would run, what is kept and what is moved, as data to show."""

from __future__ import annotations

from collections.abc import Sequence
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
from scanforge.kernel_choice import kernel_choice
from scanforge.launch import Options, kept_states
from scanforge.launch_triton import keeping
from scanforge.listing import Launched, inputs_of, shipped_launches
from scanforge.pipeline import inside_axes
from scanforge.plan import Chunks, Held, Plan, held_plan, plan
from scanforge.tile import Tile
from scanforge.tuned import WAYS, Record, device_name, key, record


@dataclass(frozen=True, slots=True)
class Moved:
    """A tensor that a pass reads or writes once, and its bytes there."""

    name: str
    role: str  # given | state_before | cotangent | output | between
    axes: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a pass: what it is, how many programs run it, how often it is launched."""

    title: str
    programs: int
    times: int

    def __str__(self) -> str:
        times = f", {self.times} times" if self.times > 1 else ""
        return f"{self.title} ({self.programs} program{'s' * (self.programs != 1)}{times})"


@dataclass(frozen=True, slots=True)
class Pass:
    """What a GPU launches in a pass, in order, and what only these kernels write and read."""

    kernels: tuple[Kernel, ...]
    between: tuple[Moved, ...]

    @classmethod
    def of(cls, launched: Sequence[Launched]) -> Pass:
        """Of launches; memory bears the name that it is written under."""
        titles = [(x.name if x.tile else x.what, x.programs) for x in launched]
        kernels = (Kernel(*title, titles.count(title)) for title in dict.fromkeys(titles))
        found: dict[int, tuple[str, int]] = {}
        for x in launched:
            for name, (memory, size) in x.between.items():
                found.setdefault(memory, (name, size))
        sizes = {n: sum(s for m, s in found.values() if m == n) for n, _ in found.values()}
        return cls(tuple(kernels), tuple(Moved(n, "between", (), s) for n, s in sizes.items()))


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of a call of these sizes, for the CPU and for a GPU."""

    sizes: dict[str, int]
    dtype: torch.dtype
    computed: torch.dtype
    reference: Plan
    kernel: Plan
    chunks: Chunks | None  # of time, side by side
    lanes: tuple[str, ...]  # the axes that programs share out
    held: tuple[str, ...]  # the axes that a program has whole
    in_thread: bool  # in the registers of one thread
    forward: Tile | Held | None  # None: nothing is launched
    backward: Tile | Held | None
    passes: dict[str, Pass]  # forward, backward, as shipped
    not_chunked: str  # why no products over chunks run, where the recurrence has their form
    spacing: int  # a GPU's forward pass keeps the states before every so many steps; 0: none
    outputs_kept: tuple[str, ...]  # states that the backward pass reads off an output
    stored: tuple[str, ...]  # states that are stored for it
    reads_and_writes: dict[str, tuple[Moved, ...]]  # forward, and backward if there is a gradient
    tuned: tuple[tuple[str, Record], ...] = ()  # what was found on this machine's GPU, by pass

    def bytes(self, which: str) -> int:
        """All that a pass reads and writes."""
        return sum(m.size for m in self.reads_and_writes.get(which, ()))


def planned(text: str, sizes: dict[str, int], dtype: torch.dtype) -> Planned:
    """The plan of the recurrence of that text."""
    scan, inside = load(text), inside_axes(text)
    computed = dtypes.computed([dtype])
    options = Options(False, "", computed, "triton")
    by_chunks = choice(text, sizes, options, packed=False)
    with torch.device("meta"):
        chosen, _ = kernel_choice(text, sizes, options, torch.empty(0))
        spacing = keeping(text, inputs_of(scan, sizes, dtype), sizes, options, None).spacing
    outputs = [dtype if o.kind == "float" else torch.int64 for o in scan.outputs]
    derived = full_adjoint(scan)
    goes_back = bool(derived.gradients or derived.initial)
    stored = kept_states(scan, outputs, computed) if goes_back else []
    launched = {way: shipped_launches(text, way, sizes, dtype) for way in ("forward", "backward")}
    tiles = {way: _tile(text, sizes, chosen.chunks, way, found) for way, found in launched.items()}
    every = spacing if inside.axes or by_chunks.form else 1
    held = held_plan(inside, sizes, _steps(sizes, chosen.chunks), backward=True)
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
        forward=tiles["forward"],
        backward=tiles["backward"],
        passes={way: Pass.of(found) for way, found in launched.items()},
        not_chunked="" if isinstance(matrix_form(text), str) else by_chunks.why,
        spacing=spacing if goes_back else 0,
        outputs_kept=tuple(s.name for s in scan.states if s.name not in stored) if goes_back else (),
        stored=tuple(stored),
        reads_and_writes={"forward": _moved(scan, sizes, dtype, 1)}
        | ({"backward": _moved(derived.scan, sizes, dtype, every)} if goes_back else {}),
        tuned=_tuned(text, scan, sizes, dtype),
    )
    return by_products(made, kernel_form(text), by_chunks) if by_chunks.form else made


def by_products(made: Planned, form: MatrixForm, by_chunks: Choice) -> Planned:
    """The plan of products over chunks: a program has some values."""
    sizes = made.sizes
    dot = made.dtype if made.dtype == torch.bfloat16 else torch.float32
    tiles = chunk_plan(sizes[form.key_axis], sizes[form.value_axis], dot, made.computed)
    count, lanes = tiles.chunks(sizes[TIME]), prod(sizes[a] for a in form.lanes)
    groups = tiles.groups(lanes, sizes[form.value_axis], count) if lanes else 1
    tile = Tile(tiles.steps, tiles.values, tiles.stages) if made.passes["forward"].kernels else None
    return replace(
        made,
        kernel=plan_of(by_chunks),
        chunks=Chunks(groups, -(-count // groups) * tiles.steps, 0) if groups > 1 else None,
        lanes=(*form.lanes, form.value_axis),
        held=(),
        in_thread=False,
        forward=tile,
        backward=tile,
        not_chunked="",
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
    text: str, sizes: dict[str, int], chunks: Chunks | None, way: str, launched: Sequence[Launched]
) -> Tile | Held | None:
    """The tile of the kernel that walks over time, not of those that compose and carry chunks.

    Where several do, the most threads share the lanes of what has most steps: the others walk what is left.
    """
    down, name = way == "backward", load(text).name
    held = held_plan(inside_axes(text), sizes, _steps(sizes, chunks), backward=down)
    own = f"{name}.adjoint" if down else name
    tiles = [x.tile for x in launched if x.tile and x.name == own]
    tile = max(tiles, key=lambda t: t.groups * t.members, default=None)
    return held if tile and held.axes else tile


def _steps(sizes: dict[str, int], chunks: Chunks | None) -> int:
    return chunks.length if chunks else sizes[TIME]


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
