"""Replays as on a GPU, where kernels are launched by address and rooms share memory, interpreted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ctypes import c_char
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

import scanforge as sf
from scanforge import chunked_plan, plan, repeats, replay, tape
from scanforge.replay_text import function_of
from tests.kernels import Tiles, guarded
from tests.recurrences import BY_NAME, draw
from tests.replays import Given, assert_replays

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]


@dataclass(frozen=True)
class Compiled:
    """What Triton's `run` gives back on a GPU: launched again, it knows addresses alone."""

    kernel: Any
    types: dict[str, torch.dtype]
    constants: dict[str, Any]
    function: int = 0
    packed_metadata: tuple[int, ...] = ()

    def run(self, *args: Any) -> None:
        """A grid, where to run, and the kernel's arguments."""
        named = dict(zip(self.kernel.arg_names, args[9:], strict=True))
        given = [at(x, self.types[n]) if n in self.types else x for n, x in named.items()]
        self.kernel[args[:3]](*given[: len(given) - len(self.own())], **self.constants)

    def own(self) -> set[str]:
        return self.constants.keys() & {*self.kernel.arg_names}


def at(address: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor at an address."""
    return torch.frombuffer((c_char * dtype.itemsize).from_address(address), dtype=dtype)


def launch(
    recorder: tape.Recorder, kernel: Any, grid: tuple[int, ...], args: Sequence[Any],
    constants: dict[str, Any], tile: Any,
) -> None:  # fmt: skip
    with _disable_current_modes():
        kernel[grid](*args, **constants)
    named = zip(kernel.arg_names, args, strict=False)
    types = {n: x.dtype for n, x in named if isinstance(x, torch.Tensor)}
    compiled = Compiled(kernel, types, constants)
    noted = tape.Launch(kernel, compiled, grid, recorder._noted(tuple(args)), constants)
    recorder.tapes[-1].steps.append(noted)


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pieces of memory each replay has; replays are as on a GPU."""
    found: list[int] = []

    def noted(recorded: tape.Tape) -> Any:
        made = function_of(recorded)
        found.append(len(re.findall(r"^ +rooms\d+ = ", made.__doc__ or "", re.MULTILINE)))
        return made

    monkeypatch.setattr(tape.Recorder, "launch", launch)
    for module in (repeats, replay):
        monkeypatch.setattr(module, "function_of", noted)
    return found


def given_of(name: str, seed: int, **sizes: int) -> Given:
    tensors, _ = draw(BY_NAME[name], dtype=torch.float32, seed=seed, **sizes)
    return {n: guarded(x).requires_grad_(x.is_floating_point()) for n, x in tensors.items()}


def run(monkeypatch: pytest.MonkeyPatch, name: str, sizes: dict[str, int], **options: Any) -> None:
    assert_replays(
        monkeypatch,
        lambda given: sf.scan(
            BY_NAME[name].recurrence, **given, backend="triton", return_final_state=True, **options
        ),
        lambda seed: given_of(name, seed, **sizes),
    )


@pytest.mark.parametrize("groups", [1, 2])
def test_products_over_chunks(monkeypatch, rooms, groups):
    """Operands, states between chunks, and of groups what they pass on; padded keys are never written."""
    monkeypatch.setattr(chunked_plan.ChunkPlan, "groups", lambda *_: groups)
    run(monkeypatch, "HGRN2", {"b": 1, "t": 100, "h": 1, "k": 3, "v": 4}, lowering="chunked")
    assert rooms[1] == 1  # the forward pass, between what autograd does before it and after it


def test_time_in_chunks(monkeypatch, rooms):
    """Aggregates, carries and what each chunk ends with."""
    run(monkeypatch, "RGLRU", {"b": 1, "t": 40, "d": 3}, lowering="split")
    assert any(rooms)


def test_segments(monkeypatch, rooms):
    """Forward again and back, from the last segment to the first, in the same rooms."""
    Tiles(4, 4, chunk=8).force(monkeypatch)
    monkeypatch.setitem(plan.BUDGET, "low", 0.0)
    run(monkeypatch, "Mamba", {"b": 1, "t": 13, "d": 2, "n": 2}, memory="low")
    assert any(rooms)
