"""Faults reported in the field, where they concern fused recurrences: numbers and sizes, 17 to 32."""

from __future__ import annotations

import io
import math

import pytest
import torch
from torch import Tensor

import scanforge as sf
from tests.catalogue import Shape, generator, normal
from tests.recurrences import BY_NAME, Entry, Part, draw, parts
from tests.reference.fused import check, check_packed, every_lowering, scan, single
from tests.tolerances import assert_close, assert_equal

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
TABLE = ("forward", "gradient")

# 17: a decay that all steps share


@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=str)
@every_lowering
def test_req17_a_time_invariant_gate(dtype, lowering):
    """Its gradient has its own shape, and is summed in float32 whatever its type."""
    entry = BY_NAME["Decay"]
    tensors, _ = draw(entry, dtype, b=4, t=512, d=8)
    got = check(entry, tensors, losses=["outputs"], lowerings=[lowering], quantities=TABLE)
    assert got.gradients["outputs"]["w"].shape == (8,)
    assert got.gradients["outputs"]["w"].dtype == dtype


@every_lowering
def test_req17_an_expanded_input_is_read_in_place(lowering):
    """A stride of 0 is a layout like any other; its gradient is torch's to reduce."""
    entry = BY_NAME["RGLRU"]
    tensors, initial = draw(entry, t=20)
    thin = {n: tensors[n][:, :1] for n in ("r", "i")}
    expanded = {n: x.expand(2, 20, 3) for n, x in thin.items()}
    assert expanded["r"].stride(1) == 0
    check(entry, tensors | expanded, initial, lowerings=[lowering])
    check(entry, tensors | thin, initial, lowerings=[lowering])


# 18: strong decays


def strong(g: torch.Generator, shape: Shape, dtype: torch.dtype) -> Tensor:
    """Log-gates from "keep all" to "forget all"."""
    choices = torch.tensor([0, -1e-3, -1, -20, -80, -1e4], dtype=F64)
    return choices[torch.randint(6, shape, generator=g)].to(dtype)


class LogDecay(sf.Recurrence):
    """h_t = exp(g_t) h_{t-1} + x_t"""

    x, g = sf.Input("b t d"), sf.Input("b t d")
    h = sf.State("b d")

    def element(self):
        return sf.Affine(a=sf.exp(self.g), b=self.x)

    def readout(self):
        return self.h


def log_decay(states, first, *, x, g):
    h = g.exp() * states[0] + x
    return (h,), (h,)


class LogDecayMatrix(sf.Recurrence):
    """S_t = diag(exp(g_t)) S_{t-1} + (1 - exp(g_t)) v_t^T,  o_t = S_t^T q_t"""

    q, g = sf.Input("b t h k"), sf.Input("b t h k")
    v = sf.Input("b t h v")
    S = sf.State("b h k v")

    def element(self):
        return sf.Affine(a=sf.exp(self.g), b=-sf.expm1(self.g) * self.v)

    def readout(self):
        return sf.sum(self.q * self.S, "k")


def log_decay_matrix(states, first, *, q, g, v):
    S = g.exp()[..., None] * states[0] - torch.expm1(g)[..., None] * v[:, :, None, :]
    return (torch.einsum("bhk,bhkv->bhv", q, S),), (S,)


STRONG = {
    "affine": (
        Entry(LogDecay, log_decay, parts("x: b t d", g=Part("b t d", strong)), {"h": Part("b d")}),
        64,
    ),
    "matrix": (
        Entry(
            LogDecayMatrix,
            log_decay_matrix,
            parts("q: b t h k", "v: b t h v", g=Part("b t h k", strong)),
            {"S": Part("b h k v")},
            ("b t h v",),
        ),
        0,
    ),
}


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize(("entry", "width"), STRONG.values(), ids=STRONG)
@pytest.mark.parametrize("lowering", ["parallel"])
def test_req18_strong_decays(entry, width, dtype, lowering):
    tensors, _ = draw(entry, dtype, b=1, t=1024, d=width, h=1, k=6, v=4)
    tensors["g"].narrow(1, 300, 64).fill_(-80)
    got = check(entry, tensors, losses=["both"], lowerings=[lowering], quantities=TABLE)
    assert all(x.isfinite().all() for x in (*got.outputs, *got.finals, *got.gradients["both"].values()))


