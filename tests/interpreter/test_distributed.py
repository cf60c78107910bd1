"""Shards through kernels, in chunks of time or in groups of lanes, which are views of their tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from scanforge import replay
from scanforge.distributed import chunks
from tests import catalogue, recurrences
from tests.distributed.groups import KINDS, Plans, assert_whole, in_groups, pairs
from tests.distributed.problems import bare, check_rank, fused
from tests.distributed.processes import on_ranks

pytestmark = pytest.mark.interpreter


def check(rank: int, count: int, file: str, shards: list[int]) -> None:
    chunks.chunk_count = lambda call, *_: 2
    for k, problem in enumerate(torch.load(file, weights_only=False)):
        check_rank(problem, shards, rank, dist.group.WORLD, reduces=k % 2 == 0, backend="triton")


def test_two_ranks(tmp_path: Path):
    affine, clamp = (catalogue.BY_NAME[n] for n in ("Affine", "MinMax"))
    problems = [
        bare(affine, 10),
        bare(clamp, 10, reverse=True),
        fused(recurrences.BY_NAME["SelectiveSSM"], 10),
    ]
    torch.save([p.solved() for p in problems], tmp_path / "problems.pt")
    on_ranks(2, check, str(tmp_path / "problems.pt"), [6, 4])


@pytest.mark.parametrize(
    ("kind", "steps", "size", "width", "lowering", "dtype"),
    [
        ("affine", 20, 7, 3, "ordered_tile", torch.bfloat16),
        ("affine", 140, 4, 2, "split", torch.float32),
        ("ssm", 9, 3, 1, "ordered_tile", torch.bfloat16),
        ("hgrn2", 70, 2, 1, "chunked", torch.bfloat16),
    ],
    ids=["tile", "split", "ssm", "chunked"],
)
def test_groups_of_lanes(kind: str, steps: int, size: int, width: int, lowering: str, dtype: torch.dtype):
    torch.manual_seed(0)
    operator, axis, draw = KINDS[kind]
    assert assert_whole(operator, axis, width, lowering, **draw(steps, size, dtype)) == lowering


def test_groups_are_replayed(monkeypatch: pytest.MonkeyPatch):
    """The first group is met, the second recorded; those after it, and all of the next call, plan nothing."""
    replay.forget()
    torch.manual_seed(0)
    plans = Plans(monkeypatch)
    for _ in range(2):
        given = {n: x.requires_grad_() for n, x in pairs(5, 16, torch.float32).items()}
        (y,), _ = in_groups(*KINDS["affine"][:2], 4, **given)
        y.sum().backward()
        assert (plans.forward, plans.backward) == (2, 2)
