"""MatrixForm -> the kernels that make the operands of chunks: queries and keys, scores, scales of the state.

With G_i the sum of the logarithms of the decays of steps 0..i of a chunk, and D = G - G_mid:

    queries = query 2^D,   keys = key 2^-D,   scores = tril(queries keysᵀ)
    contracted = queries (before S) + scores values,   S' = after (inner S + keysᵀ values)

with before = inner = 2^G_mid and after = 2^(G_last - G_mid). That holds while all |D| are small, which is
tested; a chunk that fails is flagged, and another kernel makes it from products of decays, half by half, each
of which the recurrence itself forms. So decays may be 0, negative or above 1.
"""

from __future__ import annotations

from scanforge.chunked_form import MatrixForm
from scanforge.emit import chunk_frame as frame
from scanforge.emit import chunk_halves
from scanforge.emit.chunk_frame import ChunkForm, Tile
from scanforge.emit.triton_maths import helpers
from scanforge.emit.triton_text import function

BUFFERS = ("queries", "keys", "scores", "scales", "flags")
CONSTANTS = ("K", "KP", "KB", "C", "LEVELS")
SCALES = 4  # vectors of a chunk: before, inner, after, and `inner` of the walk backwards
LEAST_GROWTH = 2.0**-10  # a logarithm to base 2, which float16 has to 2^-22
TOGETHER = 32  # chunks whose flags one program looks at
AT_MID = "at_mid = ((j <= i) & (j >= C // 2)).to(LOGS) - ((j > i) & (j < C // 2)).to(LOGS)"


def fast_kernel(form: MatrixForm, chunk: ChunkForm, *, gradients: bool) -> str:
    """The kernel of all chunks; for `gradients` those are flagged too where these would divide by little."""
    least = 8.0 if gradients and not form.log_slope else chunk.limit
    body = [
        *frame.place(chunk, "tl.program_id(0) // CHUNKS"),
        "chunk = tl.program_id(0) % CHUNKS",
        *rows(form, chunk),
        AT_MID,
        "scores = tl.zeros([C, C], FLOAT)  # [key, query]",
        *(["same = tl.full([C, C], 1, tl.int1)"] * form.resets),
        "largest = tl.zeros([C, KB], FLOAT)",
        *over_columns([*load_gates(form), *logarithms(form, chunk), *_tested(chunk, least), *_fast(form)]),
        *(["scores = tl.where(same, scores, 0.0)"] * form.resets),
        *_store_scores(form),
        f"tl.store(ptr_flags + place, (tl.max(largest) < {chunk.limit!r}).to(tl.int32))",
    ]
    return module(form, chunk, "the operands of chunks", arguments(form, chunk), body)


def exact_kernel(form: MatrixForm, chunk: ChunkForm) -> str:
    """The kernel of flagged chunks."""
    inner = [
        *rows(form, chunk),
        "scores = tl.zeros([C, C], FLOAT)  # [key, query]",
        *over_columns([*load_gates(form), *_exact(form)]),
        *_store_scores(form),
    ]
    body = for_flagged(chunk, inner)
    return module(form, chunk, "the operands of flagged chunks", arguments(form, chunk), body)


def gate_tiles(form: MatrixForm) -> tuple[Tile, ...]:
    """The inputs of the gates: in_ and their names, which are no others' then."""
    return frame.tiles_of(form.gates, form.key_axis, "in_")


def arguments(
    form: MatrixForm, chunk: ChunkForm, buffers: tuple[str, ...] = BUFFERS,
    constants: tuple[str, ...] = CONSTANTS, more: tuple[Tile, ...] = (),
) -> list[str]:  # fmt: skip
    """The head of a kernel that reads what gates read, and more."""
    return frame.arguments(chunk, (*gate_tiles(form), *more), buffers, constants)


def module(
    form: MatrixForm,
    chunk: ChunkForm,
    what: str,
    head: list[str],
    body: list[str],
    more: tuple[str, ...] = (),
) -> str:
    """A kernel's text, of its head and its body, the gates and other functions before it."""
    gates = function(form.gates, "gates", "What the steps of a chunk have at some columns.")
    parts = [
        frame.head(form.gates.name.removesuffix(".gates"), what, chunk) + LOGARITHM.format(logs=logs(chunk)),
        helpers("".join([gates, *more])),
        gates,
        *more,
        "\n".join([*head, *frame.indent(body)]),
    ]
    return "\n\n".join(p.strip("\n") + "\n" for p in parts if p)


