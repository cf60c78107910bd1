"""torch.compile of a three-layer stack of each mixer: a full graph, eager's outputs and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from models import RecurrentLM
from models.named import MIXERS
from tests.catalogue import generator
from tests.models.test_lm_mixers import ARGS
from tests.tolerances import err

slow = pytest.mark.slow
backends = pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=slow)])


def drawn(batch: int, steps: int) -> Tensor:
    return torch.randint(11, (batch, steps), generator=generator(steps))


def stack(name: str) -> RecurrentLM:
    torch.manual_seed(0)
    return RecurrentLM(11, 8, 3, name, mixer_args=ARGS[name], ffn="gated", init_std=0.5)


def outcome(run, model: RecurrentLM, tokens: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    logits = run(tokens)
    logits.square().mean().backward()
    return {
        "logits": logits.detach(),
        **{n: p.grad for n, p in model.named_parameters() if p.grad is not None},
    }


def assert_eager(compiled, model: RecurrentLM, tokens: Tensor) -> None:
    """Equal to eager per parameter to 1e-5 in fp32."""
    got, want = (outcome(run, model, tokens) for run in (compiled, model))
    assert got.keys() == want.keys()
    for part, x in got.items():
        assert err(x, want[part]) <= 1e-5, part


@pytest.mark.parametrize("name", MIXERS)
def test_req41_a_stack_is_one_graph_for_all_lengths(name: str):
    model, counter = stack(name), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for batch, steps in ((2, 12), (3, 19), (2, 33)):
        tokens = drawn(batch, steps)
        for axis in range(2):
            torch._dynamo.mark_dynamic(tokens, axis)
        assert_eager(compiled, model, tokens)
    assert len(counter.graphs) == 1


@pytest.mark.parametrize("name", [n if n == "minmax" else pytest.param(n, marks=slow) for n in MIXERS])
@backends
def test_req41_a_stack_whose_numbers_are_dynamic_too(name: str, backend: str):
    """As `dynamic=True` has it: floats of layers are inputs of the graph, where torch does not fix them."""
    model, counter = stack(name), CompileCounterWithBackend(backend)
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    graphs = 0
    for steps in (12, 19, 33):
        assert_eager(compiled, model, drawn(2, steps))
        graphs = graphs or len(counter.graphs)  # more than one where torch begins anew, with a number fixed
        if backend == "aot_eager":  # Inductor on a CPU fixes the length of a convolution
            assert len(counter.graphs) == graphs


@pytest.mark.parametrize("name", MIXERS)
def test_req42_a_stack_is_exported_with_a_node_for_each_scan(name: str):
    model = stack(name).eval()
    sizes = {0: torch.export.Dim("b", min=2, max=64), 1: torch.export.Dim("t", min=2, max=4096)}
    program = torch.export.export(model, (drawn(2, 9),), dynamic_shapes=(sizes,))
    assert str(program.graph).count("torch.ops.scanforge.scan.default") == 3
    for batch, steps in [(2, 9), (3, 40)]:
        tokens = drawn(batch, steps)
        assert err(program.module()(tokens), model(tokens)) <= 1e-5
