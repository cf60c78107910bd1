"""(recurrence, sizes, dtype) -> what a call launches: texts of kernels, and what these read and write.

The call runs as ever, on tensors without memory, and its launches are noted instead of made. That takes
neither a GPU nor Triton; where there is a GPU, the texts are those for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import torch

from scanforge import dtypes, tape
from scanforge.cache import kernel_text
from scanforge.emit.together import titled, together
from scanforge.ir.scan import Scan, load
from scanforge.launch import Options, output_dtypes, state_dtypes
from scanforge.launch_triton import allocate, backward, forward
from scanforge.pipeline import Wanted, kernel_adjoint
from scanforge.tile import Tile
from scanforge.tuned import forcing

Tensor = torch.Tensor
Where = tuple[AbstractContextManager[Any], str]
_POINTER = re.compile(r"\bptr_(\w+)")


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch: the kernel's text, of what it is and which kind, how many programs run it, and its tile."""

    text: str
    name: str
    what: str
    programs: int
    tile: Tile | None
    between: dict[str, tuple[int, int]]  # what is only between kernels, by name: which memory, how many bytes

    @classmethod
    def of(cls, launch: tape.Launch, given: frozenset[int]) -> Launched:
        """What was noted of it; tensors come first, in the order of the kernel's arguments."""
        text = kernel_text(launch.function)
        arguments = text[text.index("\ndef kernel(") :].partition("):\n")[0]
        tensors = [x for x in launch.args if isinstance(x, Tensor)]
        named = zip(_POINTER.findall(arguments), map(_memory, tensors), strict=True)
        between = {n: found for n, found in named if found[0] not in given}
        return cls(text, *titled(text), launch.grid[0], launch.tile, between)


def _memory(x: Tensor) -> tuple[int, int]:
    whole = x.untyped_storage()
    return whole._cdata, whole.nbytes()


def launches(
    text: str, which: str, sizes: dict[str, int], dtype: torch.dtype, lowering: str = ""
) -> list[Launched]:
    """The launches of a pass over contiguous tensors, "forward" without gradients, or "backward" with all.

    They are those on the GPU at hand if there is one, with the tiles that tuning has found there.
    """
    with nullcontext() if torch.cuda.is_available() else forcing({}):
        return _launches(text, which, sizes, dtype, lowering, memoryless())


def shipped_launches(text: str, which: str, sizes: dict[str, int], dtype: torch.dtype) -> list[Launched]:
    """The same of the shipped plan, on any machine."""
    with forcing({}):
        return _launches(text, which, sizes, dtype, "", (nullcontext(), "meta"))


def _launches(
    text: str, which: str, sizes: dict[str, int], dtype: torch.dtype, lowering: str, where: Where
) -> list[Launched]:
    options = Options(False, lowering, dtypes.computed([dtype]), "triton")
    run = {"forward": _forward, "backward": _backward}[which]
    return copy_context().run(_listed, run, text, sizes, dtype, options, where)  # what ran last is as it was


def source(text: str, which: str, sizes: dict[str, int], dtype: torch.dtype, lowering: str = "") -> str:
    """The different kernels of a pass as one module."""
    found = launches(text, which, sizes, dtype, lowering)
    return together(f"{load(text).name}, {which}", list(dict.fromkeys(x.text for x in found)))


def inputs_of(scan: Scan, sizes: dict[str, int], dtype: torch.dtype) -> list[Tensor]:
    """Contiguous inputs on the current device; ints are of 64 bits."""
    kinds = {"float": dtype, "int": torch.int64, "bool": torch.bool}
    shapes = [[1 if d == "1" else sizes[d] for d in i.dims] for i in scan.inputs]
    return [torch.empty(n, dtype=kinds[i.kind]) for i, n in zip(scan.inputs, shapes, strict=True)]


def memoryless() -> Where:
    """Where tensors have no memory, and their device: the GPU at hand, or none."""
    if not torch.cuda.is_available():
        return nullcontext(), "meta"
    from torch._subclasses.fake_tensor import FakeTensorMode  # it takes a second to begin

    return FakeTensorMode(), "cuda"


def like() -> Tensor:
    """An empty tensor that lies where those without memory do."""
    mode, device = memoryless()
    with mode:
        return torch.empty(0, device=device)


def _listed(
    run: Callable[..., Any], text: str, sizes: dict[str, int], dtype: torch.dtype, options: Options,
    where: Where,
) -> list[Launched]:  # fmt: skip
    mode, device = where
    with mode, torch.device(device), tape.listed() as found:
        scan = load(text)
        inputs = inputs_of(scan, sizes, dtype)
        carried = zip(scan.states, state_dtypes(scan, inputs, options.dtype), strict=True)
        states = [torch.empty([sizes[a] for a in scan.order(s.axes)], dtype=d) for s, d in carried]
        own = [*inputs, *states, *run(scan, text, inputs, states, options)]
        given = frozenset(_memory(x)[0] for x in own)
        return [Launched.of(x, given) for x in found]


def _forward(
    scan: Scan, text: str, inputs: Sequence[Tensor], states: Sequence[Tensor], options: Options
) -> list[Tensor]:
    result = forward(text, inputs, states, options, False)
    return [*result.outputs, *result.finals]


def _backward(
    scan: Scan, text: str, inputs: Sequence[Tensor], states: Sequence[Tensor], options: Options
) -> list[Tensor]:
    floats = frozenset(i.name for i in scan.inputs if i.kind == "float")
    shown = dict(zip((o.name for o in scan.outputs), output_dtypes(scan, inputs, options.dtype), strict=True))
    wanted = Wanted(floats, frozenset(n for n, d in shown.items() if d.is_floating_point), True)
    derived = kernel_adjoint(text, wanted)
    if not (derived.gradients or derived.initial):
        return []
    result = allocate(text, inputs, states, options, True)
    outputs = dict(zip(shown, result.outputs, strict=True))
    start = dict(zip((s.name for s in scan.states), states, strict=True))
    cotangents = [torch.empty_like(outputs[o]) for o, _ in derived.cotangents]
    seeds = [torch.empty_like(start[s]) for s, _ in derived.initial]
    kept = result.kept or [x[None] for x in states]
    gradients, ends = backward(text, wanted, inputs, kept, cotangents, seeds, options)
    return [*kept, *cotangents, *seeds, *gradients, *ends]
