"""Faults reported in the field about lengths, strides and initial states: requirements 26, 27, 31, 34."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests.catalogue import BY_NAME, CASES, draw, generator
from tests.loops import lanes
from tests.reference.compare import LOWERINGS, Loss, actual, assert_same, cotangent, expected, many
from tests.tolerances import assert_close, assert_equal

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64

every_operator = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_lowering = pytest.mark.parametrize("lowering", LOWERINGS)


# 26: any length


@pytest.mark.parametrize("name", ["Affine", "MinMax", "Matrix2x2"])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 100, 1000, 4095, 4097])
def test_req26_any_length(name, length):
    case = BY_NAME[name]
    leaves, initial = draw(case, (2, length, 3), seed=length)
    got = actual(case, leaves, initial, Loss((0,), (0,)), lowering="parallel")
    truth = expected(case, leaves, initial, Loss((0,), (0,)))
    for x, y in zip(got.states, truth.states, strict=True):
        assert_close(x, y, "forward")
    for leaf, x in got.gradients.items():
        assert_close(x, truth.gradients[leaf], "long" if length > 1000 else "gradient", leaf)


def test_req26_a_long_affine_scan():
    """The loop and its adjoint written as two loops, so that 65537 steps stay quick."""
    length = 65537
    leaves, (h0,) = draw(BY_NAME["Affine"], (2, length, 3))
    a, b, h0 = (x.requires_grad_() for x in (*leaves.values(), h0))
    got = sf.scan(sf.operators.Affine, a=a, b=b, initial_state=h0, lowering="parallel")
    c = cotangent(got, 0)
    da, db, dh0 = torch.autograd.grad(got, (a, b, h0), c)

    before, h = [], h0.detach().numpy()
    for a_t, b_t in zip(a.detach().numpy().swapaxes(0, 1), b.detach().numpy().swapaxes(0, 1), strict=True):
        before.append(torch.from_numpy(h))
        h = a_t * h + b_t
    before = torch.stack(before, 1)
    gate = a.detach().numpy().swapaxes(0, 1)
    mu, sums = 0.0 * h, []
    for t in reversed(range(length)):
        g = c[:, t].numpy() + mu
        sums.append(torch.from_numpy(g))
        mu = gate[t] * g
    truth = torch.stack(sums[::-1], 1)
    assert_close(got, a.detach() * before + b.detach(), "long", "states")
    assert_close(db, truth, "long", "b")
    assert_close(da, truth * before, "long", "a")
    assert_close(dh0, torch.from_numpy(mu), "long", "initial")


# 27: short sequences, down to none


@every_operator
@every_lowering
def test_req27_short_sequences(case, lowering):
    everything = tuple(range(len(case.float_states)))
    for length in range(18):
        leaves, initial = draw(case, (1, length, 3), seed=length)
        assert_same(case, leaves, initial, Loss(everything, everything), lowering=lowering)


@every_operator
@every_lowering
@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
def test_req27_no_step_at_all(case, reverse, lowering):
    leaves, initial = draw(case, (2, 0, 3))
    start = tuple(x.requires_grad_() if x.is_floating_point() else x for x in initial)
    states, finals = sf.scan(
        case.operator,
        **leaves,
        initial_state=start if len(start) > 1 else start[0],
        return_final_state=True,
        reverse=reverse,
        lowering=lowering,
    )
    for x, final, x0 in zip(many(states), many(finals), initial, strict=True):
        assert x.shape == (2, 0, 3)
        assert torch.equal(final, x0)
    pairs = [(y, x0) for y, x0 in zip(many(finals), start, strict=True) if x0.requires_grad]
    cotangents = [cotangent(y, i) for i, (y, _) in enumerate(pairs)]
    gradients = torch.autograd.grad([y for y, _ in pairs], [x0 for _, x0 in pairs], cotangents)
    assert all(torch.equal(x, c) for x, c in zip(gradients, cotangents, strict=True))


# 31: any strides


def views(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """x, contiguous (b, t, d), again with other strides; guard bytes around it hold NaN."""
    b, t, d = x.shape
    fill = float("nan") if x.is_floating_point() else 77
    fused = torch.full((b, t, 3 * d), fill, dtype=x.dtype)
    fused[:, :, d - 1 : 2 * d - 1] = x
    padded = torch.full((b, 2 * t + 1, d + 1), fill, dtype=x.dtype)
    padded[:, 1::2, 1:] = x
    tail = torch.full((x.numel() + 64,), fill, dtype=x.dtype)
    tail[32:-32] = x.flatten()
    return {
        "slice of a fused projection": fused[:, :, d - 1 : 2 * d - 1],
        "every other row": padded[:, 1::2, 1:],
        "time major": x.transpose(0, 1).contiguous().transpose(0, 1),
        "channels first": x.transpose(1, 2).contiguous().transpose(1, 2),
        "flipped twice": x.flip(1).flip(1),
        "between guard bytes": tail[32:-32].view(x.shape),
    }


@every_operator
@every_lowering
def test_req31_inputs_of_any_strides(case, lowering):
    leaves, initial = draw(case, (2, 9, 5), F32)
    loss = Loss(tuple(range(len(case.float_states))), ())
    plain = actual(case, leaves, initial, loss, lowering=lowering)
    shaped = {name: views(x) for name, x in leaves.items()}
    for layout in shaped[case.float_leaves[0]]:
        inputs = {name: x[layout] for name, x in shaped.items()}
        assert all(torch.equal(inputs[name], leaves[name]) for name in leaves)
        got = strided(case, inputs, initial, loss, lowering)
        for x, y in zip(got[0], plain.states, strict=True):
            assert_equal(x, y, layout)
        for name, x in got[1].items():
            assert_equal(x, plain.gradients[name], f"{layout} {name}")


def strided(case, inputs, initial, loss, lowering):
    """As `actual`, which clones its inputs; these keep their strides."""
    wanted = {name: inputs[name].requires_grad_() for name in case.float_leaves}
    start = initial if len(initial) > 1 else initial[0]
    states = many(sf.scan(case.operator, **inputs, initial_state=start, lowering=lowering))
    read = [case.float_outputs(states)[i] for i in loss.states]
    gradients = torch.autograd.grad(
        read, list(wanted.values()), [cotangent(x, i).to(x.dtype) for i, x in enumerate(read)]
    )
    return states, dict(zip(wanted, gradients, strict=True))


@every_operator
@every_lowering
def test_req31_incoming_gradients_of_any_strides(case, lowering):
    leaves, initial = draw(case, (2, 9, 5), F32)
    inputs = {n: x.requires_grad_() if x.is_floating_point() else x for n, x in leaves.items()}
    start = initial if len(initial) > 1 else initial[0]
    states = case.float_outputs(
        many(sf.scan(case.operator, **inputs, initial_state=start, lowering=lowering))
    )[0]
    wanted = [inputs[name] for name in case.float_leaves]
    one = torch.ones((), dtype=F32).expand(2, 9, 5)
    for layout, c in {"expanded": one, **views(cotangent(states, 1).float())}.items():
        truth = torch.autograd.grad(states, wanted, c.contiguous(), retain_graph=True)
        for x, y in zip(torch.autograd.grad(states, wanted, c, retain_graph=True), truth, strict=True):
            assert_equal(x, y, layout)


@every_operator
@every_lowering
def test_req31_expanded_inputs(case, lowering):
    """Stride 0 is a stride: an `expand` reads as the full tensor, and torch reduces its gradient."""
    leaves, initial = draw(case, (2, 9, 5))
    thin = {n: x[:, :, :1].clone() for n, x in leaves.items()}
    truth = expected(case, {n: x.expand(2, 9, 5) for n, x in thin.items()}, initial, Loss())
    inputs = {n: x.requires_grad_() if x.is_floating_point() else x for n, x in thin.items()}
    start = initial if len(initial) > 1 else initial[0]
    states = many(
        sf.scan(
            case.operator,
            **{n: x.expand(2, 9, 5) for n, x in inputs.items()},
            initial_state=start,
            lowering=lowering,
        )
    )
    for x, y in zip(case.float_outputs(states), case.float_outputs(truth.states), strict=True):
        assert_close(x, y, "forward")
    read = case.float_outputs(states)[0]
    gradients = torch.autograd.grad(read, [inputs[n] for n in case.float_leaves], cotangent(read, 0))
    for name, x in zip(case.float_leaves, gradients, strict=True):
        assert_close(x, truth.gradients[name].sum(2, keepdim=True), "gradient", name)


# 34: initial and final states


@every_operator
@every_lowering
def test_req34_one_start_for_the_whole_batch(case, lowering):
    """(1, state...) is a learnable start: its gradient is summed over the batch."""
    leaves, initial = draw(case, (3, 8, 5))
    everything = tuple(range(len(case.float_states)))
    shared = tuple(x[:1] for x in initial)
    got = assert_same(case, leaves, shared, Loss(everything, everything), lowering=lowering)
    for name in case.float_states:
        assert got.gradients[f"initial {name}"].shape == (1, 5)
    assert_same(case, leaves, tuple(x[:1, :1] for x in initial), Loss(everything, ()), lowering=lowering)


@every_operator
@every_lowering
def test_req34_no_start_is_the_declared_one(case, lowering):
    leaves, _ = draw(case, (3, 8, 5))
    assert_same(case, leaves, None, Loss((0,), ()), lowering=lowering)


@every_operator
@every_lowering
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_req34_detached_chunks_give_the_same_outputs(case, dtype, lowering):
    leaves, initial = draw(case, (2, 64, 3), dtype)
    start = tuple(x.float() if x.is_floating_point() else x for x in initial)
    start = start if len(start) > 1 else start[0]
    whole = many(sf.scan(case.operator, **leaves, initial_state=start, lowering=lowering))
    chunks, state = [], start
    for begin in range(0, 64, 16):
        piece = {n: x[:, begin : begin + 16] for n, x in leaves.items()}
        outputs, state = sf.scan(
            case.operator, **piece, initial_state=state, return_final_state=True, lowering=lowering
        )
        state = tuple(x.detach() for x in state) if isinstance(state, tuple) else state.detach()
        chunks.append(many(outputs))
    for name, one, parts in zip(case.states, whole, zip(*chunks, strict=True), strict=True):
        joined = torch.cat(parts, 1)
        assert joined.dtype == one.dtype
        assert_equal(joined, one, name) if case.selects else assert_close(joined, one, "forward", name)


@every_operator
@every_lowering
def test_req34_float32_start_with_bfloat16_leaves(case, lowering):
    leaves, initial = draw(case, (2, 8, 3), BF16)
    start = tuple(x.float() + 0.001 if x.is_floating_point() else x for x in initial)
    first = start if len(start) > 1 else start[0]
    states, finals = sf.scan(
        case.operator, **leaves, initial_state=first, return_final_state=True, lowering=lowering
    )
    for name, x, final in zip(case.states, many(states), many(finals), strict=True):
        if name in case.float_states:
            assert (x.dtype, final.dtype) == (BF16, F32)
            assert final.shape == lanes(x)
    truth, _ = case.loop(
        {n: x.double() if x.is_floating_point() else x for n, x in leaves.items()},
        tuple(x.double() if x.is_floating_point() else x for x in start),
    )
    for name, x, y in zip(case.states, many(states), truth, strict=True):
        if name in case.float_states:
            assert_close(x, y, "forward", name)


def test_req34_a_start_of_the_wrong_shape_is_an_error():
    x = torch.randn(2, 8, 3, generator=generator(0))
    for shape in ((3, 3), (2, 4), (2, 8, 3), (2, 1, 3)):
        with pytest.raises(ValueError, match="h"):
            sf.scan(sf.operators.Affine, a=x, b=x, initial_state=torch.zeros(shape))
    with pytest.raises(ValueError, match="state"):
        sf.scan(sf.operators.Matrix2x2, m00=x, m01=x, m10=x, m11=x, initial_state=torch.zeros(2, 3))
