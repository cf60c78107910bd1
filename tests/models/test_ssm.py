"""What the protocol asks, of every selective SSM."""

from __future__ import annotations

import io

import pytest
import torch

from models.mixer import tensors
from models.ssm import MultiScaleSSM, SelectiveSSM
from tests.models import protocol
from tests.models.protocol import in_pieces, seeded
from tests.subprocesses import run_python
from tests.tolerances import assert_close, err

LAYERS = {
    "multiscale": lambda: MultiScaleSSM(6, num_scales=2, state_size=3),
    "multiscale zoh": lambda: MultiScaleSSM(5, 1, 2, 1, discretisation="zoh", dt_init="exact"),
    "selective": lambda: SelectiveSSM(6, d_state=3),
    "selective zoh": lambda: SelectiveSSM(5, 2, d_conv=2, expand=1, discretisation="zoh", conv_bias=False),
    "selective groups": lambda: SelectiveSSM(6, 2, n_groups=3, dt_rank=2, bias=True),
    "selective groups zoh": lambda: SelectiveSSM(4, 2, 1, n_groups=2, discretisation="zoh", bias=True),
}
every_layer = pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)


@every_layer
def test_req37_chunks_and_steps_are_one_run(build):
    protocol.check_chunks_and_steps(seeded(build))


@every_layer
def test_gradients_through_chunks(build):
    protocol.check_gradients_through_chunks(seeded(build))


@every_layer
def test_req39_resets_are_separate_runs(build):
    protocol.check_resets_are_separate_runs(seeded(build))


@every_layer
def test_packed_are_separate_runs(build):
    protocol.check_packed_are_separate_runs(seeded(build))


@every_layer
def test_req38_padding(build):
    protocol.check_padding(seeded(build))


@every_layer
def test_req27_short_sequences(build):
    protocol.check_short_sequences(seeded(build))


@every_layer
def test_req24_req37_req40_state_types(build):
    protocol.check_state_types(seeded(build), build)


@every_layer
def test_req48_mixed_precision(build):
    protocol.check_mixed_precision(build)


@every_layer
def test_gradcheck(build):
    protocol.check_gradcheck(seeded(build))


@every_layer
def test_state_errors(build):
    protocol.check_state_errors(seeded(build))


@pytest.mark.parametrize(
    "build", [LAYERS["multiscale"], LAYERS["selective"]], ids=["multiscale", "selective"]
)
def test_req24_decoding_after_a_long_prefill(build):
    """16-bit weights, 2048 steps at once and 64 alone; a saved state is the state."""
    layer = seeded(build, torch.bfloat16)()
    x = protocol.drawn(layer, 1, 2112, torch.bfloat16)
    with torch.no_grad():
        whole = layer(x)
        _, state = layer(x[:, :2048], return_state=True)
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        loaded = torch.load(file)
        assert all(torch.equal(a, b) for a, b in zip(tensors(loaded), tensors(state), strict=True))
        y, _ = in_pieces(layer, x[:, 2048:], [1] * 64, loaded)
    assert err(y, whole[:, 2048:]) <= 4e-3


@every_layer
def test_req37_float32(build):
    """In float32 pieces are one run to its digits."""
    layer = seeded(build, torch.float32)()
    x = protocol.drawn(layer, 2, 40, torch.float32)
    y, _ = in_pieces(layer, x, [7, 1, 32])
    assert_close(y, layer(x), "gradient")


@pytest.mark.parametrize("expand", [0.5, 1, 2])
def test_req40_state_size_follows_the_expansion(expand):
    layer = SelectiveSSM(8, 4, expand=expand)
    _, state = layer(torch.randn(1, 3, 8), return_state=True)
    assert layer.state_size == sum(s.numel() for s in state.values()) == int(8 * expand) * (4 + 3)


def test_the_state_given_may_be_narrower():
    """cortexnet's models hand on a 16-bit state: it is taken up in the dtype of the computation."""
    layer, x = MultiScaleSSM(4, 2, 3), torch.randn(2, 5, 4)
    past = torch.randn(2, 8, 3).bfloat16()
    got, state = layer(x, past, True)
    want, _ = layer(x, past.float(), True)
    assert state.dtype == torch.float32
    assert torch.equal(got, want)


def test_req50_runs_without_triton(tmp_path):
    program = """
import sys
sys.modules["triton"] = None
import torch
from models.ssm import MultiScaleSSM, SelectiveSSM
for layer in (MultiScaleSSM(4), SelectiveSSM(4)):
    layer(torch.randn(2, 5, 4)).sum().backward()
    layer.step(torch.randn(2, 4), layer.initial_state(2))
print("ran")
"""
    assert run_python("-c", program, cwd=tmp_path).strip() == "ran"
