"""What every kernel begins with: its arguments, its place in the grid, and where tensors begin."""

from __future__ import annotations

from scanforge.emit.form import Form, Kernel, Room
from scanforge.schedule import first


def is_state(tensor: str) -> bool:
    """Whether a tensor of a kernel is of states: over lanes, or kept over tiles."""
    return tensor.startswith(("start_", "end_", "kept_"))


def adds_lanes(tensor: str, room: Room) -> bool:
    """Whether an output is a sum over the program's lanes: its parts lie a whole time apart."""
    return tensor.startswith("out_") and not room.inner


def timed(kernel: Kernel) -> list[str]:
    """The tensors over time."""
    return [t for t, room in kernel.tensors() if room.timed and not is_state(t)]


def parted(kernel: Kernel, form: Form) -> list[str]:
    """The outputs of which each member of a ring leaves a part: those without time."""
    return [f"out_{r.name}" for r in kernel.outputs if not r.timed] if form.members > 1 else []


def signature(kernel: Kernel, form: Form) -> list[str]:
    """The kernel's arguments: pointers, sizes, strides, and constants of the compilation."""
    outer, tensors = range(form.outer), kernel.tensors()
    names = [t for t, _ in tensors]
    kept = [f"st_kept_{room.name}" for room in kernel.kept]
    rows = [", ".join(f"ptr_{t}" for t in names)]
    rows.append(", ".join(["T", "LANES", *(f"N{k}" for k in outer), *kept]))
    rows += ["ptr_begins, ptr_lengths, ptr_places"] if form.packed else []
    rows += [", ".join(["ptr_words", *(f"sm_{t}" for t in parted(kernel, form))])] if form.members > 1 else []
    rows += [", ".join(f"s{k}_{t}" for k in outer) for t in names if outer]
    rows += [f"st_{t}: tl.constexpr" for t in timed(kernel)]
    across = [f"sd_{t}" for t, _ in tensors]
    across += [f"sn_{t}" for t, room in tensors if room.held]
    across += [f"sw{k}_{t}" for t, room in tensors for k, has in enumerate(room.whole) if has]
    changing = {*form.across, *(f"sd_{t}" for t, room in tensors if adds_lanes(t, room))}
    rows += [s if s in changing else f"{s}: tl.constexpr" for s in across]
    rows += [f"W{k}: tl.constexpr, B{k}: tl.constexpr" for k in range(len(form.whole))]
    rows.append("BD: tl.constexpr, NS: tl.constexpr, MASKED: tl.constexpr, FENCE: tl.constexpr")
    counts, far = [f"N{k}" for k in outer], [s for s in across if s in changing and s.startswith("sn_")]
    plain = ", ".join(f'"{n}"' for n in ("T", *counts, *kept, *far))  # never constants
    anywhere = ", ".join(f'"ptr_{t}"' for t in names if f"ptr_{t}" in form.across)
    anywhere = f", do_not_specialize_on_alignment=[{anywhere}]" if anywhere else ""
    lines = [f"@triton.jit(do_not_specialize=[{plain}]{anywhere})", "def kernel("]
    lines += [*(f"    {r}," for r in rows), "):"]
    return [*lines, *(f"    {s} = {s}.to(tl.int64)" for s in far)]


def place_in_grid(form: Form) -> list[str]:
    """The program's block of lanes, its entry along each outer group, and its part of packed time."""
    program, lines, n = "tl.program_id(0)", [], form.members
    if n > 1:
        lines, program = [f"    member, place = {program} % {n}, {program} // {n}"], "place"
    lines += [
        f"    blocks = tl.cdiv(LANES, {lanes_of(form).strip('()')})",
        f"    block = {program} % blocks",
        f"    outer = ({program} // blocks).to(tl.int64)",
    ]
    rest = "outer"
    for k in reversed(range(form.outer)):
        lines.append(f"    o{k} = {rest} % N{k}" if k else f"    o0 = {rest}")
        lines += [f"    outer{k} = {rest} // N{k}"] if k else []
        rest = f"outer{k}"
    if form.packed:
        lines += [
            "    begin = tl.load(ptr_begins + o0).to(tl.int64)",
            "    T = tl.load(ptr_lengths + o0).to(tl.int32)",
            "    place0 = tl.load(ptr_places + o0).to(tl.int64)",
        ]
    return lines


def lanes_of(form: Form) -> str:
    """How many lanes a program has."""
    return f"(BD // {form.groups})" if form.groups > 1 else "BD"


def seats(groups: int) -> list[str]:
    """Where a lane's thread of each group is."""
    lanes = f"(BD // {groups})"
    one = [f"{seat(k)} = {k} * {lanes} + thread % {lanes}  # [BD]" for k in range(groups)]
    every = f"tl.arange(0, {groups} * BD)"
    return [*one, f"seats = {every} // BD * {lanes} + {every} % {lanes}  # [{groups} BD]"]


def seat(k: int) -> str:
    """The thread of group k that has the same lane."""
    return f"seat{k}"


def first_step(tensor: str, room: Room, form: Form) -> str:
    """A tensor's address at the program's first step, before its lanes."""
    shift = "".join(f" + o{k} * s{k}_{tensor}" for k in range(form.outer))
    if form.packed and room.timed and not is_state(tensor):
        shift += f" + begin * st_{tensor}"
    if form.packed and tensor.startswith("kept_"):
        shift += f" + place0 * st_{tensor}"
    return f"ptr_{tensor}{shift}"


def first_entry(name: str, form: Form) -> str:
    """The condition of being the first entry along an axis, for values that count once."""
    axis = name.removeprefix(first(""))
    if axis in form.inner:
        return f"{name} = lane == 0"
    k = next((k for k, group in enumerate(form.grid) if axis in group), None)
    return f"{name} = (lane >= 0)" + ("" if k is None else f" & (o{k} == 0)")


HEAD = '''"""{name}: {what}, generated by scanforge."""

import triton
import triton.language as tl

FLOAT = tl.constexpr(tl.{FLOAT})
INT = tl.constexpr(tl.{INT})
NVIDIA = tl.constexpr({NVIDIA})
'''


def head(name: str, what: str, form: Form) -> str:
    """The head of a kernel's module."""
    return HEAD.format(name=name, what=what, FLOAT=form.float_type, INT=form.int_type, NVIDIA=form.nvidia)
