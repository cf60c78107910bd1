"""Is a call right? As near to the loop in float64 as the dtype lets it be, and the call's own sensitivity."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from scanforge.backend import LOWERINGS
from scanforge.boundaries import bounded
from scanforge.chunked_choice import why_not
from scanforge.chunked_form import MatrixForm, matrix_form
from scanforge.prepared import prepare
from scanforge.truth import apart, as_given, found, looped, true, with_gradients
from tests.fuzz.cases import Call
from tests.kernels import Tiles
from tests.tolerances import TOLERANCES

SHORT = 12  # steps that the interpreter walks one by one in a moment
# A ring's programs wait for each other, on a GPU alone and not for every call: tests/gpu/test_ring.py.
WAYS = {
    "reference": LOWERINGS["reference"],
    "triton": tuple(lowering for lowering in LOWERINGS["triton"] if lowering != "ring"),
}


@contextmanager
def short_tiles() -> Iterator[None]:
    """Kernels in an interpreter with tiles so short that a dozen steps have several; a GPU has the plan's."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("TRITON_INTERPRET") == "1":
            Tiles(4, 2, chunk=4).force(patch)
        yield


def ways(kernels: bool) -> Iterator[tuple[str, str, torch.device]]:
    """Backends and lowerings that run here, with kernels or without."""
    for lowering in WAYS["reference"]:
        yield "reference", lowering, torch.device("cpu")
    if kernels:
        device = "cuda" if os.environ.get("TRITON_INTERPRET") != "1" else "cpu"
        for lowering in WAYS["triton"]:
            yield "triton", lowering, torch.device(device)


def faults(call: Call, every: int = 0) -> list[str]:
    """What is wrong with a call, a sentence for each way of running it; one call in `every` runs kernels."""
    declared, (tensors, initial) = call.declared(), call.tensors()
    cuts = {n: x for n, x in call.options().items() if n != "memory"}
    truth, wrong, room = true(declared, tensors, initial, **cuts), [], None
    for backend, lowering, device in ways(every > 0 and call.seed % every == 0):
        slow = backend == "triton" and device.type == "cpu" and call.steps > SHORT  # in the interpreter
        wide = device.type == "cuda" and call.dtype == torch.float64  # which is refused there
        if (wide or not has_chunks(call)) if lowering == "chunked" else slow:
            continue
        options = {"backend": backend, "lowering": lowering, **call.options()}
        errors = apart(found(declared, tensors, initial, device, **options), truth)
        allowed = bounds(call.dtype)
        if any(not e <= a for e, a in zip(errors, allowed, strict=True)):
            room = sensitivity(call) if room is None else room
            allowed = tuple(a + r for a, r in zip(allowed, room, strict=True))
        if any(not e <= a for e, a in zip(errors, allowed, strict=True)):
            shown = ", ".join(f"{e:.1e} (allowed {a:.1e})" for e, a in zip(errors, allowed, strict=True))
            wrong.append(f"{backend}, {lowering}: values and gradients are off by {shown}")
    return wrong


def has_chunks(call: Call) -> bool:
    """Whether products over chunks are one of its ways; those of 16-bit numbers lose more than the table."""
    if call.dtype.itemsize < 4:
        return False
    cuts = {n: x for n, x in call.options().items() if n not in {"memory", "cu_seqlens"}}
    tensors, initial = call.tensors()
    packed = call.options().get("cu_seqlens")
    text = bounded(prepare(call.declared(), tensors, as_given(initial), cu_seqlens=packed), **cuts).text
    form = matrix_form(text)
    return isinstance(form, MatrixForm) and not why_not(form, packed=bool(call.sequences))


def bounds(dtype: torch.dtype) -> tuple[float, float]:
    """Of values and gradients: those of the table."""
    names = ("long", "long") if dtype == torch.float64 else ("forward", "gradient")
    values, gradients = (TOLERANCES[dtype, name].value for name in names)
    return values, gradients


def sensitivity(call: Call) -> tuple[float, float]:
    """What a call loses by itself: the loop in single precision, and the truth at inputs a rounding away.

    A sum that cancels, or a choice that hangs on a rounding, is told from a fault by this alone.
    """
    tensors, initial = call.tensors()
    cuts = {n: x for n, x in call.options().items() if n != "memory"}
    run = looped(call.declared(), **cuts)
    truth = with_gradients(run, tensors, initial, Tensor.double)
    single = with_gradients(looped(call.declared(), torch.float32, **cuts), tensors, initial, Tensor.float)
    share = 16 * (2.0**-29 if call.dtype == torch.float64 else 1.0)
    room = [share * e for e in apart(single, truth)]
    for seed in range(2):
        g = torch.Generator().manual_seed(seed)

        def moved(x: Tensor, g: torch.Generator = g) -> Tensor:
            if not x.is_floating_point():
                return x
            sign = torch.where(torch.rand(x.shape, generator=g) < 0.5, 1.0, -1.0)
            return x.double() * (1 + torch.finfo(call.dtype).eps * sign)

        near = {n: moved(x) for n, x in tensors.items()}, [moved(x) for x in initial]
        moved_by = apart(with_gradients(run, *near, Tensor.double), truth)
        room = [max(r, 64 * e) for r, e in zip(room, moved_by, strict=True)]
    return room[0], room[1]
