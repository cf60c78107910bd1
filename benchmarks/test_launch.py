"""The host's time of a warm call, up to the launches of its kernels, which are left out: on any machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import scanforge as sf
from tests.launches import Compiled, Launches
from tests.recurrences import BY_NAME, draw

WITHOUT, WITH = 25e-6, 50e-6  # seconds of a call, without and with gradients
SIZES = {"b": 2, "t": 64, "d": 64, "n": 16, "h": 2, "k": 32, "v": 32}
WARM = 4


@pytest.fixture(autouse=True)
def no_launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from triton.runtime.jit import JITFunction

    Launches().install(monkeypatch)
    monkeypatch.setattr(JITFunction, "run", lambda function, *_, **__: Compiled(function, None))
    with torch.inference_mode(False):
        yield


def inputs(name: str, *, grad: bool) -> dict[str, Tensor]:
    tensors, _ = draw(BY_NAME[name], dtype=torch.bfloat16, **SIZES)
    return {n: x.requires_grad_(grad) for n, x in tensors.items()}


def measured(benchmark: Any, call: Callable[[], Any], most: float) -> None:
    """The quickest round counts: what else runs on the machine only adds."""
    for _ in range(WARM):
        call()
    benchmark(call)
    if benchmark.stats is not None:  # --benchmark-disable
        assert benchmark.stats.stats.min <= most


@pytest.mark.parametrize("name", ["Decay", "RGLRU", "Mamba"])
@pytest.mark.parametrize("grad", [False, True], ids=["values", "with gradients"])
def test_scan(benchmark, name: str, grad: bool):
    tensors = inputs(name, grad=grad)
    recurrence = BY_NAME[name].recurrence
    measured(benchmark, lambda: sf.scan(recurrence, backend="triton", **tensors), WITH if grad else WITHOUT)


@pytest.mark.parametrize("steps", [64, 4096], ids=["one walk", "groups of chunks"])
@pytest.mark.parametrize("grad", [False, True], ids=["values", "with gradients"])
def test_products_over_chunks(benchmark, grad: bool, steps: int):
    """Three launches, or five, with rooms between them."""
    tensors, _ = draw(BY_NAME["HGRN2"], dtype=torch.bfloat16, **(SIZES | {"t": steps}))
    tensors = {n: x.requires_grad_(grad) for n, x in tensors.items()}
    measured(
        benchmark,
        lambda: sf.scan(BY_NAME["HGRN2"].recurrence, backend="triton", lowering="chunked", **tensors),
        WITH if grad else WITHOUT,
    )


@pytest.mark.parametrize("name", ["Decay", "RGLRU", "Mamba"])
def test_scan_and_backward(benchmark, name: str):
    """Beside the launches, autograd's own engine and the sums that follow a kernel are in it."""
    tensors = inputs(name, grad=True)
    recurrence, wanted = BY_NAME[name].recurrence, list(tensors.values())
    cotangent = torch.ones(SIZES["b"], SIZES["t"], SIZES["d"], dtype=torch.bfloat16)

    def call() -> Any:
        return torch.autograd.grad(sf.scan(recurrence, backend="triton", **tensors), wanted, cotangent)

    for _ in range(WARM):
        call()
    benchmark(call)


@pytest.mark.parametrize("name", ["RGLRU", "Mamba"])
def test_step(benchmark, name: str):
    entry, tensors = BY_NAME[name], inputs(name, grad=False)
    now = {n: x[:, 0] if "t" in entry.inputs[n].axes.split() else x for n, x in tensors.items()}
    state = torch.zeros([SIZES[a] for a in entry.states["h"].axes.split()])
    measured(
        benchmark,
        lambda: sf.step(entry.recurrence, state, inplace=True, backend="triton", **now),
        WITHOUT,
    )
