"""How long both passes take on a device, beside a copy of the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from scanforge import dtypes
from scanforge.api import scan
from scanforge.declare import Operator
from scanforge.errors import BackendError
from scanforge.example import Example, fields_of
from scanforge.ir.scan import TIME
from scanforge.planned import planned
from scanforge.recurrence import Recurrence
from scanforge.show.page import Time, Timing
from scanforge.validate import SEED, draw

Tensor = torch.Tensor
BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4}  # of values, against the reference; 16 bits: BOUND_16
BOUND_16 = 2e-2  # two roundings of bf16, where the order of sums differs
SECONDS = 0.2  # of repeating, for each
LARGE = 1e30  # numbers drawn at random may grow without end; near the end of float32 nothing is compared


def measured(
    operator: type[Operator] | type[Recurrence], example: Example, dtype: torch.dtype, device: str
) -> Timing:
    """Times of the device's own backend, whose values are compared with the reference's first.

    Raises BackendError if they are apart: nothing wrong is timed.
    """
    random = torch.Generator().manual_seed(SEED)
    tensors: dict[str, Any] = {
        f.name: _placed(draw(f.kind, f.domain, example.tensors[f.name].shape, random), dtype, device)
        for f in fields_of(example.declared)
    }
    options: dict[str, Any] = {
        "initial_state": tuple(torch.zeros(x.shape, device=device) for x in example.initial or ()) or None
    }
    _compare(operator, tensors, options, dtype, example)
    plan = planned(example.traced.text, example.sizes, dtype)

    def forward() -> Any:
        return scan(operator, **tensors, **options)

    outputs = _listed(forward())
    floats = [y for y in outputs if y.requires_grad]
    wanted = [x for x in tensors.values() if x.requires_grad]
    cotangents = [torch.ones_like(y) for y in floats]

    def both() -> None:
        torch.autograd.grad([y for y in _listed(forward()) if y.requires_grad], wanted, cotangents)

    size = plan.bytes("forward")
    source = torch.empty(max(size // 2, 1), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    with torch.no_grad():
        rows = [Time("forward", _seconds(forward), size)]
    if floats:
        rows.append(Time("forward and backward", _seconds(both), size + plan.bytes("backward")))
    copy = Time("copy of the forward pass's bytes", _seconds(lambda: target.copy_(source)), size)
    return Timing(_where(device, dtype), tuple(rows), copy)


def _compare(
    operator: type[Operator] | type[Recurrence],
    tensors: dict[str, Any],
    options: dict[str, Any],
    dtype: torch.dtype,
    example: Example,
) -> None:
    dims = {o.name: o.dims for o in example.traced.scan.outputs}
    shown = [dims[names[0]] for names in example.traced.outputs]
    with torch.no_grad():
        mine = _listed(scan(operator, **tensors, **options))
        truth = _listed(scan(operator, **tensors, **options, backend="reference"))
    for x, y, axes in zip(mine, truth, shown, strict=True):
        apart = _apart(x, y, axes.index(TIME) if TIME in axes else None)
        if not apart <= BOUNDS.get(dtype, BOUND_16):
            raise BackendError(
                f"{operator.__name__}: values are {apart:.1e} apart from the reference's, and nothing "
                "wrong is timed: write scanforge check for this operator, and report what it prints."
            )


def _apart(x: Tensor, truth: Tensor, time: int | None) -> float:
    """The relative distance over the steps at which nothing is large; a NaN is."""
    wide, exact = ((v if v.is_complex() else v.double()).movedim(time or 0, 0) for v in (x, truth))
    kept = (exact.abs() < LARGE).reshape(len(exact), -1).all(1)
    kept = kept if time is not None else kept.all().expand_as(kept)
    return float((wide - exact)[kept].norm() / (exact[kept].norm() + 1e-30))


def _placed(x: Tensor, dtype: torch.dtype, device: str) -> Tensor:
    if not x.is_floating_point():
        return x.to(device)
    return x.detach().to(device, dtype).requires_grad_()


def _listed(outputs: Any) -> list[Tensor]:
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def _seconds(run: Any) -> float:
    """The median of repeated calls; those of a GPU are waited for."""
    from torch.utils.benchmark import Timer

    run()
    return float(Timer("run()", globals={"run": run}).blocked_autorange(min_run_time=SECONDS).median)


FLUSH = 256 << 20  # bytes written between calls: several times any L2
SPIN, LONGEST_SPIN = 1 << 21, 1 << 28  # clocks that the host has for its launches: 1 to 150 ms
REPEATS = 10


def cold(run: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The device's median seconds for a call that finds L2 cold; the host's part of it is hidden.

    The device spins while the host launches. A round that is launched too late is thrown away, and those
    after it spin longer.
    """
    flush = torch.empty(FLUSH, dtype=torch.int8, device="cuda")
    run()
    torch.cuda.synchronize()
    times: list[float] = []
    spin = SPIN
    while len(times) < repeats:
        torch.cuda._sleep(spin)
        flush.zero_()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        marks[0].record()
        run()
        marks[1].record()
        late = marks[0].query()
        torch.cuda.synchronize()
        if not late:
            times.append(marks[0].elapsed_time(marks[1]) / 1e3)
        elif spin < LONGEST_SPIN:
            spin *= 2
        else:
            raise BackendError(f"The host did not launch a call within {spin} clocks of the device.")
    return median(times)


def _where(device: str, dtype: torch.dtype) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else "the CPU"
    return (
        f"{name}, {dtypes.name(dtype)}: the median of calls one after another, Python's part "
        "of a call included, after values were compared with the reference's. A pass counts each tensor once."
    )
