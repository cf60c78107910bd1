"""The torch ops: a scan, and the backward of a scan on a GPU, each one opaque node with fake shapes.

They are defined at first use, so that importing scanforge does no work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from threading import Lock
from typing import Any

import torch

from scanforge import launch, launch_triton
from scanforge.ir.scan import BATCH, TIME, load
from scanforge.launch import Options, kept_states, output_dtypes, sizes_of, state_dtypes
from scanforge.pipeline import Wanted
from scanforge.repeats import Repeats

Tensor = torch.Tensor
SCAN = (
    "scan(str recurrence, Tensor[] inputs, Tensor[] initial, "
    "bool reverse, str lowering, str backend, str memory, ScalarType dtype, bool keep, "
    "Tensor? bounds) -> Tensor[]"
)
BACKWARD = (
    "scan_backward(str recurrence, str wanted, str present, bool initial, Tensor[] inputs, Tensor[] kept, "
    "Tensor[] cotangents, Tensor[] seeds, bool reverse, str lowering, str memory, ScalarType dtype, "
    "Tensor? bounds) -> Tensor[]"
)


def define(setup: Callable[..., None], backward: Callable[..., Any]) -> Any:
    """The namespace `torch.ops.scanforge`, its ops defined by whichever thread is first, and never twice."""
    with _FIRST:
        if not _KEPT:
            lib = torch.library.Library("scanforge", "DEF")
            _KEPT.append(lib)
            for schema, run, fake in ((SCAN, run_scan, _fake_scan), (BACKWARD, run_backward, _fake_backward)):
                name = schema.partition("(")[0]
                lib.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
                lib.impl(name, run, "CompositeExplicitAutograd")
                torch.library.register_fake(f"scanforge::{name}", fake, lib=lib)
            torch.library.register_autograd("scanforge::scan", backward, setup_context=setup, lib=lib)
    return torch.ops.scanforge


OPS = Repeats(1024)  # how the ops ran, for graphs that call them

_KEPT: list[torch.library.Library] = []  # a library's ops live as long as it does
_FIRST = Lock()


def run_scan(  # noqa: PLR0913, PLR0917 - as in the schema
    recurrence: str,
    inputs: list[Tensor],
    initial: list[Tensor],
    reverse: bool,
    lowering: str,
    backend: str,
    memory: str,
    dtype: torch.dtype,
    keep: bool,
    bounds: Tensor | None,
    into: Sequence[Tensor] = (),
) -> list[Tensor]:
    """Outputs, final states and what is kept. Kernels write the outputs `into` tensors, if there are some."""
    options = Options(reverse, lowering, dtype, backend, memory)
    if backend != "triton":
        result = launch.run(recurrence, inputs, initial, options, keep, bounds)
        return [*result.outputs, *result.finals, *result.kept]

    n, k = len(inputs), len(inputs) + len(initial)

    def run(*values: Any) -> tuple[Tensor, ...]:
        own, last, places = values[:k], values[k], values[k + 1 :]
        result = launch_triton.forward(recurrence, own[:n], own[n:], options, keep, last, into=places)
        return (*result.outputs, *result.finals, *result.kept)

    return list(OPS(run, (recurrence, options, keep), (*inputs, *initial, bounds, *into)))


def _fake_scan(  # noqa: PLR0913, PLR0917
    recurrence: str,
    inputs: list[Tensor],
    initial: list[Tensor],
    reverse: bool,
    lowering: str,
    backend: str,
    memory: str,
    dtype: torch.dtype,
    keep: bool,
    bounds: Tensor | None,
) -> list[Tensor]:
    scan = load(recurrence)
    if backend == "triton":
        options = Options(reverse, lowering, dtype, backend, memory)
        result = launch_triton.allocate(recurrence, inputs, initial, options, keep, bounds)
        return [*result.outputs, *result.finals, *result.kept]
    sizes = sizes_of(scan, inputs, initial) | ({} if bounds is None else {BATCH: 1})
    found = output_dtypes(scan, inputs, dtype)
    rows = sizes if bounds is None else sizes | {BATCH: bounds.numel() - 1}  # of outputs without time
    shapes = [
        [1 if d == "1" else (sizes if TIME in o.dims else rows)[d] for d in o.dims] for o in scan.outputs
    ]
    shown = [inputs[0].new_empty(shape, dtype=d) for shape, d in zip(shapes, found, strict=True)]
    dtypes_of = dict(zip((s.name for s in scan.states), state_dtypes(scan, inputs, dtype), strict=True))
    of_state = dict(zip(dtypes_of, initial, strict=True))
    finals = [x0.new_empty(x0.shape, dtype=dtypes_of[n]) for n, x0 in of_state.items()]
    names = kept_states(scan, found, dtype) if keep else []
    kept = [
        of_state[n].new_empty(
            [sizes[TIME], *(sizes[a] for a in scan.order(scan.state(n).axes))], dtype=dtypes_of[n]
        )
        for n in names
    ]
    return [*shown, *finals, *kept]


def are_open(tensors: Iterable[Tensor]) -> bool:
    """Whether a graph is made for all sizes: what forward keeps depends on them, so that it keeps nothing."""
    return any(isinstance(n, torch.SymInt) for x in tensors for n in x.shape)


def _kept(
    text: str, inputs: list[Tensor], given: list[Tensor], options: Options, bounds: Tensor | None
) -> list[Tensor]:
    """What forward keeps for the backward pass. Initial states alone: it kept nothing, and runs again."""
    if not given or given[0].ndim > len(load(text).states[0].axes):
        return given
    found = launch_triton.forward(text, inputs, given, options, True, bounds).kept
    return found or [x0[None] for x0 in given]


def run_backward(  # noqa: PLR0913, PLR0917 - as in the schema
    recurrence: str,
    wanted: str,
    present: str,
    initial: bool,
    inputs: list[Tensor],
    kept: list[Tensor],
    cotangents: list[Tensor],
    seeds: list[Tensor],
    reverse: bool,
    lowering: str,
    memory: str,
    dtype: torch.dtype,
    bounds: Tensor | None,
    into: Sequence[Tensor | None] = (),
) -> list[Tensor]:
    """Gradients, then the adjoint's final states. Kernels write the former `into` tensors, if given."""
    which = Wanted(frozenset(wanted.split()), frozenset(present.split()), initial)
    options = Options(reverse, lowering, dtype, "triton", memory)

    ends = [*accumulate(map(len, (inputs, kept, cotangents, seeds)), initial=0)]

    def run(*values: Any) -> tuple[Tensor, ...]:
        own, left, seen, last = (list(values[a:b]) for a, b in pairwise(ends))
        packed, *places = values[ends[-1] :]
        left = _kept(recurrence, own, left, options, packed)
        gradients, after = launch_triton.backward(
            recurrence, which, own, left, seen, last, options, packed, into=places
        )
        return (*gradients, *after)

    values = (*inputs, *kept, *cotangents, *seeds, bounds, *into)
    return list(OPS(run, (recurrence, which, options, *ends), values))


def _fake_backward(  # noqa: PLR0913, PLR0917
    recurrence: str,
    wanted: str,
    present: str,
    initial: bool,
    inputs: list[Tensor],
    kept: list[Tensor],
    cotangents: list[Tensor],
    seeds: list[Tensor],
    reverse: bool,
    lowering: str,
    memory: str,
    dtype: torch.dtype,
    bounds: Tensor | None,
) -> list[Tensor]:
    names = wanted.split()
    given = zip(load(recurrence).inputs, inputs, strict=True)
    return [t.new_empty(t.shape) for i, t in given if i.name in names] + [x.new_empty(x.shape) for x in seeds]
