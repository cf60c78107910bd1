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

backends = pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])


def drawn(batch: int, steps: int) -> Tensor:
    return torch.randint(11, (batch, steps), generator=generator(steps))


def outcome(run, model: RecurrentLM, tokens: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    logits = run(tokens)
    logits.square().mean().backward()
    return {
        "logits": logits.detach(),
        **{n: p.grad for n, p in model.named_parameters() if p.grad is not None},
    }


@pytest.mark.parametrize("name", MIXERS)
@backends
def test_req41_a_stack_is_one_graph_for_all_lengths(name: str, backend: str):
    """Equal to eager per parameter to 1e-5 in fp32."""
    torch.manual_seed(0)
    model = RecurrentLM(11, 8, 3, name, mixer_args=ARGS[name], ffn="gated", init_std=0.5)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    graphs = 0
    for steps in (12, 19, 33):
        got, want = (outcome(run, model, drawn(2, steps)) for run in (compiled, model))
        assert got.keys() == want.keys()
        for part, x in got.items():
            assert err(x, want[part]) <= 1e-5, part
        graphs = graphs or len(counter.graphs)  # more than one where torch begins anew, with a number fixed
        if backend == "aot_eager":  # Inductor on a CPU fixes the length of a convolution
            assert len(counter.graphs) == graphs


@pytest.mark.parametrize("name", MIXERS)
def test_req42_a_stack_is_exported_with_a_node_for_each_scan(name: str):
    torch.manual_seed(0)
    model = RecurrentLM(11, 8, 3, name, mixer_args=ARGS[name], ffn="gated", init_std=0.5).eval()
    sizes = {0: torch.export.Dim("b", min=2, max=64), 1: torch.export.Dim("t", min=2, max=4096)}
    program = torch.export.export(model, (drawn(2, 9),), dynamic_shapes=(sizes,))
    assert str(program.graph).count("torch.ops.scanforge.scan.default") == 3
    for batch, steps in [(2, 9), (3, 40)]:
        tokens = drawn(batch, steps)
        assert err(program.module()(tokens), model(tokens)) <= 1e-5
