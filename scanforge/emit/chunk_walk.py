"""The walk over a lane's chunks: the state on chip, one block of values a program. It knows no gates.

    contracted = queries (before S) + scores values,   S' = after (inner S + keysᵀ values)

for chunk after chunk, S as [values, columns] in blocks of KB columns. Backwards it carries the cotangent of
the state: queries and keys change places, scores are transposed, and the cotangents of outputs are what is
read along values:

    grad_values = keys (after dS) + scoresᵀ grad,   dS' = before (back dS + queriesᵀ grad)

A factor at the end of a chunk waits for the one at the beginning of the next. The state before each chunk, in
the order of the walk, can be stored.

Where lanes are few, groups of chunks walk at one time. First each walks from a state of 0, and leaves its
last state and the product of its decays; a scan over groups (`prefix_kernel`) has from these the state that
each begins with.
"""

from __future__ import annotations

from dataclasses import dataclass

from scanforge.emit import chunk_frame as frame
from scanforge.emit.chunk_frame import ChunkForm, Tile
from scanforge.emit.chunk_gates import SCALES

CONSTANTS = ("V", "VB", "C", "KP", "K", "NS", "GROUPS")


@dataclass(frozen=True, slots=True)
class WalkForm:
    """Which walk it is, and what it leaves."""

    blocks: int  # of columns, each of KB
    width: int  # KB
    down: bool = False  # from the last chunk to the first
    shown: bool = True  # it makes an output
    stored: bool = False  # states are stored
    totals: bool = False  # and the products of decays
    ended: bool = True  # and the last state


BEGIN, END = Tile("begin_state", "float", False, False), Tile("end_state", "float", False, False)


def tiles(walk: WalkForm) -> tuple[Tile, ...]:
    """What is read along values, the output, and the states before and after all."""
    shown = (Tile("shown", "float", True, True),) if walk.shown else ()
    return (Tile("given", "float", True, True), *shown, BEGIN, *((END,) if walk.ended else ()))


def buffers(walk: WalkForm) -> tuple[str, ...]:
    """What chunks bring, and room for states."""
    named = {"scores": walk.shown, "scales": True, "states": walk.stored, "totals": walk.totals}
    return ("queries", "keys", *(n for n, there in named.items() if there))


def walk_kernel(chunk: ChunkForm, walk: WalkForm) -> str:
    """The kernel's text."""
    order = (2, 3, 0) if walk.down else (0, 1, 2)  # of the scales: at the read, within, at the end
    read, write = ("keys", "queries") if walk.down else ("queries", "keys")
    head = frame.arguments(chunk, tiles(walk), buffers(walk), CONSTANTS)
    head.insert(-1, f"    {', '.join(strides(walk))},")
    body = opening(chunk, walk, tiles(walk))
    for b in range(walk.blocks):
        body += [
            *first_state(b),
            f"late{b} = tl.full([KB], 1.0, FLOAT)",
            *([f"total{b} = tl.full([KB], 1.0, FLOAT)"] * walk.totals),
        ]
    body += ["for index in tl.range(low, high, num_stages=NS):"]
    body += frame.indent(_chunk(walk, order, read, write))
    last = [f"S{b} *= late{b}[None, :]" for b in range(walk.blocks)]
    body += last
    if walk.ended:
        body += [f"tl.store({place_of_state('end', b)}, S{b}, mask=kept{b})" for b in range(walk.blocks)]
    if walk.totals:
        at = "ptr_totals + (lane * GROUPS + group) * KP + column"
        body += [f"tl.store({at}{b}, total{b})" for b in range(walk.blocks)]
    what = f"the walk {'down' if walk.down else 'up'} over chunks"
    text = [frame.head("chunked", what, chunk), "\n".join([*head, *frame.indent(body)])]
    return "\n\n".join(x.strip("\n") + "\n" for x in text)


def opening(chunk: ChunkForm, walk: WalkForm, read: tuple[Tile, ...]) -> list[str]:
    """Where a program stands: its lane, values and chunks, and the addresses of what it reads."""
    return [
        *frame.place(chunk, "tl.program_id(0) // (tl.cdiv(V, VB) * GROUPS)"),
        "group = tl.program_id(0) // tl.cdiv(V, VB) % GROUPS",
        *_own_chunks(chunk),
        *(frame.base(chunk, t) for t in read),
        f"KB: tl.constexpr = {walk.width}",
        "i = tl.arange(0, C)[:, None]",
        "j = tl.arange(0, C)[None, :]",
        "value = tl.program_id(0) % tl.cdiv(V, VB) * VB + tl.arange(0, VB)",
        "down, across = value[:, None], value[None, :]  # of the state, of what has time",
    ]


def first_state(b: int) -> list[str]:
    """A block of columns of the state that a program begins with."""
    return [
        f"column{b} = {b} * KB + tl.arange(0, KB)",
        f"kept{b} = (down < V) & (column{b}[None, :] < K)",
        f"S{b} = tl.load({place_of_state('begin', b)}, mask=kept{b}, other=0.0).to(FLOAT)",
    ]


def strides(walk: WalkForm) -> list[str]:
    """Of the states' tensors: along groups, keys and values."""
    return [f"s{a}_{t.name}" for t in tiles(walk) if t in {BEGIN, END} for a in "gkv"]


