"""MatrixForm and its gates' way back -> the kernels that make the gates' gradients, chunk by chunk.

With S the state before a chunk, dS the cotangent of the one after it, O the cotangent of `contracted`:

    dA = tril(values Oᵀ),   dQ = dAᵀ keys + before (O Sᵀ),   dK = dA queries + after (values dSᵀ)
    grad_query = dQ 2^D,   grad_key = dK 2^-D
    grad_log_decay_j = Σ_{i≥j} (queries dQ - keys dA queries)_i + Σ_{i<j} (keys after values dSᵀ)_i
                       + before after Σ_v S dS

Nothing there is summed over more than a chunk. The logarithm of an exponential or a sigmoid has a slope of
its own; any other decay has its gradient from the logarithm's, divided by it, and chunks with small ones are
flagged. In these the products of decays, half by half, are differentiated themselves, from the largest halves
to the smallest: no division, and decays may be 0.
"""

from __future__ import annotations

from scanforge.chunked_form import MatrixForm
from scanforge.chunked_vjp import WayBack
from scanforge.emit import chunk_frame as frame
from scanforge.emit import chunk_gates as gates
from scanforge.emit import chunk_halves, chunk_heads
from scanforge.emit.chunk_frame import ChunkForm, Tile
from scanforge.emit.triton_text import function

CONSTANTS = ("K", "KP", "V", "KB", "VB", "C", "LEVELS", "BLOCKS", "PARTS")
BUFFERS = ("queries", "keys", "flags", "states", "cotangents")  # of operands, states before and dS after
GIVEN, GRAD = Tile("given", "float", True, True), Tile("grad", "float", True, True)  # along values
LN2 = 0.6931471805599453


def gradient_tiles(form: MatrixForm, back: WayBack) -> tuple[Tile, ...]:
    """The gradients that have time and columns: out_ and the input's name."""
    tiles = frame.tiles_of(form.gates, form.key_axis, "out_")
    return tuple(t for t in tiles if t.timed and t.column and t.name[4:] in back.found)


def parts(form: MatrixForm, back: WayBack) -> tuple[Tile, ...]:
    """The other gradients, of which each program leaves its part.

    [lanes, PARTS, T] without columns, [lanes, CHUNKS, KP] without time, [lanes, CHUNKS, PARTS] without both;
    a kernel of BLOCKS programs a chunk leaves the other parts as they are.
    """
    tiles = frame.tiles_of(form.gates, form.key_axis)
    return tuple(t for t in tiles if not (t.timed and t.column) and t.name in back.found)


def fast_kernel(form: MatrixForm, chunk: ChunkForm, back: WayBack) -> str:
    """The kernel of all chunks; what it leaves of flagged ones is written over."""
    begin = [
        *frame.place(chunk, "tl.program_id(0) // (CHUNKS * BLOCKS)"),
        "chunk = tl.program_id(0) // BLOCKS % CHUNKS",
        *_rows(form, chunk, back),
    ]
    body = [
        gates.AT_MID,
        "later = operand((j >= i).to(FLOAT))",
        *_products_with_values(form, chunk),
        *gates.load_gates(form),
        *([] if form.resets else STORED),
        *gates.logarithms(form, chunk),
        *_fast(form, back),
    ]
    if chunk_heads.decays_whole(form):
        body = [
            *_products_with_values(form, chunk),
            *gates.load_gates(form, alone=True),
            *chunk_heads.narrowed(form),
            *STORED,
            *_of_heads(form, chunk, back),
        ]
    body = [*begin, *body, *_pull_back(form, chunk, back)]
    return _module(form, chunk, back, "the gradients of gates", body)


