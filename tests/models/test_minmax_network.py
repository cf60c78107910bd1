"""MinMaxRNC: the original's numbers and state_dicts, pieces, reset, and the protocol."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from models.minmax import MinMaxRNC, MinMaxRNCConfig
from tests.catalogue import chance, generator
from tests.models import protocol
from tests.models.golden import golden
from tests.models.protocol import TIGHT, drawn, refused

GOLDEN = golden("minmax_rnc_v010")
EXACT = {"rtol": 1e-12, "atol": 1e-13}
OLD = MinMaxRNCConfig(6, 2, 5, version="0.1.0")
GOLDEN_CASES = {
    "v010_gated_ln": OLD,
    "v010_basic_rms": replace(
        OLD, conv_type="basic", norm="rmsnorm", postlayers_norm="rmsnorm", ffn_type="basic",
        ffn_act_fn="swish", use_postlayers_ffn=True, output_gate=False,
    ),
}  # fmt: skip
TINY = MinMaxRNCConfig(3, 2, 2, train_init=True)
VARIANTS = {
    "0.3.0": TINY,
    "0.1.0": replace(TINY, version="0.1.0", use_postlayers_ffn=True),
    "none": replace(TINY, norm="none", postlayers_norm="none", ffn_act_fn="gelu", output_gate=False),
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def build(variant):
    return lambda: MinMaxRNC(VARIANTS[variant])


def made(variant):
    return protocol.seeded(build(variant))


def golden_parameters(case):
    head = f"{case}/param/"
    return {key.removeprefix(head): x for key, x in GOLDEN.items() if key.startswith(head)}


@pytest.mark.parametrize("case", GOLDEN_CASES)
@pytest.mark.parametrize("unroll_steps", [None, 1, 4, 9, 100])
def test_golden_values_from_a_state_dict_of_the_original(case, unroll_steps):
    model = MinMaxRNC(GOLDEN_CASES[case]).double()
    model.load_state_dict(golden_parameters(case))
    u = GOLDEN[f"{case}/u"].clone().requires_grad_()
    y, state = model(u, unroll_steps, None, True)
    torch.testing.assert_close(y, GOLDEN[f"{case}/y"], **EXACT)
    for i, layer in enumerate(state):
        for part in ("conv", "neuron"):
            torch.testing.assert_close(layer[part], GOLDEN[f"{case}/state{i}/{part}"], **EXACT)
    (y * GOLDEN[f"{case}/cot_y"]).sum().backward()
    torch.testing.assert_close(u.grad, GOLDEN[f"{case}/grad_u"], **EXACT)


def test_a_state_dict_of_0_3_0_has_these_names():
    model = MinMaxRNC(MinMaxRNCConfig(6, 1, 5))
    layer = (
        "conv._initial_state conv.conv_fn.weight conv.conv_fn.bias neuron._initial_state neuron.s.weight "
        "neuron.s.bias neuron.r.weight neuron.r.bias neuron.o.weight neuron.o.bias neuron.o_g.weight "
        "neuron.o_g.bias ffn.proj_up.weight ffn.proj_up.bias ffn.proj_down.weight ffn.proj_down.bias "
        "norm_ffn.weight norm_ffn.bias norm_neuron.weight norm_neuron.bias norm_conv.weight norm_conv.bias"
    )
    names = {f"layers.0.{name}" for name in layer.split()} | {
        "postlayers_norm.weight",
        "postlayers_norm.bias",
    }
    assert set(model.state_dict()) == names


def test_a_loop_over_layers_and_steps_written_out():
    """0.3.0 from its equations, on LayerNorms and projections of its own."""
    model = made("0.3.0")()
    u = drawn(model, 2, 8)
    rows = [list(u.unbind(1))]
    for layer in model.layers:
        before = layer.conv._initial_state.expand(2, -1)
        x, out = layer.neuron._initial_state.expand(2, -1), []
        for u_t in rows[-1]:
            normed = normal(layer.norm_conv, u_t)
            c = linear(layer.conv.conv_fn, torch.cat([before, normed], -1))
            up = linear(layer.ffn.proj_up, normal(layer.norm_ffn, u_t + c))
            half = up.shape[-1] // 2
            f = linear(layer.ffn.proj_down, up[:, :half].clamp(min=0) * up[:, half:])
            read = normal(layer.norm_neuron, u_t + c + f)
            x = torch.maximum(torch.minimum(linear(layer.neuron.r, read), x), linear(layer.neuron.s, read))
            gate = 1 / (1 + torch.exp(-linear(layer.neuron.o_g, read)))
            out.append(u_t + linear(layer.neuron.o, x * gate))
            before = normed
        rows.append(out)
    want = torch.stack([normal(model.postlayers_norm, x) for x in rows[-1]], 1)
    torch.testing.assert_close(model(u), want, **TIGHT)


def linear(layer, x):
    return x @ layer.weight.T + layer.bias


def normal(layer, x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.weight + layer.bias


@every_variant
def test_req37_chunks_and_steps(variant):
    protocol.check_chunks_and_steps(made(variant))


@every_variant
def test_gradients_through_chunks(variant):
    protocol.check_gradients_through_chunks(made(variant))


@every_variant
def test_resets_are_separate_runs(variant):
    protocol.check_resets_are_separate_runs(made(variant))


@every_variant
def test_packed_are_separate_runs(variant):
    protocol.check_packed_are_separate_runs(made(variant))


@every_variant
def test_req38_padding(variant):
    protocol.check_padding(made(variant))


@every_variant
def test_req27_short_sequences(variant):
    protocol.check_short_sequences(made(variant))


@every_variant
def test_req24_req40_state_types(variant):
    protocol.check_state_types(made(variant), build(variant))


@every_variant
def test_gradcheck(variant):
    protocol.check_gradcheck(made(variant), steps=3)


@pytest.mark.parametrize("unroll_steps", [1, 4, 12])
def test_pieces_change_nothing_with_any_boundaries(unroll_steps):
    model = made("0.3.0")()
    x = drawn(model, 2, 12)
    _, start = model(drawn(model, 2, 3), return_state=True)
    flags = {"reset": chance(generator(1), (2, 12), 0.2), "mask": chance(generator(2), (2, 12), 0.7)}
    want = model(x, state=start, return_state=True, **flags)
    got = model(x, unroll_steps, start, True, **flags)
    torch.testing.assert_close(got, want, **TIGHT)
    packed, cu = x.reshape(1, 24, 3), torch.tensor([0, 0, 3, 17, 24])
    _, start = model(drawn(model, 4, 3), return_state=True)
    want = model(packed, state=start, return_state=True, cu_seqlens=cu)
    torch.testing.assert_close(model(packed, unroll_steps, start, True, cu_seqlens=cu), want, **TIGHT)


def test_states_without_a_batch_and_the_property_of_the_original():
    model = made("0.1.0")()
    u = drawn(model, 3, 7)
    flat = [{k: x[0] for k, x in layer.items()} for layer in model.initial_state(1)]
    want = model(u, 5)
    assert torch.equal(model(u, 5, flat), want)
    assert torch.equal(model(u, 5, state=model.initial_state), want)
    torch.testing.assert_close(model.step(u[:, 0], flat)[0], want[:, 0], **TIGHT)


def test_reset_draws_anew_into_the_same_parameters():
    model = made("0.1.0")()
    before = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
    model.reset()
    for name, p in model.named_parameters():
        kept, old = before[name]
        assert p is kept
        assert p.dtype == torch.float64
        assert not torch.equal(p, old), name
        if "norm" in name:
            assert torch.equal(p.detach(), torch.full_like(p, float(name.endswith("weight"))))
    assert not any(s.any() for layer in model.initial_state(1) for s in layer.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_req48_autocast(dtype):
    model = build("0.3.0")()
    x = drawn(model, 2, 9, torch.float32).requires_grad_()
    with torch.autocast("cpu", dtype):
        y, state = model(x, return_state=True)
    assert {s.dtype for layer in state for s in layer.values()} == {torch.float32}
    y.sum().backward()
    assert x.grad.dtype == torch.float32
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_state_errors():
    protocol.check_state_errors(made("0.3.0"))
    model = made("0.3.0")()
    x, state = drawn(model, 2, 4), model.initial_state(2)
    refused(lambda: model(x, state=state[:1]), "MinMaxRNC", "length 1", "list of 2")
    refused(lambda: model(x, state=[state[0], None, state[1]]), "length 3", "list of 2")
    refused(lambda: model(x, unroll_steps=0), "unroll_steps=0", "at least 1")
    refused(lambda: model(x, state), "unroll_steps=", "at least 1")
    refused(lambda: model.step(x, state), "x_t", "(B, 3)")
