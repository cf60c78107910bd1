"""Every layer of `models` on 1 to 4 ranks equals the run of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import models
import scanforge as sf
from models.mixer import Mixer
from tests.distributed.layers import LAYERS, SLOW, LayerRun, boundaries, check_layer
from tests.distributed.processes import on_ranks

SHARDS = {2: [2, 10], 3: [1, 0, 11], 4: [5, 1, 0, 6]}
UNEVEN = {4: [100, 1, 0, 411]}


def check(rank: int, count: int, file: str, shards: dict[int, list[int]]) -> None:
    sf.set_law_check(False)  # the one process has looked
    runs = torch.load(file, weights_only=False)
    for ranks, lengths in shards.items():
        group = dist.new_group(list(range(ranks)))
        if rank < ranks:
            for run in runs:
                check_layer(run, lengths, rank, group)


def solve(runs: list[LayerRun], folder: Path, shards: dict[int, list[int]]) -> None:
    torch.save([run.solved() for run in runs], folder / "runs.pt")
    on_ranks(max(shards), check, str(folder / "runs.pt"), shards)


def test_every_layer_is_tried():
    made = {type(build()) for build in LAYERS.values()}
    kinds = (getattr(models, name) for name in models.__all__)
    layers = {k for k in kinds if isinstance(k, type) and issubclass(k, Mixer)}
    assert layers - {Mixer, models.ResidualStack} <= made


def test_every_layer(tmp_path: Path):
    alone = [name for name in LAYERS if not name.startswith("RecurrentLM")]
    solve([LayerRun(name, 12) for name in alone], tmp_path, SHARDS)


def test_every_language_model(tmp_path: Path):
    runs = [LayerRun(name, 12) for name in LAYERS if name.startswith("RecurrentLM")]
    solve(runs, tmp_path, {1: [12], 4: SHARDS[4]})


def test_boundaries_and_carried_states(tmp_path: Path):
    """Windows of 3 steps over shards of 5, 1, 0 and 6, cut by resets, padding and ends of sequences."""
    names = ("MinMaxLayer", "SelectiveSSM", "RGLRU", "HGRN2")
    runs = [LayerRun(name, 12, carried=True, flags=f) for name in names for f in boundaries(12)]
    solve(runs, tmp_path, {4: SHARDS[4]})


def test_slow_decay_over_uneven_shards(tmp_path: Path):
    solve([LayerRun(name, 512, slow=True) for name in ("rglru", "ssm")], tmp_path, UNEVEN)


@pytest.mark.slow
def test_slow_decay_of_every_layer_with_every_boundary(tmp_path: Path):
    runs = [LayerRun(name, 512, slow=True) for name in SLOW]
    names = [n for n in LAYERS if n != "bidirectional"]
    runs += [LayerRun(name, 512, carried=True, flags=f) for name in names for f in boundaries(512)]
    solve(runs, tmp_path, UNEVEN)