def exact_kernel(form: MatrixForm, chunk: ChunkForm, back: WayBack) -> str:
    """The kernel of flagged chunks."""
    inner = [
        *_rows(form, chunk, back),
        *_products_with_values(form, chunk),
        *gates.load_gates(form),
        *_exact(form),
        *_pull_back(form, chunk, back),
    ]
    body = gates.for_flagged(chunk, inner, "tl.program_id(0) // BLOCKS")
    return _module(form, chunk, back, "the gradients of gates of flagged chunks", body)


def _module(form: MatrixForm, chunk: ChunkForm, back: WayBack, what: str, body: list[str]) -> str:
    left = tuple(f"part_{t.name}" for t in parts(form, back))
    more = (GIVEN, GRAD, *gradient_tiles(form, back))
    tail = function(back.program, "gates_back", "From the gates' gradients to those of their inputs.")
    head = gates.arguments(form, chunk, (*BUFFERS, *left), CONSTANTS, more)
    return gates.module(form, chunk, what, head, body, (SUMS, tail))


STORED = [  # without resets, all of both; they are in shared memory before the product that makes d
    "queries = tl.load(ptr_queries + place * (C * KP) + i * KP + column)",
    "keys = tl.load(ptr_keys + place * (C * KP) + i * KP + column)",
]

# What `of` is stands long before, and is in shared memory by then. Were it written there after x, a barrier
# would stand between x and the fence that shows x to the tensor cores, which Triton puts right before them.
SUMS = '''
@triton.jit
def sums(of, x):
    """Sums of rows: which ones is 0 or 1. In bfloat16, x is taken in two parts."""
    if DOT == tl.bfloat16 and not INTERPRETED:
        high = x.to(DOT)
        low = (x - high.to(FLOAT)).to(DOT)
        stored()
        return tl.dot(of, high, tl.dot(of, low, out_dtype=FLOAT), out_dtype=FLOAT)
    else:
        return exact(of, x)
'''


def _rows(form: MatrixForm, chunk: ChunkForm, back: WayBack) -> list[str]:
    bases = [frame.base(chunk, t) for t in (GIVEN, GRAD, *gradient_tiles(form, back))]
    block = ["block = tl.program_id(0) % BLOCKS", "first = block * KB"]
    return [*gates.rows(form, chunk), *bases, *block, "column = first + tl.arange(0, KB)[None, :]"]


def _products_with_values(form: MatrixForm, chunk: ChunkForm) -> list[str]:
    """The cotangent of the scores; what queries and keys have from the states around the chunk; Σ_v S dS."""
    body = [
        "across = start + tl.arange(0, VB)[None, :]",
        *(
            f"{t.name} = tl.load({frame.address(t, column='across')}, "
            "mask=live & (across < V), other=0.0).to(DOT)"
            for t in (GIVEN, GRAD)
        ),
        "stored()",
        "entry = start + tl.arange(0, VB)[:, None]",
        "at_state = (place * V + entry) * KP + column",
        f"held = (entry < V){' & (first_step < length)' * chunk.packed}",  # no walk comes to empty chunks
        "before_it = tl.load(ptr_states + at_state, mask=held, other=0.0).to(FLOAT)",
        "after_it = tl.load(ptr_cotangents + at_state, mask=held, other=0.0).to(FLOAT)",
        "scores = plus_product(scores, given, tl.trans(grad))",
        "of_queries = plus_product(of_queries, grad, before_it)",
        "of_keys = plus_product(of_keys, given, after_it)",
        "through += tl.sum(before_it * after_it, 0)",
    ]
    return [
        "scores = tl.zeros([C, C], FLOAT)  # [key, query]",
        "of_queries = tl.zeros([C, KB], FLOAT)",
        "of_keys = tl.zeros([C, KB], FLOAT)",
        "through = tl.zeros([KB], FLOAT)",
        "for start in tl.range(0, V, VB):",
        *frame.indent(body),
        f"scores = tl.where({'i < j' if form.reads_before else 'i <= j'}, scores, 0.0).to(DOT)",
    ]


