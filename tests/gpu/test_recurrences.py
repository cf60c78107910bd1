"""Recurrences on a GPU at real sizes, against the reference backend in float64: few kernels, many checks.

A kernel with many entries in a thread takes long to compile, so that one test does all that needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import scanforge as sf
from tests.catalogue import chance, generator
from tests.kernels import guarded
from tests.recurrence_kernels import assert_identical, outcome
from tests.recurrences import BY_NAME, Entry, Initial, draw
from tests.reference.compare import cotangent, many, wide
from tests.reference.fused import Outcome, Tensors, assert_same, named, single
from tests.tolerances import assert_close, assert_equal

pytestmark = pytest.mark.gpu
BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


def on_gpu(x: Tensor) -> Tensor:
    return guarded(x.cuda())


def truth_of(entry: Entry, tensors: Tensors, initial: Initial | None, **options: Any) -> Outcome:
    """The reference backend's outcome in float64, which the CPU's tests compare with the loop by hand."""
    inputs = {n: wide(x).cuda().requires_grad_(x.is_floating_point()) for n, x in tensors.items()}
    start = {n: wide(x).cuda().requires_grad_() for n, x in named(entry, initial).items()}
    outputs, finals = sf.scan(
        entry.recurrence, **inputs, initial_state=single(tuple(start.values()) or None),
        return_final_state=True, backend="reference", lowering="parallel", **options,
    )  # fmt: skip
    outputs, finals = many(outputs), many(finals)
    wanted = {n: x for n, x in (inputs | start).items() if x.requires_grad}
    put = [cotangent(x, seed).cuda() for seed, x in enumerate((*outputs, *finals))]
    found = torch.autograd.grad([*outputs, *finals], list(wanted.values()), put)
    slopes = {n: x.cpu() for n, x in zip(wanted, found, strict=True)}
    return Outcome(
        tuple(x.detach().cpu() for x in outputs), tuple(x.detach().cpu() for x in finals), {"both": slopes}
    )


@dataclass(frozen=True)
class Run:
    """A recurrence, its sizes, and which options it is to have."""

    name: str
    dtype: torch.dtype
    sizes: dict[str, int]
    flags: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    cu: tuple[int, ...] = ()

    def __str__(self) -> str:
        words = [*self.flags, *("packed" * bool(self.cu)).split(), *map(str, self.options.values())]
        return "-".join([self.name, str(self.dtype)[6:], *words])

    def drawn(self) -> tuple[Tensors, Initial, dict[str, Any]]:
        """On the CPU: inputs, initial states in float32, options."""
        tensors, initial = draw(BY_NAME[self.name], self.dtype, seed=3, **self.sizes)
        if self.name == "LinearAttention":  # as a feature map does, so that q·z does not cancel
            tensors |= {n: tensors[n].abs() for n in ("q", "k")}
        options, shape = dict(self.options), (self.sizes["b"], self.sizes["t"])
        if self.cu:
            packed = self.sizes | {"b": len(self.cu) - 1}
            _, initial = draw(BY_NAME[self.name], self.dtype, seed=3, **packed)
            options["cu_seqlens"] = torch.tensor(self.cu)
        if "reset" in self.flags:
            options["reset"] = chance(generator(1), shape, 0.05)
        if "mask" in self.flags:
            options["mask"] = chance(generator(2), shape, 0.8)
        return tensors, tuple(x.float() for x in initial), options


RGLRU = {"b": 2, "t": 1031, "d": 513}
MAMBA = {"b": 2, "t": 517, "d": 96, "n": 16}
HGRN2 = {"b": 2, "t": 130, "h": 2, "k": 16, "v": 24}
SMALL = {"b": 2, "t": 261, "d": 70, "n": 4}
CUTS = (0, 0, 50, 51, 114, 261, 261)
RUNS = [
    Run("Mamba", F32, MAMBA),
    Run("Mamba", BF16, MAMBA),
    Run("HGRN2", F32, HGRN2),
    Run("HGRN2", BF16, HGRN2),
    Run("LinearAttention", F32, HGRN2),
    Run("LinearAttention", BF16, HGRN2),
    Run("SelectiveSSM", F32, {"b": 2, "t": 65, "d": 48, "n": 40}),  # more entries than a thread holds
    Run("RGLRU", F32, RGLRU),
    Run("RGLRU", BF16, RGLRU),
    Run("RGLRU", BF16, {"b": 2, "t": 301, "d": 513}, ("reset", "mask")),
    Run("RGLRU", F32, {"b": 2, "t": 301, "d": 70}, (), {"reverse": True, "lowering": "split"}),
    Run("RGLRU", F32, SMALL | {"b": 1}, (), {}, CUTS),
    Run("SelectiveSSM", F32, SMALL, ("reset", "mask"), {"reverse": True}),
    Run("SelectiveSSM", F32, SMALL | {"b": 1}, (), {}, CUTS),
    Run("SelectiveSSM", BF16, SMALL, (), {"memory": "low", "lowering": "split"}),
    Run("LRU", F32, {"b": 2, "t": 65, "d": 24, "n": 12}),
    Run("GatedMinMax", F32, {"b": 2, "t": 301, "d": 70}, ("mask",), {"reverse": True}),
    Run("Summing", F32, {"b": 3, "t": 301, "d": 70}),
    Run("LogSumExp", F32, {"b": 2, "t": 301, "d": 70}, ("reset",)),
    Run("Innovation", BF16, {"b": 2, "t": 301, "d": 70}),
]


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_req49_values_and_gradients_the_same_every_time(run):
    """Within the table of tolerances, and 20 times the same bits."""
    entry, (tensors, initial, options) = BY_NAME[run.name], run.drawn()
    placed = {n: x.cuda() if isinstance(x, Tensor) else x for n, x in options.items()}
    got = outcome(entry, tensors, initial, place=on_gpu, **placed)
    for _ in range(20):
        assert_identical(outcome(entry, tensors, initial, place=on_gpu, **placed), got, f"{run} again")
    products = sf.last_run().plan.lowering == "chunked"
    known = {n: x for n, x in placed.items() if n not in {"lowering", "memory"}}
    truth, rounded = truth_of(entry, tensors, initial, **known), run.dtype if products else None
    assert_same(got, truth, ("forward", "gradient"), str(run), rounded)
    assert {x.dtype for x in got.outputs} == {run.dtype}
    assert {x.dtype for x in got.finals} == {F32}


def rows_of(entry: Entry, tensors: Tensors, t: int) -> Tensors:
    axes = {n: part.axes.split() for n, part in entry.inputs.items()}
    return {n: x.select(axes[n].index("t"), t) if "t" in axes[n] else x for n, x in tensors.items()}


@pytest.mark.parametrize("name", ["RGLRU", "Mamba", "LinearAttention"])
def test_req37_a_step_in_a_cuda_graph(name):
    """Captured once, in place: every replay is the step in eager mode, and the steps are the scan."""
    entry, steps = BY_NAME[name], 5
    tensors, _ = draw(entry, BF16, b=2, t=steps, d=96, n=16, h=2, k=16, v=24)
    tensors = {n: x.cuda() for n, x in tensors.items()}
    outputs, finals = sf.scan(entry.recurrence, **tensors, return_final_state=True)
    rows = [{n: x.contiguous() for n, x in rows_of(entry, tensors, t).items()} for t in range(steps)]
    with torch.no_grad():
        _, state = sf.step(entry.recurrence, None, **rows[0])
        state = single(tuple(torch.zeros_like(x) for x in many(state)))
        eager = []
        for row in rows:
            y, state = sf.step(entry.recurrence, state, **row)
            eager.append(y)
        fixed = {n: x.clone() for n, x in rows[0].items()}
        own = single(tuple(torch.zeros_like(x) for x in many(state)))
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            sf.step(entry.recurrence, own, **fixed, inplace=True)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            shown, _ = sf.step(entry.recurrence, own, **fixed, inplace=True)
        for x in many(own):
            x.zero_()
        for t, row in enumerate(rows):
            for n, x in row.items():
                fixed[n].copy_(x)
            graph.replay()
            assert_equal(shown, eager[t], f"{name} step {t}")
            assert_close(shown.cpu(), outputs[:, t].double().cpu(), "gradient", f"{name} step {t}")
    for x, y, z in zip(many(own), many(state), many(finals), strict=True):
        assert_equal(x, y, name)
        assert_close(x.cpu(), z.double().cpu(), "gradient", name)


def test_peak_memory_of_training_the_selective_ssm():
    """(8, 2048, 2048, 16) in bf16: inputs, outputs, gradients (with the incoming one), and a share."""
    torch.use_deterministic_algorithms(False)  # which would fill all empties
    entry = BY_NAME["Mamba"]
    sizes = {"b": 8, "t": 2048, "d": 2048, "n": 16}
    tensors = {
        n: torch.randn(part.shape(sizes), dtype=BF16, device="cuda").requires_grad_()
        for n, part in entry.inputs.items()
    }
    held = sum(x.nbytes for x in tensors.values())
    cotangent = torch.randn(8, 2048, 2048, dtype=BF16, device="cuda")
    moved = 2 * held + 2 * cotangent.nbytes
    shares = {}
    for memory in (None, "low"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() - held - cotangent.nbytes
        y = sf.scan(entry.recurrence, **tensors, memory=memory)
        slopes = torch.autograd.grad(y, list(tensors.values()), cotangent)
        torch.cuda.synchronize()
        shares[memory] = (torch.cuda.max_memory_allocated() - before) / moved - 1
        assert all(x.isfinite().all() for x in slopes)
        del y, slopes
    assert shares[None] <= 0.80, f"{shares}"
    assert shares["low"] <= 0.25, f"{shares}"


def grown(function) -> int:
    """Bytes at the peak beyond what was there before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("kind", ["operator", "recurrence"])
