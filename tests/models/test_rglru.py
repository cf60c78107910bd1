"""What the protocol asks, of RGLRU and RecurrentBlock in every variant."""

from __future__ import annotations

import pytest
import torch

from models.mixer import set_backend
from models.rglru import RGLRU, RecurrentBlock
from tests.models import protocol

VARIANTS = {
    "original": lambda: RGLRU(3),
    "wide": lambda: RGLRU(
        3, d_conv=2, expand=2, bias=True, conv_bias=False, c=5.0, gelu="tanh", a_init="power"
    ),
    "starting": lambda: RGLRU(5, gates="block", num_blocks=5, unit_start=True, a_init="ring"),
    "griffin": lambda: RecurrentBlock(4, num_heads=2),
    "griffin-wide": lambda: RecurrentBlock(3, width=6, num_heads=3, d_conv=1, gelu="exact", unit_start=False),
}
SMALL = {
    "original": lambda: RGLRU(2, d_conv=3),
    "starting": lambda: RGLRU(2, d_conv=2, gates="block", num_blocks=2, unit_start=True, gelu="tanh"),
    "griffin": lambda: RecurrentBlock(2, width=4, num_heads=2, d_conv=3),
}
every_variant = pytest.mark.parametrize("build", VARIANTS.values(), ids=VARIANTS)


@every_variant
def test_req37_chunks_and_steps_are_one_run(build):
    protocol.check_chunks_and_steps(protocol.seeded(build))


@every_variant
def test_gradients_through_chunks(build):
    protocol.check_gradients_through_chunks(protocol.seeded(build))


@every_variant
def test_resets_are_separate_runs(build):
    protocol.check_resets_are_separate_runs(protocol.seeded(build))


@every_variant
def test_packed_sequences_are_separate_runs(build):
    protocol.check_packed_are_separate_runs(protocol.seeded(build))


@every_variant
def test_req38_padding(build):
    protocol.check_padding(protocol.seeded(build))


@every_variant
def test_req27_short_sequences(build):
    protocol.check_short_sequences(protocol.seeded(build))


@every_variant
def test_req24_req40_state_types_and_sizes(build):
    protocol.check_state_types(protocol.seeded(build), build)


@every_variant
def test_req48_mixed_precision(build):
    protocol.check_mixed_precision(build)


@pytest.mark.parametrize("build", SMALL.values(), ids=SMALL)
def test_gradcheck(build):
    protocol.check_gradcheck(protocol.seeded(build))


@every_variant
def test_states_that_do_not_belong_here(build):
    protocol.check_state_errors(protocol.seeded(build))


@pytest.mark.parametrize("d_model", [1, 7, 31, 96])
@pytest.mark.parametrize("build", [RGLRU, RecurrentBlock], ids=["original", "griffin"])
def test_req28_sizes_that_are_no_powers_of_two(build, d_model):
    protocol.check_short_sequences(protocol.seeded(lambda: build(d_model)))


@pytest.mark.parametrize(("expand", "width"), [(0.5, 4), (1, 8), (2, 16)])
def test_req40_the_state_grows_with_expand(expand, width):
    assert RGLRU(8, expand=expand).state_size == width * 4 + width
    assert RGLRU(8, expand=expand, unit_start=True).state_size == width * 4 + width + 1
    assert RecurrentBlock(8, width=width).state_size == width * 3 + width + 1


def test_req24_long_decoding_after_a_prefill():
    torch.manual_seed(0)
    layer = RGLRU(16, a_init="power").to(torch.bfloat16).eval()
    x = torch.randn(1, 512, 16).to(torch.bfloat16)
    with torch.no_grad():
        whole = layer(x).double()
        cache = layer.allocate_inference_cache(1, 512)
        parts = [layer(x[:, :448], inference_cache=cache)]
        for t in range(448, 512):
            parts.append(layer.step(x[:, t : t + 1], cache)[0])
    error = (torch.cat(parts, 1).double() - whole).norm() / whole.norm()
    assert error <= 4e-3
    assert {cache[n].dtype for n in ("conv_state", "lrnn_state")} == {torch.float32}


def test_req50_the_reference_runs_without_a_device():
    layer = RecurrentBlock(4)
    chosen = layer(torch.ones(1, 3, 4))
    set_backend(layer, "reference")
    assert torch.equal(layer(torch.ones(1, 3, 4)), chosen)
    set_backend(layer, "nothing")
    with pytest.raises(ValueError, match="nothing"):
        layer(torch.ones(1, 3, 4))
