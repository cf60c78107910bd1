"""The tiles of ordered kernels, on the shapes that they were measured on (docs/dev/lab-notes.md)."""

from __future__ import annotations

import pytest

from scanforge.plan import SHARED, Tile, tile_plan

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


@pytest.mark.parametrize("shape", [A, B, C])
@pytest.mark.parametrize("inputs", range(1, 9))
@pytest.mark.parametrize("itemsize", [2, 4, 8])
def test_the_ring_fits_in_shared_memory(shape, inputs, itemsize):
    tile = tile_plan(*shape, (itemsize,) * inputs, backward=False)
    assert tile.stages >= 2
    assert tile.rows * tile.lanes * tile.stages * inputs * itemsize <= SHARED or tile.stages == 2