def test_req17_a_gate_that_does_not_change_over_time(kind):
    """(4, 65536, 512) in bf16: neither the gate nor its gradient is ever of that shape."""
    torch.use_deterministic_algorithms(False)
    shape = (4, 65536, 512)
    x = torch.randn(shape, dtype=BF16, device="cuda").requires_grad_()
    gate = torch.rand(1, 1, 512, device="cuda").to(BF16) * 0.9
    gate = (gate if kind == "operator" else gate[0, 0]).requires_grad_()
    dy = torch.randn(shape, dtype=BF16, device="cuda")

    def scan(gate, x):
        if kind == "operator":
            return sf.scan(sf.Affine, a=gate, b=x)
        return sf.scan(BY_NAME["Decay"].recurrence, w=gate, x=x)

    peak = grown(lambda: torch.autograd.grad(scan(gate, x), (gate, x), dy))
    whole = x.nbytes  # as large as a copy of the gate in bf16 would be
    assert peak < 2.5 * whole, f"{peak / whole:.2f} tensors: outputs, the gradient of x, states kept"

    short, c = x[:, :512].detach(), dy[:, :512]
    slopes = []
    for dtype, backend in ((BF16, "triton"), (F64, "reference")):
        a, b = (z.detach().to(dtype).requires_grad_() for z in (gate, short))
        y = (
            sf.scan(sf.Affine, a=a, b=b, backend=backend)
            if kind == "operator"
            else sf.scan(BY_NAME["Decay"].recurrence, w=a, x=b, backend=backend)
        )
        slopes.append(torch.autograd.grad(y, (a, b), c.to(dtype)))
    for found, wanted in zip(*slopes, strict=True):
        assert found.shape == wanted.shape
        assert_close(found, wanted, "gradient", kind)
