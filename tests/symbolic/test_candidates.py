"""What tuning may try: choices that fit, that keep what is kept as it is, and the nearest first."""

from __future__ import annotations

import pytest
import torch

from scanforge.candidates import AWAY, candidates, distance, shipped, ways
from scanforge.example import USUAL, example
from scanforge.ir.scan import load
from scanforge.pipeline import inside_axes
from scanforge.plan import Choice, chunk_plan, held_plan, kernel_plan
from scanforge.planned import planned
from scanforge.shipped import CHUNK, SHARED
from scanforge.tile import Composed, Fixed, Tile, bucket, fitting_tile
from scanforge.tuned import BACKWARD, FORWARD, KEEPING
from tests.catalogue import BY_NAME
from tests.recurrences import BY_NAME as RECURRENCES

A = {"b": 8, "t": 2048, "d": 2048}
CALLS = {
    "MinMax": (BY_NAME["MinMax"].operator, A),
    "few lanes": (BY_NAME["Affine"].operator, {"b": 1, "t": 65536, "d": 1024}),
    "indices": (BY_NAME["RunningMax"].operator, A),
    "few steps": (BY_NAME["Affine"].operator, {"b": 64, "t": 20, "d": 512}),
    "RGLRU": (RECURRENCES["RGLRU"].recurrence, A),
    "a held axis": (RECURRENCES["Mamba"].recurrence, A | {"n": 16}),
    "whole axes": (RECURRENCES["HGRN2"].recurrence, {"b": 8, "t": 2048, "h": 8, "k": 128, "v": 8}),
}


def found(name: str, way: str):
    operator, sizes = CALLS[name]
    call = example(operator, None, sizes, USUAL)
    p = planned(call.traced.text, call.sizes, torch.bfloat16)
    return call, p, shipped(p, way), candidates(call.traced.text, way, p)


@pytest.mark.parametrize("way", [FORWARD, KEEPING, BACKWARD])
@pytest.mark.parametrize("name", CALLS)
def test_candidates(name, way):
    call, p, first, others = found(name, way)
    assert way in ways(call.traced.text)
    assert len(others) >= 5
    assert first not in others
    assert len(set(others)) == len(others)
    away = [distance(c, first) for c in others]
    assert away == sorted(away)
    assert 0 < away[0] <= away[-1] <= AWAY
    for c in others:
        t, chunk = c.tile, c.chunk
        assert all(n > 0 and n & (n - 1) == 0 for n in (t.rows, t.lanes, t.groups))
        assert t.groups * t.rows <= (chunk or call.sizes["t"])
        assert (c.lowering == "split") == bool(chunk)
        assert chunk % CHUNK == 0
        if p.held:
            assert (c.lowering, chunk, t.groups) == (first.lowering, first.chunk, 1)
        else:
            assert t.staged((2,) * len(load(call.traced.text).inputs)) <= SHARED
            assert not t.warps
        if way == BACKWARD:
            assert t.rows == first.tile.rows
        elif way == KEEPING and not p.held:
            assert t.rows % p.spacing == 0


def test_both_lowerings_and_groups_are_tried():
    _, _, _, others = found("few lanes", FORWARD)
    assert {c.lowering for c in others} == {"ordered_tile", "split"}
    assert len({c.chunk for c in others}) > 3
    assert {c.tile.groups for c in others} >= {1, 2, 4}
    assert {c.tile.groups for c in found("indices", FORWARD)[3]} == {1}  # indices are not exchanged
    assert {c.tile.relay for c in found("MinMax", BACKWARD)[3]} == {False, True}
    assert not any(c.tile.relay for c in found("MinMax", KEEPING)[3])
    assert {c.tile.warps for c in found("whole axes", FORWARD)[3]} == {1, 2, 4, 8}


def test_a_choice_is_the_plan():
    """Where nothing else decides: a lowering that a call forces, axes inside, rows that were kept."""
    scan, best = load(found("MinMax", FORWARD)[0].traced.text), Choice("split", 128, Tile(16, 64, 3))
    chosen = kernel_plan(scan, A, best=best)
    assert (chosen.plan.lowering, chosen.plan.why, chosen.tile) == ("split", "tuned", best.tile)
    assert (chosen.chunks.length, chosen.chunks.count) == (128, 16)
    forced = kernel_plan(scan, A, "ordered_tile", best=best)
    assert (forced.plan.lowering, forced.tile, forced.chunks) == ("ordered_tile", None, None)
    assert kernel_plan(scan, A, "split", best=best).chunks == chosen.chunks
    call = found("a held axis", FORWARD)[0]
    inside = inside_axes(call.traced.text)
    kept = kernel_plan(load(call.traced.text), call.sizes, inside=inside.axes, best=best)
    assert (kept.plan.lowering, kept.tile) == ("ordered_tile", None)
    for backward, rows in ((False, 16), (True, 4)):
        held = held_plan(inside, call.sizes, 2048, backward=backward, best=best.tile)
        assert (held.rows, held.lanes, held.stages, held.axis) == (rows, 64, 3, "n")
    assert chunk_plan(100, 4, 512).length <= 100


def test_a_tile_fits_the_launch():
    """Rows that were kept are obeyed, stages are those that have room, and few steps have fewer rows."""
    best, two = Tile(8, 128, 8, 4), Composed(2, False)

    def fitting(fixed, steps=2048, composed=two, itemsize=2):
        return fitting_tile(steps, 2048, 8, (itemsize,) * 2, fixed, composed, best)

    assert fitting(Fixed()) == best
    assert fitting(Fixed(), itemsize=4) == Tile(8, 128, 6, 4)
    assert fitting(Fixed(rows=16)) == Tile(16, 128, 6, 4)
    assert fitting(Fixed(least=32)) == Tile(32, 128, 3, 4)
    assert fitting(Fixed(), composed=None) == Tile(8, 128, 8, 1)
    assert fitting(Fixed(), steps=5) == Tile(4, 128, 8, 1)
    assert fitting(Fixed(rest=True)).rows == 8
    assert fitting(Fixed(least=64), itemsize=8).groups == 1  # no room: the shipped one


def test_buckets():
    assert [bucket(n) for n in (0, 1, 2, 3, 5, 6, 724, 725, 1000, 1040, 1448, 1449)] == [
        0, 1, 2, 4, 4, 8, 512, 1024, 1024, 1024, 1024, 2048,
    ]  # fmt: skip
