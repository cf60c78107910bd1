"""Tensors whose time is contiguous: rows of outputs are stored together, and nothing is copied."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from scanforge import work
from scanforge.views import across_time
from tests.catalogue import CASES, draw
from tests.kernels import Tiles, both_ways, guarded
from tests.recurrence_kernels import check as check_recurrence
from tests.recurrences import BY_NAME
from tests.recurrences import draw as draw_recurrence
from tests.reference.compare import cotangent, many
from tests.tolerances import assert_close

pytestmark = pytest.mark.interpreter
TILES = [
    Tiles(32, 16, 32, 2, 64),
    pytest.param(Tiles(4, 2, 32, 2, 8), marks=pytest.mark.slow),
    Tiles(8, 4, 32, 2, 16, groups=2),
]


@pytest.fixture
def joined(monkeypatch) -> list[bool]:
    """Of each launch, whether its kernel stores rows together."""
    found: list[bool] = []
    call = work.call

    def noted(function, kernel, *rest):
        found.append("tl.join" in kernel.source)
        return call(function, kernel, *rest)

    monkeypatch.setattr(work, "call", noted)
    return found


@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_and_gradients(case, reverse, tiles, joined, monkeypatch):
    """(b, d, t) scanned along its last dimension; 37 is two tiles of 16 and five rows."""
    tiles.force(monkeypatch)
    leaves, initial = draw(case, (2, 37, 5), seed=3)
    made = {}
    for backend, lowering in (("reference", "loop"), ("triton", "ordered_tile")):
        given = {n: guarded(x.transpose(1, 2).contiguous()) for n, x in leaves.items()}
        floats = {n: x.requires_grad_() for n, x in given.items() if x.is_floating_point()}
        start = [guarded(x).requires_grad_(x.is_floating_point()) for x in initial]
        states, after = sf.scan(
            case.operator, **given, dim=2, initial_state=tuple(start) if len(start) > 1 else start[0],
            return_final_state=True, reverse=reverse, backend=backend, lowering=lowering,
        )  # fmt: skip
        outputs = [x for x in (*many(states), *many(after)) if x.is_floating_point()]
        wanted = [*floats.values(), *(x for x in start if x.requires_grad)]
        cotangents = [cotangent(x, seed) for seed, x in enumerate(outputs)]
        made[backend] = outputs, torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True)
    for got, want, kind in zip(made["triton"], made["reference"], ("forward", "gradient"), strict=True):
        for x, y in zip(got, want, strict=True):
            assert_close(x, y, kind, case.name)
    assert any(joined) != reverse  # addresses that fall with time are stored row by row


def test_no_lane_is_too_many_and_no_stride_too_few(joined):
    """One lane has no other beside it, and channels that are contiguous are stored as they lie."""
    for shape, dim in (((1, 1, 37), 2), ((2, 37, 5), 1)):
        a, b = torch.rand(shape), torch.rand(shape)
        h = sf.scan(sf.operators.Affine, a=a, b=b, dim=dim, backend="triton", lowering="ordered_tile")
        torch.testing.assert_close(h, sf.scan(sf.operators.Affine, a=a, b=b, dim=dim, backend="reference"))
    assert not any(joined)


@both_ways
@pytest.mark.parametrize(
    ("name", "stride"), [("Mamba", "sn_in_B"), ("HGRN2", "sw0_in_q"), ("RGLRU", "sd_in_x")]
)
def test_strides_across_time_are_arguments(name, stride, reverse, monkeypatch):
    """Those of lanes, of an axis that a thread holds, and of axes that a program has whole."""
    found: set[str] = set()

    def noted(*args):
        found.update(strides := across_time(*args))
        return strides

    def time_last(x):
        timed = x.ndim > 2 and x.shape[1] == length
        return guarded(x.movedim(1, -1)).movedim(-1, 1) if timed else guarded(x)

    monkeypatch.setattr(work, "across_time", noted)
    entry, length = BY_NAME[name], 11
    sizes = {"k": 33} if name == "HGRN2" else {}  # more than a thread holds
    tensors, initial = draw_recurrence(entry, torch.float64, t=length, **sizes)
    check_recurrence(entry, tensors, initial, place=time_last, lowering="ordered_tile", reverse=reverse)
    assert stride in found
