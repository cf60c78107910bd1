"""A replay calls what Triton's launcher calls, with what that passes on: of the Triton that is here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scanforge import tape
from scanforge.launcher import unwrapped
from scanforge.repeats import recorded
from scanforge.replay_text import function_of

PACKED = (4, 1, 1024)


class Kernel:
    """A kernel of Triton's, compiled: its launcher is real, and what that calls writes its arguments down."""

    arg_names = ("ptr_a", "ptr_out", "steps", "BD")

    def __init__(self, scratch: int = 0) -> None:
        driver = pytest.importorskip("triton.backends.nvidia.driver")
        self.seen: list[tuple[Any, ...]] = []
        self.run = driver.CudaLauncher.__new__(driver.CudaLauncher)
        vars(self.run).update(
            launch=lambda *args: self.seen.append(args), num_ctas=1, launch_cooperative_grid=False,
            launch_pdl=True, global_scratch_size=scratch, global_scratch_align=1, profile_scratch_size=0,
            profile_scratch_align=1, arg_annotations=object(), kernel_signature=b"signature",
        )  # fmt: skip
        self.compiled = SimpleNamespace(run=self.run, function=123, packed_metadata=PACKED)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args, **constants: self.compiled


def replay_of(kernel: Kernel) -> tuple[Any, torch.Tensor]:
    a = torch.ones(8)

    def run(given: torch.Tensor) -> torch.Tensor:
        out = torch.empty(8)
        tape.launch(kernel, (3,), (given[2:].as_strided((1,), (1,), 2), out, 7), {"BD": 64})
        return out

    recorder, _ = recorded(lambda own: run(*own), [a], gradient=False)
    return function_of(recorder.tapes[0]), a


def test_a_replay_launches_as_the_launcher_does():
    kernel = Kernel()
    replay, a = replay_of(kernel)
    out = replay(a)
    assert "launch" not in replay.__code__.co_names
    kernel.run(3, 1, 1, 0, 123, PACKED, None, None, None, a.data_ptr() + 8, out.data_ptr(), 7, 64)
    mine, theirs = kernel.seen
    assert mine == theirs
    assert len(theirs) > 9


def test_it_is_called_without_the_launcher(monkeypatch):
    kernel = Kernel()
    replay, a = replay_of(kernel)
    monkeypatch.setattr(type(kernel.run), "__call__", None)
    replay(a)
    assert len(kernel.seen) == 1


def test_a_launcher_that_does_more_stays():
    """One that makes memory for each launch, and any that is not known."""
    for run in (Kernel(scratch=128).run, print, SimpleNamespace()):
        assert unwrapped(run, (1, 2)) == (run, (1, 2))
