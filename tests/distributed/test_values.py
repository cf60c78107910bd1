"""Every operator and recurrence on 1 to 4 ranks equals the run of one process."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import scanforge as sf
from scanforge import distributed
from scanforge.distributed import chunks
from scanforge.distributed.forms import FORMS
from scanforge.prepared import Prepared
from tests import catalogue, recurrences
from tests.distributed.problems import Problem, bare, check_rank, cut, fused
from tests.distributed.processes import on_ranks
from tests.tolerances import assert_close

SHARDS = {1: [9], 2: [4, 5], 3: [0, 7, 2], 4: [3, 1, 0, 5]}
UNEVEN = [100, 1, 0, 411]


def everything() -> list[Problem]:
    both = (False, True)
    problems = [bare(case, 9, reverse=r) for case in catalogue.CASES for r in both]
    return problems + [fused(entry, 9, reverse=r) for entry in recurrences.ENTRIES for r in both]


def slow_decay() -> list[Problem]:
    """Gates of 0.9999 at all steps, and the catalogue, which has them among others."""
    affine = bare(catalogue.BY_NAME["Affine"], 512)
    affine.tensors["a"] = torch.full_like(affine.tensors["a"], 0.9999)
    decay = fused(recurrences.BY_NAME["Decay"], 512, reverse=True)
    decay.tensors["w"] = torch.full_like(decay.tensors["w"], 0.9999).logit()
    return [affine, decay] + [bare(case, 512) for case in catalogue.CASES if case.name != "Kalman"]


def packed() -> list[Problem]:
    """Sequences that end within a shard, at its border, and span several; two are empty."""
    cu = [0, 2, 2, 8, 9, 20, 20]
    names = ("Decay", "RGLRU", "RGLRUDocuments", "LinearAttention", "Innovation", "LogSumExp", "Summing")
    problems = [bare(case, 20, reverse=r, cu=cu) for case in catalogue.CASES for r in (False, True)]
    return problems + [
        fused(recurrences.BY_NAME[name], 20, reverse=r, cu=cu) for name in names for r in (False, True)
    ]


def bounded() -> list[Problem]:
    """Resets at, before and after the borders of shards, padding everywhere, both, with other states."""
    steps, g = 20, catalogue.generator(3)
    reset, mask = torch.zeros(2, steps, dtype=torch.bool), torch.rand(2, steps, generator=g) > 0.4
    reset[0, [0, 5, 12, 13]], reset[1, [4, 6, 19]] = True, True
    mask[0, 4:14], mask[1, :7] = False, False  # a whole shard of padding, and the first step of one
    lengths = torch.tensor([17, 3])
    flags = [{"reset": reset}, {"mask": mask}, {"lengths": lengths}, {"reset": reset, "mask": mask}]
    entries = ("RGLRUDocuments", "RGLRU", "LinearAttention", "Summing")
    cases = ("Affine", "MinMax", "LogSumExp", "Kalman")
    problems = [bare(catalogue.BY_NAME[n], steps, reverse=r) for n in cases for r in (False, True)]
    problems += [fused(recurrences.BY_NAME[n], steps, reverse=r) for n in entries for r in (False, True)]
    made = [replace(p, flags=f) for p in problems for f in flags]
    resets = [replace(p, entering=tuple(x + 0.5 for x in p.initial)) for p in made if "reset" in p.flags]
    packed = fused(recurrences.BY_NAME["RGLRUDocuments"], steps, cu=[0, 2, 2, 8, 9, 20, 20])
    both = {"reset": reset[:1], "mask": mask[1:]}
    return [*made, *resets, replace(packed, flags=both), replace(packed, flags=both, reverse=True)]


def check(rank: int, count: int, file: str, shards: dict[int, list[int]]) -> None:
    sf.set_law_check(False)  # the one process has looked
    problems = torch.load(file, weights_only=False)
    for ranks, lengths in shards.items():
        group = dist.new_group(list(range(ranks)))
        if rank >= ranks:
            continue
        for k, problem in enumerate(problems):
            resets = "reset" in problem.flags  # then every rank reads the states
            check_rank(problem, lengths, rank, group, reduces=resets or k % 2 == 0)


def solve(problems: list[Problem], folder: Path, shards: dict[int, list[int]]) -> None:
    file = folder / "problems.pt"
    torch.save([p.solved() for p in problems], file)
    on_ranks(max(shards), check, str(file), shards)


def test_every_operator_and_recurrence(tmp_path: Path):
    solve(everything(), tmp_path, SHARDS)


def test_slow_decay_over_uneven_shards(tmp_path: Path):
    solve(slow_decay(), tmp_path, {4: UNEVEN})


def test_packed_sequences_span_ranks(tmp_path: Path):
    solve(packed(), tmp_path, {2: [9, 11], 4: [5, 0, 8, 7]})


def test_resets_and_padding(tmp_path: Path):
    solve(bounded(), tmp_path, {1: [20], 4: [5, 0, 8, 7]})


def few_chunks(call: Prepared, *_: object) -> int:
    """As a kernel's plan would cut it, of at most 4 chunks."""
    steps = call.sizes["t"]
    whole = call.packed is not None or not steps
    return 1 if whole else next(n for n in (4, 3, 2, 1) if steps % n == 0)


