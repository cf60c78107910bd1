"""Which form ranks take, and in which groups: by the lanes, the steps of all ranks, and what is declared."""

from __future__ import annotations

import random

import pytest
import torch

import scanforge as sf
from scanforge.distributed import lanes
from scanforge.distributed.forms import Cut, Form, Load, form_plan
from scanforge.distributed.lanes import Asked, cuts_of, cuttable, load_of, why_whole
from scanforge.ir.scan import load
from scanforge.launch import Options
from scanforge.prepared import prepare
from scanforge.shipped import CALL, COPIED, HOST, MESSAGE
from tests import recurrence_declarations as declared

TRITON = Options(False, "", torch.float32, "triton")


class Centred(sf.Recurrence):
    """Lanes that know of each other."""

    u, x = sf.Input("b t d"), sf.State("b d")

    def element(self):
        return sf.Affine(a=0.5, b=self.u - sf.sum(self.u, "d"))


class Shared(sf.Recurrence):
    """A state that the batch shares."""

    u, w, x = sf.Input("t d"), sf.Input("b t d"), sf.State("d")

    def element(self):
        return sf.Affine(a=0.5, b=self.u)

    def readout(self):
        return self.w * self.x


def prepared(operator=sf.Affine, cu_seqlens: torch.Tensor | None = None, **shapes: tuple[int, ...]) -> Asked:
    """A call on tensors that take no memory."""
    tensors = {n: torch.zeros(()).expand(shape) for n, shape in shapes.items()}
    return Asked.of(prepare(operator, tensors, None, cu_seqlens=cu_seqlens), TRITON)


def affine(b: int, t: int, d: int) -> Asked:
    return prepared(a=(b, t, d), b=(b, t, d))


def chosen(call: Asked, steps: list[int]) -> Form:
    return form_plan(load_of(call, steps), cuts_of(call, max(steps)))


def test_many_lanes_and_steps_are_passed_on():
    form = chosen(affine(64, 8, 2048), [2**14] * 2)
    assert form.name == "pass"
    assert form.cut is not None
    assert not form.cut.twice
    assert "take" in form.why
    assert "reading twice to compose" in form.why


def test_little_work_is_composed():
    """A group takes what the host takes to launch it, however few its steps are."""
    form = chosen(affine(64, 8, 2048), [16, 16])
    assert form.name == "compose"
    assert form.cut is None
    assert "passing on" in form.why


def test_few_lanes_are_composed_where_kernels_cut_time(monkeypatch: pytest.MonkeyPatch):
    """A group that reads its inputs twice is no quicker than composing, and ranks wait besides."""
    call = affine(1, 8, 512)
    monkeypatch.setattr(lanes, "_cuts_time", lambda *_: True)
    form = chosen(call, [2**20] * 2)
    assert form.name == "compose"
    assert "whose time is cut as well" in form.why
    monkeypatch.setattr(lanes, "_cuts_time", lambda *_: False)
    assert chosen(call, [2**20] * 2).name == "pass"


def test_what_cuts_time_is_what_the_planner_splits():
    split, tile = affine(1, 8, 4), affine(64, 8, 2048)
    assert lanes._cuts_time(split, split.sizes(2**20))
    assert not lanes._cuts_time(tile, tile.sizes(2**20))


@pytest.mark.parametrize(("sequences", "name"), [(2, "compose"), (64, "pass")])
def test_few_packed_sequences_are_composed(sequences: int, name: str):
    """They are walked side by side, so few lanes of few of them take as long as many."""
    bounds = torch.arange(sequences + 1) * 128
    shape = (1, 128 * sequences, 2048)
    form = chosen(prepared(cu_seqlens=bounds, a=shape, b=shape), [2**16] * 2)
    assert form.name == name, form
    assert ("which leave a device idle" in form.why) == (name == "compose")


def test_more_ranks_take_more_groups():
    call, counts = affine(64, 8, 2048), []
    for ranks in (2, 8):
        form = chosen(call, [2**12] * ranks)
        assert form.cut is not None
        counts.append(form.cut.count)
    assert counts[0] < counts[1]


def test_one_long_shard_among_short_ones_is_what_counts():
    """Ranks with few steps pass a group on at once, so composing pays less where the longest rank reads."""
    cut = Cut("d", (0, 64, 128))
    even, uneven = Load((500, 500), 10**6, 10**6), Load((999, 1), 10**6, 10**6)
    assert even.passed(cut) < uneven.passed(cut) < even.passed(cut) * 2
    assert even.composed() < uneven.composed()


