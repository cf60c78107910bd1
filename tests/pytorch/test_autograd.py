"""What autograd may do around a scan: checkpoints, hooks, two backward passes, graphs that are kept."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import scanforge as sf
from tests import recurrences
from tests.catalogue import generator
from tests.pytorch.calls import Called, every, gradients, of_recurrence, weighed
from tests.subprocesses import ROOT, run_python

CALLS = every()
every_call = pytest.mark.parametrize("call", CALLS, ids=[c.name for c in CALLS])
Decay = recurrences.declared.Decay


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def leaves(call: Called) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for x in call.floats]


def assert_same(got, want) -> None:
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x, y)


@every_call
def test_checkpoint_recomputes_the_same(call: Called):
    got = gradients(lambda *floats: checkpoint(call.scan, *floats, use_reentrant=False), call.floats)
    assert_same(got, gradients(call.scan, call.floats))


@every_call
def test_saved_tensors_may_be_moved(call: Called):
    """What is saved for the backward pass goes through hooks, and nothing else is read there."""
    packed: list[Tensor] = []

    def pack(x: Tensor) -> int:
        packed.append(x.clone())
        return len(packed) - 1

    wanted = leaves(call)
    with saved_tensors_hooks(pack, lambda k: packed[k]):
        loss = weighed(call.scan(*wanted))
    assert packed
    got = torch.autograd.grad(loss, wanted, materialize_grads=True, allow_unused=True)
    assert_same(got, gradients(call.scan, call.floats))


def test_saved_on_the_cpu():
    call = of_recurrence(recurrences.BY_NAME["SelectiveSSM"])
    wanted = leaves(call)
    with save_on_cpu():
        loss = weighed(call.scan(*wanted))
    assert_same(torch.autograd.grad(loss, wanted), gradients(call.scan, call.floats))


@every_call
def test_backward_twice_and_a_graph_that_is_kept(call: Called):
    wanted = leaves(call)
    loss = weighed(call.scan(*wanted))
    options = {"materialize_grads": True, "allow_unused": True}
    first = torch.autograd.grad(loss, wanted, retain_graph=True, **options)
    assert_same(torch.autograd.grad(loss, wanted, retain_graph=True, **options), first)
    with_graph = torch.autograd.grad(loss, wanted, create_graph=True, **options)
    for x, y in zip(with_graph, first, strict=True):
        assert torch.allclose(x, y, rtol=1e-12, atol=1e-12)
    torch.autograd.grad(loss, wanted, **options)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, wanted, **options)


def test_gradients_accumulate_over_two_backward_passes():
    call = of_recurrence(recurrences.BY_NAME["HGRN2"])
    wanted = leaves(call)
    weighed(call.scan(*wanted)).backward(retain_graph=False)
    once = [x.grad.clone() for x in wanted]
    weighed(call.scan(*wanted)).backward()
    assert_same([x.grad for x in wanted], [2 * x for x in once])


def test_a_tensor_that_is_written_before_the_backward_pass_is_an_error():
    a, b = drawn(2, 5, 3).requires_grad_(), drawn(2, 5, 3)
    loss = sf.scan(sf.Affine, a=a, b=b).sum()
    b.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(loss, a)


def test_outputs_may_be_written():
    """They are the caller's: no view of anything, and what the backward pass needs of them is noticed."""
    a, b = drawn(2, 5, 3).requires_grad_(), drawn(2, 5, 3)
    states = sf.scan(sf.Affine, a=a, b=b)
    states.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(states.sum(), a)
    with torch.no_grad():
        states = sf.scan(sf.Affine, a=a, b=b)
        assert torch.equal(states.clone().mul_(2), states.mul_(2))


@pytest.mark.parametrize("segments", [1, 3])
def test_checkpoint_of_a_stack(segments):
    torch.manual_seed(0)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.w = torch.nn.Linear(4, 4), torch.nn.Parameter(torch.rand(4))

        def forward(self, x: Tensor) -> Tensor:
            return x + sf.scan(Decay, x=self.gate(x), w=self.w)

    stack, x = torch.nn.Sequential(*(Layer() for _ in range(3))).double(), drawn(2, 7, 4)
    want = torch.autograd.grad(stack(x).square().sum(), tuple(stack.parameters()))
    out = checkpoint_sequential(stack, segments, x, use_reentrant=False)
    assert_same(torch.autograd.grad(out.square().sum(), tuple(stack.parameters())), want)


def test_checkpoint_inside_a_compiled_function():
    call = of_recurrence(recurrences.BY_NAME["RGLRU"])
    compiled = torch.compile(
        lambda *floats: checkpoint(call.scan, *floats, use_reentrant=False),
        backend="aot_eager",
        fullgraph=True,
    )
    assert_same(gradients(compiled, call.floats), gradients(call.scan, call.floats))


def test_req49_twenty_backward_passes_are_the_same_bits():
    """Shared parameters, deterministic mode on: nothing raises, nothing differs."""
    call = of_recurrence(
        recurrences.BY_NAME["SelectiveSSM"], torch.float32, {"b": 3, "t": 200, "d": 5, "n": 4}
    )
    torch.use_deterministic_algorithms(True)
    try:
        first = gradients(call.scan, call.floats)
        for _ in range(19):
            assert_same(gradients(call.scan, call.floats), first)
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(gradients(call.scan, call.floats), first)


def test_threads_do_not_disturb_each_other():
    call = of_recurrence(recurrences.BY_NAME["GatedLinearAttention"])
    want, found = gradients(call.scan, call.floats), []

    def work() -> None:
        for _ in range(5):
            found.append(gradients(call.scan, call.floats))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    for got in found:
        assert_same(got, want)


FIRST_CALLS = """
import sys, threading, torch
import scanforge as sf

a, b = (torch.rand(2, 40, 16, device=sys.argv[1]) for _ in range(2))
start, found, errors = threading.Barrier(8), [], []

def work():
    x = a.clone().requires_grad_()
    start.wait()
    try:
        for _ in range(5):
            y = sf.scan(sf.Affine, a=x, b=b)
            found.append((y.detach(), *torch.autograd.grad(y.cos().sum(), x)))
    except BaseException as error:
        errors.append(error)

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not errors, errors
assert len(found) == 40
assert all(torch.equal(x, y) for xs in found for x, y in zip(xs, found[0], strict=True))
"""


def test_threads_may_all_be_the_first():
    """What is defined at first use is defined once, whoever comes first."""
    run_python("-c", FIRST_CALLS, "cpu", cwd=ROOT)
