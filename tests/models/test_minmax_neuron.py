"""MinMaxNeuron: the original's numbers, a loop from the paper, and the protocol."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from models.minmax import MinMaxNeuron, MinMaxNeuronConfig
from tests.models import protocol
from tests.models.golden import golden
from tests.models.protocol import F64, TIGHT, drawn, refused
from tests.tolerances import err

GOLDEN = golden("minmax_neuron")
CASES = {"v010_gate1": "0.1.0", "v010_gate0": "0.1.0", "v030_gate1": "0.3.0", "v030_gate0": "0.3.0"}
EXACT = {"rtol": 1e-12, "atol": 1e-13}
TINY = MinMaxNeuronConfig(2, d_model=3, d_state=4, train_init=True)
FORMS = {
    "sigmoid": TINY,
    "linear": replace(TINY, gate="linear"),
    "none": replace(TINY, output_gate=False),
}
every_form = pytest.mark.parametrize("form", FORMS)


def build(form):
    return lambda: MinMaxNeuron(FORMS[form])


def case_of(case):
    """The neuron of a golden case, with its arrays."""
    arrays = {key.removeprefix(f"{case}/"): x for key, x in GOLDEN.items() if key.startswith(f"{case}/")}
    cfg = MinMaxNeuronConfig(
        2, d_model=4, d_state=5, train_init=True, output_gate=case.endswith("1"), version=CASES[case]
    )
    neuron = MinMaxNeuron(cfg).double()
    neuron.load_state_dict({k.removeprefix("param/"): x for k, x in arrays.items() if k.startswith("param/")})
    return neuron, arrays


@pytest.mark.parametrize("case", CASES)
def test_golden_values_and_gradients(case):
    neuron, arrays = case_of(case)
    u = arrays["u"].clone().requires_grad_()
    y, last = neuron(u, return_state=True)
    torch.testing.assert_close(y, arrays["y"], **EXACT)
    torch.testing.assert_close(last, arrays["last_state"], **EXACT)
    ((y * arrays["cot_y"]).sum() + (last * arrays["cot_last"]).sum()).backward()
    torch.testing.assert_close(u.grad, arrays["grad_u"], **EXACT)
    for name, p in neuron.named_parameters():
        torch.testing.assert_close(p.grad, arrays[f"grad_param/{name}"], **EXACT)


@pytest.mark.parametrize("case", CASES)
def test_golden_chunks_in_the_original_s_calling_form(case):
    neuron, arrays = case_of(case)
    state = neuron._initial_state  # (D,): no batch yet
    for i, u in enumerate(arrays["u"].split(4, 1)):
        y, state = neuron(u, state)
        torch.testing.assert_close(y, arrays[f"chunk{i}_y"], **EXACT)
        torch.testing.assert_close(state, arrays[f"chunk{i}_state"], **EXACT)


@every_form
def test_a_loop_over_the_equations(form):
    neuron = protocol.seeded(build(form))()
    u = drawn(neuron, 2, 15)
    x = neuron._initial_state.expand(2, -1)
    for t in range(15):
        r = u[:, t] @ neuron.r.weight.T + neuron.r.bias
        s = u[:, t] @ neuron.s.weight.T + neuron.s.bias
        x = torch.where(torch.where(r < x, r, x) < s, s, torch.where(r < x, r, x))
        gate = torch.ones(()) if form == "none" else u[:, t] @ neuron.o_g.weight.T + neuron.o_g.bias
        gate = 1 / (1 + torch.exp(-gate)) if form == "sigmoid" else gate
        want = (gate * x) @ neuron.o.weight.T + neuron.o.bias
        torch.testing.assert_close(neuron(u)[:, t], want, **TIGHT)
    torch.testing.assert_close(neuron(u, return_state=True)[1], x, **TIGHT)


@every_form
def test_req37_chunks_and_steps(form):
    protocol.check_chunks_and_steps(protocol.seeded(build(form)))


@every_form
def test_gradients_through_chunks(form):
    protocol.check_gradients_through_chunks(protocol.seeded(build(form)))


@every_form
def test_resets_are_separate_runs_from_the_learned_state(form):
    protocol.check_resets_are_separate_runs(protocol.seeded(build(form)))


@every_form
def test_packed_are_separate_runs(form):
    protocol.check_packed_are_separate_runs(protocol.seeded(build(form)))


@every_form
def test_req38_padding(form):
    protocol.check_padding(protocol.seeded(build(form)))


@every_form
def test_req27_short_sequences(form):
    protocol.check_short_sequences(protocol.seeded(build(form)))


@every_form
def test_req24_req40_state_types(form):
    protocol.check_state_types(protocol.seeded(build(form)), build(form))


def test_req24_steps_after_a_long_prefill_in_bf16():
    neuron = protocol.seeded(build("sigmoid"))().bfloat16()
    u = drawn(neuron, 1, 2048 + 64, torch.bfloat16)
    whole = neuron(u)
    y, _ = protocol.in_pieces(neuron, u, [2048, *[1] * 64])
    assert err(y, whole) <= 4e-3
    assert torch.equal(y[:, :2048], whole[:, :2048])


@every_form
def test_req48_mixed_precision(form):
    protocol.check_mixed_precision(build(form))


@every_form
def test_gradcheck(form):
    protocol.check_gradcheck(protocol.seeded(build(form)))


def test_state_errors():
    protocol.check_state_errors(protocol.seeded(build("sigmoid")))


@pytest.mark.parametrize(("d", "n"), [(1, 1), (3, 17), (33, 5), (31, 96)])
def test_req28_odd_sizes(d, n):
    protocol.check_chunks_and_steps(protocol.seeded(lambda: MinMaxNeuron(MinMaxNeuronConfig(1, d, n))))


def test_states_without_a_batch_serve_every_sequence():
    neuron = protocol.seeded(build("sigmoid"))()
    u, x = drawn(neuron, 3, 7), torch.arange(4, dtype=F64)
    y, last = neuron(u, x.expand(3, -1))
    for state in (x, x[None]):
        again = neuron(u, state)
        assert torch.equal(again[0], y)
        assert torch.equal(again[1], last)
        torch.testing.assert_close(neuron.step(u[:, 0], state)[0], y[:, 0], **TIGHT)


def test_the_pair_comes_with_a_state_and_otherwise_when_asked_for():
    neuron = protocol.seeded(build("sigmoid"))()
    u = drawn(neuron, 2, 5)
    y, last = neuron(u, neuron.initial_state)  # as code for the original passes it
    assert torch.equal(neuron(u), y)
    assert torch.equal(neuron(u, return_state=True)[1], last)
    assert torch.equal(neuron(u, neuron.initial_state(2), return_state=False), y)


def test_the_initial_state_is_learned_or_not():
    assert dict(build("none")().named_parameters())["_initial_state"].requires_grad
    fixed = MinMaxNeuron(replace(TINY, train_init=False))
    assert "_initial_state" in fixed.state_dict()
    assert "_initial_state" not in dict(fixed.named_parameters())
    start = fixed.initial_state(1)
    start += 1
    assert not fixed._initial_state.any()


def test_dropout_is_of_the_input():
    torch.manual_seed(0)
    neuron = MinMaxNeuron(replace(TINY, dropout=1.0)).double().train()
    u = drawn(neuron, 2, 5)
    torch.testing.assert_close(neuron(u), neuron(torch.zeros_like(u)), **TIGHT)
    assert not torch.equal(neuron.eval()(u), neuron(torch.zeros_like(u)))


def test_nan_propagates():
    neuron = protocol.seeded(build("sigmoid"))()
    u = drawn(neuron, 1, 6)
    u[0, 2] = float("nan")
    assert neuron(u).isnan().all(-1)[0].tolist() == [False, False, True, True, True, True]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d_state": 0}, ("d_state=0", "at least 1")),
        ({"d_model": -1}, ("d_model=-1", "at least 1")),
        ({"_num_blocks": 1.5}, ("_num_blocks=1.5", "at least 1")),
        ({"dropout": 1.5}, ("dropout=1.5", "[0, 1]")),
        ({"gate": "tanh"}, ("gate='tanh'", "'sigmoid', 'linear'")),
        ({"s_r_init": "zeros"}, ("s_r_init='zeros'", "'small_init', 'kaiming', 'asymmetric'")),
        ({"version": "0.2.0"}, ("version='0.2.0'", "'0.1.0', '0.3.0'")),
    ],
)
def test_bad_configurations(changes, words):
    refused(lambda: replace(TINY, **changes), "MinMaxNeuronConfig", *words)
