"""MultiScaleSSM and its recurrence against the numbers of the original."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from models.ssm import Euler, MultiScaleSSM
from models.ssm.initial import before_softplus
from tests.models.golden import golden

F64 = torch.float64
CASES = ["small_L5", "small_L5_past", "step_L1_past", "onescale_L17", "four_L70_past"]
TIGHT = {"rtol": 1e-12, "atol": 1e-14}
every_case = pytest.mark.parametrize("case", CASES)


def of(case: str, file: str) -> dict[str, torch.Tensor]:
    """The arrays of a case; no case of the file is left out."""
    found = golden(file)
    assert {key.split("/")[0] for key in found} == set(CASES)
    return {key.removeprefix(f"{case}/"): x for key, x in found.items() if key.startswith(f"{case}/")}


def built(g: dict[str, torch.Tensor], **options: object) -> MultiScaleSSM:
    d, d_model = g["A_log_at_init"].shape[0], g["x"].shape[-1]
    last_scale = g["A_log_at_init"][-1, 0].exp().log2().round().int().item()  # 2^(num_scales - 1) at n = 0
    return MultiScaleSSM(d_model, last_scale + 1, g["A_log_at_init"].shape[1], d // d_model, **options)


@every_case
def test_block(case):
    """Output, state and every gradient; the original's `state_dict` loads by name."""
    g = of(case, "multiscale_ssm_block")
    layer = built(g).double()
    weights = {n.removeprefix("param/"): p for n, p in g.items() if n.startswith("param/")}
    layer.load_state_dict(weights, strict=True)
    leaves = {n: g[n].clone().requires_grad_() for n in ("x", "past_state") if n in g}
    y, state = layer(leaves["x"], leaves.get("past_state"), True)
    torch.testing.assert_close(y, g["y"], **TIGHT)
    torch.testing.assert_close(state, g["new_state"], **TIGHT)
    ((y * g["cot_y"]).sum() + (state * g["cot_state"]).sum()).backward()
    for name, leaf in leaves.items():
        torch.testing.assert_close(leaf.grad, g[f"grad_{name}"], **TIGHT)
    for name, p in layer.named_parameters():
        torch.testing.assert_close(p.grad, g[f"grad_param/{name}"], **TIGHT)


@every_case
def test_stepping_the_block(case):
    g = of(case, "multiscale_ssm_block")
    layer = built(g).double()
    layer.load_state_dict({n.removeprefix("param/"): p for n, p in g.items() if n.startswith("param/")})
    state = g.get("past_state", layer.initial_state(len(g["x"])))
    for t in range(g["x"].shape[1]):
        y_t, state = layer.step(g["x"][:, t], state)
        torch.testing.assert_close(y_t, g["y"][:, t], **TIGHT)
    torch.testing.assert_close(state, g["new_state"], **TIGHT)


@every_case
def test_initial_rates(case):
    """A_log at the start, in fp32 as in the original whatever the other parameters are."""
    g = of(case, "multiscale_ssm_block")
    for dtype in (None, torch.bfloat16):
        layer = built(g, dtype=dtype)
        assert layer.A_log.dtype == torch.float32
        torch.testing.assert_close(layer.A_log, g["A_log_at_init"].float(), rtol=2e-7, atol=1e-7)


def one_of_silu() -> float:
    """z with silu(z) = 1"""
    z = torch.ones((), dtype=F64)
    for _ in range(20):
        s = torch.sigmoid(z)
        z = z - (z * s - 1) / (s + z * s * (1 - s))
    return z.item()


@every_case
def test_recurrence(case):
    """The layer's declaration where its gates are open: outputs, every state and every gradient."""
    g = of(case, "multiscale_ssm_scan")
    g = {n.removeprefix("scan/"): x for n, x in g.items()}
    leaves = {n: g[n].clone().requires_grad_() for n in ("x", "A", "B", "C", "dt", "h0")}
    channels = torch.zeros(g["A"].shape[0], dtype=F64)

    def run(steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        timed = {n: leaves[n][:, :steps] for n in ("x", "B", "C")}
        return sf.scan(
            Euler,
            **timed,
            dt=before_softplus(leaves["dt"][:, :steps]),
            z=torch.full_like(timed["x"], one_of_silu()),
            A_log=(-leaves["A"]).log(),
            D=channels,
            bias=channels,
            initial_state=leaves["h0"],
            return_final_state=True,
        )

    for t in range(g["x"].shape[1]):
        torch.testing.assert_close(run(t + 1)[1], g["states"][:, t], **TIGHT)
    y, h = run(g["x"].shape[1])
    torch.testing.assert_close(y, g["y"], **TIGHT)
    ((y * g["cot_y"]).sum() + (h * g["cot_last"]).sum()).backward()
    for name, leaf in leaves.items():
        torch.testing.assert_close(leaf.grad, g[f"grad_{name}"], **TIGHT)
