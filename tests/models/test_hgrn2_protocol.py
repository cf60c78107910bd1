"""What the protocol asks, of HGRN2Attention and HGRN2 in the variants whose code differs."""

from __future__ import annotations

import pytest
import torch

from models.hgrn2 import HGRN2, HGRN2Attention, LowerBounds, share_lower_bounds
from tests.models import protocol
from tests.models.protocol import refused, seeded


def attention(**options):
    return lambda: HGRN2Attention(hidden_size=6, num_heads=2, **options)


def paper(**options):
    return lambda: HGRN2(6, **({"num_heads": 2} | options))


def in_a_stack(**options):
    """The last of three layers that share their lower bounds."""

    def build():
        layers = [HGRN2(6, num_heads=2, **options) for _ in range(3)]
        share_lower_bounds(layers)
        return layers[-1]

    return build


BUILDS = {
    "original": attention(lower_bound=0.3),
    "original-convolved": attention(conv_size=3, bias=True),
    "key-free": attention(decay="key", expand_k=2, q_activation="sigmoid", scale=None, output_gate="none"),
    "value-tied": attention(keys="tied", lower_bound=torch.rand(2, 3), norm="rmsnorm"),
    "bitnet": attention(use_bitnet=True),
    "paper": in_a_stack(),
    "paper-convolved": in_a_stack(conv_size=4, conv_bias=True, output_gate="silu", expand_v=2, bias=True),
}
SOME = [BUILDS[n] for n in ("original", "value-tied", "paper-convolved")]
every_build = pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
some_builds = pytest.mark.parametrize("build", SOME, ids=["original", "value-tied", "paper-convolved"])


@every_build
def test_req37_chunks_and_steps_are_one_run(build):
    protocol.check_chunks_and_steps(seeded(build))


@some_builds
def test_gradients_through_chunks(build):
    protocol.check_gradients_through_chunks(seeded(build))


@every_build
def test_resets_are_separate_runs(build):
    protocol.check_resets_are_separate_runs(seeded(build))


@every_build
def test_packed_are_separate_runs(build):
    protocol.check_packed_are_separate_runs(seeded(build))


@every_build
def test_req38_padding(build):
    protocol.check_padding(seeded(build))


@some_builds
def test_req27_short_sequences(build):
    protocol.check_short_sequences(seeded(build))


# Not of BitLinear: what 16 bits round off flips steps of 1/127 of its activations.
@pytest.mark.parametrize("build", [BUILDS[n] for n in BUILDS if n != "bitnet"])
def test_req24_req37_req40_state_types(build):
    protocol.check_state_types(seeded(build), build)


@every_build
def test_req48_mixed_precision(build):
    protocol.check_mixed_precision(build)


@pytest.mark.parametrize(
    "build", [BUILDS[n] for n in ("original", "key-free", "value-tied", "paper-convolved")]
)
def test_gradcheck(build):
    protocol.check_gradcheck(seeded(build), batch=1, steps=3)


@every_build
def test_state_errors(build):
    protocol.check_state_errors(seeded(build))


@pytest.mark.parametrize("heads", [1, 3, 5])
@pytest.mark.parametrize(("k", "v"), [(3, 5), (17, 1), (24, 40)])
def test_req28_sizes_that_are_no_powers_of_two(heads, k, v):
    """Scan, backward, packed runs and steps at the same sizes."""
    width = 8
    layer = HGRN2(heads * width, heads, expand_k=k / width, expand_v=v / width).double()
    x = torch.randn(1, 7, heads * width, dtype=torch.float64, requires_grad=True)
    y, state = layer(x, return_state=True, cu_seqlens=torch.tensor([0, 3, 7]))
    assert state["S"].shape == (2, heads, k, v)
    y.sum().backward()
    assert x.grad.isfinite().all()
    parts, state = [], layer.initial_state(1)
    for t in range(3):
        y_t, state = layer.step(x[:, t], state)
        parts.append(y_t)
    torch.testing.assert_close(torch.stack(parts, 1), y[:, :3], rtol=1e-12, atol=1e-12)


def test_bidirectional_is_both_directions():
    torch.manual_seed(0)
    layer, x = HGRN2Attention(hidden_size=6, num_heads=2, norm="none", output_gate="none").double(), None
    both = HGRN2Attention(
        hidden_size=6, num_heads=2, norm="none", output_gate="none", bidirectional=True
    ).double()
    both.load_state_dict(layer.state_dict())
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    torch.testing.assert_close(both(x), layer(x) + layer(x.flip(1)).flip(1), rtol=1e-12, atol=1e-12)
    mask = torch.arange(9) < torch.tensor([[9], [4]])
    reset = torch.arange(9).eq(3).expand(2, 9)
    y = both(x, mask=mask, reset=reset)
    torch.testing.assert_close(y[:, :3], both(x[:, :3]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(y[1:, 3:4], both(x[1:, 3:4]), rtol=1e-12, atol=1e-12)
    packed = both(x[:1], cu_seqlens=torch.tensor([0, 4, 4, 9]))
    torch.testing.assert_close(packed[:, 4:], both(x[:1, 4:]), rtol=1e-12, atol=1e-12)


def test_bidirectional_carries_no_state():
    both = HGRN2Attention(hidden_size=6, num_heads=2, bidirectional=True)
    state = HGRN2Attention(hidden_size=6, num_heads=2).initial_state(2)
    x = torch.randn(2, 5, 6)
    for call in (
        lambda: both(x, state=state),
        lambda: both(x, return_state=True),
        lambda: both.step(x[:, 0], state),
        lambda: both.initial_state(2),
    ):
        refused(call, "HGRN2Attention", "bidirectional=True", "no state")


def test_lower_bounds_get_gradients_from_every_layer():
    layers = torch.nn.ModuleList(HGRN2(6, num_heads=2) for _ in range(3))
    bounds = share_lower_bounds(layers)
    assert isinstance(bounds, LowerBounds)
    assert sum(p is bounds.gamma for p in layers.parameters()) == 1
    y = torch.randn(2, 5, 6)
    for layer in layers:
        y = layer(y)
    y.square().sum().backward()
    assert bounds.gamma.grad.abs().min() > 0
