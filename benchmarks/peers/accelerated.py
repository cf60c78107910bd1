"""accelerated-scan: affine scans with time contiguous, in Triton and, where nvcc is, in CUDA."""

from __future__ import annotations

import shutil
from functools import partial

import torch

from benchmarks.peers.peer import Peer, calls, no_gpu
from benchmarks.problems import Calls, Problem
from benchmarks.tables import BOTH

DISTRIBUTION = "accelerated-scan"
BLOCK = 2048  # steps that a program of the Triton kernel takes at once
SHORTEST, LONGEST = 32, 65536  # of the CUDA kernel, whose lengths are powers of two


def prepare(problem: Problem, kernel: str) -> Calls:
    """`kernel` is a module of the package."""
    import importlib

    run = importlib.import_module(f"accelerated_scan.{kernel}").scan
    beyond = kernel == "scalar" and problem.size[1] % BLOCK
    lacks = (
        {BOTH: f"its backward reads past the end where {BLOCK} does not divide the steps"} if beyond else {}
    )
    given = {"gates": problem.inputs["a"], "tokens": problem.inputs["b"]}

    def named(found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"a": found["gates"], "b": found["tokens"]}

    return calls(
        lambda gates, tokens: run(gates, tokens), given, problem.cotangent, gradients=named, lacks=lacks
    )


def time_is_last(problem: Problem) -> str:
    return "" if problem.layout == "bdt" else "it takes (b, d, t) alone"


def short_powers(problem: Problem) -> str:
    """The CUDA kernel's lengths, and where it reads other memory."""
    steps = problem.size[1]
    if steps & (steps - 1) or not SHORTEST <= steps <= LONGEST:
        return f"it takes powers of two from {SHORTEST} to {LONGEST} steps"
    wide = problem.dtype is torch.bfloat16 and steps >= 4096
    return time_is_last(problem) or ("it faults at 4096 steps and more in bf16" if wide else "")


def no_compiler() -> str:
    if no_gpu():
        return no_gpu()
    missing = [tool for tool in ("nvcc", "ninja") if shutil.which(tool) is None]
    return f"it is compiled at first use, and there is no {' and no '.join(missing)}" if missing else ""


PEERS = (
    Peer("accelerated-scan Triton", "accelerated_scan", DISTRIBUTION, ("Affine",),
         partial(prepare, kernel="scalar"), time_is_last, no_gpu),
    Peer("accelerated-scan CUDA", "accelerated_scan", DISTRIBUTION, ("Affine",),
         partial(prepare, kernel="warp"), short_powers, no_compiler, whole=True),
)  # fmt: skip
