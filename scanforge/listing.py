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
from scanforge.emit.together import together
from scanforge.ir.scan import Scan, load
from scanforge.launch import Options, output_dtypes, state_dtypes
from scanforge.launch_triton import allocate, backward, forward
from scanforge.pipeline import Wanted, kernel_adjoint

Tensor = torch.Tensor
_POINTER = re.compile(r"\bptr_(\w+)")


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch: the kernel's text, how many programs run it, and its tensors by name."""

    text: str
    programs: int
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, launch: tape.Launch) -> Launched:
        """What was noted of it; tensors come first, in the order of the kernel's arguments."""
        text = kernel_text(launch.function)
        tensors = [x for x in launch.args if isinstance(x, Tensor)]
        arguments = text[text.index("\ndef kernel(") :].partition("):\n")[0]
        return cls(text, launch.grid[0], dict(zip(_POINTER.findall(arguments), tensors, strict=True)))


def launches(
    text: str, which: str, sizes: dict[str, int], dtype: torch.dtype, lowering: str = ""
) -> list[Launched]:
    """The launches of a pass over contiguous tensors, "forward" without gradients, or "backward" with all."""
    options = Options(False, lowering, dtypes.computed([dtype]), "triton")
    run = {"forward": _forward, "backward": _backward}[which]
    return copy_context().run(_listed, run, text, sizes, dtype, options)  # what ran last is as it was


def source(text: str, which: str, sizes: dict[str, int], dtype: torch.dtype, lowering: str = "") -> str:
    """The different kernels of a pass as one module."""
    found = launches(text, which, sizes, dtype, lowering)
    return together(f"{load(text).name}, {which}", list(dict.fromkeys(x.text for x in found)))


def memoryless() -> tuple[AbstractContextManager[Any], str]:
    """Where tensors have no memory, and their device: the GPU at hand, or none."""
    if not torch.cuda.is_available():
        return nullcontext(), "meta"
    from torch._subclasses.fake_tensor import FakeTensorMode  # it takes a second to begin

    return FakeTensorMode(), "cuda"


def _listed(
    run: Callable[..., Any], text: str, sizes: dict[str, int], dtype: torch.dtype, options: Options
) -> list[Launched]:
    mode, device = memoryless()
    with mode, torch.device(device), tape.listed() as found:
        scan = load(text)
        kinds = {"float": dtype, "int": torch.int64, "bool": torch.bool}
        shapes = [[1 if d == "1" else sizes[d] for d in i.dims] for i in scan.inputs]
        inputs = [torch.empty(n, dtype=kinds[i.kind]) for i, n in zip(scan.inputs, shapes, strict=True)]
        carried = zip(scan.states, state_dtypes(scan, inputs, options.dtype), strict=True)
        states = [torch.empty([sizes[a] for a in scan.order(s.axes)], dtype=d) for s, d in carried]
        run(scan, text, inputs, states, options)
    return [Launched.of(x) for x in found]


def _forward(
    scan: Scan, text: str, inputs: Sequence[Tensor], states: Sequence[Tensor], options: Options
) -> None:
    forward(text, inputs, states, options, False)


def _backward(
    scan: Scan, text: str, inputs: Sequence[Tensor], states: Sequence[Tensor], options: Options
) -> None:
    floats = frozenset(i.name for i in scan.inputs if i.kind == "float")
    shown = dict(zip((o.name for o in scan.outputs), output_dtypes(scan, inputs, options.dtype), strict=True))
    wanted = Wanted(floats, frozenset(n for n, d in shown.items() if d.is_floating_point), True)
    derived = kernel_adjoint(text, wanted)
    result = allocate(text, inputs, states, options, True)
    outputs = dict(zip(shown, result.outputs, strict=True))
    start = dict(zip((s.name for s in scan.states), states, strict=True))
    cotangents = [torch.empty_like(outputs[o]) for o, _ in derived.cotangents]
    seeds = [torch.empty_like(start[s]) for s, _ in derived.initial]
    if derived.gradients or seeds:
        backward(text, wanted, inputs, result.kept, cotangents, seeds, options)
