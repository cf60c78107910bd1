"""The transformer against the original's numbers, against attention written as loops, and against itself."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from models import TransformerBlock, TransformerLM, generate
from models.transformer import rope_table
from tests.models.golden import golden
from tests.models.protocol import TIGHT, assert_states, refused, rows

F64 = torch.float64
SIZES = {"vocab_size": 11, "d_model": 8, "num_layers": 2, "num_heads": 2, "d_ff": 12, "max_seq_len": 16}


@pytest.fixture
def model() -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(**SIZES).double()


def drawn(batch: int, steps: int, seed: int = 1) -> Tensor:
    return torch.randint(11, (batch, steps), generator=torch.Generator().manual_seed(seed))


def original(model: TransformerLM) -> dict[str, Tensor]:
    g = golden("transformer_baseline")
    weights = {n.removeprefix("param/"): x for n, x in g.items() if n.startswith("param/")}
    model.load_state_dict(weights | {"lm_head.weight": weights["embed.weight"]})
    return g


def test_values_loss_and_gradients_are_the_original_s(model: TransformerLM):
    g = original(model)
    result = model(g["ids"], labels=g["labels"])
    torch.testing.assert_close(result["logits"], g["logits"], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(result["loss"], g["loss"], rtol=1e-12, atol=0)
    result["loss"].backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, g[f"grad_param/{name}"], rtol=1e-12, atol=1e-14, msg=name)


def test_the_table_of_angles_is_the_original_s():
    got = rope_table(4, 0, 16, 10000.0, torch.device("cpu"))
    assert got.dtype == torch.float32
    assert torch.equal(got.double(), golden("transformer_baseline")["rope_freqs"])
    assert torch.equal(rope_table(4, 5, 9, 10000.0, torch.device("cpu")), got[5:9])


def test_a_block_is_what_its_formula_says():
    torch.manual_seed(1)
    block, x = TransformerBlock(6, 1, 5, rope_theta=100.0).double(), torch.randn(1, 4, 6, dtype=F64)

    def rms(v, weight):
        return v / (v.square().mean() + 1e-6).sqrt() * weight

    def turned(v, t):
        out = v.clone()
        for i in range(3):
            angle = torch.tensor(t, dtype=torch.float32) / 100 ** (torch.tensor(2 * i) / 6)
            c, s = angle.cos().double(), angle.sin().double()
            out[i], out[i + 3] = c * v[i] - s * v[i + 3], c * v[i + 3] + s * v[i]
        return out

    keys, values = [], []
    for t in range(4):
        n = rms(x[0, t], block.norm1.weight)
        keys.append(turned(block.k_proj.weight @ n, t))
        values.append(block.v_proj.weight @ n)
        q = turned(block.q_proj.weight @ n, t)
        weight = torch.stack([q @ k / math.sqrt(6) for k in keys]).softmax(0)
        y = x[0, t] + block.o_proj.weight @ sum(w * v for w, v in zip(weight, values, strict=True))
        n = rms(y, block.norm2.weight)
        gate = block.gate_proj.weight @ n
        y = y + block.down_proj.weight @ (gate * gate.sigmoid() * (block.up_proj.weight @ n))
        torch.testing.assert_close(block(x)[0, t], y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cuts", [[1] * 12, [7, 1, 4], [11, 1], [0, 6, 6], [5, 1, 1, 3, 2]])
def test_req37_chunks_and_steps_are_one_run(model: TransformerLM, cuts: list[int]):
    tokens = drawn(2, 12)
    whole, after = model(tokens, return_state=True)
    parts, state, at = [], model.initial_state(2), 0
    for n in cuts:
        kept = rows(state, torch.clone)
        before = state
        if n == 1:
            logits, state = model.step(tokens[:, at], state)
            parts.append(logits[:, None])
        else:
            result, state = model(tokens[:, at : at + n], state=state, return_state=True)
            parts.append(result["logits"])
        assert_states(before, kept, rtol=0, atol=0)
        at += n
    torch.testing.assert_close(torch.cat(parts, 1), whole["logits"], **TIGHT)
    assert_states(state, after)


def test_gradients_through_chunks_are_those_of_one_run(model: TransformerLM):
    tokens, weight = drawn(2, 7), torch.randn(2, 7, 11, dtype=F64)
    whole = model(tokens)["logits"]
    head, state = model(tokens[:, :4], return_state=True)
    tail = model(tokens[:, 4:], state=state)["logits"]
    pieces = torch.cat([head["logits"], tail], 1)
    leaves = list(model.parameters())
    got, want = (torch.autograd.grad((weight * y).sum(), leaves) for y in (pieces, whole))
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_it_sees_no_later_token(model: TransformerLM):
    tokens = drawn(1, 9)
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 11
    a, b = model(tokens)["logits"], model(changed)["logits"]
    assert torch.equal(a[:, :5], b[:, :5])
    assert (a[:, 5:] != b[:, 5:]).any(-1).all()


def test_loss_shifts_labels_and_leaves_out_minus_100(model: TransformerLM):
    tokens, labels = drawn(2, 5), drawn(2, 5, seed=2)
    labels[0, 3] = labels[1, 0] = -100
    result = model(tokens, labels=labels)
    logs = result["logits"].log_softmax(-1)
    kept = [(b, t) for b in range(2) for t in range(1, 5) if (b, t) != (0, 3)]
    want = -sum(logs[b, t - 1, labels[b, t]] for b, t in kept) / len(kept)
    torch.testing.assert_close(result["loss"], want, **TIGHT)
    assert set(model(tokens)) == {"logits"}


def test_the_weights_at_the_start(model: TransformerLM):
    wide = TransformerLM(50, 64, 1, 4, 96)
    for name, p in wide.named_parameters():
        if "norm" in name:
            assert torch.equal(p, torch.ones_like(p))
        else:
            assert p.std().item() == pytest.approx(0.02, rel=0.1), name
    assert wide.lm_head.weight is wide.embed.weight
    assert "lm_head.weight" in wide.state_dict()
    assert not any("rope" in name for name in wide.state_dict())


def test_16_bit_models_turn_by_fp32_angles():
    torch.manual_seed(0)
    model = TransformerLM(**SIZES | {"max_seq_len": 4096})
    tokens = drawn(1, 2000)
    want = model(tokens)["logits"]
    got = model.to(torch.bfloat16)(tokens)["logits"]
    assert got.dtype == torch.bfloat16
    assert (got.float() - want).norm() / want.norm() < 2e-2
    assert {x["k"].dtype for x in model.initial_state(1)} == {torch.bfloat16}


def test_under_autocast_prefill_and_steps_run():
    model, tokens = TransformerLM(**SIZES), drawn(2, 6)
    with torch.autocast("cpu", torch.bfloat16):
        result, state = model(tokens, labels=tokens, return_state=True)
        logits, state = model.step(tokens[:, 0], state)
        assert state[0]["k"].dtype == logits.dtype == torch.bfloat16
    result["loss"].backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())


def test_it_generates_as_far_as_its_positions_go(model: TransformerLM):
    tokens = drawn(2, 4)
    got = generate(model, tokens, 13)
    for i in range(4, 17):
        assert torch.equal(got[:, i], model(got[:, :i])["logits"][:, -1].argmax(-1))
    refused(lambda: generate(model, tokens, 14), "max_seq_len=16", "n=14")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda m: m(drawn(1, 17)), ("17 positions", "max_seq_len=16")),
        (lambda m: m.step(drawn(1, 1)[0], m(drawn(1, 16), return_state=True)[1]), ("17", "max_seq_len=16")),
        (lambda m: m(drawn(1, 3).float()), ("float32", "int64")),
        (lambda m: m(drawn(1, 3)[0]), ("(3,)", "(B, T)")),
        (lambda m: m(drawn(1, 3), labels=drawn(1, 4)), ("labels", "(1, 4)", "(1, 3)")),
        (lambda m: m(drawn(1, 3), state={}), ("state", "dict", "list of 2")),
        (lambda m: m(drawn(1, 3), state=m.initial_state(2)), ("state", "(2, 2, 0, 4)", "(1, 2, 0, 4)")),
        (lambda _: TransformerLM(**SIZES | {"vocab_size": 0}), ("vocab_size=0",)),
        (lambda _: TransformerLM(**SIZES | {"num_layers": 0}), ("num_layers=0",)),
        (lambda _: TransformerLM(**SIZES | {"num_heads": 3}), ("num_heads=3", "d_model=8")),
        (lambda _: TransformerLM(**SIZES | {"num_heads": 8}), ("d_model=8", "num_heads=8", "even")),
        (lambda _: TransformerLM(**SIZES | {"dropout": 1.5}), ("dropout=1.5", "[0, 1]")),
        (lambda _: TransformerBlock(8, 2, 0), ("d_ff=0",)),
        (lambda _: TransformerBlock(8, 2, 4)(torch.zeros(1, 2, 7)), ("(1, 2, 7)", "(B, T, 8)")),
    ],
)
def test_what_is_refused(model: TransformerLM, run, words):
    refused(lambda: run(model), *words)