# 23: the multiplier of RG-LRU


class Multiplier(sf.Recurrence):
    """The multiplier alone, as an output and as an input of the state"""

    log_a, x = sf.Input("b t d"), sf.Input("b t d")
    h = sf.State("b d")

    def element(self):
        return sf.Affine(a=sf.exp(self.log_a), b=sf.sqrt(-sf.expm1(2 * self.log_a), max_slope=1000) * self.x)

    def readout(self):
        return self.h


@every_lowering
def test_req23_the_multiplier_near_one(lowering):
    """One step from 0 shows it: 0.0014142 at log a = -1e-6, where sqrt(1 - a²) gives 0.0013811."""
    for log_a in (-1e-6, -1e-4, -0.1, -5.0):
        x = torch.full((1, 1, 1), log_a)
        y = sf.scan(Multiplier, log_a=x, x=torch.ones(1, 1, 1), lowering=lowering)
        assert y.item() == pytest.approx(math.sqrt(-math.expm1(2 * x.double().item())), rel=1e-5)


@every_lowering
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_req23_the_gradient_is_capped(lowering, dtype):
    """At log a = 0 the multiplier is 0 and the slope of the root 1000, so the gradient is -2 · 1000."""
    log_a = torch.zeros(1, 3, 1, dtype=dtype, requires_grad=True)
    x = torch.ones(1, 3, 1, dtype=dtype, requires_grad=True)
    y = sf.scan(Multiplier, log_a=log_a, x=x, lowering=lowering)
    assert torch.equal(y, torch.zeros_like(y))
    by_gate, by_x = torch.autograd.grad(y[0, -1, 0], (log_a, x))
    assert_close(by_gate.double(), torch.full((1, 3, 1), -2000.0, dtype=F64), "forward", dtype=dtype)
    assert torch.equal(by_x, torch.zeros_like(x))


@every_lowering
def test_req23_the_cap_begins_where_it_says(lowering):
    """d sqrt(u)/du = 0.5 / sqrt(max(u, (2 · 1000)⁻²)), on both sides of u = 2.5e-7."""
    for u in (1e-9, 2.4e-7, 2.6e-7, 1e-3):
        log_a = torch.tensor(math.log1p(-u) / 2, dtype=F64).reshape(1, 1, 1).requires_grad_()
        y = sf.scan(Multiplier, log_a=log_a, x=torch.ones(1, 1, 1, dtype=F64), lowering=lowering)
        (slope,) = torch.autograd.grad(y.sum(), log_a)
        assert slope.item() == pytest.approx(-(1 - u) / math.sqrt(max(u, 2.5e-7)), rel=1e-9)


@every_lowering
def test_req23_multiplier_one_at_a_reset(lowering):
    entry = BY_NAME["RGLRUDocuments"]
    tensors, _ = draw(entry, t=6)
    reset = torch.zeros(2, 6, dtype=torch.bool)
    reset[:, 0] = reset[0, 3] = True
    got = check(entry, tensors, lowerings=[lowering], reset=reset)
    gated = torch.sigmoid(tensors["i"]) * tensors["x"]
    assert_close(got.outputs[0][:, 0], gated[:, 0], "forward")
    assert_close(got.outputs[0][0, 3], gated[0, 3], "forward")


# 24: the state that is handed to decoding


