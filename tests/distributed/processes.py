"""Run a function on every rank of a gloo group, and fail with what the first failing rank says."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT = timedelta(seconds=60)


def on_ranks(count: int, function: Callable[..., None], *args: Any, backend: str = "gloo") -> None:
    """`function(rank, count, *args)` in `count` processes; it lies in a module, and so do its arguments."""
    # a server that has imported torch forks every rank, which saves some seconds each
    multiprocessing.set_forkserver_preload([__name__, "models", "torch.distributed.fsdp"])
    with tempfile.TemporaryDirectory() as folder:
        given = count, backend, str(Path(folder) / "store"), function, args
        mp.start_processes(_one, given, nprocs=count, start_method="forkserver")


def _one(
    rank: int, count: int, backend: str, store: str, function: Callable[..., None], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=count, timeout=TIMEOUT
    )
    function(rank, count, *args)
    dist.barrier()
    dist.destroy_process_group()