LOGARITHM = """
LOGS = tl.constexpr(tl.{logs})


@triton.jit
def log2(x):
    if NVIDIA and DOT == tl.bfloat16:
        return tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.log2(x)
"""


def logs(chunk: ChunkForm) -> str:
    """The type of logarithms. In float16 a decay near 1 is rounded by less than bfloat16 rounds beside it."""
    return "float16" if chunk.dot_type == "bfloat16" else chunk.float_type


def for_flagged(chunk: ChunkForm, body: list[str], program: str = "tl.program_id(0)") -> list[str]:
    """Run a body for the chunks whose flag is down."""
    return [
        f"groups = tl.cdiv(CHUNKS, {TOGETHER})",
        *frame.place(chunk, f"{program} // groups"),
        f"low = {program} % groups * {TOGETHER}",
        f"some = low + tl.arange(0, {TOGETHER})",
        "flags = tl.load(ptr_flags + lane * CHUNKS + some, mask=some < CHUNKS, other=1)",
        "if tl.min(flags, 0) == 0:",
        f"    for chunk in range(low, min(low + {TOGETHER}, CHUNKS)):",
        "        if tl.load(ptr_flags + lane * CHUNKS + chunk) == 0:",
        *frame.indent(body, 3),
    ]


def rows(form: MatrixForm, chunk: ChunkForm) -> list[str]:
    """The rows of a chunk."""
    return [
        *frame.own_steps(chunk),
        *(frame.base(chunk, t) for t in gate_tiles(form)),
        "i = tl.arange(0, C)[:, None]",
        "j = tl.arange(0, C)[None, :]",
        "step = (first_step + i).to(tl.int64)",
        "live = step < length",
        "place = lane * CHUNKS + chunk",
    ]


def over_columns(body: list[str]) -> list[str]:
    """Some columns after others."""
    return ["for first in tl.range(0, KP, KB):", *frame.indent(body)]


def load_gates(form: MatrixForm, *, alone: bool = False) -> list[str]:
    """The inputs, what gates make of them, neutral beyond the tensors; a lane's decay `alone` is [C, 1]."""
    tiles, names = gate_tiles(form), [n for n, _ in form.gates.outputs]
    where = (
        {"decay": ("live", "1.0"), "log2_decay": ("live", "0.0")} if alone else {"decay": ("inside", "1.0")}
    )
    masked = [(n, *where.get(n, ("inside", "0.0"))) for n in names if n != "reset"]
    return [
        "column = first + tl.arange(0, KB)[None, :]",
        "real = column < K",
        *(f"{t.name} = {frame.load(t)}" for t in tiles),
        f"{', '.join(names)} = gates({', '.join(t.name for t in tiles)})",
        "inside = live & real",
        *(f"{n} = tl.where({there}, {n}, {neutral})" for n, there, neutral in masked),
        *(["reset = reset & live  # [C, 1]"] * form.resets),
    ]


def segments(form: MatrixForm) -> list[str]:
    """How many resets there are until each step, and in all; which pairs of steps have none between."""
    if not form.resets:
        return []
    return [
        "resets = tl.trans(reset.to(FLOAT)) + tl.zeros([C, C], FLOAT)",
        "until = tl.sum(tl.where(j <= i, resets, 0.0), 1)[:, None]",
        "same = until == tl.trans(until)",
        "all_resets = tl.sum(tl.sum(reset.to(FLOAT), 1), 0)",
    ]


def unless_reset(form: MatrixForm, value: str) -> str:
    """A factor of the state before a chunk with the one after it: 0 with a reset between."""
    return f"tl.where(all_resets == 0.0, {value}, 0.0)" if form.resets else value


def logarithm(form: MatrixForm, chunk: ChunkForm) -> str:
    """Of the decay, to base 2; bounded, as no power of 2 is that small."""
    floor = "-256.0" if chunk.float_type == "float32" else "-2200.0"
    given = "log2_decay" if form.log_decay else f"tl.where(decay > 0.0, log2(decay), {floor})"
    return f"tl.maximum({given}, {floor})"


