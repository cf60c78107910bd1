"""The tiles of ordered kernels, on the shapes that they were measured on (docs/dev/lab-notes.md)."""

from __future__ import annotations

import pytest

from scanforge.shipped import SHARED
from scanforge.tile import Composed, Tile, tile_plan

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