def _fast(form: MatrixForm, back: WayBack) -> list[str]:
    name = "log2_decay" if form.log_slope else "decay"
    reach = "d - logs" if form.reads_before else "d"
    apart = [
        *gates.segments(form),
        "scores = tl.where(same, scores, 0.0).to(DOT)",
        "of_queries = tl.where(until == 0.0, of_queries, 0.0)",
        "of_keys = tl.where(until == all_resets, of_keys, 0.0)",
        *gates.moved(form),
    ]
    lines = [
        *(apart if form.resets else []),
        "before, after = tl.exp2(until_mid), tl.exp2(from_mid)",
        "within = product(scores, queries)",
        "of_queries = of_queries * before[None, :] + product(tl.trans(scores), keys)",
        "of_keys = of_keys * after[None, :]",
        f"grad_query = of_queries * tl.exp2({reach})",
        "grad_key = (of_keys + within) * tl.exp2(-d)",
    ]
    if not back.reads(name):
        return [*lines, f"grad_{name} = tl.zeros([C, KB], FLOAT)"]
    to_log = f"slope * {LN2!r}" if form.log_slope else "slope / decay"
    return [
        *lines,
        "sent = queries.to(FLOAT) * of_queries",
        "passed = keys.to(FLOAT) * of_keys",
        "slope = sums(later, sent - keys.to(FLOAT) * within - passed)",
        f"slope += (tl.sum(passed, 0) + {gates.unless_reset(form, 'before * after * through')})[None, :]",
        *(["slope -= sent"] if form.reads_before else []),
        f"grad_{name} = {_of_decay(form, to_log)}",
    ]


def _of_heads(form: MatrixForm, chunk: ChunkForm, back: WayBack) -> list[str]:
    """The same of lanes that decay as a whole: D has no columns, and a decay has its gradient in one."""
    name = "log2_decay" if form.log_slope else "decay"
    lines = [
        f"logs = tl.sum({gates.logarithm(form, chunk)}.to(LOGS).to(FLOAT), 1)  # [C]",
        "row = tl.arange(0, C)",
        "until_mid = tl.sum(tl.where(row < C // 2, logs, 0.0))",
        "d = (tl.cumsum(logs, 0) - until_mid)[:, None]",
        "before, after = tl.exp2(until_mid), tl.exp2(tl.sum(tl.where(row < C // 2, 0.0, logs)))",
        "within = product(scores, queries)",
        "of_queries = of_queries * before + product(tl.trans(scores), keys)",
        "of_keys = of_keys * after",
        "grad_query = of_queries * tl.exp2(d)",
        "grad_key = (of_keys + within) * tl.exp2(-d)",
    ]
    if not back.reads(name):
        return [*lines, f"grad_{name} = tl.zeros([C, KB], FLOAT)"]
    to_log = f"slope[:, None] * {LN2!r}" if form.log_slope else "slope[:, None] / decay"
    return [
        *lines,
        "passed = keys.to(FLOAT) * of_keys",
        "rise = queries.to(FLOAT) * of_queries - keys.to(FLOAT) * within - passed",
        "slope = tl.cumsum(tl.sum(rise, 1), 0, reverse=True)",
        "slope += tl.sum(tl.sum(passed, 1), 0) + before * after * tl.sum(through, 0)",
        f"grad_{name} = tl.where(column == first, {to_log}, 0.0)",
    ]


def _products(levels: str) -> list[str]:
    """Products of decays in halves of 2^levels rows."""
    return [
        *chunk_halves.PRODUCTS,
        f"for lower in tl.range(0, {levels}):",
        *frame.indent([*chunk_halves.halves("lower"), *chunk_halves.WHOLE]),
    ]