def logarithms(form: MatrixForm, chunk: ChunkForm) -> list[str]:
    """D and the sums of each half."""
    given = f"tl.where(reset, 0.0, {logarithm(form, chunk)})" if form.resets else logarithm(form, chunk)
    if form.decay_on == "none":  # 0, which Triton must not know: what it knows it multiplies elsewhere
        given = f"{given} + tl.minimum(T, 0).to(FLOAT)"
    return [
        f"l = ({given}).to(LOGS)",  # a decay is of no matter at resets
        "stored()",
        'd = tl.dot(at_mid, l, input_precision="ieee", out_dtype=FLOAT)  # [C, KB]',
        "logs = l.to(FLOAT)",
        "until_mid = tl.sum(tl.where(i < C // 2, logs, 0.0), 0)",
        "from_mid = tl.sum(tl.where(i < C // 2, 0.0, logs), 0)",
    ]


def _tested(chunk: ChunkForm, least: float) -> list[str]:
    """What is to be small, and no decay below 2^-least or, where logarithms are rounded, well above 1.

    Where nothing decays the errors of all logarithms add up, over the whole of time.
    """
    growth = f" & (logs <= {LEAST_GROWTH!r})" if logs(chunk) == "float16" else ""
    return [
        f'size = tl.where((logs >= {-least!r}){growth}, tl.abs(d), float("inf"))',
        "largest = tl.maximum(largest, size)",
    ]


MET = [
    "queries = tl.where(until == 0.0, queries, 0.0).to(DOT)  # those that meet the state before",
    "keys = tl.where(until == all_resets, keys, 0.0).to(DOT)  # and that the one after holds",
]


def _fast(form: MatrixForm) -> list[str]:
    return [
        *moved(form),
        "scores = plus_product(scores, keys, tl.trans(queries))",
        "before, after = tl.exp2(until_mid), tl.exp2(from_mid)",
        *segments(form),
        *(MET * form.resets),
        *_store("before", unless_reset(form, "before"), "after", unless_reset(form, "after")),
    ]


def moved(form: MatrixForm) -> list[str]:
    """Queries and keys with the decays between them and the middle of the chunk."""
    reach = "d - logs" if form.reads_before else "d"
    return [
        f"queries = (query * tl.exp2({reach})).to(DOT)",
        "keys = (key * tl.exp2(-d)).to(DOT)",
    ]


def _exact(form: MatrixForm) -> list[str]:
    reach = "past" if form.reads_before else "up"
    diagonal = [] if form.reads_before else ["scores += tl.where(i == j, product(key, tl.trans(query)), 0.0)"]
    return [
        *chunk_halves.decays(form),
        *chunk_halves.PRODUCTS,
        *diagonal,
        "for level in tl.range(0, LEVELS):",
        *frame.indent(
            [
                *chunk_halves.halves(),
                f"crossing = product(key * down, tl.trans(query * {reach}))",
                "scores += tl.where(pairs, crossing, 0.0)",
                *chunk_halves.WHOLE,
            ]
        ),
        f"queries, keys = (query * {reach}).to(DOT), (key * down).to(DOT)",
        "total = tl.sum(tl.where(i == C - 1, up, 0.0), 0)",
        "ones = tl.full([KB], 1.0, FLOAT)",
        *_store("ones", "total", "ones", "total"),
    ]


def _store(*scales: str) -> list[str]:
    flat = "first + tl.arange(0, KB)"
    return [
        "tl.store(ptr_queries + place * (C * KP) + i * KP + column, queries)",
        "tl.store(ptr_keys + place * (C * KP) + i * KP + column, keys)",
        *(
            f"tl.store(ptr_scales + place * ({SCALES} * KP) + {k} * KP + {flat}, {s})"
            for k, s in enumerate(scales)
        ),
    ]


def _store_scores(form: MatrixForm) -> list[str]:
    kept = "i < j" if form.reads_before else "i <= j"
    return [
        f"tl.store(ptr_scores + place * (C * C) + i * C + j, tl.where({kept}, scores, 0.0).to(DOT))",
    ]
