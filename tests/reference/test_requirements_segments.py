"""Faults reported in the field that concern packing, steps, padding and resets: 27, 35 to 39, 49."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import scanforge as sf
from tests.catalogue import generator, normal
from tests.recurrences import BY_NAME, draw
from tests.reference.compare import LOWERINGS, cotangent, differentiable
from tests.reference.fused import actual, check, check_packed, every_lowering, scan, single, some
from tests.tolerances import assert_close, assert_equal

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
Affine = sf.operators.Affine
LAYERS = ("GatedMinMax", "Mamba", "RGLRU", "HGRN2")


def cut(entry, tensors: dict[str, Tensor], begin: int, end: int) -> dict[str, Tensor]:
    return {n: x[:, begin:end] if "t" in entry.inputs[n].axes.split() else x for n, x in tensors.items()}


# 27: very short sequences


@some(*LAYERS, "LinearAttention", "Summing")
def test_req27_short_sequences(entry):
    for length in range(18):
        check(entry, *draw(entry, b=1, t=length), ["both"])


@some(*LAYERS, "LinearAttention", "Summing")
def test_req27_short_sequences_packed(entry):
    cu = [n * (n - 1) // 2 for n in range(1, 19)]
    check_packed(entry, draw(entry, b=1, t=cu[-1])[0], draw(entry, b=17)[1], cu, ["both"])


# 35: packed sequences

PACKED = [0, 50, 114, 316, 408, 531, 532]


@pytest.mark.parametrize("dtype", [F64, F32], ids=str)
@every_lowering
def test_req35_nothing_leaks(dtype, lowering):
    """A gate of 1 forgets nothing, so a leak would show at once."""
    g = generator(35)
    b, h0 = normal(g, (1, 532, 3), dtype), normal(g, (6, 3), dtype)
    ones, cu = torch.ones_like(b), torch.tensor(PACKED)
    inputs = [x.requires_grad_() for x in (ones, b, h0)]
    states, finals = sf.scan(
        Affine, a=ones, b=b, initial_state=h0, cu_seqlens=cu, return_final_state=True, lowering=lowering
    )
    assert finals.shape == (6, 3)
    twins = [x.detach().double().requires_grad_() for x in inputs]
    rows = [twins[1][:, i:j].cumsum(1) + twins[2][n] for n, (i, j) in enumerate(itertools.pairwise(PACKED))]
    ends = torch.cat([x[:, -1] for x in rows])
    truth = torch.cat(rows, 1)
    assert_close(states, truth, "forward")
    assert_close(finals, ends, "forward")
    c, e = cotangent(truth, 1), cotangent(ends, 2)
    got = torch.autograd.grad((states * c.to(dtype)).sum() + (finals * e.to(dtype)).sum(), inputs[1:])
    for x, y in zip(got, torch.autograd.grad((truth * c).sum() + (ends * e).sum(), twins[1:]), strict=True):
        assert_close(x, y, "gradient")


@some(*LAYERS)
def test_req35_as_separate_calls(entry):
    """Parameter gradients are the sum over the sequences, states have one row for each."""
    tensors, _ = draw(entry, b=1, t=532)
    _, initial = draw(entry, b=6)
    check_packed(entry, tensors, initial, PACKED, ["both"], ["parallel"])


@some(*LAYERS)
def test_req35_whatever_lies_beside_it(entry):
    """In float32, against scanforge's own numbers for the sequence alone."""
    tensors, _ = draw(entry, F32, b=1, t=60)
    (packed,), _ = scan(entry, tensors, cu_seqlens=torch.tensor([0, 10, 11, 60]))
    for begin, end in ((0, 10), (10, 11), (11, 60)):
        (alone,), _ = scan(entry, cut(entry, tensors, begin, end))
        assert_close(packed[:, begin:end], alone.double(), "forward")


# 36: empty sequences


