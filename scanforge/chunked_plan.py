"""The tiles of kernels over chunks, for sizes and types; where such kernels are worth it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """C steps a chunk; columns of keys and of values at a time; warps and stages by kernel."""

    steps: int
    keys: int  # in the walk
    gate_keys: int  # where chunks' operands are made
    values: int
    exact_keys: int  # and where a chunk is made from products of decays
    padded: int  # columns of keys in all, whole blocks
    gate_warps: int
    walk_warps: int
    stages: int
    gradients: tuple[int, int, int]  # keys, values and warps where the gates' gradients are made
    heads_gradients: tuple[
        int, int, int
    ]  # the same where lanes decay as a whole, which takes fewer registers
    exact_gradients: tuple[int, int, int]
    kept: torch.dtype  # of the states before chunks, and their cotangents, in memory
    few: int  # so many times the programs of all lanes are at most the processors, where groups walk
    at_once: int  # programs of groups
    cramped: bool = False  # by shared memory

    @property
    def levels(self) -> int:
        """How often a chunk can be halved."""
        return self.steps.bit_length() - 1

    def chunks(self, length: int) -> int:
        """How many chunks a length is."""
        return -(-length // self.steps)

    def groups(self, lanes: int, values: int, chunks: int) -> int:
        """How many groups of chunks walk at one time: several where programs of all lanes leave most idle."""
        programs = lanes * -(-values // self.values)
        few = self.few * programs <= PROCESSORS
        return max(1, min(self.at_once // programs, chunks // LEAST)) if few else 1

    def for_heads(self, lanes: int, values: int) -> ChunkPlan:
        """The tiles of a walk whose lanes decay as a whole: its own in bfloat16, which have been measured."""
        if self.steps < 64:
            return self
        programs = lanes * -(-values // 128)
        halves = (
            self.padded <= 64 or PROCESSORS // 4 < programs <= PROCESSORS // 2
        )  # more of them, none in groups
        most = 64 if self.cramped or self.padded > 256 or (halves and self.padded <= 128) else 128
        stages = 1 if self.cramped or self.padded > 256 else 2 if self.padded > 128 else 3
        side = _side(values, most)
        return replace(
            self, keys=128 if self.padded % 128 == 0 else self.keys, values=side, stages=stages, few=2,
            walk_warps=8 if side * self.padded > 64 * 128 else 4,
            at_once=PROCESSORS if side > 64 else 2 * PROCESSORS,
        )  # fmt: skip


SMALLEST = 16  # a side of a matrix product
PROCESSORS = 132  # of an H200
LEAST = 8  # chunks of a group
STATE = 16_384  # entries of the state that one program carries
CRAMPED = {(8, 6), (8, 9), (12, 0), (12, 1)}  # compute capabilities with 99 KiB of shared memory a program


def chunk_plan(keys: int, values: int, dot: torch.dtype, computed: torch.dtype) -> ChunkPlan:
    """Narrow types have tensor cores, and wide tiles; the others multiply in ordinary arithmetic."""
    narrow = dot == torch.bfloat16
    block = _side(keys, 64 if narrow else 32)
    padded = -(-keys // block) * block
    most = max(SMALLEST, min(128 if narrow else 32, _floor(STATE // padded)))
    wide = _side(values, most)
    side = block if padded <= 64 else min(block, 32)  # of one width: tests/compile/registers.py
    return ChunkPlan(
        steps=64 if narrow else 32,
        keys=block,
        gate_keys=min(block, 64 if padded <= 64 else 32),
        values=wide,
        exact_keys=min(block, 16),
        padded=padded,
        gate_warps=4 if narrow else 8,
        walk_warps=8 if wide * padded > (64 * 64 if narrow else 32 * 64) else 4,
        stages=3 if narrow and padded <= 128 else 2 if narrow else 1,
        gradients=(min(block, 32), min(block, 32), 4 if narrow else 8),
        heads_gradients=(side, side, 4 if narrow else 8),
        exact_gradients=(min(block, 16), min(block, 16), 8),
        kept=computed,
        few=2 if narrow and padded > 64 else 4,  # groups cost as much as two further walks
        at_once=PROCESSORS,
    )


def fitted(plan: ChunkPlan, capability: tuple[int, int]) -> ChunkPlan:
    """The tiles on a GPU of NVIDIA's: three stages take up to 117 kB of shared memory before Hopper."""
    return replace(plan, stages=min(plan.stages, 2), cramped=True) if capability in CRAMPED else plan


def _side(size: int, most: int) -> int:
    """A power of two that holds the size, within what a product takes."""
    return max(SMALLEST, min(most, 1 << max(size - 1, 0).bit_length()))


def _floor(size: int) -> int:
    return 1 << (max(size, 1).bit_length() - 1)
