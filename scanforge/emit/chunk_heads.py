"""The walk over a lane's chunks where all entries of its state decay alike: one kernel, nothing left behind.

With A_ij the product of the decays of the steps behind j until i, the queries q, keys k and values v of a
chunk and the state S before it,

    contracted_i = A_i S q_i + sum_{j <= i} A_ij (k_j · q_i) v_j,   S' = A_C S + sum_j A_Cj v_j k_jᵀ

Decays may be 0, negative or above 1. In bfloat16 a product is made of a sum of logarithms, and of how many
zeros and signs there are; else it is a product. Groups of chunks walk as in `chunk_walk.py`.
"""

from __future__ import annotations

from scanforge.chunked_form import MatrixForm
from scanforge.emit import chunk_frame as frame
from scanforge.emit.chunk_frame import ChunkForm, Tile
from scanforge.emit.chunk_gates import arguments, gate_tiles, module
from scanforge.emit.chunk_walk import (
    CONSTANTS,
    WalkForm,
    first_state,
    opening,
    place_of_state,
    strides,
    tiles,
)

NOTHING = -256.0  # a power of 2 that is 0
ZERO = 128.0  # counts for more than all signs of a chunk


def applies(form: MatrixForm) -> bool:
    """Whether the decay is of a lane, each step is read when it has been written, and none is reset."""
    return form.decay_on in {"lanes", "none"} and not (form.reads_before or form.resets or form.reader)


def decays_whole(form: MatrixForm) -> bool:
    """Whether there is such a decay at all."""
    return form.decay_on == "lanes" and applies(form)


def narrowed(form: MatrixForm) -> list[str]:
    """Makes a decay that is a number, which gates give for all columns, one of [C, 1]."""
    name = "log2_decay" if form.log_decay else "decay"
    numbers = {line.var.name for line in form.gates.lines if line.op == "const"}
    plain = dict(form.gates.outputs)[name] in numbers
    return [f"{name} = tl.max({name}, 1)[:, None]"] if plain else []


def head_walk_kernel(form: MatrixForm, chunk: ChunkForm, walk: WalkForm) -> str:
    """The kernel's text."""
    blocks = range(walk.blocks)
    body = [
        *opening(chunk, walk, (*gate_tiles(form), *tiles(walk))),
        *(["total = tl.full([], 1.0, FLOAT)"] * walk.totals),
    ]
    for b in blocks:
        body += first_state(b)
    ahead = [t for t in gate_tiles(form) if _small(t)]
    if ahead:  # Triton's pipeline has loads of 4 bytes and more alone, and these are of one number a step
        body += ["step = ((low - start) * C + i).to(tl.int64)", "live = step < length"]
        body += [f"next_{t.name} = {frame.load(t)}" for t in ahead]
    body += ["for index in tl.range(low, high, num_stages=NS):", *frame.indent(_chunk(form, chunk, walk))]
    if walk.ended:
        body += [f"tl.store({place_of_state('end', b)}, S{b}, mask=kept{b})" for b in blocks]
    if walk.totals:
        at = "ptr_totals + (lane * GROUPS + group) * KP + column"
        body += [f"tl.store({at}{b}, tl.full([KB], 1.0, FLOAT) * total)" for b in blocks]
    rooms = ("totals",) if walk.totals else ()
    head = arguments(form, chunk, rooms, CONSTANTS, tiles(walk))
    head.insert(-1, f"    {', '.join(strides(walk))},")
    functions = (SIGNED,) if form.decay_on == "lanes" and not form.log_decay else ()
    return module(form, chunk, "the walk up over chunks", head, body, functions)


def _chunk(form: MatrixForm, chunk: ChunkForm, walk: WalkForm) -> list[str]:
    """One chunk."""
    given, *rest = tiles(walk)
    ahead = [t for t in gate_tiles(form) if _small(t)]
    lines = [
        "step = ((index - start) * C + i).to(tl.int64)",
        "live = step < length",
        *(f"{t.name} = next_{t.name}" for t in ahead),
        *(["later = step + C", "then = later < length"] if ahead else []),
        *(f"next_{t.name} = {frame.load(t, step='later', live='then')}" for t in ahead),
        "inside = live & (across < V)",
        f"given = tl.load({frame.address(given, column='across')}, mask=inside, other=0.0).to(DOT)",
    ]
    for b in range(walk.blocks):
        lines += _gates(form, b)
    lines += _reach(form, chunk)
    for b in range(walk.blocks):
        if walk.shown:
            more = "plus_product({}, " if b else "product("
            lines += [
                f"pairs = {more.format('pairs')}keys{b}, tl.trans(queries{b}))  # [key, query]",
                f"shown = {more.format('shown')}S{b}, tl.trans(queries{b}))  # [VB, C]",
            ]
        lines += [f"S{b} = plus_product(S{b} * whole, late, keys{b})"]
    lines += ["total *= whole"] * walk.totals
    if walk.shown:
        out = next(t for t in rest if t.name == "shown")
        lines += [
            "scores = tl.where(i <= j, pairs * reach, 0.0)",
            "shown = plus_product(shown * since[None, :], tl.trans(given), scores)",
            "shown = tl.trans(shown).to(ptr_shown.dtype.element_ty)",
            f"tl.store({frame.address(out, column='across')}, shown, mask=inside)",
        ]
    return lines


