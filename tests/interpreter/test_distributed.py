"""Shards in chunks through kernels: views of chunks are a batch of lanes, and carries start each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from scanforge.distributed import chunks
from tests import catalogue, recurrences
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
