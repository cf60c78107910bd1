"""Kernels over chunks, launched: their operands in memory, tensors and strides in the order of arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import torch

from scanforge import tape
from scanforge.cache import load_kernel
from scanforge.chunked_setting import Setting
from scanforge.chunked_swap import kernel_form
from scanforge.chunked_vjp import WayBack, way_back
from scanforge.emit import chunk_gates, chunk_gradient, chunk_heads
from scanforge.emit.chunk_frame import ChunkForm, Tile
from scanforge.emit.chunk_walk import BEGIN, END, WalkForm, buffers, prefix_kernel, tiles, walk_kernel
from scanforge.ir.scan import TIME
from scanforge.views import View
from scanforge.work import on_device

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Operands:
    """What the gates make of chunks, `[lanes, chunks, ...]`."""

    queries: Tensor  # [C, KP]
    keys: Tensor
    scores: Tensor  # [C keys, C queries]
    scales: Tensor  # [4, KP]
    flags: Tensor


@lru_cache(maxsize=4096)
def kernel(source: str) -> Any:
    """The function to launch."""
    return load_kernel(source)


@lru_cache(maxsize=4096)
def gates_source(text: str, chunk: ChunkForm, *, exact: bool, gradients: bool) -> str:
    """The text of a kernel of chunks' operands."""
    form = kernel_form(text)
    if exact:
        return chunk_gates.exact_kernel(form, chunk)
    return chunk_gates.fast_kernel(form, chunk, gradients=gradients)


@lru_cache(maxsize=1024)
def gates_back(text: str, wanted: frozenset[str]) -> WayBack:
    """The way back through the gates of a recurrence."""
    form = kernel_form(text)
    axes = (TIME, *form.lanes, form.key_axis)
    return way_back(form.slopes, wanted, {o: axes for o, _ in form.slopes.outputs}, ())


@lru_cache(maxsize=1024)
def gradient_source(text: str, chunk: ChunkForm, wanted: frozenset[str], *, exact: bool) -> str:
    """The text of a kernel of the gates' gradients."""
    make = chunk_gradient.exact_kernel if exact else chunk_gradient.fast_kernel
    return make(kernel_form(text), chunk, gates_back(text, wanted))


@lru_cache(maxsize=256)
def head_source(text: str, chunk: ChunkForm, which: WalkForm) -> str:
    """The text of a walk where lanes decay as a whole."""
    return chunk_heads.head_walk_kernel(kernel_form(text), chunk, which)


walk_source = lru_cache(maxsize=256)(walk_kernel)
prefix_source = lru_cache(maxsize=64)(prefix_kernel)


def gate_views(call: Setting, inputs: Mapping[str, View]) -> list[Found]:
    """What the gates read."""
    tiles = chunk_gates.gate_tiles(call.form)
    names = [v.name for v in call.form.gates.inputs]
    return [(t, inputs[n], call.form.key_axis) for t, n in zip(tiles, names, strict=True)]


