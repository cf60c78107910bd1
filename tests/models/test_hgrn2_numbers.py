"""HGRN2 against loops written from the equations, near saturated gates, and in 16 bits."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, rms_norm, silu

import scanforge as sf
from models.hgrn2 import HGRN2, FreeKeys, HGRN2Attention, LowerBounds, TiedKeys, ValueDecay
from tests.models.protocol import drawn, seeded

F64 = torch.float64
TIGHT = {"rtol": 1e-12, "atol": 1e-12}
ACTIVATIONS = {"none": lambda q: q, "silu": silu, "sigmoid": torch.sigmoid}
NORMS = {
    "layernorm": lambda o, w: layer_norm(o, w["weight"].shape, w["weight"], w["bias"]),
    "rmsnorm": lambda o, w: rms_norm(o, w["weight"].shape, w["weight"], 1e-5),
    "none": lambda o, _: o,
}


def head(q, k, v, f, decay: str):
    """One head of one sequence: q, k (T, K), v (T, V), f (T, K or V), all as the equations have them."""
    S = torch.zeros(k.shape[1], v.shape[1], dtype=q.dtype)
    o = []
    for q_t, k_t, v_t, f_t in zip(q, k, v, f, strict=True):
        S = (torch.diag(f_t) @ S if decay == "key" else S @ torch.diag(f_t)) + torch.outer(k_t, v_t)
        o.append(S.T @ q_t)
    return torch.stack(o), S


def loop(q, k, v, f, heads: int, decay: str):
    """(B, T, h·) each; k None is 1 - f. The readout (B, T, h v)."""
    rows = []
    for b in range(q.shape[0]):
        cut = [x[b].chunk(heads, -1) for x in (q, f if k is None else k, v, f)]
        made = [
            head(q_h, 1 - f_h if k is None else k_h, v_h, f_h, decay)[0]
            for q_h, k_h, v_h, f_h in zip(*cut, strict=True)
        ]
        rows.append(torch.cat(made, -1))
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("norm", "gate"), [("layernorm", "silu"), ("rmsnorm", "none"), ("none", "silu"), ("layernorm", "none")]
)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("keys", ["free", "tied"])
@pytest.mark.parametrize("decay", ["value", "key"])
def test_attention_is_its_equation(decay, keys, activation, norm, gate):
    square = keys == "tied" and decay == "value"
    bound = torch.rand(2, (4 if decay == "key" else 2) if not square else 4, dtype=F64)
    options = {"norm": norm, "output_gate": gate, "lower_bound": bound, "scale": None}
    layer = HGRN2Attention(
        hidden_size=8, num_heads=2, expand_v=1 if square else 0.5, decay=decay, keys=keys,
        q_activation=activation, bias=gate == "none", forget_bias=gate == "silu", **options,
    ).to(F64)  # fmt: skip
    x, w = drawn(layer, 2, 6), {n: p.detach() for n, p in layer.named_parameters()}
    bias = lambda name: w.get(f"{name}.bias", torch.zeros(1, dtype=F64))  # noqa: E731
    linear = lambda name, u: u @ w[f"{name}.weight"].T + bias(name)  # noqa: E731
    f = bound.flatten() + (1 - bound.flatten()) / (1 + torch.exp(-linear("forget_proj", x)))
    k = linear("k_proj", x) if keys == "free" else None
    q = ACTIVATIONS[activation](linear("q_proj", x)) * 4**-0.5
    o = loop(q, k, linear("v_proj", x), f, 2, decay)
    o = NORMS[norm](o, {n: w[f"norm.{n}"] for n in ("weight", "bias") if f"norm.{n}" in w})
    o = o * silu(linear("g_proj", x)) if gate == "silu" else o
    torch.testing.assert_close(layer(x), linear("out_proj", o), **TIGHT)


@pytest.mark.parametrize(("norm", "activation"), [*product(("rmsnorm", "layernorm"), ("silu", "sigmoid"))])
@pytest.mark.parametrize("scale", [1.0, None])
def test_the_paper_s_layer_is_its_equation(norm, activation, scale):
    bounds = LowerBounds(3, 8).to(F64)
    torch.nn.init.normal_(bounds.gamma)
    options = {"norm": norm, "q_activation": activation, "scale": scale, "expand_v": 0.5}
    layer = seeded(lambda: HGRN2(8, 2, lower_bound=bounds, layer_idx=2, **options))()
    x, w = drawn(layer, 2, 6), {n: p.detach() for n, p in layer.named_parameters()}
    shares = torch.softmax(bounds.gamma.detach(), 0)
    lower = shares.cumsum(0)[2] - shares[0]
    f = lower + (1 - lower) * torch.sigmoid(x @ w["f_proj.weight"].T)
    q = ACTIVATIONS[activation](x @ w["q_proj.weight"].T) * (0.5 if scale is None else 1)
    o = loop(q, None, x @ w["i_proj.weight"].T, f, 2, "key")
    o = NORMS[norm](o, {n: w[f"g_norm.{n}"] for n in ("weight", "bias") if f"g_norm.{n}" in w})
    torch.testing.assert_close(layer(x), o @ w["o_proj.weight"].T, **TIGHT)


def test_short_convolutions_stand_behind_q_f_and_i():
    layer = seeded(lambda: HGRN2(6, 2, conv_size=3, conv_bias=True))()
    plain = HGRN2(6, 2).to(F64)
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = drawn(layer, 2, 7)
    for name in "qfi":
        w, b = layer.get_parameter(f"{name}_conv1d.weight"), layer.get_parameter(f"{name}_conv1d.bias")

        def convolved(y: Tensor, w=w, b=b) -> Tensor:
            return b + sum(
                w[:, 0, 2 - j] * torch.cat([y[:, :0], 0 * y[:, :j], y[:, : 7 - j]], 1) for j in range(3)
            )

        plain.get_submodule(f"{name}_proj").register_forward_hook(lambda _m, _x, y, f=convolved: f(y))
    torch.testing.assert_close(layer(x), plain(x), **TIGHT)


def gate_inputs(f: float, dtype: torch.dtype) -> dict[str, Tensor]:
    torch.manual_seed(0)
    made = {"q": torch.randn(1, 4, 1, 3), "f": torch.full((1, 4, 1, 3), f), "v": torch.randn(1, 4, 1, 2)}
    return {n: x.to(dtype).requires_grad_() for n, x in (made | {"lower": torch.full((1, 3), 0.25)}).items()}


@pytest.mark.parametrize("f", [-60.0, -18.0, -3.0, 0.0, 3.0, 12.0, 18.0, 25.0, 60.0])
def test_saturated_gates_keep_their_digits(f):
    """fp32 against fp64, and the textbook 1 - f, which at f = 25 writes nothing at all."""
    made = {}
    for dtype in (torch.float32, F64):
        inputs = gate_inputs(f, dtype)
        o = sf.scan(TiedKeys, **inputs)
        o.sum().backward()
        made[dtype] = [o, *(x.grad for x in inputs.values())]
    for got, want in zip(made[torch.float32], made[F64], strict=True):
        assert (got.double() - want).norm() <= 3e-6 * want.norm()
    naive = 1 - torch.sigmoid(torch.tensor(f))
    assert (naive == 0) == (f >= 18)
    assert made[torch.float32][0].any()


@pytest.mark.parametrize("lower", [0.0, 0.3, 0.99])
def test_gates_are_those_of_the_log_form(lower):
    """log f = logaddexp(log γ, log(1-γ) + logsigmoid(f)), as public kernels take it."""
    inputs = {n: x.detach() for n, x in gate_inputs(0.0, F64).items()}
    inputs["f"] = torch.linspace(-12, 12, 12, dtype=F64).reshape(1, 4, 1, 3)
    bound = torch.tensor(lower, dtype=F64)
    log_f = torch.logaddexp(bound.log(), torch.log1p(-bound) + torch.nn.functional.logsigmoid(inputs["f"]))
    q = silu(inputs["q"])
    want = loop(q[:, :, 0], None, inputs["v"][:, :, 0], log_f.exp()[:, :, 0], 1, "key")
    o = sf.scan(TiedKeys, **(inputs | {"lower": bound.reshape(1, 1)}))
    torch.testing.assert_close(o[:, :, 0], want, rtol=1e-10, atol=1e-12)


def original_loop(q, k, v, f, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The original's loop with everything in `dtype`, its state too; decay on the value axis, lb = 0.9."""
    q, k, v, f = (x.to(dtype) for x in (q, k, v, f))
    gate = 0.9 + 0.1 * torch.sigmoid(f)
    S, o = torch.zeros(*v[:, 0].shape, k.shape[-1], dtype=dtype), []
    for t in range(q.shape[1]):
        S = S * gate[:, t, ..., None] + v[:, t, ..., None] * k[:, t, ..., None, :]
        o.append((S * q[:, t, ..., None, :]).sum(-1))
    return torch.stack(o, 1), S


