"""Which backend runs, and what is said where none can: requirements 25 and 44, and lost GPUs."""

from __future__ import annotations

import multiprocessing
import resource
import warnings
from importlib import metadata

import pytest
import torch

import scanforge as sf
from scanforge import backend
from scanforge.backend import Range, choose

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
x = torch.ones(2, 5, 3)


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.delenv("SCANFORGE_FALLBACK", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    cached = (backend._unusable_triton, backend._unusable_gpu, backend._version, backend._warn)
    for one in cached:
        one.cache_clear()
    yield
    for one in cached:
        one.cache_clear()


@pytest.fixture
def gpu(monkeypatch):
    """A machine with one GPU, as far as torch says: an H200, or what a test makes of it."""

    def made(capability=(9, 0), name="NVIDIA H200", count=1):
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)

    return made


def versions(monkeypatch, **packages: str) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: packages.get(name) or real(name))


def refused(device: torch.device = GPU, wanted: str | None = None) -> str:
    with pytest.raises(sf.BackendError) as caught:
        choose(wanted, device, "Mine")
    message = str(caught.value)
    assert message.startswith("Mine: the Triton backend cannot run here: ")
    assert message.endswith("Write backend='reference'.")
    return message


def test_the_device_chooses(gpu):
    gpu()
    assert choose(None, GPU, "Mine") == "triton"
    assert choose(None, CPU, "Mine") == "reference"
    assert choose("reference", GPU, "Mine") == "reference"


@pytest.mark.parametrize("version", ["2.3.1", "3.0.0", "3.5.1"])
def test_req25_an_old_triton(monkeypatch, gpu, version):
    gpu()
    versions(monkeypatch, triton=version)
    assert f"Triton {version} is installed, and it takes 3.6 or later" in refused()


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1", "3.10.0", "4.0.0"])
def test_req25_a_triton_that_is_recent_enough(monkeypatch, gpu, version):
    gpu()
    versions(monkeypatch, triton=version)
    assert choose(None, GPU, "Mine") == "triton"


def test_req25_a_triton_that_is_known_to_be_wrong(monkeypatch, gpu):
    gpu()
    broken = Range((3, 8), (3, 9), "its gradients of bf16 are wrong; 3.9 is right again")
    monkeypatch.setattr(backend, "BROKEN_TRITON", (broken,))
    for version, wrong in (("3.7.1", False), ("3.8.0", True), ("3.9.0", False)):
        backend._unusable_triton.cache_clear()
        backend._version.cache_clear()
        versions(monkeypatch, triton=version)
        if wrong:
            assert "Triton 3.8.0 is installed, and its gradients of bf16 are wrong" in refused()
        else:
            assert choose(None, GPU, "Mine") == "triton"


def test_an_interpreter_that_this_numpy_breaks(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    versions(monkeypatch, triton="3.6.0", numpy="2.4.6")
    assert "the interpreter of Triton 3.6.0 needs NumPy below 2.4" in refused(CPU, "triton")
    backend._version.cache_clear()
    versions(monkeypatch, triton="3.7.0", numpy="2.4.6")
    assert choose("triton", CPU, "Mine") == "triton"


def test_a_gpu_that_is_too_old(gpu):
    gpu((7, 0), "Tesla V100")
    assert "Tesla V100 has compute capability 7.0, and kernels need 8.0" in refused()


def test_a_gpu_that_is_not_among_those_seen(gpu):
    """As after CUDA_VISIBLE_DEVICES has changed, or when one has failed."""
    gpu(count=1)
    assert choose(None, GPU, "Mine") == "triton"
    message = refused(torch.device("cuda", 3))
    assert "the tensors are on cuda:3, and torch sees 1 GPU(s), cuda:0 the last" in message


def test_other_devices_have_no_kernels():
    assert "there are no kernels for tensors on mps" in refused(torch.device("mps"), "triton")
    assert choose(None, torch.device("mps"), "Mine") == "reference"


def test_req44_the_fallback_is_switched_on_and_warns_once(monkeypatch, gpu):
    gpu((7, 5), "Tesla T4")
    monkeypatch.setenv("SCANFORGE_FALLBACK", "warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [choose(None, GPU, "Mine") for _ in range(20)] == ["reference"] * 20
    (warning,) = caught
    assert warning.category is RuntimeWarning
    assert str(warning.message) == (
        "Mine runs on the reference backend, since Tesla T4 has compute capability 7.5, and kernels need 8.0."
    )


def test_req44_what_ran_can_be_asked_after_a_fallback(monkeypatch):
    monkeypatch.setenv("SCANFORGE_FALLBACK", "warn")
    with pytest.warns(RuntimeWarning, match="Affine runs on the reference backend, since the tensors are on"):
        sf.scan(sf.Affine, a=x, b=x, backend="triton")
    assert sf.last_run().plan.backend == "reference"


def starve() -> None:
    """Memory ends: torch's own error, and afterwards all is as before."""
    with open("/proc/self/statm", encoding="utf-8") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + 2**28, held + 2**28))
    a = torch.full((1, 1, 1), 0.5).expand(1, 2**14, 2**14)
    state = torch.ones(1, 2**14)
    kept = state.clone()
    with pytest.raises(RuntimeError, match="memory"):
        sf.scan(sf.Affine, a=a, b=a, initial_state=state)
    assert torch.equal(state, kept)
    y = x.clone().requires_grad_()
    sf.scan(sf.Affine, a=y, b=x).sum().backward()
    assert torch.equal(sf.scan(sf.Affine, a=x, b=x)[:, -1], torch.full((2, 3), 5.0))
    assert y.grad[0, 1].tolist() == [4.0, 4.0, 4.0]


def test_out_of_memory_is_torch_s_error_and_leaves_all_whole():
    sf.scan(sf.Affine, a=x, b=x)  # what is imported late is there
    process = multiprocessing.get_context("fork").Process(target=starve)
    process.start()
    process.join(60)
    assert process.exitcode == 0