@pytest.mark.parametrize("name", ["RGLRU", "Mamba", "HGRN2"])
def test_req24_the_state_is_fp32(name):
    """Prefill 2048 in bf16, save, restore, and 64 steps: as one pass over all."""
    entry = BY_NAME[name]
    tensors, _ = draw(entry, BF16, b=1, t=2112)
    axes = {n: p.axes.split() for n, p in entry.inputs.items()}

    def cut(begin, end):
        return {n: x[:, begin:end] if "t" in axes[n] else x for n, x in tensors.items()}

    whole, _ = scan(entry, tensors)
    _, state = scan(entry, cut(0, 2048))
    assert state[0].dtype == F32
    file = io.BytesIO()
    torch.save(state[0], file)
    file.seek(0)
    restored = torch.load(file)
    assert_equal(restored, state[0])
    history, state = [], restored
    for t in range(2048, 2112):
        row = {n: x[:, 0] if "t" in axes[n] else x for n, x in cut(t, t + 1).items()}
        y, state = sf.step(entry.recurrence, state, **row)
        assert (y.dtype, state.dtype) == (BF16, F32)
        history.append(y)
    assert_close(torch.stack(history, 1), whole[0][:, 2048:].double(), "forward", name)


# 28, 29: sizes


def every_path(entry: Entry, **sizes: int) -> None:
    """Scan, backward, packed and step."""
    tensors, initial = draw(entry, **sizes)
    check(entry, tensors, initial, ["both"])
    packed, _ = draw(entry, **sizes | {"b": 1, "t": 4})
    check_packed(entry, packed, initial, [0, 3, 4], ["both"])
    row = {n: x.select(1, 0) if "t" in entry.inputs[n].axes.split() else x for n, x in tensors.items()}
    y, _ = sf.step(entry.recurrence, single(initial), **row)
    truth = entry.loop({n: x[:, :1] if x.ndim > 2 else x for n, x in tensors.items()}, initial)
    assert_close(y, truth[0][0][:, 0], "forward")


@pytest.mark.parametrize("d", [1, 3, 17, 31, 33, 96, 100, 192, 257])
def test_req28_channels(d):
    every_path(BY_NAME["RGLRU"], d=d, t=2)
    every_path(BY_NAME["Mamba"], d=d, n=3, t=2)


@pytest.mark.parametrize("n", [1, 3, 5, 12, 24])
def test_req28_states(n):
    every_path(BY_NAME["Mamba"], n=n, d=5, t=3)


@pytest.mark.parametrize(("k", "v"), [(16, 24), (24, 40), (40, 96), (96, 100), (100, 16)])
def test_req28_keys_and_values(k, v):
    every_path(BY_NAME["HGRN2"], k=k, v=v, t=2)


@pytest.mark.parametrize("n", [16, 64, 256, 300, 512])
def test_req29_no_cap_on_the_state(n):
    every_path(BY_NAME["Mamba"], n=n, d=3, t=3)


# 32: a broadcast operand on both sides of every switch


def biased(axes: str) -> Entry:
    """h_t = σ(x_t + bias) h_{t-1} + x_t, with a bias of any axes"""

    def element(self):
        return sf.Affine(a=sf.sigmoid(self.x + self.bias), b=self.x)

    fields = {"x": sf.Input("b t d"), "bias": sf.Input(axes), "h": sf.State("b d"), "element": element}
    recurrence = type("Biased", (sf.Recurrence,), fields | {"readout": lambda self: self.h})

    def step(states, first, *, x, bias):
        h = torch.sigmoid(x + (bias[:, None] if axes == "b" else bias)) * states[0] + x
        return (h,), (h,)

    return Entry(recurrence, step, parts("x: b t d", bias=Part(axes)), {"h": Part("b d")})


@pytest.mark.parametrize("length", [1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129])
@pytest.mark.parametrize("axes", ["d", "", "b", "b d"])
def test_req32_broadcast_operands(axes, length):
    entry = biased(axes)
    check(entry, *draw(entry, t=length), losses=["both"])


@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 1, 1), (1, 1, 1)])
@pytest.mark.parametrize("length", [2, 129])
def test_req32_axes_of_size_1(shape, length):
    entry = biased("b t d")
    tensors, initial = draw(entry, t=length)
    bias = normal(generator(32), shape, F64)
    got = check(entry, tensors | {"bias": bias}, initial, losses=["both"])
    assert got.gradients["both"]["bias"].shape == shape