@every_lowering
@some("Decay", "Mamba", "LinearAttention")
def test_req36_empty_sequences(entry, lowering):
    """Their final states are their initial ones, and so are the gradients of those."""
    cu = torch.tensor([0, 0, 5, 5, 9, 9])
    tensors, _ = draw(entry, b=1, t=9)
    _, initial = draw(entry, b=5)
    start = [x.requires_grad_() for x in initial]
    _, finals = scan(entry, tensors, tuple(start), cu_seqlens=cu, lowering=lowering)
    cotangents = [cotangent(x, i) for i, x in enumerate(finals)]
    slopes = torch.autograd.grad(finals, start, cotangents)
    for x, x0, slope, c in zip(finals, start, slopes, cotangents, strict=True):
        for empty in (0, 2, 4):
            assert_equal(x[empty], x0[empty])
            assert_equal(slope[empty], c[empty])
        assert not torch.equal(x[1], x0[1])
    _, finals = scan(entry, tensors, cu_seqlens=cu, lowering=lowering)
    for x in finals:
        assert not x[[0, 2, 4]].any()


@every_lowering
def test_req36_empty_sequences_without_a_start(lowering):
    """State(initial=...) is what an empty sequence ends with."""
    entry = BY_NAME["LogSumExp"]
    tensors, _ = draw(entry, b=1, t=5)
    _, (top, total) = scan(entry, tensors, cu_seqlens=torch.tensor([0, 0, 5, 5]), lowering=lowering)
    for empty in (0, 2):
        assert torch.equal(top[empty], torch.full((3,), float("-inf"), dtype=F64))
        assert torch.equal(total[empty], torch.zeros(3, dtype=F64))


@every_lowering
@some(*LAYERS)
def test_req36_nothing_at_all(entry, lowering):
    tensors, _ = draw(entry, b=1, t=0)
    (y,), (h,) = scan(entry, tensors, cu_seqlens=torch.tensor([0, 0, 0]), lowering=lowering)
    assert y.shape[1] == 0
    assert h.shape[0] == 2
    assert not h.any()


# 37: chunks and steps


@pytest.mark.parametrize("sizes", [[1] * 40, [7, 1, 32], [39, 1], [0, 40, 0]], ids=str)
@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=str)
@some(*LAYERS)
def test_req37_chunks(entry, dtype, sizes):
    tensors, _ = draw(entry, dtype, t=40)
    (whole,), final = scan(entry, tensors)
    state, begin, history = None, 0, []
    for size in sizes:
        (y,), state = scan(entry, cut(entry, tensors, begin, begin + size), state)
        history.append(y)
        begin += size
    assert_close(torch.cat(history, 1), whole.double(), "forward", entry.name)
    for x, y in zip(state, final, strict=True):
        assert_close(x, y.double(), "forward", entry.name)


@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=str)
@some(*LAYERS)
def test_req37_steps(entry, dtype):
    """Equal to the scan; two loops agree bit for bit; the cached state is not written."""
    tensors, initial = draw(entry, dtype, t=40)
    initial = initial if dtype is F64 else tuple(x.float() for x in initial)
    (whole,), final = scan(entry, tensors, initial)
    runs = []
    for _ in range(2):
        state, history = single(initial), []
        for t in range(40):
            row = {n: x[:, t] if "t" in entry.inputs[n].axes.split() else x for n, x in tensors.items()}
            before = state.clone()
            y, after = sf.step(entry.recurrence, state, **row)
            assert_equal(state, before)
            state = after
            history.append(y)
        runs.append((torch.stack(history, 1), state))
    assert_equal(runs[0][0], runs[1][0])
    assert_equal(runs[0][1], runs[1][1])
    assert_close(runs[0][0], whole.double(), "forward", entry.name)
    assert_close(runs[0][1], final[0].double(), "forward", entry.name)


# 38: padding


def left_padded(entry, pads: list[int], length: int):
    tensors, initial = draw(entry, b=len(pads), t=length)
    mask = torch.arange(length) >= torch.tensor(pads)[:, None]
    return tensors, initial, mask