def _exact(form: MatrixForm) -> list[str]:
    """Back from whole chunks to single steps: `by_up` is the cotangent of `up`, and so on."""
    reach = "past" if form.reads_before else "up"
    diagonal = [
        "alone = tl.sum(tl.where(i == j, scores, 0.0).to(FLOAT), 1)[:, None]",
        "grad_query += alone * key",
        "grad_key += alone * query",
    ]
    ends = [
        "size = 1 << (LEVELS - 1 - level)",
        "to_low = (i == j // (2 * size) * (2 * size) + size - 1) & ((j // size) % 2 == 1)",
        "to_high = (i == j // (2 * size) * (2 * size) + 2 * size - 1) & ((j // size) % 2 == 0)",
        "to_low, to_high = operand(to_low.to(FLOAT)), operand(to_high.to(FLOAT))",
    ]
    apart = [
        "lower_ends = sums(to_low, tl.where(upper, by_up * up + by_past * past, 0.0))",
        "upper_ends = sums(to_high, tl.where(upper, 0.0, by_down * down))",
        "by_up = tl.where(upper, by_up * below, by_up) + lower_ends + upper_ends",
        "by_past = tl.where(upper, by_past * below, by_past)",
        "by_down = tl.where(upper, by_down, by_down * above)",
        "crossing = tl.where(pairs, scores, 0.0)",
        "to_query = product(tl.trans(crossing), key * down)",
        f"to_key = product(crossing, query * {reach})",
        f"grad_query += to_query * {reach}",
        "grad_key += to_key * down",
        f"by_{reach} += to_query * query",
        "by_down += to_key * key",
    ]
    return [
        *chunk_halves.decays(form),
        *_products("LEVELS"),
        f"grad_query = of_queries * {reach}",
        "grad_key = of_keys * down",
        *([] if form.reads_before else diagonal),
        "by_up = tl.where(i == C - 1, through[None, :], 0.0)",
        "by_past = tl.zeros([C, KB], FLOAT)",
        f"by_{reach} += of_queries * query",
        "by_down = of_keys * key",
        "for level in tl.range(0, LEVELS):",
        *frame.indent(
            [*ends, *_products("LEVELS - 1 - level"), *chunk_halves.halves("(LEVELS - 1 - level)"), *apart]
        ),
        f"grad_log2_decay = {_of_decay(form, f'by_up * decay * {LN2!r}')}"
        if form.log_slope
        else f"grad_decay = {_of_decay(form, 'by_up')}",
    ]


def _of_decay(form: MatrixForm, value: str) -> str:
    """The gradient of a decay, which is of no matter at resets."""
    return f"tl.where(reset, 0.0, {value})" if form.resets else value


def _pull_back(form: MatrixForm, chunk: ChunkForm, back: WayBack) -> list[str]:
    """The gradients of the gates' inputs, and the parts of those that lack time or columns."""
    cotangents = {name: f"grad_{output}" for output, name in back.cotangents}
    given = [cotangents.get(v.name, f"in_{v.name}") for v in back.program.inputs]
    lines = [f"{', '.join(f'out_{n}' for n in back.found)} = gates_back({', '.join(given)})"]
    tiles = {t.name: t for t in gradient_tiles(form, back)}
    lines += [f"out_{n} = tl.where(inside, out_{n}, 0.0)" for n in back.found]
    for name, tile in tiles.items():
        kind = f"ptr_{name}.dtype.element_ty"
        lines += [f"tl.store({frame.address(tile)}, {name}.to({kind}), mask={frame.mask(tile)})"]
    for part in parts(form, back):
        at, out = f"ptr_part_{part.name}", f"out_{part.name}"
        if part.timed:
            at += f" + (lane * PARTS + block) * T + {'begin + ' if chunk.packed else ''}step"
            lines += [f"tl.store({at}, tl.sum({out}, 1)[:, None], mask=live)"]
        elif part.column:
            lines += [f"tl.store({at} + place * KP + column, tl.sum({out}, 0)[None, :])"]
        else:
            lines += [f"tl.store({at} + place * PARTS + block, tl.sum(tl.sum({out}, 1), 0))"]
    return lines
