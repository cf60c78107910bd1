"""What stands in for a sanitizer, and for accidents: guard pages, repeats under load, full memory, lost GPUs.

A read past a tensor brings a NaN in, a write past one changes a guard, and a race changes a bit sooner or
later: 200 repeats while another stream keeps the device busy must all be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

import scanforge as sf
from models.hgrn2 import TiedKeys
from models.rglru.recurrence import RGLRUScan
from models.ssm import Euler
from scanforge import replay, selfcheck
from tests import poison
from tests.catalogue import CASES, Case, generator
from tests.fuzz.cases import calls
from tests.fuzz.judge import faults
from tests.kernels import every_lowering, guarded
from tests.kernels import outcome as outcome_of_case
from tests.recurrence_kernels import outcome as outcome_of_entry
from tests.recurrences import BY_NAME, draw
from tests.reference.compare import many
from tests.subprocesses import ROOT, run_python

pytestmark = pytest.mark.gpu
PAGE = 2**21  # bytes
GUARD = {torch.float64: float("nan"), torch.float32: float("nan"), torch.bfloat16: float("nan")}
CASES_UNDER_LOAD = {
    "Affine": (sf.operators.Affine, {}, {}),
    "Affine, split": (sf.operators.Affine, {}, {"lowering": "split"}),
    "MinMax, split, reverse": (sf.operators.MinMax, {}, {"lowering": "split", "reverse": True}),
    "LogSumExp": (sf.operators.LogSumExp, {}, {}),
    "RGLRU": (RGLRUScan, {"d": 96}, {}),
    "RGLRU, reset": (RGLRUScan, {"d": 96}, {"reset": True}),
    "Mamba": (Euler, {"d": 64, "n": 16}, {}),
    "HGRN2": (TiedKeys, {"h": 2, "k": 32, "v": 32}, {}),
}


def paged(x: Tensor) -> Tensor:
    """A copy on the GPU between two pages of NaN, or of 77, its last entry at the end of a page."""
    count = PAGE // x.element_size()
    whole = torch.full((x.numel() + 2 * count,), GUARD.get(x.dtype, 77), dtype=x.dtype, device="cuda")
    return whole[count : count + x.numel()].view(x.shape).copy_(x)


@contextmanager
def paged_results(wholes: list[Tensor]) -> Iterator[None]:
    """What scanforge allocates lies between pages of 77."""
    new_empty = torch.Tensor.new_empty

    def between(self: Tensor, size, *, dtype: torch.dtype | None = None, **_) -> Tensor:
        made = new_empty(self, size, dtype=dtype)
        whole = torch.full((made.numel() + 2 * PAGE,), 77, dtype=made.dtype, device=made.device)
        wholes.append(whole)
        return whole[PAGE : PAGE + made.numel()].view(made.shape)

    replay.forget()  # a replay allocates by itself
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "new_empty", between)
        patch.setattr(torch, "empty_like", lambda x, **_: between(x, x.shape))
        yield


def call(name: str) -> Callable[[], list[Tensor]]:
    """The call of this name: values and gradients on paged tensors."""
    declared, sizes, options = CASES_UNDER_LOAD[name]
    form = selfcheck.Form(None, torch.float32, selfcheck.MANY | {"t": 301} | sizes)
    tensors, initial = selfcheck.drawn(declared, form)
    if options.get("reset"):
        options = {"reset": (torch.rand(2, 301, generator=generator(0)) < 0.05).cuda()}
    leaves = {n: paged(x).requires_grad_(x.is_floating_point()) for n, x in tensors.items()}
    start = [paged(x).requires_grad_(x.is_floating_point()) for x in initial]
    wanted = [x for x in (*leaves.values(), *start) if x.requires_grad]

    def run() -> list[Tensor]:
        states = start[0] if len(start) == 1 else tuple(start)
        found = sf.scan(declared, **leaves, initial_state=states, return_final_state=True, **options)
        results = [x for part in found for x in many(part)]
        floats = [x for x in results if x.is_floating_point()]
        return [*results, *torch.autograd.grad(floats, wanted, [torch.ones_like(x) for x in floats])]

    return run


@pytest.mark.parametrize("name", CASES_UNDER_LOAD)
def test_nothing_is_read_or_written_past_a_page(name):
    run, wholes = call(name), []
    plain = run()
    with paged_results(wholes):
        found = run()
    assert len(wholes) >= 2
    assert all(bool(x.isfinite().all()) for x in plain if x.is_floating_point())
    for x, y in zip(found, plain, strict=True):
        assert torch.equal(x, y)
    for whole in wholes:
        assert bool((whole[:PAGE] == 77).all())
        assert bool((whole[-PAGE:] == 77).all())


@pytest.mark.parametrize("name", CASES_UNDER_LOAD)
def test_req49_two_hundred_repeats_under_load_are_the_same_bits(name):
    run = call(name)
    first, other = run(), torch.cuda.Stream()
    busy = torch.randn(8192, 4096, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for k in range(200):
        with torch.cuda.stream(other):
            busy.copy_(busy.flip(k % 2).sin())
        room = torch.empty(1 + 40961 * (k % 7), device="cuda")  # so that memory is not always the same
        for x, y in zip(run(), first, strict=True):
            wrong += (x != y).sum()
        del room
    assert int(wrong) == 0


def test_req49_two_processes_with_cold_caches_agree(monkeypatch, tmp_path):
    program = """
