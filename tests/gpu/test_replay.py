"""Calls like those before are replayed on the GPU: bit for bit, on any stream, device and layout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import scanforge as sf
from scanforge import replay
from tests.kernels import LAYOUTS, guarded
from tests.recurrences import BY_NAME, draw
from tests.replays import CALLS, Given, assert_replays, only_replays

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16
SIZES = {"b": 2, "t": 300, "d": 96, "n": 16, "h": 2, "k": 32, "v": 32}


def given_of(name: str, seed: int, *, grad: bool = True, place=guarded, **sizes: int) -> Given:
    tensors, _ = draw(BY_NAME[name], dtype=BF16, seed=seed, **(SIZES | sizes))
    return {n: place(x.cuda()).requires_grad_(grad) for n, x in tensors.items()}


@pytest.mark.parametrize("name", ["RGLRU", "Mamba", "HGRN2"])
@pytest.mark.parametrize("grad", [True, False], ids=["gradients", "values"])
def test_recurrences(monkeypatch, name, grad):
    assert_replays(
        monkeypatch,
        lambda given: sf.scan(BY_NAME[name].recurrence, **given, return_final_state=True),
        lambda seed: given_of(name, seed, grad=grad),
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(monkeypatch, layout):
    assert_replays(
        monkeypatch,
        lambda given: sf.scan(BY_NAME["RGLRU"].recurrence, **given),
        lambda seed: given_of("RGLRU", seed, place=LAYOUTS[layout]),
    )


@pytest.mark.parametrize("lowering", ["ordered_tile", "split", "chunked"])
def test_tensors_that_begin_elsewhere_in_their_memory(monkeypatch, lowering):
    assert_replays(
        monkeypatch,
        lambda given: sf.scan(BY_NAME["HGRN2"].recurrence, **given, lowering=lowering),
        lambda seed: given_of("HGRN2", seed, place=lambda x: guarded(x, shift=64 * seed), k=16, v=16),
    )


@pytest.mark.parametrize("lowering", ["ordered_tile", "split"])
def test_lowerings(monkeypatch, lowering):
    assert_replays(
        monkeypatch,
        lambda given: sf.scan(BY_NAME["RGLRU"].recurrence, **given, lowering=lowering, reverse=True),
        lambda seed: given_of("RGLRU", seed),
    )


@pytest.mark.parametrize("steps", [300, 4096], ids=["one walk", "groups of chunks"])
def test_rooms_that_kernels_share(monkeypatch, steps):
    """Products over chunks: what kernels leave each other lies in one piece, which nothing fills first."""
    torch.use_deterministic_algorithms(False)
    assert_replays(
        monkeypatch,
        lambda given: sf.scan(
            BY_NAME["HGRN2"].recurrence, **given, lowering="chunked", return_final_state=True
        ),
        lambda seed: given_of("HGRN2", seed, b=1, t=steps),
    )


@pytest.mark.parametrize("name", ["RGLRU", "Mamba", "HGRN2"])
def test_a_replay_holds_no_more_than_a_first_call(name):
    """Forward and backward; the segments of expanded states come and go."""
    torch.use_deterministic_algorithms(False)
    options = {"lowering": "chunked"} if name == "HGRN2" else {}
    given = given_of(name, 0, b=2, t=4096, d=512, h=4, k=64, v=64)

    def peak() -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = sf.scan(BY_NAME[name].recurrence, **given, **options)
        torch.autograd.grad(y, list(given.values()), torch.ones_like(y))
        return torch.cuda.max_memory_allocated() - before

    peaks = [peak() for _ in range(CALLS + 1)]
    assert peaks[-1] <= peaks[0]
    replay.forget()


def test_the_bounds_of_packed_sequences_are_read_anew(monkeypatch):
    def make(seed: int) -> Given:
        bounds = torch.tensor([0, 20 + 30 * seed, 20 + 30 * seed, 300], device="cuda")
        return given_of("RGLRU", seed, b=1) | {"cu_seqlens": bounds}

    assert_replays(
        monkeypatch,
        lambda given: sf.scan(BY_NAME["RGLRU"].recurrence, **given, return_final_state=True),
        make,
    )


def test_resets_and_lengths(monkeypatch):
    def make(seed: int) -> Given:
        g = torch.Generator().manual_seed(seed)
        starts = (torch.rand(2, 300, generator=g) < 0.1).cuda()
        return given_of("RGLRU", seed) | {"reset": starts, "lengths": torch.tensor([300 - seed, 9]).cuda()}

    assert_replays(monkeypatch, lambda given: sf.scan(BY_NAME["RGLRU"].recurrence, **given), make)


def test_another_stream(monkeypatch):
    given = given_of("RGLRU", 0, grad=False)
    for _ in range(CALLS):
        want = sf.scan(BY_NAME["RGLRU"].recurrence, **given)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), only_replays(monkeypatch):
        torch.cuda._sleep(10_000_000)
        made = {n: x.clone() for n, x in given.items()}
        got = [sf.scan(BY_NAME["RGLRU"].recurrence, **made) for _ in range(20)]
    side.synchronize()
    assert all(torch.equal(y, want) for y in got)


@pytest.mark.parametrize("known", [False, True], ids=["met", "replayed"])
def test_a_captured_call(known):
    """A graph's memory is its own: what is captured is not recorded, but may be a replay."""
    given = given_of("RGLRU", 0, grad=False)

    def call() -> Tensor:
        return sf.scan(BY_NAME["RGLRU"].recurrence, **given)

    for _ in range(CALLS if known else 1):
        want = call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(got, want)
    del graph, got
    torch.cuda.empty_cache()
    assert all(torch.equal(call(), want) for _ in range(CALLS))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_a_gpu_that_is_not_the_current_one(monkeypatch):
    given = {n: x.to("cuda:1") for n, x in given_of("RGLRU", 0, grad=False).items()}
    for _ in range(CALLS):
        want = sf.scan(BY_NAME["RGLRU"].recurrence, **given)
    with only_replays(monkeypatch):
        assert torch.equal(sf.scan(BY_NAME["RGLRU"].recurrence, **given), want)
    assert torch.cuda.current_device() == 0
    replay.forget()
