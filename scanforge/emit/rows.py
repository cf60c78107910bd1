"""Lines that take a loaded tile apart into registers of one lane, and that add up over lanes."""

from __future__ import annotations


def split_tile(tile: str, names: list[str]) -> list[str]:
    """Take `tile`, of lanes by as many entries as there are names, apart: `names[k]` holds entry k, `[BD]`.

    Halves of halves: each split separates even entries from odd ones, and has three dimensions only, since
    Triton's layout passes take long over many.
    """
    if len(names) == 1:
        return [f"{names[0]} = tl.reshape({tile}, [BD])"]
    lines: list[str] = []
    level = [(tile, list(range(len(names))))]
    while len(level[0][1]) > 1:
        after = []
        for text, entries in level:
            even, odd = entries[::2], entries[1::2]
            half = len(even)
            both = [names[e[0]] if half == 1 else f"half{half}_{names[e[0]]}" for e in (even, odd)]
            shape = "[BD, 2]" if half == 1 else f"[BD, {half}, 2]"
            lines.append(f"{both[0]}, {both[1]} = tl.split(tl.reshape({text}, {shape}))")
            after += [(both[0], even), (both[1], odd)]
        level = after
    return lines


def join_rows(rows: list[str]) -> str:
    """The expression that puts registers `[BD]` side by side, `[BD, rows]`: what `split_tile` takes apart."""
    if len(rows) == 1:
        return rows[0]
    joined = f"tl.join({join_rows(rows[::2])}, {join_rows(rows[1::2])})"
    return joined if len(rows) == 2 else f"tl.reshape({joined}, [BD, {len(rows)}])"


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


SHUFFLE = '''
@triton.jit
def shuffle{width}(x):
    """The value of the lane whose number differs by {width}."""
    return tl.inline_asm_elementwise(
        "shfl.sync.bfly.b32 $0, $1, {width}, 0x1f, 0xffffffff;",
        "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1,
    )
'''


def lane_sums(count: int) -> str:
    """The function that adds `count` values over a warp's 32 lanes; lane l gets sum l // (32 / count).

    On NVIDIA's devices by recursive halving: at each level a lane keeps one of two values and sends the
    other, so that `count` sums cost about `count` shuffles. Elsewhere, and in fp64, by one reduction a value.
    """
    names = [f"v{k}" for k in range(count)]
    lines = [
        "@triton.jit",
        f"def lane_sums{count}({', '.join(names)}, lane, FENCE: tl.constexpr):",
        f'    """Sums over the lanes of a warp: lane l gets that of value l // {32 // count}."""',
        "    if FENCE:",
    ]
    level, width = list(names), 16
    while len(level) > 1:
        half = len(level) // 2
        lines.append(f"        upper = (lane & {width}) != 0")
        for k in range(half):
            a, b = level[k], level[k + half]
            kept = f"tl.where(upper, {b}, {a}) + shuffle{width}(tl.where(upper, {a}, {b}))"
            lines.append(f"        s{width}_{k} = {kept}")
        level, width = [f"s{width}_{k}" for k in range(half)], width // 2
    total = level[0]
    while width:
        lines.append(f"        t{width} = {total} + shuffle{width}({total})")
        total, width = f"t{width}", width // 2
    lines += [f"        result = {total}", "    else:", "        result = tl.zeros_like(v0)"]
    lines += [
        f"        result = tl.where(lane // {32 // count} == {k}, tl.sum(v{k}, 0), result)"
        for k in range(count)
    ]
    return "\n".join([*lines, "    return result"]) + "\n"


def shuffles(text: str) -> str:
    """The shuffle functions that a text calls."""
    return "\n\n".join(
        SHUFFLE.format(width=w).strip("\n") + "\n" for w in (16, 8, 4, 2, 1) if f"shuffle{w}(" in text
    )
