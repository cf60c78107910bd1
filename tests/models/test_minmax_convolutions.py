"""GatedConv and BasicConv: loops over two steps, the original's calling form, and the protocol."""

from __future__ import annotations

import pytest
import torch

from models.minmax import BasicConv, BasicConvConfig, GatedConv, GatedConvConfig
from tests.models import protocol
from tests.models.protocol import TIGHT, drawn, refused

BUILDS = {
    "gated": lambda: GatedConv(GatedConvConfig(3, 0.5)),
    "basic": lambda: BasicConv(BasicConvConfig(3)),
}
every_kind = pytest.mark.parametrize("kind", BUILDS)


def made(kind):
    """Weights that are no special values, the initial state neither."""
    seeded = protocol.seeded(BUILDS[kind])

    def make():
        conv = seeded()
        conv._initial_state += torch.tensor([0.3, -0.7, 1.1])
        return conv

    return make


def mixed(conv, before, u):
    if isinstance(conv, GatedConv):
        share = 1 / (1 + torch.exp(-conv.g))
        return share * before + (1 - share) * u
    d = u.shape[-1]
    weight = conv.conv_fn.weight
    return before @ weight[:, :d].T + u @ weight[:, d:].T + conv.conv_fn.bias


@every_kind
def test_a_loop_over_two_steps(kind):
    conv = made(kind)()
    u = drawn(conv, 2, 9)
    before = conv._initial_state.expand(2, -1)
    y, last = conv(u, conv.initial_state(2))
    for t in range(9):
        torch.testing.assert_close(y[:, t], mixed(conv, before, u[:, t]), **TIGHT)
        before = u[:, t]
    assert torch.equal(last, u[:, -1])


@every_kind
def test_req37_chunks_and_steps(kind):
    protocol.check_chunks_and_steps(made(kind))


@every_kind
def test_gradients_through_chunks(kind):
    protocol.check_gradients_through_chunks(made(kind))


@every_kind
def test_resets_are_separate_runs(kind):
    protocol.check_resets_are_separate_runs(made(kind))


@every_kind
def test_packed_are_separate_runs(kind):
    protocol.check_packed_are_separate_runs(made(kind))


@every_kind
def test_req38_padding(kind):
    protocol.check_padding(made(kind))


@every_kind
def test_req27_short_sequences(kind):
    protocol.check_short_sequences(made(kind))


@every_kind
def test_req24_req40_state_types(kind):
    protocol.check_state_types(made(kind), BUILDS[kind])


@every_kind
def test_gradcheck(kind):
    protocol.check_gradcheck(made(kind))


@every_kind
def test_state_errors(kind):
    protocol.check_state_errors(made(kind))


def test_req48_mixed_precision():
    protocol.check_mixed_precision(BUILDS["basic"])


def test_req48_a_gate_of_fp32_on_half_inputs_gives_half():
    conv = BUILDS["gated"]()
    u = drawn(conv, 2, 5, torch.bfloat16).requires_grad_()
    y, state = conv(u, return_state=True)
    assert (y.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    y.float().sum().backward()
    assert (u.grad.dtype, conv.g.grad.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize("d", [1, 17, 33])
def test_req28_odd_sizes(d):
    protocol.check_packed_are_separate_runs(protocol.seeded(lambda: GatedConv(GatedConvConfig(d))))
    protocol.check_packed_are_separate_runs(protocol.seeded(lambda: BasicConv(BasicConvConfig(d))))


@every_kind
def test_states_without_a_batch_serve_every_sequence(kind):
    conv = made(kind)()
    u, x = drawn(conv, 2, 4), torch.arange(3, dtype=torch.float64)
    want = conv(u, x.expand(2, -1))[0]
    assert torch.equal(conv(u, x)[0], want)
    assert torch.equal(conv(u, x[None])[0], want)
    assert torch.equal(conv(u, conv.initial_state)[0], conv(u))


@every_kind
def test_req24_a_state_of_another_dtype_is_carried_in_the_layer_s(kind):
    conv = BUILDS[kind]()
    u = drawn(conv, 2, 4, torch.float32)
    for dtype in (torch.bfloat16, torch.float64):
        state = conv.initial_state(2, dtype)
        for steps in (0, 4):
            y, after = conv(u[:, :steps], state)
            assert (y.dtype, after.dtype) == (torch.float32, torch.float32)


def test_the_gate_starts_where_it_is_told():
    assert torch.equal(GatedConv(GatedConvConfig(4, -2.0)).g.detach(), torch.full((4,), -2.0))
    assert not GatedConv(GatedConvConfig(4)).g.any()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GatedConvConfig(0), ("GatedConvConfig", "embedding_dim=0", "at least 1")),
        (lambda: BasicConvConfig(-3), ("BasicConvConfig", "embedding_dim=-3", "at least 1")),
        (lambda: BasicConvConfig(3, "wang"), ("init='wang'", "'scaled', 'default'")),
        (
            lambda: GatedConv(GatedConvConfig(3))(torch.zeros(2, 4, 3), torch.zeros(4)),
            ("GatedConv", "conv", "(4,)", "(2, 3)"),
        ),
        (lambda: GatedConv(GatedConvConfig(3)).step(torch.zeros(2, 4), None), ("x_t", "(2, 4)", "(B, 3)")),
    ],
)
def test_what_is_refused(make, words):
    refused(make, *words)
