"""The selective SSMs against loops from the papers, and where the original system goes wrong."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor

import scanforge as sf
from models.ssm import Euler, GroupedEuler, GroupedZeroOrderHold, MultiScaleSSM, SelectiveSSM, ZeroOrderHold
from models.ssm.initial import before_softplus
from tests.models.protocol import drawn, in_pieces, seeded
from tests.models.ssm_loops import multiscale, selective
from tests.tolerances import assert_close

F64 = torch.float64
TIGHT = {"rtol": 1e-12, "atol": 1e-12}
RULES = ["euler", "zoh"]


def gradients(layer: torch.nn.Module, leaves: list[Tensor], y: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    """Those of every parameter and leaf, for a weight on every output."""
    loss = (y * drawn(layer, *y.shape[:2]).cos()).sum() + (h * torch.ones_like(h).cumsum(-1)).sum()
    return torch.autograd.grad(loss, [*leaves, *layer.parameters()])


@pytest.mark.parametrize("rule", RULES)
def test_multiscale_is_the_loop(rule):
    layer = seeded(lambda: MultiScaleSSM(6, num_scales=3, state_size=5, discretisation=rule))()
    u = drawn(layer, 2, 23).requires_grad_()
    h0 = torch.randn(2, 12, 5, dtype=F64).requires_grad_()
    got, want = layer(u, h0, True), multiscale(layer, u, h0)
    torch.testing.assert_close(got, want, **TIGHT)
    both = (gradients(layer, [u, h0], *pair) for pair in (got, want))
    torch.testing.assert_close(*both, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("bias", [False, True])
def test_selective_is_the_loop(rule, groups, bias):
    def build() -> SelectiveSSM:
        return SelectiveSSM(
            6, 4, expand=1, dt_rank=2, n_groups=groups, discretisation=rule, bias=bias, conv_bias=bias
        )

    layer = seeded(build)()
    u = drawn(layer, 2, 13).requires_grad_()
    y, state = layer(u, return_state=True)
    got, want = (y, state["ssm"]), selective(layer, u)
    torch.testing.assert_close(got, want, **TIGHT)
    both = (gradients(layer, [u], *pair) for pair in (got, want))
    torch.testing.assert_close(*both, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("d_model", "scales", "n"), [(64, 4, 16), (32, 2, 8)])
def test_the_original_s_defect_is_not_here(d_model, scales, n):
    """At its own start, 64 steps, where its scan has lost two thirds of y and more of the gradients.

    D is 0, so that the skip does not hide the states.
    """
    torch.manual_seed(0)
    layer = MultiScaleSSM(d_model, scales, n)
    with torch.no_grad():
        layer.D.zero_()
    exact = MultiScaleSSM(d_model, scales, n).double()
    exact.load_state_dict(layer.state_dict())
    u, h0 = drawn(layer, 2, 64), torch.zeros(2, 2 * d_model, n, dtype=F64)
    want = multiscale(exact, u, h0)
    torch.testing.assert_close(exact(u, None, True), want, rtol=1e-12, atol=1e-14)
    got = layer(u.float(), None, True)
    for value, truth in zip(got, want, strict=True):
        assert_close(value, truth, "forward")
    names = [name for name, _ in layer.named_parameters()]
    pairs = zip(gradients(layer, [], *got), gradients(exact, [], *want), strict=True)
    for name, (value, truth) in zip(names, pairs, strict=True):
        assert_close(value, truth, "gradient", name)


def test_the_original_s_decoding_gap_is_not_here():
    """Stepping an untouched layer gives what its pass over the sequence gives."""
    layer = MultiScaleSSM(64)
    u = torch.randn(1, 64, 64)
    assert_close(in_pieces(layer, u, [1] * 64)[0], layer(u).detach().double(), "forward", dtype=torch.float32)


@pytest.mark.parametrize("rule", RULES)
def test_long_sequences(rule):
    """4096 steps: float64 is the loop, float32 as near as its rounding lets it be."""
    layer = seeded(lambda: MultiScaleSSM(4, 2, 3, discretisation=rule))()
    u, h0 = drawn(layer, 1, 4096), torch.zeros(1, 8, 3, dtype=F64)
    with torch.no_grad():
        want = multiscale(layer, u, h0)
        for y, truth in zip(layer(u, return_state=True), want, strict=True):
            assert_close(y, truth, "forward")
        for y, truth in zip(layer.float()(u.float(), return_state=True), want, strict=True):
            assert_close(y, truth, "forward")


def open_gates(A_log: Tensor, dt: Tensor, **more: Tensor) -> dict[str, Tensor]:
    """Inputs of one channel and one state: C = 1, D = 0."""
    one = torch.ones(1, len(dt), 1, dtype=dt.dtype)
    zero = torch.zeros(1, dtype=dt.dtype)
    names = {"x": one, "z": one, "B": one, "C": one, "dt": before_softplus(dt)[None, :, None]}
    return {**names, "A_log": A_log.reshape(1, 1), "D": zero, "bias": zero, **more}


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_zero_order_hold_keeps_its_digits(dtype):
    """From states that hardly decay in a step to states that forget at once: the gain of one step."""
    for log_rate in (-12.0, -6.0, 0.0, 3.0, 5.0):
        for dt in (1e-3, 0.1, 2.0):
            inputs = open_gates(torch.tensor(log_rate, dtype=dtype), torch.tensor([dt], dtype=dtype))
            _, h = sf.scan(ZeroOrderHold, **inputs, return_final_state=True)
            with mpmath.workdps(60):
                rate = mpmath.exp(log_rate)
                gain = float((1 - mpmath.exp(-mpmath.mpf(dt) * rate)) / rate)
            assert_close(h.double().flatten(), torch.tensor([gain], dtype=F64), "forward", dtype=dtype)


@pytest.mark.parametrize(("rate", "dt", "ratio"), [(1.0, 0.01, 1.005), (16.0, 0.1, 2.0), (128.0, 0.1, 12.8)])
def test_how_far_euler_is_from_zero_order_hold(rate, dt, ratio):
    inputs = open_gates(torch.tensor(rate, dtype=F64).log(), torch.tensor([dt], dtype=F64))
    finals = [sf.scan(rule, **inputs, return_final_state=True)[1] for rule in (Euler, ZeroOrderHold)]
    assert (finals[0] / finals[1]).item() == pytest.approx(ratio, rel=5e-3)


@pytest.mark.parametrize("n", [1, 3, 5, 12, 24])
@pytest.mark.parametrize("d", [1, 3, 17, 31])
def test_req28_sizes_that_are_no_powers_of_two(d, n):
    """A pass, a step, packed sequences and gradients."""
    layer = seeded(lambda: SelectiveSSM(d, n, expand=1))()
    u = drawn(layer, 1, 7).requires_grad_()
    want, h = selective(layer, u)
    y, state = layer(u, return_state=True)
    torch.testing.assert_close((y, state["ssm"]), (want, h), **TIGHT)
    both = (gradients(layer, [u], *pair) for pair in ((y, state["ssm"]), (want, h)))
    torch.testing.assert_close(*both, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(in_pieces(layer, u, [6, 1])[0], want, **TIGHT)
    packed = layer(u, cu_seqlens=torch.tensor([0, 3, 7]))
    torch.testing.assert_close(packed[:, :3], want[:, :3], **TIGHT)
    torch.testing.assert_close(packed[:, 3:], selective(layer, u[:, 3:])[0], **TIGHT)


@pytest.mark.parametrize("declaration", [Euler, ZeroOrderHold, GroupedEuler, GroupedZeroOrderHold])
def test_nothing_of_the_size_of_all_states_goes_in_or_out(declaration):
    """Time, channels and states meet in no tensor of a call: only in the kernel."""
    axes = [
        set(field.axes)
        for owner in declaration.__mro__
        for field in vars(owner).values()
        if isinstance(field, sf.Input | sf.Output | sf.State)
    ]
    assert len(axes) >= 9
    assert not any({"t", "d", "n"} <= found for found in axes)
