"""(recurrence, pass, plan) -> the choices that tuning may make in place of the shipped one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import log2, prod

from scanforge.adjoint import full_adjoint
from scanforge.ir.scan import TIME, Scan, load
from scanforge.pipeline import composed_of
from scanforge.plan import Choice, Held
from scanforge.planned import Planned
from scanforge.schedule import step_program
from scanforge.shipped import CHUNK, FILLING, SHARED
from scanforge.tile import Tile
from scanforge.tuned import BACKWARD, FORWARD, KEEPING

ROWS, LANES, STAGES, GROUPS = (4, 8, 16, 32, 64), (32, 64, 128), range(2, 9), (1, 2, 4, 8)
HELD_ROWS, HELD_STAGES, WARPS = (2, 4, 8, 16), range(2, 6), (1, 2, 4, 8)
MOST_THREADS = 512  # of a program
MOST_VALUES = 256  # of inputs in a thread: rows times fields
MOST_CHUNKS = 1024
FAR = 3  # how far tuning looks in lengths of chunks, and in lanes of a block: factors of two
AWAY = 5  # and in all together


def ways(text: str) -> tuple[str, ...]:
    """The passes that a recurrence has."""
    return (FORWARD, KEEPING, BACKWARD) if full_adjoint(load(text)).gradients else (FORWARD,)


def shipped(p: Planned, way: str) -> Choice:
    """What runs without tuning."""
    tile = p.backward if way == BACKWARD else p.forward
    assert tile
    chunk = p.chunks.length if p.chunks else 0
    if isinstance(tile, Held):
        warps = tile.warps if tile.whole else 0
        return Choice(p.kernel.lowering, chunk, Tile(tile.rows, tile.lanes, tile.stages, warps=warps))
    rows = max(tile.rows, p.spacing) if way == KEEPING else tile.rows
    return Choice(p.kernel.lowering, chunk, replace(tile, rows=rows))


def candidates(text: str, way: str, p: Planned) -> list[Choice]:
    """All other choices, the nearest to the shipped one first.

    What is kept for the backward pass is the same for all of them: its spacing, which is R of a backward
    kernel, is no choice, and chunks and forward tiles are of whole spacings.
    """
    first = shipped(p, way)
    found = _inside(p, way, first) if p.held else _apart(load(text), way, p, first)
    others = dict.fromkeys(c for c in found if c != first and distance(c, first) <= AWAY)
    return sorted(others, key=lambda c: distance(c, first))


def distance(one: Choice, other: Choice) -> float:
    """How far apart two choices are, in factors of two."""
    a, b = one.tile, other.tile
    pairs = [(a.rows, b.rows), (a.lanes, b.lanes), (a.groups, b.groups), (max(a.warps, 1), max(b.warps, 1))]
    pairs += [(one.chunk, other.chunk)] if one.chunk and other.chunk else []
    away = sum(abs(log2(x / y)) for x, y in pairs) + abs(a.stages - b.stages) / 2
    return away + (a.relay != b.relay) + 2 * (one.lowering != other.lowering)


def _apart(scan: Scan, way: str, p: Planned, first: Choice) -> Iterator[Choice]:
    """Those of a recurrence without axes inside a program."""
    steps, lanes = p.sizes[TIME], prod(p.sizes[a] for a in p.lanes)
    items = (p.dtype.itemsize,) * (len(scan.inputs) + (way == BACKWARD))
    rows = _rows(way, p, first)
    for lowering, chunk in _cuts(scan, steps, lanes, first):
        groups = _groups(scan, way) if lowering == "ordered_tile" else [(1, False)]
        for r, bd, ns, (g, relay) in product(rows, LANES, STAGES, groups):
            tile = Tile(r, bd, ns, g, relay)
            fits = tile.staged(items) <= SHARED and bd * g <= MOST_THREADS and r * len(items) <= MOST_VALUES
            few = (bd > 32 and bd >= 2 * lanes) or r * g > (chunk or steps)
            if fits and not few:
                yield Choice(lowering, chunk, tile)


def _rows(way: str, p: Planned, first: Choice) -> tuple[int, ...]:
    if way == BACKWARD:
        return (first.tile.rows,)
    return tuple(r for r in ROWS if way != KEEPING or r % p.spacing == 0)


def _cuts(scan: Scan, steps: int, lanes: int, first: Choice) -> list[tuple[str, int]]:
    """The lowerings, with the steps of a chunk."""
    cuts = [("ordered_tile", 0)]
    if not scan.states or steps < 2 * CHUNK or lanes >= 4 * FILLING:
        return cuts
    usual = first.chunk or max(CHUNK, steps * lanes // (2 * FILLING) // CHUNK * CHUNK)
    lengths = {max(CHUNK, int(usual * 2.0**k) // CHUNK * CHUNK) for k in range(-FAR, FAR + 1)}
    return cuts + [("split", n) for n in sorted(lengths) if 2 * n <= steps <= MOST_CHUNKS * n]


def _groups(scan: Scan, way: str) -> list[tuple[int, bool]]:
    """How many groups of threads can share a tile, and whether they are a relay."""
    if way != BACKWARD:
        composed = composed_of(scan, step_program(scan))
        return [(g, False) for g in GROUPS] if composed else [(1, False)]
    derived = full_adjoint(scan)
    composed = composed_of(derived.scan, derived.step)
    return [*((g, False) for g in GROUPS), (2, True)] if composed else [(1, False)]


def _inside(p: Planned, way: str, first: Choice) -> Iterator[Choice]:
    """Those of kernels with axes inside: the lowering, which what is kept depends on, is no choice."""
    tile, down = first.tile, way == BACKWARD
    if p.in_thread:
        rows = (tile.rows,) if down else tuple(r for r in HELD_ROWS if r <= p.sizes[TIME])
        tiles = [Tile(r, bd, ns) for r, bd, ns in product(rows, LANES, HELD_STAGES)]
    else:
        lanes = {max(1, int(tile.lanes * 2.0**k)) for k in range(-FAR, FAR + 1)}
        tiles = [Tile(tile.rows, bd, ns, warps=w) for bd, ns, w in product(sorted(lanes), HELD_STAGES, WARPS)]
    for t in tiles:
        yield Choice(first.lowering, first.chunk, t)
