"""Fused recurrences against the numbers of the networks they come from: values, states and gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d, layer_norm, linear, pad, silu

import scanforge as sf
from tests.recurrence_declarations import Mamba
from tests.recurrences import BY_NAME
from tests.reference.fused import every_lowering
from tests.tolerances import assert_close


def golden(file: str) -> dict[str, dict[str, Tensor]]:
    """`{case: {array: tensor}}`; a prefix that all keys of the file share is dropped."""
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in np.load(Path(__file__).parents[1] / "golden" / f"{file}.npz").items():
        case, name = key.split("/", 1)
        found.setdefault(case, {})[name.removeprefix("scan/")] = torch.from_numpy(value)
    return found


RGLRU_SCAN, RGLRU_BLOCK = golden("rglru_scan"), golden("rglru_block")
SSM_SCAN, SSM_BLOCK = golden("multiscale_ssm_scan"), golden("multiscale_ssm_block")
HGRN2_PAPER = {case: x for case, x in golden("hgrn2_paper").items() if case != "paper"}
HGRN2_ORIGINAL = golden("hgrn2_original")


def every_case(cases: dict):
    return pytest.mark.parametrize("g", list(cases.values()), ids=list(cases))


def wanting(g: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {name: g[name].clone().requires_grad_() for name in names}


def assert_gradients(loss: Tensor, inputs: dict[str, Tensor], g: dict[str, Tensor]) -> None:
    """The gradient of each input is the file's `grad_<name>`."""
    found = torch.autograd.grad(loss, list(inputs.values()))
    for name, x in zip(inputs, found, strict=True):
        assert_close(x, g[f"grad_{name}"], "gradient", name)


def test_no_case_is_missing():
    files = (RGLRU_SCAN, RGLRU_BLOCK, SSM_SCAN, SSM_BLOCK, HGRN2_PAPER, HGRN2_ORIGINAL)
    assert [len(cases) for cases in files] == [4, 3, 5, 5, 4, 3]


class PowerLRU(sf.Recurrence):
    """h_t = a^δ_t h_{t-1} + sqrt(1 - a^2δ_t) u_t"""

    u, delta = sf.Input("b t d"), sf.Input("b t d")
    a = sf.Input("d")
    h = sf.State("b d")

    def element(self):
        log_a = self.delta * sf.log(self.a)
        return sf.Affine(a=sf.exp(log_a), b=sf.sqrt(-sf.expm1(2 * log_a), max_slope=1000) * self.u)

    def readout(self):
        return self.h


class PowerLRUTimeLast(PowerLRU):
    """The same, in the layout of the file"""

    u, delta = sf.Input("b d t"), sf.Input("b d t")


@every_case(RGLRU_SCAN)
@every_lowering
def test_rg_lru_scan(g, lowering):
    inputs = wanting(g, "u", "delta", "a")
    u, delta = (inputs[name].transpose(1, 2) for name in ("u", "delta"))
    y, h = sf.scan(
        PowerLRU, u=u, delta=delta, a=inputs["a"][:, 0], return_final_state=True, lowering=lowering
    )
    y, h = y.transpose(1, 2), h[..., None]
    assert_close(y, g["y"], "forward")
    assert_close(h, g["last_state"], "forward")
    assert_gradients((y * g["cot_y"]).sum() + (h * g["cot_last"]).sum(), inputs, g)


@every_case(RGLRU_SCAN)
def test_rg_lru_scan_with_time_last(g):
    """The outputs take the order of the inputs' axes."""
    inputs = wanting(g, "u", "delta", "a")
    y = sf.scan(PowerLRUTimeLast, u=inputs["u"], delta=inputs["delta"], a=inputs["a"][:, 0])
    assert_close(y, g["y"], "forward")


class RGLRUBlock(sf.Recurrence):
    """Gates as pre-activations, a = σ(a_log), and the branch that multiplies the state"""

    x, r, i, gate = sf.Input("b t d"), sf.Input("b t d"), sf.Input("b t d"), sf.Input("b t d")
    a_log = sf.Input("d")
    h = sf.State("b d")

    def element(self):
        log_a = -8 * sf.softplus(-self.a_log) * sf.sigmoid(self.r)
        multiplier = sf.sqrt(-sf.expm1(2 * log_a), max_slope=1000)
        return sf.Affine(a=sf.exp(log_a), b=multiplier * sf.sigmoid(self.i) * self.x)

    def readout(self):
        return sf.gelu(self.gate) * self.h