def _small(tile: Tile) -> bool:
    """Whether it is one number a step, which is loaded a chunk ahead."""
    return tile.timed and not tile.column


def _gates(form: MatrixForm, b: int) -> list[str]:
    """Queries and keys of some columns; 0 beyond the tensors, as an input is by itself."""
    loaded, names = gate_tiles(form), [n for n, _ in form.gates.outputs]
    lines = [
        f"column = column{b}[None, :]",
        "real = column < K",
        *(f"{t.name} = {frame.load(t)}" for t in loaded if not _small(t)),
        f"{', '.join(names)} = gates({', '.join(t.name for t in loaded)})",
    ]
    full = {t.name for t in loaded if t.timed and t.column}
    for name, many in (("query", "queries"), ("key", "keys")):
        plain = f"in_{form.plain(name)}" in full
        lines.append(f"{many}{b} = {name if plain else f'tl.where(live & real, {name}, 0.0)'}.to(DOT)")
    return lines


def _reach(form: MatrixForm, chunk: ChunkForm) -> list[str]:
    """Products of decays: between pairs of steps, since the state before, until the one after; of all."""
    between = "tl.exp2({0})" if form.log_decay else "signed({0}, {1})"
    if form.decay_on == "none":
        return [
            "reach, whole = 1.0, 1.0",
            "since = tl.full([C], 1.0, FLOAT)",
            "late = tl.trans(given)",
        ]
    if chunk.dot_type == "bfloat16":  # sums of logarithms are as exact as the operands
        return [
            *narrowed(form),
            *_logarithms(form),
            "logs = tl.cumsum(tl.sum(logs, 1), 0)",
            "to_key, to_query = logs[:, None], logs[None, :]",
            *([] if form.log_decay else _COUNTED),
            f"reach = {between.format('to_query - to_key', 'met_query - met_key')}  # [key, query]",
            f"since = tl.sum({between.format('to_query', 'met_query')}, 0)",
            f"until = {between.format('in_all - to_key', 'met_all - met_key')}",
            "late = tl.trans((given.to(FLOAT) * until).to(DOT))  # [VB, C]",
            f"whole = {between.format('in_all', 'met_all')}",
        ]
    return [
        *narrowed(form),
        *(["decay = tl.exp2(log2_decay)"] if form.log_decay else []),
        "decay = tl.where(live, decay, 1.0)  # [C, 1]",
        "factors = tl.trans(decay) + tl.zeros([C, C], FLOAT)",
        "reach = tl.cumprod(tl.where(j > i, factors, 1.0), 1)  # [key, query]",
        "single, row = tl.sum(decay, 1), tl.arange(0, C)",
        "since = tl.cumprod(single, 0)",
        "behind = tl.where(row < C - 1, tl.gather(single, tl.minimum(row + 1, C - 1), 0), 1.0)",
        "until = tl.cumprod(behind, 0, reverse=True)",
        "whole = tl.sum(tl.where(row == C - 1, since, 0.0))",
        "late = tl.trans((given.to(FLOAT) * until[:, None]).to(DOT))  # [VB, C]",
    ]


def _logarithms(form: MatrixForm) -> list[str]:
    if form.log_decay:
        lines = [f"logs = tl.where(live, tl.maximum(log2_decay, {NOTHING!r}), 0.0)  # [C, 1]"]
    else:
        lines = [
            "decay = tl.where(live, decay, 1.0)  # [C, 1]",
            "logs = tl.where(decay == 0.0, 0.0, log2(tl.abs(decay)))",
            f"met = tl.where(decay == 0.0, {ZERO}, tl.where(decay < 0.0, 1.0, 0.0))",
        ]
    return [*lines, "in_all = tl.sum(logs)"]


_COUNTED = [
    "met_all = tl.sum(met)",
    "met = tl.cumsum(tl.sum(met, 1), 0)",
    "met_key, met_query = met[:, None], met[None, :]",
]

SIGNED = f'''
@triton.jit
def signed(logs, met):
    """A product of decays: of logarithms of what is not 0, and {ZERO} for each 0, 1 for each sign."""
    sign = 1.0 - 2.0 * (met - 2.0 * tl.floor(0.5 * met))
    return tl.where(met < {ZERO}, tl.exp2(logs) * sign, 0.0)
'''
