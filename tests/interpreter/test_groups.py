"""Groups of threads that share a lane: every operator and recurrence whose numbers are floats, both ways.

Elements are composed here and states carried between threads of one program, so that order counts; with rows
that fill no tile of all groups, lanes that fill no block, initial states and kept states.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import scanforge as sf
from scanforge.ir.scan import BATCH, TIME, dump
from scanforge.pipeline import composed
from tests.catalogue import BY_NAME, CASES, draw
from tests.kernels import Tiles, both_ways, check, everything, launches_by
from tests.recurrence_kernels import check as check_recurrence
from tests.recurrences import ENTRIES, Entry
from tests.recurrences import draw as draw_recurrence
from tests.symbolic.programs import scan_of

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]
TILES = [
    Tiles(4, 2, 32, 2, 8, groups=2),
    Tiles(2, 2, 32, 2, 8, groups=4),
    Tiles(4, 2, 32, 2, 8, groups=2, relay=True),
]
every_group = pytest.mark.parametrize("tiles", TILES, ids=str)
IN_FLOATS = [
    c for c in CASES if c.name not in {"RunningMax", "LastFlagged"}
]  # those hand on indices and flags
COMPOSED = [e for e in ENTRIES if composed(dump(scan_of(e)))]


@pytest.fixture
def seen(monkeypatch) -> Counter[int]:
    """How many launches had so many groups."""
    return launches_by(monkeypatch, lambda tile: tile.groups)


@pytest.mark.parametrize("tiles", TILES[:2], ids=str)
@both_ways
@pytest.mark.parametrize("case", IN_FLOATS, ids=lambda case: case.name)
def test_every_operator(case, reverse, tiles, seen, monkeypatch):
    """T = 21: two tiles of all groups and five rows, a launch of their own."""
    tiles.force(monkeypatch)
    leaves, initial = draw(case, (2, 21, 35), seed=int(reverse))
    check(case, leaves, initial, everything(case), reverse=reverse, lowering="ordered_tile")
    assert seen[tiles.groups] == seen[1] == 2, seen


@both_ways
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_operator_in_relay(case, reverse, seen, monkeypatch):
    """A backward kernel in two groups; one without states has nothing to hand on."""
    TILES[2].force(monkeypatch)
    leaves, initial = draw(case, (2, 21, 35), seed=int(reverse))
    check(case, leaves, initial, everything(case), reverse=reverse, lowering="ordered_tile")
    assert (seen[2], seen[1]) == (1, 2), seen


@every_group
@pytest.mark.parametrize("entry", COMPOSED, ids=lambda entry: entry.name)
def test_every_recurrence(entry, tiles, seen, monkeypatch):
    tiles.force(monkeypatch)
    tensors, initial = draw_recurrence(entry, torch.float64, t=11)
    check_recurrence(entry, tensors, initial, lowering="ordered_tile")
    assert seen[tiles.groups] or _adds_lanes(entry)


def _adds_lanes(entry: Entry) -> bool:
    """Whether an output over time is a sum over lanes, which threads of one warp add up."""
    scan = scan_of(entry)
    return any(TIME in x.axes and set(scan.lanes) - {*x.axes, BATCH} for x in (*scan.inputs, *scan.outputs))


def test_operands_of_combine_in_the_other_order_are_noticed(monkeypatch):
    """The groups of one tile hand states on in the order of time."""
    TILES[0].force(monkeypatch)
    case = BY_NAME["Matrix2x2"]
    leaves, initial = draw(case, (1, 16, 3))
    h = sf.scan(case.operator, **leaves, initial_state=initial, backend="triton", lowering="ordered_tile")
    later, earlier = slice(8, 16), slice(0, 8)
    swapped = {n: torch.cat([x[:, later], x[:, earlier]], 1) for n, x in leaves.items()}
    other = sf.scan(
        case.operator, **swapped, initial_state=initial, backend="triton", lowering="ordered_tile"
    )
    assert all(not torch.allclose(x[:, -1], y[:, -1]) for x, y in zip(h, other, strict=True))