def parameters(g: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: x.clone().requires_grad_() for n, x in g.items() if n.startswith("param/")}


@every_case(RGLRU_BLOCK)
@every_lowering
def test_rg_lru_block(g, lowering):
    inputs = parameters(g) | wanting(g, "x")

    def projected(name, x):
        return linear(x, inputs[f"param/{name}.weight"], inputs.get(f"param/{name}.bias"))

    def run(x):
        xi, weight = projected("in_proj", x), inputs["param/conv1d.weight"]
        past = pad(xi.transpose(1, 2), (3, 0))
        xc = conv1d(past, weight, inputs.get("param/conv1d.bias"), groups=len(weight)).transpose(1, 2)
        return sf.scan(
            RGLRUBlock,
            x=xc,
            r=projected("recurrent_gate_proj", xc),
            i=projected("input_gate_proj", xc),
            gate=projected("gate_proj", x),
            a_log=inputs["param/a_log"][:, 0],
            return_final_state=True,
            lowering=lowering,
        )

    for length in (2, 6, 10):
        _, h = run(inputs["x"][:, :length])
        assert_close(h[..., None], g[f"lrnn_state_after{length}"], "forward")
    y = projected("out_proj", run(inputs["x"])[0])
    assert_close(y, g["y"], "forward")
    assert_gradients((y * g["cot_y"]).sum(), inputs, g)


class ExposedSSM(sf.Recurrence):
    """y_t = C_t·h_t, and h_t itself"""

    x, dt = sf.Input("b t d"), sf.Input("b t d")
    A = sf.Input("d n")
    B, C = sf.Input("b t n"), sf.Input("b t n")
    h = sf.State("b d n")

    def element(self):
        return sf.Affine(a=sf.exp(self.dt * self.A), b=self.dt * self.B * self.x)

    def readout(self):
        return sf.sum(self.C * self.h, "n"), self.h


@every_case(SSM_SCAN)
@every_lowering
def test_multi_scale_ssm_scan(g, lowering):
    inputs = wanting(g, "x", "A", "B", "C", "dt")
    h0 = wanting(g, "h0")
    (y, states), h = sf.scan(
        ExposedSSM, **inputs, initial_state=h0["h0"], return_final_state=True, lowering=lowering
    )
    assert_close(y, g["y"], "forward")
    assert_close(states, g["states"], "forward")
    assert_close(h, g["states"][:, -1], "forward")
    assert_gradients((y * g["cot_y"]).sum() + (h * g["cot_last"]).sum(), inputs | h0, g)


@every_case(SSM_BLOCK)
@every_lowering
def test_multi_scale_ssm_block(g, lowering):
    """The declaration takes dt before its softplus, A's logarithm and z: the projections are torch's."""
    inputs = parameters(g) | wanting(g, "x", *({"past_state"} & g.keys()))
    p = {n.removeprefix("param/"): x for n, x in inputs.items()}
    xs, z = linear(p["x"], p["in_proj.weight"]).chunk(2, -1)
    y, h = sf.scan(
        Mamba,
        u=xs,
        z=z,
        dt=linear(xs, p["dt_proj.weight"]),
        bias=p["dt_proj.bias"],
        A_log=p["A_log"],
        B=linear(xs, p["B_proj.weight"]),
        C=linear(xs, p["C_proj.weight"]),
        D=p["D"],
        initial_state=p.get("past_state"),
        return_final_state=True,
        lowering=lowering,
    )
    y = linear(y, p["out_proj.weight"]) * torch.sigmoid(p["output_gate"])
    assert_close(y, g["y"], "forward")
    assert_close(h, g["new_state"], "forward")
    cot_state = g.get("cot_state", torch.zeros(()))
    assert_gradients((y * g["cot_y"]).sum() + (h * cot_state).sum(), inputs, g)


