"""Peers that cannot be installed beside: times of a run of their own, scaled by the ratio of the copies."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.problems import Problem
from benchmarks.tables import BOTH, FORWARD

COPY_TB_S = 4.193  # of the run that these are from: an H200, driver 580.159.04, torch 2.11.0


@dataclass(frozen=True)
class Cited:
    """Milliseconds by operator and size, then by direction."""

    name: str
    times: dict[tuple[str, tuple[int, ...]], dict[str, float]]

    def scaled(self, problem: Problem, direction: str, pace: float) -> float | None:
        """Milliseconds on a device that copies at this pace, in TB/s."""
        found = self.times.get((problem.operator, problem.size), {}).get(direction)
        return None if found is None else found * COPY_TB_S / pace


MAMBA_SSM = Cited(
    "mamba-ssm 2.3.2 CUDA, own run",
    {
        ("Mamba", (8, 2048, 2048, 16)): {FORWARD: 0.592, BOTH: 2.898},
        ("Mamba", (4, 4096, 4096, 16)): {FORWARD: 1.166, BOTH: 5.762},
        ("Mamba", (1, 65536, 2048, 16)): {FORWARD: 2.995, BOTH: 14.4},
        ("Mamba", (8, 2048, 2048, 64)): {FORWARD: 1.979, BOTH: 10.8},
    },
)
CITED = (MAMBA_SSM,)
STEP_MS = {
    "Mamba step": 7.26e-3
}  # selective_state_update in a CUDA graph, 64 sequences, 2048 channels, n = 16