@pytest.mark.parametrize("pads", [[0, 3, 10], [4]], ids=str)
@every_lowering
@some(*LAYERS, "RGLRUDocuments")
def test_req38_left_padding(entry, pads, lowering):
    """Real tokens as in the unpadded run, final states too, and no gradient into padding."""
    tensors, _, mask = left_padded(entry, pads, 12)
    inputs = differentiable(tensors)
    (y,), finals = scan(entry, inputs, mask=mask, lowering=lowering)
    for row, pad in enumerate(pads):
        batched = {
            n: x[row : row + 1] if entry.inputs[n].axes.startswith("b") else x for n, x in tensors.items()
        }
        (alone,), ends = scan(entry, cut(entry, batched, pad, 12), lowering=lowering)
        assert_close(y[row : row + 1, pad:], alone, "forward", entry.name)
        assert not y[row, :pad].any()
        for x, end in zip(finals, ends, strict=True):
            assert_close(x[row : row + 1], end, "forward", entry.name)
    per_step = [x for n, x in inputs.items() if "t" in entry.inputs[n].axes.split()]
    read = [y.square().sum(), *(x.square().sum() for x in finals)]
    for x in torch.autograd.grad(sum(read), per_step):
        assert not x[~mask].any()
        assert x[mask].any()


@every_lowering
@some(*LAYERS)
def test_req38_right_padding(entry, lowering):
    """The final state is that of the last real token."""
    tensors, initial = draw(entry, b=3, t=12)
    _, finals = scan(entry, tensors, initial, lengths=torch.tensor([12, 9, 0]), lowering=lowering)
    _, ends = scan(entry, cut(entry, tensors, 0, 9), initial, lowering=lowering)
    for x, y, x0 in zip(finals, ends, initial, strict=True):
        assert_close(x[1], y[1], "forward")
        assert_equal(x[2], x0[2])


# 39: resets


@every_lowering
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, F32], ids=str)
def test_req39_resets_by_hand(dtype, lowering):
    """A flag at t starts a segment at t: the state before step t is the initial one."""
    reset = torch.zeros(1, 9, dtype=dtype)
    reset[0, [0, 5, 6, 8]] = 1
    ones = torch.ones(1, 9, 1)
    states = sf.scan(Affine, a=ones, b=ones, reset=reset, lowering=lowering)
    assert states.flatten().tolist() == [1, 2, 3, 4, 5, 1, 1, 2, 1]
    back = sf.scan(Affine, a=ones, b=ones, reset=reset, reverse=True, lowering=lowering)
    assert back.flatten().tolist() == [5, 4, 3, 2, 1, 1, 2, 1, 1]


@every_lowering
def test_req39_no_gradient_passes(lowering):
    """Rows differ: each step of the last output's segment gets a gradient, and what it entered with."""
    reset = torch.zeros(2, 9, dtype=torch.bool)
    reset[0, [5, 6]] = reset[1, 2] = True
    b = torch.ones(2, 9, 1, requires_grad=True)
    h0 = torch.ones(2, 1, requires_grad=True)
    states = sf.scan(Affine, a=torch.ones(2, 9, 1), b=b, initial_state=h0, reset=reset, lowering=lowering)
    by_b, by_h0 = torch.autograd.grad(states[:, -1].sum(), (b, h0))
    assert by_b.squeeze(-1).tolist() == [[0] * 6 + [1] * 3, [0] * 2 + [1] * 7]
    assert by_h0.tolist() == [[1], [1]]


@every_lowering
@some(*LAYERS, "RGLRUDocuments", "LogSumExp")
def test_req39_as_separate_calls(entry, lowering):
    """Each enters with the initial state, given or not."""
    tensors, given = draw(entry, t=9)
    reset = torch.zeros(2, 9, dtype=torch.bool)
    reset[:, 4] = True
    for initial in (None, given):
        (y,), finals = scan(entry, tensors, initial, reset=reset, lowering=lowering)
        (early,), _ = scan(entry, cut(entry, tensors, 0, 4), initial, lowering=lowering)
        (late,), ends = scan(entry, cut(entry, tensors, 4, 9), initial, lowering=lowering)
        assert_close(y, torch.cat([early, late], 1), "forward")
        for x, end in zip(finals, ends, strict=True):
            assert_close(x, end, "forward")


# 49: the same bits again


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@some(*LAYERS)
def test_req49_bit_equal(entry, dtype):
    tensors, initial = draw(entry, dtype, t=70, d=9)
    for lowering in LOWERINGS:
        first = actual(entry, tensors, initial, ["both"], lowering=lowering).gradients["both"]
        for _ in range(4):
            again = actual(entry, tensors, initial, ["both"], lowering=lowering).gradients["both"]
            for name, x in again.items():
                assert_equal(x, first[name], name)