class PaperHGRN2(sf.Recurrence):
    """q = silu(q_pre), f = lb + (1-lb) σ(f_pre), k = 1-f, o = scale q·S"""

    q_pre, f_pre = sf.Input("b t h k"), sf.Input("b t h k")
    v = sf.Input("b t h v")
    lower_bound = sf.Input("h k")
    scale = sf.Input("")
    S = sf.State("b h k v")

    def element(self):
        f = self.lower_bound + (1 - self.lower_bound) * sf.sigmoid(self.f_pre)
        return sf.Affine(a=f, b=(1 - f) * self.v)

    def readout(self):
        return self.scale * sf.sum(sf.silu(self.q_pre) * self.S, "k"), self.S


@every_case(HGRN2_PAPER)
@every_lowering
def test_hgrn2_paper(g, lowering):
    inputs = wanting(g, "q_pre", "f_pre", "v", "lower_bound")
    h0 = wanting(g, "h0")
    (o, states), S = sf.scan(
        PaperHGRN2,
        **inputs,
        scale=g["scale"],
        initial_state=h0["h0"],
        return_final_state=True,
        lowering=lowering,
    )
    assert_close(o, g["o"], "forward")
    assert_close(states, g["states"], "forward")
    assert_gradients((o * g["cot_o"]).sum() + (S * g["cot_last"]).sum(), inputs | h0, g)


class OriginalHGRN2(sf.Recurrence):
    """The decay is on the value axis, and k is free"""

    q, k = sf.Input("b t h k"), sf.Input("b t h k")
    v, f_pre = sf.Input("b t h v"), sf.Input("b t h v")
    lower_bound = sf.Input("")
    S = sf.State("b h v k")
    o, states = sf.Output("b t h v"), sf.Output("b t h v k")

    def element(self):
        f = self.lower_bound + (1 - self.lower_bound) * sf.sigmoid(self.f_pre)
        return sf.Affine(a=f, b=self.v * self.k)

    def readout(self):
        return sf.sum(self.S * self.q, "k"), self.S


@every_case(HGRN2_ORIGINAL)
@every_lowering
def test_hgrn2_original(g, lowering):
    inputs = parameters(g) | wanting(g, "x")
    p, heads = {n.removeprefix("param/"): x for n, x in inputs.items()}, g["q"].shape[2:]
    q, k, v = (linear(p["x"], p[f"{n}_proj.weight"]).unflatten(-1, heads) for n in "qkv")
    f_pre = linear(p["x"], p["forget_proj.weight"], p["forget_proj.bias"]).unflatten(-1, heads)
    o, states = sf.scan(
        OriginalHGRN2, q=q, k=k, v=v, f_pre=f_pre, lower_bound=g["lower_bound"], lowering=lowering
    )
    assert_close(o, g["readout"], "forward")
    assert_close(states, g["states"], "forward")
    normed = layer_norm(o.flatten(-2), p["norm.weight"].shape, p["norm.weight"], p["norm.bias"])
    y = linear(normed * silu(linear(p["x"], p["g_proj.weight"])), p["out_proj.weight"])
    assert_close(y, g["y"], "forward")
    assert_gradients((y * g["cot_y"]).sum(), inputs, g)


def test_the_loops_agree():
    """The loops that the other tests trust, on the same numbers."""
    for g in SSM_SCAN.values():
        inputs = {
            "u": g["x"],
            "D": torch.zeros(len(g["A"])).double(),
            **{n: g[n] for n in ("A", "B", "C", "dt")},
        }
        (y,), (h,) = BY_NAME["SelectiveSSM"].loop(inputs, (g["h0"],))
        assert_close(y, g["y"], "forward")
        assert_close(h, g["states"][:, -1], "forward")
    for g in HGRN2_PAPER.values():
        inputs = {"q": silu(g["q_pre"]), "f": g["f_pre"], "v": g["v"], "lower": g["lower_bound"]}
        (o,), _ = BY_NAME["HGRN2"].loop(inputs, (g["h0"],))
        assert_close(o * g["scale"], g["o"], "forward")