def check_chunks(rank: int, count: int, file: str, shards: dict[int, list[int]]) -> None:
    chunks.chunk_count = few_chunks
    check(rank, count, file, shards)


def solve_in_chunks(problems: list[Problem], folder: Path, shards: list[int]) -> None:
    torch.save([p.solved() for p in problems], folder / "problems.pt")
    on_ranks(len(shards), check_chunks, str(folder / "problems.pt"), {len(shards): shards})


def test_shards_in_chunks(tmp_path: Path):
    """What a GPU does with few lanes: a shard's chunks run side by side, from one pass of elements."""
    solve_in_chunks(everything(), tmp_path, [6, 0, 3])


@pytest.mark.slow
def test_boundaries_and_slow_decay_in_chunks(tmp_path: Path):
    solve_in_chunks(bounded(), tmp_path, [4, 0, 10, 6])
    solve_in_chunks(slow_decay(), tmp_path, UNEVEN)


def check_own_finals(rank: int, count: int, file: str, lengths: list[int]) -> None:
    """A loss of every rank's own final state: the states of one process where the shards end."""
    for form, (p, whole, gradients) in product(FORMS, torch.load(file, weights_only=False)):
        begin, end = sum(lengths[:rank]), sum(lengths[: rank + 1])
        own = {n: cut(x, p.dims[n], begin, end).clone().requires_grad_() for n, x in p.tensors.items()}
        start = tuple(x.clone() for x in p.initial)
        start = start if len(start) > 1 else start[0]
        _, finals = distributed.scan(
            p.operator, **own, initial_state=start, return_final_state=True, form=form
        )
        finals = finals if isinstance(finals, tuple) else (finals,)
        for x, states in zip(finals, whole, strict=True):
            assert_close(x, states[:, end - 1], "forward", f"{p.name}: state after rank {rank}")
        found = torch.autograd.grad([x * (rank + 1) for x in finals], list(own.values()), finals)
        for (name, g), y in zip(gradients.items(), found, strict=True):
            assert_close(y, cut(g, p.dims[name], begin, end), "gradient", f"{p.name}, {rank}: {name}")


def test_each_rank_has_the_state_after_its_own_steps(tmp_path: Path):
    lengths, solved = [3, 1, 0, 5], []
    ends = [sum(lengths[: r + 1]) - 1 for r in range(4)]
    for name in ("Affine", "LogSumExp", "Kalman"):
        p = bare(catalogue.BY_NAME[name], 9)
        leaves = {n: x.clone().requires_grad_() for n, x in p.tensors.items()}
        start = p.initial if len(p.initial) > 1 else p.initial[0]
        whole = sf.scan(p.operator, **leaves, initial_state=start)
        whole = whole if isinstance(whole, tuple) else (whole,)
        read = [x[:, end] * (r + 1) for r, end in enumerate(ends) for x in whole]
        seeds = [x[:, end].detach() for end in ends for x in whole]
        found = torch.autograd.grad(read, list(leaves.values()), seeds)
        solved.append((p, [x.detach() for x in whole], dict(zip(leaves, found, strict=True))))
    torch.save(solved, tmp_path / "solved.pt")
    on_ranks(4, check_own_finals, str(tmp_path / "solved.pt"), lengths)