import hashlib, torch, scanforge as sf
from models.ssm import Euler
from scanforge import replay, selfcheck
torch.use_deterministic_algorithms(True)
found = hashlib.sha256()
for one in (sf.operators.MinMax, Euler):
    tensors, initial = selfcheck.drawn(one, selfcheck.FORMS["triton"][0])
    given = {n: x.cuda().requires_grad_() for n, x in tensors.items()}
    y = sf.scan(one, **given)
    for x in (y, *torch.autograd.grad(y.sum(), list(given.values()))):
        found.update(x.detach().cpu().numpy().tobytes())
print(found.hexdigest())
"""
    found = set()
    for k in range(2):
        monkeypatch.setenv("PYTHONHASHSEED", str(k + 1))
        monkeypatch.setenv("SCANFORGE_CACHE", str(tmp_path / f"kept{k}"))
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / f"triton{k}"))
        found.add(run_python("-c", program, cwd=ROOT).strip())
    assert len(found) == 1


def test_memory_that_ends_is_torch_s_error_and_leaves_all_whole():
    """The largest tensor fits once, and not as often as the call needs it."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    a = torch.full((1, 1, 1), 0.5, device="cuda", requires_grad=True)
    long = a.expand(1, 2**14, 2**14)  # a gigabyte in fp32, were it stored
    state = torch.ones(1, 2**14, device="cuda")
    kept, before = state.clone(), torch.cuda.memory_allocated()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**28) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            sf.scan(sf.Affine, a=long, b=long, initial_state=state).sum().backward()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert a.grad is None
    assert torch.equal(state, kept)
    assert torch.cuda.memory_allocated() <= before + 16 * kept.numel() * 4  # states, which the error holds
    one = torch.ones(1, 5, 64, device="cuda")
    assert torch.equal(sf.scan(sf.Affine, a=one, b=one)[0, -1], torch.full((64,), 5.0, device="cuda"))


def test_a_gpu_that_is_hidden(monkeypatch):
    """The CPU goes on, and asking for kernels says what is missing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    program = """
import torch, scanforge as sf
x = torch.ones(1, 3)
print(sf.scan(sf.Affine, a=x, b=x).tolist(), sf.last_run().plan.backend)
try:
    sf.scan(sf.Affine, a=x, b=x, backend="triton")
except sf.BackendError as error:
    print(error)
"""
    shown = run_python("-c", program, cwd=ROOT)
    assert "[[1.0, 2.0, 3.0]] reference" in shown
    assert "Write backend='reference'." in shown


SOME = [*CASES, *(BY_NAME[n] for n in ("RGLRU", "SelectiveSSM", "GatedMinMax", "HGRN2"))]


@pytest.mark.parametrize("one", SOME, ids=lambda one: one.name)
@every_lowering
def test_a_nan_goes_no_further_than_in_the_loop(one, lowering):
    def on_gpu(x: Tensor) -> Tensor:
        return guarded(x.cuda())

    def run(one, tensors, initial):
        options = {"place": on_gpu, "lowering": lowering}
        if isinstance(one, Case):
            return outcome_of_case(one, tensors, initial, poison.everything(one), **options)
        return outcome_of_entry(one, tensors, initial, ("both",), **options)

    poison.check(one, float("nan"), run, torch.float64, seeds=1)


@every_lowering
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_a_nan_passes_no_reset(lowering, reverse):
    with torch.device("cuda"):
        poison.check_segments(lowering=lowering, reverse=reverse)


@every_lowering
def test_an_infinite_slope_passes_no_closed_gate(lowering):
    with torch.device("cuda"):
        poison.check_closed_gate(lowering=lowering)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["q", "f", "v"])
def test_in_products_over_chunks_a_nan_stays_in_its_channels(name, dtype):
    tensors, _ = draw(BY_NAME["HGRN2"], dtype, t=150, k=32, v=48)
    placed = {n: guarded(x.cuda()) for n, x in tensors.items()}
    poison.check_channels(name, placed, (0, 77, 1, 5), float("nan"))


def test_random_calls():
    """Some of `make fuzz`; on a GPU `make fuzz N=300` runs more."""
    from hypothesis import HealthCheck, Phase, given, settings

    @settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(calls())
    def judged(drawn):
        assert not faults(drawn, every=1), drawn

    judged()