def test_the_time_of_passing_on_is_that_of_its_schedule():
    """A group begins on a rank when the rank is free and the states have come."""
    g = random.Random(0)
    for _ in range(50):
        ranks, count, width = g.randint(1, 5), g.randint(1, 9), g.randint(1, 64)
        load = Load(tuple(g.randint(0, 3000) for _ in range(ranks)), g.randint(1, 10**7), g.randint(0, 10**7))
        cut = Cut(
            "d", tuple(range(0, width * (count + 1), width)), again=load.read // 3, twice=g.random() < 0.5
        )
        moved = (load.read // 3 + (load.read - load.read // 3) / count) * (
            1 + cut.twice
        ) + load.written / count
        free, end = [0.0] * ranks, 0.0
        for _ in range(count):
            arrived = 0.0
            for rank, steps in enumerate(load.steps):
                began = max(free[rank], arrived)
                free[rank] = end = began + max(steps * moved / COPIED + CALL, HOST)
                arrived = free[rank] + MESSAGE
        assert load.passed(cut) == pytest.approx(end)


@pytest.mark.parametrize(
    ("recurrence", "axes"),
    [
        (declared.SelectiveSSM, {"b": "", "d": "", "n": "y sums over n"}),
        (declared.HGRN2, {"b": "", "h": "", "k": "y sums over k", "v": ""}),
        (Centred, {"b": "", "d": "a step sums over d"}),
        (Shared, {"b": "x has no b", "d": ""}),
    ],
)
def test_axes_that_lanes_are_cut_along(recurrence, axes):
    """Not along one that an output or a step sums over, nor along one that a state lacks."""
    sizes = {"b": 2, "t": 3, "d": 4, "n": 5, "h": 6, "k": 7, "v": 8}
    fields = {n: f.axes for n, f in vars(recurrence).items() if isinstance(f, sf.Input)}
    call = prepared(recurrence, **{n: tuple(sizes[a] for a in own) for n, own in fields.items()})
    assert {a: why_whole(call.text, a) for a in axes} == axes
    assert cuttable(call)[0] == [a for a in load(call.text).lanes if not axes[a]]


def test_packed_sequences_are_not_cut_apart():
    call = prepared(cu_seqlens=torch.tensor([0, 4, 9]), a=(1, 9, 64), b=(1, 9, 64))
    assert cuttable(call)[0] == ["d"]
    assert "packed sequences are one batch" in cuttable(call)[1]


def test_rows_of_groups_are_whole_lines_of_memory():
    """128 bytes of the narrowest tensor, or as many lanes as lie behind each other in one."""
    (first, *_) = [c for c in cuts_of(affine(1, 8, 100), 64) if c.axis == "d"]
    assert first.bounds == (0, 64, 100)
    assert [c.bounds for c in cuts_of(affine(1, 8, 96), 64)] == [(0, 64, 96), (0, 32, 64, 96)]
    assert not cuts_of(affine(1, 8, 32), 64)
    assert [c.count for c in cuts_of(affine(8, 8, 32), 64)] == [2, 4, 8]
    heads = dict.fromkeys(("q", "f", "v"), (1, 8, 4, 16)) | {"lower": (4, 16)}
    assert [c.count for c in cuts_of(prepared(declared.HGRN2, **heads), 64)] == [2]


def test_a_group_has_matrix_products_where_the_whole_has_them():
    shapes = dict.fromkeys(("q", "f"), (1, 64, 1, 32)) | {"v": (1, 64, 1, 64), "lower": (1, 32)}
    call = prepared(declared.HGRN2, **shapes)
    assert [c.count for c in cuts_of(call, 64, row=4)] == [
        2,
        4,
    ]  # of 16 values, the least of a product
    assert [c.count for c in cuts_of(call, 8, row=4)] == [2, 4, 8, 16, 32]  # too few steps for them


def test_what_every_group_reads_again_counts():
    shapes = {"u": (1, 8, 64), "dt": (1, 8, 64), "B": (1, 8, 16), "C": (1, 8, 16), "A": (64, 16), "D": (64,)}
    call = prepared(declared.SelectiveSSM, **shapes)
    load = load_of(call, [8])
    (cut,) = [c for c in cuts_of(call, 8) if c.axis == "d"]
    assert load.read == 4 * (64 + 64 + 16 + 16)
    assert load.written == 4 * 64
    assert cut.again == 4 * (16 + 16)


def test_no_lanes_are_cut_into_none():
    assert cuttable(affine(0, 8, 64)) == ([], "it has no lanes")
    assert lanes.cuts_of(affine(0, 8, 64), 64) == []