def operands(call: Setting, inputs: Mapping[str, View], *, gradients: bool = False) -> Operands:
    """Queries, keys, scores and scales of all chunks, those that are no matter for the fast form repaired."""
    plan, shape = call.plan, (call.count, call.chunks)
    made = Operands(
        call.empty(*shape, plan.steps, plan.padded, dtype=call.dot),
        call.empty(*shape, plan.steps, plan.padded, dtype=call.dot),
        call.empty(*shape, plan.steps, plan.steps, dtype=call.dot),
        call.empty(*shape, chunk_gates.SCALES, plan.padded, dtype=call.computed),
        call.empty(*shape, dtype=torch.int32),
    )
    found = gate_views(call, inputs)
    given = [made.queries, made.keys, made.scores, made.scales, made.flags]
    constants = {
        "K": call.sizes[call.form.key_axis],
        "KP": plan.padded,
        "C": plan.steps,
        "LEVELS": plan.levels,
    }
    fast, exact = (gates_source(call.text, call.chunk, exact=e, gradients=gradients) for e in (False, True))
    grid = call.count * call.chunks
    run(call, fast, found, given, constants | {"KB": plan.gate_keys}, grid, plan.gate_warps)
    grid = call.count * -(-call.chunks // chunk_gates.TOGETHER)
    run(call, exact, found, given, constants | {"KB": plan.exact_keys}, grid, plan.gate_warps)
    return made


@dataclass(frozen=True, slots=True)
class States:
    """A state's tensor as a walk sees it: strides along lanes, keys and values."""

    tensor: Tensor
    lanes: tuple[int, ...]
    key: int
    value: int
    group: int = 0

    @classmethod
    def of(cls, call: Setting, view: View) -> States:
        """Of a view over lanes."""
        at = dict(zip(call.axes[1:], view.strides, strict=True))
        lanes = tuple(at[a] for a in call.form.lanes)
        return cls(view.pointer(), lanes, at[call.form.key_axis], at[call.form.value_axis])


Found = tuple[Tile, View | States, str]  # a tile, what it is of, and the axis of its columns


def walk(
    call: Setting, made: Operands, given: View, shown: View | None, begin: States, end: States, *,
    down: bool = False, kept: Tensor | None = None,
) -> None:  # fmt: skip
    """Walk over all chunks; the states before each are `kept`, `[lanes, chunks, V, KP]`."""
    call = call.walking
    plan = call.plan
    alone = WalkForm(plan.padded // plan.keys, plan.keys, down, shown is not None, kept is not None)
    in_groups(call, partial(_walk, call, made), alone, {"given": given, "shown": shown}, begin, end, kept)


Walk = Callable[..., None]  # a form, views, the states before and after, what it leaves, and groups


def in_groups(
    call: Setting, one: Walk, alone: WalkForm, views: Mapping[str, View | None], begin: States, end: States,
    kept: Tensor | None = None,
) -> None:  # fmt: skip
    """Walk, where lanes are few in groups of chunks at one time."""
    plan, values = call.plan, call.sizes[call.form.value_axis]
    groups = 1 if call.packing else plan.groups(call.count, values, call.chunks)
    if groups == 1:
        return one(alone, views, begin, end, [kept])
    last = call.empty(*call.lanes, groups, values, plan.padded, dtype=call.computed)
    first, totals = torch.empty_like(last), call.empty(call.count, groups, plan.padded, dtype=call.computed)
    of_groups = [
        States(x, x.stride()[: len(call.lanes)], 1, plan.padded, values * plan.padded) for x in (last, first)
    ]
    zero = States(call.like.new_full((), 0.0, dtype=call.computed), (0,) * len(call.lanes), 0, 0)
    local = replace(alone, shown=False, stored=False, totals=True)
    one(local, views, zero, of_groups[0], [totals], groups)
    found: list[Found] = [(BEGIN, begin, ""), (END, end, "")]
    constants = {
        "V": values, "VB": plan.values, "K": call.sizes[call.form.key_axis], "KP": plan.padded,
        "KB": plan.keys, "GROUPS": groups, **_near(begin, "begin_state"), **_near(end, "end_state"),
    }  # fmt: skip
    grid = call.count * -(-values // plan.values) * (plan.padded // plan.keys)
    run(call, prefix_source(call.chunk), found, [last, totals, first], constants, grid, plan.walk_warps)
    one(replace(alone, ended=False), views, of_groups[1], None, [kept], groups)


def head_walk(
    call: Setting, inputs: Mapping[str, View], given: View, shown: View, begin: States, end: States
) -> None:
    """Walk over all chunks where lanes decay as a whole, from what the gates read."""
    call = call.walking
    call = replace(call, plan=call.plan.for_heads(call.count, call.sizes[call.form.value_axis]))
    alone = WalkForm(call.plan.padded // call.plan.keys, call.plan.keys)
    read = gate_views(call, inputs)

    def one(
        which: WalkForm, views: Mapping[str, View | None], begin: States, end: States | None,
        left: Sequence[Tensor | None], groups: int = 1,
    ) -> None:  # fmt: skip
        source = head_source(call.text, call.chunk, which)
        launch_walk(call, source, which, views, (begin, end), left, groups, read)

    in_groups(call, one, alone, {"given": given, "shown": shown}, begin, end)


def states_between(call: Setting) -> Tensor:
    """Room for a state at each boundary between chunks."""
    values = call.sizes[call.form.value_axis]
    return call.empty(call.count, call.chunks, values, call.plan.padded, dtype=call.plan.kept)


def gate_gradients(
    call: Setting, wanted: frozenset[str], made: Operands, read: Sequence[Found],
    states: tuple[Tensor, Tensor], left: Sequence[Found], parts: Sequence[Tensor],
) -> None:  # fmt: skip
    """Launch the kernels of the gates' gradients.

    They read what gates do, then two tensors along values, these and the cotangent of what is contracted,
    then the states before chunks and the cotangents of those after. They leave gradients, or parts of them.
    """
    plan, form = call.plan, call.form
    constants = {
        "K": call.sizes[form.key_axis], "KP": plan.padded, "V": call.sizes[form.value_axis],
        "C": plan.steps, "LEVELS": plan.levels, "PARTS": part_count(call),
    }  # fmt: skip
    rooms = [made.queries, made.keys, made.flags, *states, *parts]
    for exact in (False, True):
        source = gradient_source(call.text, call.chunk, wanted, exact=exact)
        fast = plan.heads_gradients if chunk_heads.decays_whole(form) else plan.gradients
        keys, values, warps = plan.exact_gradients if exact else fast
        blocks = plan.padded // keys
        groups = -(-call.chunks // chunk_gates.TOGETHER) if exact else call.chunks
        own = {"KB": keys, "VB": values, "BLOCKS": blocks}
        run(call, source, [*read, *left], rooms, constants | own, call.count * groups * blocks, warps)


def part_count(call: Setting) -> int:
    """How many programs of a chunk may leave a part of a gradient that lacks the key axis."""
    return call.plan.padded // call.plan.exact_keys


def _near(states: States, name: str) -> dict[str, int]:
    return {f"sk_{name}": states.key, f"sv_{name}": states.value}


def _walk(
    call: Setting, made: Operands, which: WalkForm, views: Mapping[str, View | None], begin: States,
    end: States | None, left: Sequence[Tensor | None], groups: int = 1,
) -> None:  # fmt: skip
    """Launch a walk; `left` is where it leaves states or products of decays."""
    rooms = [getattr(made, b) for b in buffers(which) if b not in {"states", "totals"}]
    launch_walk(call, walk_source(call.chunk, which), which, views, (begin, end), [*rooms, *left], groups)


def launch_walk(
    call: Setting, source: str, which: WalkForm, views: Mapping[str, View | None],
    around: tuple[States, States | None], rooms: Sequence[Tensor | None], groups: int,
    read: Sequence[Found] = (),
) -> None:  # fmt: skip
    """Launch a walk of a text, which may `read` more than what stands along values."""
    plan, form, (begin, end) = call.plan, call.form, around
    states = {BEGIN.name: begin} | ({} if end is None else {END.name: end})
    found = [*read]
    for t in tiles(which):
        view = states.get(t.name) or views[t.name]
        assert view is not None
        found.append((t, view, form.value_axis))
    values = call.sizes[form.value_axis]
    constants = {
        "V": values, "VB": plan.values, "C": plan.steps, "KP": plan.padded, "K": call.sizes[form.key_axis],
        "NS": plan.stages, "GROUPS": groups,
    }  # fmt: skip
    for name, x in states.items():
        constants |= {f"sg_{name}": x.group} | _near(x, name)
    grid = call.count * groups * -(-values // plan.values)
    run(call, source, found, [x for x in rooms if x is not None], constants, grid, plan.walk_warps)


def run(
    call: Setting, source: str, found: Sequence[Found], rooms: Sequence[Any],
    constants: dict[str, int], grid: int, warps: int,
) -> None:  # fmt: skip
    """Launch a kernel: tiles with the axis of their columns, buffers, constants."""
    strides: list[int] = []
    for tile, view, column in found:
        if isinstance(view, States):
            strides += view.lanes
            continue
        at = dict(zip(call.axes, view.strides, strict=True))
        strides += [at[a] for a in call.form.lanes]
        strides += [at[TIME]] * tile.timed + [at[column]] * tile.column
    tensors = [v.tensor if isinstance(v, States) else v.pointer() for _, v, _ in found]
    p = call.packing
    packed = (p.begins, p.lengths, p.firsts, p.owners) if p else ()
    with on_device(call.like):
        args = [*tensors, *rooms, call.length, call.chunks, *call.lanes, *packed, *strides]
        tape.launch(kernel(source), (grid,), args, constants | {"num_warps": warps})
