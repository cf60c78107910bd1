"""The tiles of ordered kernels, on the shapes that they were measured on (docs/dev/lab-notes.md)."""

from __future__ import annotations

import pytest

from scanforge.plan import Choice, kernel_plan
from scanforge.shipped import AT_ONCE, OF_PROCESSOR, OF_RING, SHARED
from scanforge.tile import Composed, Fixed, Tile, fitting_tile, ring_tile, tile_plan
from tests.recurrences import BY_NAME
from tests.symbolic.programs import scan_of

A, B, C = (2048, 2048, 8), (4096, 1024, 8), (512, 2048, 32)  # steps, inner, outer


@pytest.mark.parametrize(
    ("shape", "itemsize", "tile"),
    [
        (A, 4, Tile(16, 128, 4)),
        (B, 4, Tile(32, 64, 4)),
        (C, 4, Tile(16, 128, 7)),  # beyond twice the lanes at work more bytes are kept in flight
        (A, 2, Tile(64, 128, 3)),
        (B, 2, Tile(64, 64, 5)),
        (C, 2, Tile(64, 128, 4)),
    ],
)
def test_forward_tiles(shape, itemsize, tile):
    assert tile_plan(*shape, (itemsize,) * 2, backward=False) == tile


@pytest.mark.parametrize(
    ("shape", "itemsize", "tile"),
    [
        (A, 4, Tile(32, 64, 3)),
        (B, 4, Tile(32, 64, 4)),
        (C, 4, Tile(32, 64, 4)),
        (A, 2, Tile(32, 128, 4)),
        (B, 2, Tile(32, 64, 5)),
        (C, 2, Tile(32, 128, 5)),
    ],
)
def test_backward_tiles(shape, itemsize, tile):
    assert tile_plan(*shape, (itemsize,) * 3, backward=True, rows=32) == tile


@pytest.mark.parametrize(
    ("shape", "special", "forward", "backward"),
    [
        (A, False, 1, 1),
        (B, False, 1, 2),
        (A, True, 2, 2),
        (B, True, 4, 2),
        (C, True, 1, 1),
        ((4096, 1024, 4), False, 4, 4),
        ((4096, 1024, 2), True, 1, 1),  # time is split
        ((16, 1024, 8), True, 1, 1),  # one tile
    ],
)
def test_groups(shape, special, forward, backward):
    composed = Composed(2, special)
    tiles = [
        tile_plan(*shape, (2,) * 3, backward=down, rows=16 * down, composed=composed)
        for down in (False, True)
    ]
    assert [tile.groups for tile in tiles] == [forward, backward]
    assert [tile.relay for tile in tiles] == [False, shape == B]
    assert tile_plan(*shape, (2,) * 3, backward=False, composed=Composed(3, special)).groups == 1
    for tile in tiles:
        assert tile.lanes * tile.groups <= 256
        assert tile.rows * tile.groups * tile.lanes * tile.stages * 6 <= SHARED


@pytest.mark.parametrize("shape", [A, B, C])
@pytest.mark.parametrize("inputs", range(1, 9))
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_the_ring_fits_in_shared_memory(shape, inputs, itemsize):
    tile = tile_plan(*shape, (itemsize,) * inputs, backward=False)
    assert tile.stages >= 2
    assert tile.rows * tile.lanes * tile.stages * inputs * itemsize <= SHARED or tile.stages == 2


FEW = (65536, 1024, 1)
LIGHT, HEAVY = Composed(2, special=False, ring=True), Composed(2, special=True, ring=True)


@pytest.mark.parametrize(
    ("shape", "items", "fixed", "composed", "tile"),
    [
        (FEW, (4, 4), Fixed(at_once=AT_ONCE), LIGHT, Tile(16, 32, 3, 8, members=8)),
        (FEW, (2, 2), Fixed(at_once=AT_ONCE), LIGHT, Tile(32, 32, 3, 8, members=8)),
        (FEW, (4, 4, 4), Fixed(32, at_once=AT_ONCE), LIGHT, Tile(32, 32, 3, 4, members=8)),
        (FEW, (2, 2, 2), Fixed(at_once=AT_ONCE), HEAVY, Tile(16, 32, 3, 8, members=8)),
        (
            FEW,
            (2, 2),
            Fixed(least=64, at_once=AT_ONCE),
            LIGHT,
            Tile(64, 32, 3, 4, members=8),
        ),  # contiguous time
        ((65536, 256, 1), (4, 4), Fixed(at_once=AT_ONCE), LIGHT, Tile(16, 32, 3, 8, members=32)),
        ((2048, 1024, 1), (4, 4), Fixed(at_once=AT_ONCE), LIGHT, Tile(16, 32, 3, 8, members=8)),
        ((1030, 1024, 1), (4, 4), Fixed(at_once=AT_ONCE), LIGHT, Tile(16, 32, 3, 8, members=4)),
        ((200, 1024, 1), (4, 4), Fixed(at_once=AT_ONCE), LIGHT, None),
        ((65536, 8192, 1), (4, 4), Fixed(at_once=AT_ONCE), LIGHT, None),  # no two programs for a lane
        (FEW, (4, 4), Fixed(rest=True, at_once=AT_ONCE), LIGHT, None),
    ],
)
def test_rings(shape, items, fixed, composed, tile):
    assert ring_tile(*shape, items, fixed, composed) == tile


@pytest.mark.parametrize("lanes", [256, 288, 1000, 1024, 4095])
@pytest.mark.parametrize("items", [(2, 2), (4, 4), (2,) * 4, (4,) * 6])
@pytest.mark.parametrize("rows", [0, 8, 16, 32])
def test_programs_of_a_ring_are_at_work_at_one_time(lanes, items, rows):
    tile = ring_tile(65536, lanes, 1, items, Fixed(rows, at_once=AT_ONCE), LIGHT)
    if tile is None:
        assert -(-lanes // 32) * 2 > AT_ONCE or items == (4,) * 6
        return
    assert -(-lanes // 32) * tile.members <= AT_ONCE
    assert Tile(tile.rows, 32, tile.stages - 1, tile.groups).staged(items) < OF_RING
    assert OF_PROCESSOR * 32 * tile.groups <= 512


def test_few_lanes_are_a_ring_where_programs_can_wait():
    scan, sizes = scan_of(BY_NAME["RGLRU"]), {"b": 1, "t": 65536, "d": 1024}
    assert kernel_plan(scan, sizes, said=2).plan.lowering == "ring"
    assert kernel_plan(scan, sizes).plan.lowering == "split"
    assert kernel_plan(scan, sizes, said=3).plan.lowering == "split"
    assert kernel_plan(scan, sizes | {"d": 128}, said=2).plan.lowering == "split"
    assert kernel_plan(scan, sizes | {"d": 4096}, said=2).plan.lowering == "ordered_tile"
    assert kernel_plan(scan, sizes | {"t": 512}, said=2).plan.lowering == "ordered_tile"


def test_what_was_tuned_for_a_ring_needs_one():
    scan, sizes = scan_of(BY_NAME["RGLRU"]), {"b": 1, "t": 65536, "d": 1024}
    best = Choice("ring", 0, Tile(16, 32, 3, 8, members=8))
    assert kernel_plan(scan, sizes, best=best).plan.lowering == "split"
    tile = fitting_tile(*FEW, (4, 4), Fixed(at_once=64), LIGHT, best.tile)
    assert tile.members == 2, "as many as the device has room for"
