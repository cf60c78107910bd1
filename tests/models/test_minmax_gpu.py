"""MinMax on a GPU: states exact in every dtype, gradients within the tolerance table, networks too."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from models.minmax import MinMaxRNC, MinMaxRNCConfig, all_states, matrix_states
from models.minmax.convolutions import Previous
from models.minmax.neuron import LinearGated, SigmoidGated
from models.mixer import set_backend, tensors
from tests.catalogue import chance, generator
from tests.models.protocol import in_pieces
from tests.tolerances import assert_close, err

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
SIZES = {"0.3.0": {"conv_type": "basic"}, "0.1.0": {"conv_type": "gated"}}


def drawn(dtype, *shape, seed=0):
    """Numbers that both kinds of 16 bits have, so that every dtype computes with the same, ties included."""
    return torch.randn(shape, generator=generator(seed)).to(F16).to(BF16).to(DEVICE, dtype).requires_grad_()


def flags(batch, steps):
    return {
        "reset": chance(generator(1), (batch, steps), 0.05).to(DEVICE),
        "mask": chance(generator(2), (batch, steps), 0.8).to(DEVICE),
    }


@pytest.mark.parametrize("dtype", [F64, F32, BF16, F16], ids=str)
@pytest.mark.parametrize("steps", [1, 33, 1000])
def test_states_are_exact_in_every_dtype(dtype, steps):
    inputs = [drawn(F64, 2, steps, 70), drawn(F64, 2, steps, 70, seed=1), drawn(F64, 2, 70, seed=2)]
    given = [x.to(dtype) for x in inputs]
    assert torch.equal(
        all_states(*given, backend="triton").double(), all_states(*inputs, backend="reference")
    )
    a, b = drawn(F64, 2, steps, 7, 2, 2), drawn(F64, 2, steps, 7, 2, seed=1)
    got = matrix_states(a.to(dtype), b.to(dtype), backend="triton")
    assert torch.equal(got.double(), matrix_states(a, b, backend="reference"))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("recurrence", [SigmoidGated, LinearGated, Previous])
def test_req24_declarations_are_within_the_table(recurrence, dtype):
    names = ("u",) if recurrence is Previous else ("r", "s", "g")
    made = {}
    for kind, backend in ((F64, "reference"), (dtype, "triton")):
        given = {name: drawn(kind, 2, 300, 70, seed=i) for i, name in enumerate(names)}
        start = drawn(F64 if kind == F64 else F32, 2, 70, seed=9)
        y, after = sf.scan(
            recurrence,
            **given,
            initial_state=start,
            return_final_state=True,
            backend=backend,
            **flags(2, 300),
        )
        weights = [drawn(x.dtype, *x.shape, seed=8).detach() for x in (y, after)]
        ((weights[0] * y).sum() + (weights[1] * after).sum()).backward()
        made[kind] = (y, after, start.grad, [x.grad for x in given.values()])
    (y, after, slope, slopes), (want_y, want_after, want_slope, want) = made[dtype], made[F64]
    assert torch.equal(after.double(), want_after)
    assert_close(y, want_y, "forward", "y")
    assert_close(slope, want_slope, "gradient", "initial state")
    for x, wanted in zip(slopes, want, strict=True):
        assert_close(x, wanted, "gradient")


def outcome(version, dtype, backend):
    """y, the states in one row, all gradients in one: a few hang on choices that rounding turns."""
    torch.manual_seed(0)
    cfg = MinMaxRNCConfig(48, 2, 40, version=version, train_init=True, **SIZES[version])
    model = MinMaxRNC(cfg).to(BF16).to(DEVICE, dtype).eval()
    set_backend(model, backend)
    x = drawn(dtype, 2, 130, 48)
    y, state = model(x, return_state=True, **flags(2, 130))
    (y.sin().sum() + sum(s.sum() for s in tensors(state))).backward()
    gradients = [x.grad, *(p.grad for p in model.parameters())]
    return [y, torch.cat([s.flatten() for s in tensors(state)]), torch.cat([g.flatten() for g in gradients])]


@pytest.mark.parametrize("version", SIZES)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_networks_are_as_good_as_on_the_reference(version, dtype):
    """What a network loses in 16 bits it loses in torch's projections and norms, not in the kernels."""
    truth = outcome(version, F64, "reference")
    got, reference = outcome(version, dtype, "triton"), outcome(version, dtype, "reference")
    for x, y, want in zip(got, reference, truth, strict=True):
        assert x.dtype == y.dtype
        assert err(x, want) <= 1.25 * err(y, want) + (1e-3 if dtype == BF16 else 1e-6)


@pytest.mark.parametrize("version", SIZES)
def test_req37_steps_and_chunks(version):
    torch.manual_seed(0)
    model = MinMaxRNC(MinMaxRNCConfig(48, 2, 40, version=version, ffn_dropout=0.0)).to(DEVICE)
    x = drawn(F32, 2, 40, 48).detach()
    whole = model(x)
    for cuts in ([1] * 40, [7, 1, 32], [39, 1]):
        torch.testing.assert_close(in_pieces(model, x, cuts)[0], whole, rtol=1e-5, atol=1e-5)
    assert sf.last_run().plan.backend == "triton"
