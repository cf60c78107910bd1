"""Planned -> drawings: how a kernel's programs walk over time and lanes, and what each pass moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from scanforge.ir.scan import TIME
from scanforge.plan import Held
from scanforge.planned import Moved, Planned, readable
from scanforge.show import svg
from scanforge.tile import Tile

WIDE, HIGH, TOP, LEFT = 500, 372, 88, 72
COLUMNS, ROWS = 5, 8  # that are drawn; there may be many more
OF_CHUNK = 4  # of the rows, where time is in chunks
CELL, STEP = 56, 24
ROLES = {
    "given": "given", "state_before": "carried", "cotangent": "cotangent", "output": "output",
    "between": "made",
}  # fmt: skip
MOST_BETWEEN = 6  # bars of what is between kernels
BAR = 176  # pixels of the largest tensor's bar


def tiles(p: Planned, *, alone: bool) -> str:
    """The tiles of both passes: which are done, in work, on their way; where a state is kept."""
    tiles = {"forward": p.forward, "backward": p.backward}
    panels = [_pass(p, name, tiles[name]) for name in p.reads_and_writes]
    return svg.drawing(panels, f"tiles of {p.kernel.lowering}", alone=alone)


def _pass(p: Planned, name: str, tile: Tile | Held | None) -> svg.Panel:
    """The walk over time; where it is one of several kernels, their names below."""
    kernels = p.passes[name].kernels
    listed = [svg.text(22, HIGH + 2, "kernels, in order", "label")] if len(kernels) > 1 else []
    listed += [svg.text(22, HIGH + 20 + 16 * i, str(k), "small") for i, k in enumerate(kernels) if listed]
    high = HIGH + (6 + 16 * len(listed) if listed else 0) if tile else 84
    shapes = [
        svg.box(0.5, 0.5, WIDE - 1, high - 1, "line", "panel", radius=10),
        svg.text(22, 32, name, "title"),
        *listed,
    ]
    if tile:
        shapes.append(_walk(p, tile, back=name == "backward"))
    else:
        shapes.append(svg.text(22, 58, "nothing is launched", "small"))
    return svg.Panel(WIDE, high, "".join(shapes))


def _walk(p: Planned, tile: Tile | Held, *, back: bool) -> str:
    groups = tile.groups if isinstance(tile, Tile) else 1
    steps, rows = p.sizes[TIME], max(tile.rows, 1) * groups
    count = -(-steps // rows)
    shown, programs = min(count, ROWS), _programs(p, tile)
    columns = min(programs, COLUMNS)
    chunked = p.kernel.lowering == "chunked"
    what, row, lane = ("chunk", "C", "VB") if chunked else ("tile", "R", "BD")  # as the kernels call them
    head = f"{steps} steps, {count} {what}{'s' * (count != 1)} of {row} = {rows}"
    head += f", in {groups} groups that share each lane" if groups > 1 else ""
    sizes = " ".join(f"{a}={p.sizes[a]}" for a in p.lanes) or "one"
    lanes = f"lanes {sizes}: {programs} program{'s' * (programs != 1)} of {lane} = {tile.lanes}"
    lanes += f", for each of {p.chunks.count} {_part(p)}s of {p.chunks.length} steps" if p.chunks else ""
    parts = [
        svg.text(126, 32, "upwards in time" if back else "downwards in time", "label"),
        svg.text(22, 54, head, "small"),
        svg.text(22, 70, lanes, "small"),
        *_grid(p, shown, columns, tile, back=back),
        *_arrow(shown, columns, back=back),
        *_notes(p, tile, back=back),
    ]
    if count > shown:
        parts.append(svg.text(LEFT, TOP + shown * STEP + 14, f"… {count - shown} more", "small"))
    if programs > columns:
        parts.append(svg.text(LEFT + columns * CELL + 32, TOP + 15, f"… {programs - columns} more", "small"))
    return "".join(parts)


def _grid(p: Planned, rows: int, columns: int, tile: Tile | Held, *, back: bool) -> Iterable[str]:
    """A cell for a tile: in each chunk of time one is in work, those after it are loading."""
    each = min(max(1, p.chunks.length // tile.rows), OF_CHUNK) if p.chunks else rows
    for row in range(rows):
        in_chunk, size = row % each, min(each, rows - row + row % each)
        turn = size - 1 - in_chunk if back else in_chunk
        now = min(1, size - 1)
        for column in range(columns):
            x, y = LEFT + column * CELL, TOP + row * STEP
            if turn == now:
                yield svg.box(x + 2, y + 2, CELL - 4, STEP - 4, "given", "given", radius=3)
            elif now < turn < now + tile.stages:
                yield svg.box(x + 2, y + 2, CELL - 4, STEP - 4, "given", "given-fill", radius=3)
            else:
                fill = "output-fill" if turn < now else "made-fill"
                yield svg.box(x + 2, y + 2, CELL - 4, STEP - 4, "line", fill, radius=3)
        start = row * tile.rows
        if _shows_states(p, back=back) and start % p.spacing < tile.rows:
            y = TOP + row * STEP
            yield svg.line(LEFT, y, LEFT + columns * CELL, y, "carried", ' stroke-width="2.5"')
        if p.chunks and in_chunk == 0:
            yield svg.text(LEFT - 8, TOP + row * STEP + 15, f"{_part(p)} {row // each}", "small", "end")


def _part(p: Planned) -> str:
    """What time is cut into: groups, of the chunks of matrix products."""
    return "group" if p.kernel.lowering == "chunked" else "chunk"


def _arrow(rows: int, columns: int, *, back: bool) -> Iterable[str]:
    x = LEFT + columns * CELL + 16
    top, bottom = TOP + 4, TOP + rows * STEP - 4
    start, end = (bottom, top) if back else (top, bottom)
    yield svg.line(x, start, x, end, "soft", ' stroke-width="1.5"')
    tip = 7 if back else -7
    yield svg.line(x - 4, end + tip, x, end, "soft", ' stroke-width="1.5"')
    yield svg.line(x + 4, end + tip, x, end, "soft", ' stroke-width="1.5"')


def _notes(p: Planned, tile: Tile | Held, *, back: bool) -> Iterable[str]:
    how = "as matrix products" if p.kernel.lowering == "chunked" else "in registers row by row"
    notes = [
        ("given", "given", f"in work: {tile.rows} steps, {how}"),
        ("given", "given-fill", f"on their way: NS = {tile.stages} tile{'s' * (tile.stages != 1)} in flight"),
    ]
    if _shows_states(p, back=back):
        notes.append(("carried", "carried", f"{'starts from' if back else 'keeps'} {_states(p)}"))
    y = HIGH - 52
    for i, (stroke, fill, words) in enumerate(notes):
        yield svg.box(22, y + 16 * i - 9, 12, 10, stroke, fill, radius=2)
        yield svg.text(42, y + 16 * i, words, "small")
    if p.held:
        who = "a thread holds" if p.in_thread else "a program holds whole"
        axes = ", ".join(f"{a}={p.sizes[a]}" for a in p.held)
        yield svg.text(WIDE - 22, y + 32, f"{who} {axes}", "small", "end")


def _shows_states(p: Planned, *, back: bool) -> bool:
    """Whether a pass keeps states, or starts from some: products over chunks keep none."""
    return p.spacing > 0 and (back or p.kernel.lowering != "chunked")


def _states(p: Planned) -> str:
    if p.kernel.lowering == "chunked":
        return "the initial state"
    few = p.spacing >= p.sizes[TIME]
    return "the first state" if few else f"the states before every {p.spacing} steps"


def _programs(p: Planned, tile: Tile | Held) -> int:
    """Programs that share out the lanes, of one chunk of time."""
    inner = p.sizes[p.lanes[-1]] if p.lanes else 1
    outer = prod(p.sizes[a] for a in p.lanes[:-1])
    return max(1, -(-inner // max(tile.lanes, 1)) * outer)


def moved(p: Planned, *, alone: bool) -> str:
    """What each pass reads and writes, tensor by tensor, and what only its kernels do; the bars compare."""
    both = p.reads_and_writes
    between = {name: sorted(p.passes[name].between, key=lambda m: -m.size) for name in both}
    largest = max((m.size for found in (*both.values(), *between.values()) for m in found), default=1) or 1
    panels = [_bars(p, name, found, between[name], largest) for name, found in both.items()]
    return svg.drawing(panels, "bytes moved", alone=alone)


def _bars(p: Planned, name: str, found: Sequence[Moved], between: Sequence[Moved], largest: int) -> svg.Panel:
    """A bar for a tensor; of several kernels, the largest of what is between them too."""
    between = between if len(p.passes[name].kernels) > 1 else ()
    shown = between[:MOST_BETWEEN]
    below = 62 + 22 * len(found) + 6
    high = below + (30 + 22 * len(shown) if shown else 0) + 14 * (len(shown) < len(between))
    shapes = [
        svg.box(0.5, 0.5, WIDE - 1, high - 1, "line", "panel", radius=10),
        svg.text(22, 32, name, "title"),
        svg.text(126, 32, f"{readable(p.bytes(name))}, each read or written once", "label"),
        *(part for j, m in enumerate(found) for part in _bar(m, 62 + 22 * j, largest)),
        *(part for j, m in enumerate(shown) for part in _bar(m, below + 26 + 22 * j, largest)),
    ]
    if shown:
        words = f"{readable(sum(m.size for m in between))} between its kernels, written and read"
        shapes.append(svg.text(22, below + 6, words, "label"))
    if len(shown) < len(between):
        shapes.append(svg.text(22, high - 8, f"… {len(between) - len(shown)} smaller ones", "small"))
    return svg.Panel(WIDE, high, "".join(shapes))


def _bar(m: Moved, y: float, largest: int) -> Iterable[str]:
    colour = ROLES[m.role]
    yield svg.text(22, y + 4, m.name)
    yield svg.text(134, y + 4, " ".join(m.axes), "small")
    yield svg.box(204, y - 7, max(2.0, BAR * m.size / largest), 13, colour, f"{colour}-fill", radius=2)
    yield svg.text(WIDE - 18, y + 4, readable(m.size), "small", "end")