def place_of_state(which: str, b: int | str) -> str:
    """The addresses of a block of a state's columns, in the program's group."""
    name = f"{which}_state"
    at = f"at_{name} + group * sg_{name}"
    return f"{at} + down.to(tl.int64) * sv_{name} + column{b}[None, :].to(tl.int64) * sk_{name}"


def _chunk(walk: WalkForm, order: tuple[int, int, int], read: str, write: str) -> list[str]:
    """One chunk."""
    lines = [
        f"chunk = {'most - index' if walk.down else 'index'}",
        "place = lane * CHUNKS + chunk",
        "step = ((chunk - start) * C + i).to(tl.int64)",
        "live = (step < length) & (across < V)",
        f"given = tl.load({frame.address(tiles(walk)[0], column='across')}, mask=live, other=0.0)",
        "values = tl.trans(given)  # [VB, C]",
        "stored()",
    ]
    if walk.stored:
        lines += [f"S{b} *= late{b}[None, :]" for b in range(walk.blocks)]
        at = "(place * V + down) * KP"
        lines += [
            f"tl.store(ptr_states + {at} + column{b}[None, :], S{b}, mask=down < V)"
            for b in range(walk.blocks)
        ]
    for b in range(walk.blocks):
        tile = "place * (C * KP) + i * KP + "
        late = "" if walk.stored else f" * late{b}"
        scale = [f"tl.load(ptr_scales + place * ({SCALES} * KP) + {k} * KP + column{b})" for k in order]
        lines += [f"write = tl.load(ptr_{write} + {tile}column{b}[None, :])"]
        if walk.shown:
            lines += [
                f"read = tl.load(ptr_{read} + {tile}column{b}[None, :])",
                f"seen = S{b} * ({scale[0]}{late})[None, :]",
                f"shown = {'plus_product(shown, ' if b else 'product('}seen, tl.trans(read))",
            ]
        lines += [
            f"S{b} = S{b} * ({scale[1]}{late})[None, :]",
            f"S{b} = plus_product(S{b}, values, write)",
            f"late{b} = {scale[2]}",
            *([f"total{b} *= {scale[1]} * {scale[2]}"] * walk.totals),
        ]
    if walk.shown:
        scores = "tl.load(ptr_scores + place * (C * C) + i * C + j)"
        out = next(t for t in tiles(walk) if t.name == "shown")
        lines += [
            f"scores = {f'tl.trans({scores})' if walk.down else scores}",
            "shown = plus_product(shown, values, scores)",
            "shown = tl.trans(shown).to(ptr_shown.dtype.element_ty)",
            f"tl.store({frame.address(out, column='across')}, shown, mask=live)",
        ]
    return lines


def _own_chunks(chunk: ChunkForm) -> list[str]:
    """The numbers from low to high that a program walks over; those of the chunks, from `start`, if down."""
    if not chunk.packed:
        return [
            "each = tl.cdiv(CHUNKS, GROUPS)",
            "low, high = group * each, min((group + 1) * each, CHUNKS)",
            "start, most, length = 0, CHUNKS - 1, T",
        ]
    others = " * ".join(f"N{k}" for k in range(1, chunk.lanes)) or "1"
    return [
        f"lane = lane % ({others})",
        "low, high = tl.load(ptr_firsts + o0).to(tl.int32), tl.load(ptr_firsts + o0 + 1).to(tl.int32)",
        "start, most = low, low + high - 1",
        *frame.sequence(),
    ]


PREFIX = ("locals", "totals", "begins")


def prefix_kernel(chunk: ChunkForm) -> str:
    """S_{g+1} = total_g S_g + local_g over groups: the state before each, and after the last one."""
    head = frame.arguments(chunk, (BEGIN, END), PREFIX, ("V", "VB", "K", "KP", "KB", "GROUPS"))
    head.insert(-1, "    sk_begin_state, sv_begin_state, sk_end_state, sv_end_state,")
    near = "down.to(tl.int64) * sv_{0} + column[None, :].to(tl.int64) * sk_{0}"
    body = [
        *frame.place(chunk, "tl.program_id(0) // (tl.cdiv(V, VB) * (KP // KB))"),
        *(frame.base(chunk, t) for t in (BEGIN, END)),
        "down = (tl.program_id(0) // (KP // KB) % tl.cdiv(V, VB) * VB + tl.arange(0, VB))[:, None]",
        "column = tl.program_id(0) % (KP // KB) * KB + tl.arange(0, KB)",
        "kept = (down < V) & (column[None, :] < K)",
        f"S = tl.load(at_begin_state + {near.format('begin_state')}, mask=kept, other=0.0).to(FLOAT)",
        "for group in tl.range(0, GROUPS):",
        "    at = ((lane * GROUPS + group) * V + down) * KP + column[None, :]",
        "    tl.store(ptr_begins + at, S, mask=down < V)",
        "    total = tl.load(ptr_totals + (lane * GROUPS + group) * KP + column)",
        "    S = S * total[None, :] + tl.load(ptr_locals + at, mask=kept, other=0.0)",
        f"tl.store(at_end_state + {near.format('end_state')}, S, mask=kept)",
    ]
    text = [
        frame.head("chunked", "the states that groups begin with", chunk),
        "\n".join([*head, *frame.indent(body)]),
    ]
    return "\n\n".join(x.strip("\n") + "\n" for x in text)