def test_req24_a_bf16_layer_does_not_lose_its_state():
    """16-bit inputs, 512 steps: o is right to its own rounding, S to fp32's; a bf16 state loses both."""
    torch.manual_seed(0)
    q, k, v, f = (torch.randn(1, 512, 2, 16).bfloat16() for _ in range(4))
    made = sf.scan(ValueDecay, q=q, k=k, v=v, f=f, lower=torch.full((1, 1), 0.9), return_final_state=True)
    want, lossy = (original_loop(q, k, v, f, dtype) for dtype in (F64, torch.bfloat16))
    assert [x.dtype for x in made] == [torch.bfloat16, torch.float32]

    def errors(got: tuple[Tensor, Tensor]) -> list[float]:
        return [((x.double() - y).norm() / y.norm()).item() for x, y in zip(got, want, strict=True)]

    assert errors(made)[0] <= 2**-9  # half a unit of bf16's last place
    assert errors(made)[1] <= 1e-6
    assert min(errors(lossy)) > 1e-2


def test_free_keys_with_one_minus_f_are_tied_keys():
    inputs = {n: x.detach() for n, x in gate_inputs(0.7, F64).items()}
    k = (1 - inputs["lower"]) * torch.sigmoid(-inputs["f"])
    free = sf.scan(FreeKeys, **(inputs | {"q": silu(inputs["q"])}), k=k)
    torch.testing.assert_close(sf.scan(TiedKeys, **inputs), free, **TIGHT)
