"""Programs that share their lanes: every operator and recurrence whose numbers are floats, both ways.

Order counts between programs and between groups; with rows that fill no round, lanes that fill no block,
initial states, kept states, and sums over time of which each program has a part.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import scanforge as sf
from scanforge import kernel_choice
from scanforge.errors import ArgumentError
from scanforge.ir.scan import dump
from scanforge.pipeline import composed
from scanforge.tile import Tile
from tests.catalogue import BY_NAME, CASES, draw
from tests.kernels import Tiles, both_ways, check, everything, launches_by
from tests.recurrence_kernels import check as check_recurrence
from tests.recurrences import BY_NAME as RECURRENCES
from tests.recurrences import ENTRIES
from tests.recurrences import draw as draw_recurrence
from tests.reference.compare import many
from tests.rings import allow
from tests.symbolic.programs import scan_of
from tests.tolerances import assert_close

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]
F32 = torch.float32
SHAPES = [Tile(4, 32, 2, 2, members=2), Tile(4, 32, 2, 2, members=3), Tile(4, 32, 2, 4, members=2)]
IN_FLOATS = [c for c in CASES if c.name not in {"RunningMax", "LastFlagged"}]
IN_RINGS = [e for e in ENTRIES if kernel_choice.can_ring(dump(scan_of(e)))]


@pytest.fixture
def seen(monkeypatch) -> Counter[int]:
    """How many launches had so many members."""
    return launches_by(monkeypatch, lambda tile: tile.members)


def forced(monkeypatch, shape: Tile) -> None:
    Tiles(4, 4, 32, 2, 8).force(monkeypatch)
    allow(monkeypatch, shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@both_ways
@pytest.mark.parametrize("case", IN_FLOATS, ids=lambda case: case.name)
def test_every_operator(case, reverse, shape, seen, monkeypatch):
    """Two rounds and five rows, a launch of their own; two blocks of lanes."""
    forced(monkeypatch, shape)
    steps = 2 * shape.rows * shape.groups * shape.members + 5
    leaves, initial = draw(case, (1, steps, 35), F32, seed=int(reverse))
    check(case, leaves, initial, everything(case), reverse=reverse, lowering="ring")
    assert seen[shape.members] == seen[1] == 2, seen


@pytest.mark.parametrize("entry", IN_RINGS, ids=lambda entry: entry.name)
def test_every_recurrence(entry, seen, monkeypatch):
    """Sums over time and over lanes are added up over programs too."""
    forced(monkeypatch, SHAPES[0])
    tensors, initial = draw_recurrence(entry, F32, t=37)
    check_recurrence(entry, tensors, initial, quantities=("forward", "gradient"), lowering="ring")
    assert (seen[2], seen[1]) == (2, 2), seen


def test_a_replay_begins_with_words_of_no_round(monkeypatch):
    """From the third call on launches are replayed: what was said before must not be heard again."""
    forced(monkeypatch, SHAPES[0])
    case = BY_NAME["Affine"]
    for seed in range(5):
        leaves, initial = draw(case, (1, 32, 3), F32, seed=seed)
        check(case, leaves, initial, everything(case), lowering="ring")


def test_operands_of_combine_in_the_other_order_are_noticed(monkeypatch):
    """The programs of a ring hand states on in the order of time."""
    forced(monkeypatch, SHAPES[0])
    case = BY_NAME["Matrix2x2"]
    leaves, initial = draw(case, (1, 16, 3), F32)
    h = sf.scan(case.operator, **leaves, initial_state=initial, backend="triton", lowering="ring")
    swapped = {n: torch.cat([x[:, 8:], x[:, :8]], 1) for n, x in leaves.items()}
    other = sf.scan(case.operator, **swapped, initial_state=initial, backend="triton", lowering="ring")
    assert all(not torch.allclose(x[:, -1], y[:, -1]) for x, y in zip(h, other, strict=True))


WRONG = {
    "on a CPU": (sf.Affine, F32, {}, "of shared memory a processor, and the tensors are on cpu"),
    "float64": (sf.Affine, torch.float64, {}, "numbers of float32, and these are float64"),
    "packed": (sf.Affine, F32, {"cu_seqlens": torch.tensor([0, 3, 8])}, "sequences are packed"),
    "flags": (sf.operators.LastFlagged, F32, {}, "compose floats lane by lane"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_ring_that_does_not_apply(name, monkeypatch):
    operator, dtype, options, words = WRONG[name]
    if name != "on a CPU":
        allow(monkeypatch, SHAPES[0])
    leaves = next(c for c in CASES if c.operator is operator).draw(torch.Generator(), (1, 8, 3), dtype)
    with pytest.raises(ArgumentError, match=words):
        sf.scan(operator, **leaves, backend="triton", lowering="ring", **options)


def test_an_adjoint_that_cannot_is_planned_otherwise(monkeypatch):
    """A forced ring is the forward pass's; where the adjoint does not compose, that has the plan's own."""
    entry = RECURRENCES["RGLRU"]
    forced(monkeypatch, SHAPES[0])
    monkeypatch.setattr(
        kernel_choice.pipeline, "composed", lambda text, wanted=None: None if wanted else composed(text)
    )
    tensors, initial = draw_recurrence(entry, F32, t=37)
    check_recurrence(entry, tensors, initial, quantities=("forward", "gradient"), lowering="ring")
    assert sf.last_run().plan.lowering == "ordered_tile"


@both_ways
@pytest.mark.parametrize("name", ["Affine", "Matrix2x2"])
def test_contiguous_time(name, reverse, seen, monkeypatch):
    """Rows of outputs are stored together, each group its own."""
    forced(monkeypatch, Tile(16, 32, 2, 2, members=2))
    case = BY_NAME[name]
    leaves, initial = draw(case, (1, 133, 5), F32)
    got, want = (
        sf.scan(
            case.operator, **{n: x.transpose(1, 2).contiguous() for n, x in leaves.items()}, dim=2,
            initial_state=initial if len(initial) > 1 else initial[0], reverse=reverse, **options,
        )
        for options in ({"backend": "triton", "lowering": "ring"}, {"backend": "reference"})
    )  # fmt: skip
    for x, y in zip(many(got), many(want), strict=True):
        assert_close(x, y.double(), "forward", name)
    assert (seen[2], seen[1]) == (1, 1), seen


def test_an_output_may_be_called_as_an_element_is(monkeypatch):
    """Its sum over time is not the composition of a round."""

    class Energy(sf.Recurrence):
        x = sf.Input("b t d")
        w = sf.Input("d")
        h = sf.State("b d")
        a = sf.Output("b d")
        b = sf.Output("b t d")

        def element(self):
            return sf.Affine(a=sf.sigmoid(self.w), b=self.x)

        def readout(self):
            return self.h * self.h, self.h

    forced(monkeypatch, SHAPES[0])
    x, w = torch.randn(2, 37, 5), torch.randn(5)
    got = sf.scan(Energy, x=x, w=w, backend="triton", lowering="ring")
    want = sf.scan(Energy, x=x.double(), w=w.double(), backend="reference")
    for y, z in zip(got, want, strict=True):
        assert_close(y, z, "gradient", "Energy")
