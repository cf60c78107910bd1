"""RGLRU as lrnnx calls it: arguments, attributes, cache and step."""

from __future__ import annotations

import inspect

import pytest
import torch

from models.rglru import RGLRU
from tests.models.protocol import TIGHT, refused

F64 = torch.float64
X = torch.randn(2, 9, 4, dtype=F64, generator=torch.Generator().manual_seed(0))


def layer(**options) -> RGLRU:
    torch.manual_seed(0)
    return RGLRU(4, dtype=F64, **options).requires_grad_(False)


def test_the_arguments_are_the_original_s_in_its_order():
    given = inspect.signature(RGLRU).parameters.values()
    positional = {p.name: p.default for p in given if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert positional == {
        "d_model": inspect.Parameter.empty, "d_conv": 4, "expand": 1, "c": 8.0,
        "a_init_range": (0.9, 0.999), "conv_bias": True, "bias": False, "use_fast_path": True,
        "layer_idx": None, "device": None, "dtype": None,
    }  # fmt: skip
    given = inspect.signature(RGLRU.forward).parameters.values()
    positional = [p.name for p in given if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == ["self", "hidden_states", "integration_timesteps", "lengths", "inference_cache"]


def test_arguments_are_attributes_and_parameters_have_the_original_s_names():
    made = RGLRU(4, 3, 2, 6.0, (0.5, 0.6), False, True, False, 7, "cpu", F64)
    assert (made.d_conv, made.expand, made.c, made.a_init_range) == (3, 2, 6.0, (0.5, 0.6))
    assert (made.use_fast_path, made.layer_idx) == (False, 7)
    shapes = {name: tuple(p.shape) for name, p in made.named_parameters()}
    assert shapes == {
        "gate_proj.weight": (8, 4), "gate_proj.bias": (8,),
        "in_proj.weight": (8, 4), "in_proj.bias": (8,),
        "conv1d.weight": (8, 1, 3),
        "recurrent_gate_proj.weight": (8, 8), "recurrent_gate_proj.bias": (8,),
        "input_gate_proj.weight": (8, 8), "input_gate_proj.bias": (8,),
        "a_log": (8, 1),
        "out_proj.weight": (4, 8), "out_proj.bias": (4,),
    }  # fmt: skip
    assert {p.dtype for p in made.parameters()} == {F64}
    assert made.a_log._no_weight_decay


def test_use_fast_path_and_integration_timesteps_change_nothing():
    fast, plain = layer(), layer(use_fast_path=False)
    assert torch.equal(fast(X), plain(X, torch.rand(2, 9)))


@pytest.mark.parametrize("unit_start", [False, True])
def test_forward_never_returns_the_cache_and_writes_into_its_tensors(unit_start):
    made = layer(unit_start=unit_start)
    cache = made.allocate_inference_cache(2, 100)
    held = dict(cache)
    assert isinstance(made(X[:, :5], inference_cache=cache), torch.Tensor)
    y, returned = made.step(X[:, 5:6], cache)
    rest = made(X[:, 6:], inference_cache=cache)
    assert returned is cache
    assert all(cache[name] is x for name, x in held.items() if name != "seqlen_offset")
    assert cache["seqlen_offset"] == 9
    whole, state = made(X, return_state=True)
    torch.testing.assert_close(torch.cat([y, rest], 1), whole[:, 5:], **TIGHT)
    torch.testing.assert_close({n: cache[n] for n in state}, state, **TIGHT)


def test_the_cache_has_the_original_s_shapes():
    cache = layer(expand=2).allocate_inference_cache(3, 100)
    assert {n: tuple(x.shape) for n, x in cache.items() if n != "seqlen_offset"} == {
        "conv_state": (3, 8, 4),
        "lrnn_state": (3, 8, 1),
    }
    assert cache["seqlen_offset"] == 0
    half = RGLRU(4, dtype=torch.bfloat16)
    assert half.allocate_inference_cache(1, 1)["lrnn_state"].dtype == torch.float32
    assert half.allocate_inference_cache(1, 1, torch.bfloat16)["lrnn_state"].dtype == torch.bfloat16


def test_a_cache_of_offset_0_starts_from_the_beginning():
    made = layer()
    cache = made.allocate_inference_cache(2, 100)
    first = made(X, inference_cache=cache)
    cache["seqlen_offset"] = 0
    assert torch.equal(made(X, inference_cache=cache), first)


@pytest.mark.parametrize("unit_start", [False, True])
def test_a_step_answers_in_the_rank_that_it_was_asked_in(unit_start):
    made = layer(unit_start=unit_start)
    state = made.initial_state(2)
    flat, after = made.step(X[:, 0], state)
    long, also = made.step(X[:, :1], state)
    assert torch.equal(flat[:, None], long)
    assert not state["lrnn_state"].any()
    torch.testing.assert_close(after, also, rtol=0, atol=0)


@pytest.mark.parametrize("unit_start", [False, True])
def test_lengths_are_padding_on_the_right(unit_start):
    made, lengths = layer(unit_start=unit_start), torch.tensor([4, 0])
    cache = made.allocate_inference_cache(2, 100)
    y = made(X, lengths=lengths, inference_cache=cache)
    assert not y[0, 4:].any()
    assert not y[1].any()
    torch.testing.assert_close(y[:1, :4], made(X[:1, :4]), **TIGHT)
    y_t, _ = made.step(X[:, 4], cache)
    torch.testing.assert_close(y_t[0], made(X[:1, :5])[0, -1], **TIGHT)
    torch.testing.assert_close(y_t[1], made(X[1:, 4:5])[0, -1], **TIGHT)


def test_gradients_of_a_chunk_do_not_mind_that_the_cache_is_overwritten():
    made = layer().requires_grad_(True)
    cache = made.allocate_inference_cache(2, 100)
    made(X[:, :4], inference_cache=cache)
    _, state = made(X[:, :4], return_state=True)
    want = torch.autograd.grad(
        made(X[:, 4:], state={n: s.detach() for n, s in state.items()}).sum(), [*made.parameters()]
    )
    loss = made(X[:, 4:], inference_cache=cache).sum()
    made.step(X[:, 0], cache)
    torch.testing.assert_close(torch.autograd.grad(loss, [*made.parameters()]), want, **TIGHT)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda m, c: m(X, state=m.initial_state(2), inference_cache=c), ("state=", "inference_cache=")),
        (lambda m, c: m(X, lengths=torch.tensor([1])), ("lengths", "(1,)", "(2,)")),
        (lambda m, c: m(X, lengths=torch.tensor([1, 2]), mask=torch.ones(2, 9)), ("lengths=", "mask=")),
        (lambda m, c: m.step(X, c), ("(2, 9, 4)", "(B, 1, 4)")),
        (lambda m, c: m.step(X[:, 0, :3], c), ("x_t", "(2, 3)", "(B, 4)")),
        (lambda m, c: m.step(X[:1, :1], c), ("conv_state", "(2, 4, 4)", "(1, 4, 4)")),
        (lambda m, c: m(X[:1], inference_cache=c), ("conv_state", "(2, 4, 4)", "(1, 4, 4)")),
        (lambda m, c: m(X, inference_cache={"seqlen_offset": 0}), ("state", "conv_state", "lrnn_state")),
    ],
)
def test_what_is_refused(ask, words):
    made = layer()
    refused(lambda: ask(made, made.allocate_inference_cache(2, 100)), "RGLRU", *words)
