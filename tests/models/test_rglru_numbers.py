"""RG-LRU against loops written from the papers: gates, branches, first steps, and gates that saturate."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import scanforge as sf
from models.rglru import RGLRU, RecurrentBlock, RGLRUScan, RGLRUUnitStart
from models.rglru.starts import first_steps
from models.segments import Segments
from tests.catalogue import chance, generator
from tests.models.protocol import TIGHT, seeded

F64 = torch.float64


def gated(module, x: Tensor) -> Tensor:
    """A gate of one step, by rows: dense (out, in), or blocks (block, in, out)."""
    w, b = module.weight, module.bias
    if w.ndim == 2:
        return torch.sigmoid(w @ x + b)
    parts = [x[h * w.shape[1] : (h + 1) * w.shape[1]] @ w[h] + b[h] for h in range(len(w))]
    return torch.sigmoid(torch.cat(parts))


def loop(layer, x: Tensor, unit_start: bool, gelu: str, c: float) -> Tensor:
    """One sequence x (T, d_model), a step at a time, with powers and roots as the paper writes them."""
    a = torch.sigmoid(layer.a_log[:, 0])
    width = layer.conv1d.weight.shape[-1]
    seen = [torch.zeros(len(a), dtype=F64)] * (width - 1)
    h, ys = torch.zeros(len(a), dtype=F64), []
    for t in range(len(x)):
        seen.append(layer.in_proj(x[t]))
        xc = sum(layer.conv1d.weight[:, 0, j] * seen[t + j] for j in range(width))
        xc = xc if layer.conv1d.bias is None else xc + layer.conv1d.bias
        a_t = a ** (c * gated(layer.recurrent_gate_proj, xc))
        weight = torch.ones_like(a_t) if unit_start and t == 0 else torch.sqrt(1 - a_t**2)
        h = a_t * h + weight * gated(layer.input_gate_proj, xc) * xc
        ys.append(layer.out_proj(F.gelu(layer.gate_proj(x[t]), approximate=gelu) * h))
    return torch.stack(ys)


@pytest.mark.parametrize("unit_start", [False, True])
@pytest.mark.parametrize("gelu", ["exact", "tanh"])
@pytest.mark.parametrize("blocks", [None, 1, 3])
def test_the_layer_is_the_loop(unit_start, gelu, blocks):
    options = {"gates": "dense" if blocks is None else "block", "num_blocks": blocks}
    layer = seeded(lambda: RGLRU(3, 3, 2, 6.0, gelu=gelu, unit_start=unit_start, **options))()
    x = torch.randn(2, 8, 3, dtype=F64, generator=generator(1))
    form = {"exact": "none", "tanh": "tanh"}[gelu]
    want = torch.stack([loop(layer, row, unit_start, form, 6.0) for row in x])
    torch.testing.assert_close(layer(x), want, **TIGHT)
    got, want = (torch.autograd.grad((y * y).sum(), [*layer.parameters()]) for y in (layer(x), want))
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_griffin_s_block_is_the_loop():
    layer = seeded(lambda: RecurrentBlock(3, width=6, num_heads=2))()
    x = torch.randn(9, 3, dtype=F64, generator=generator(2))
    torch.testing.assert_close(layer(x[None])[0], loop(layer, x, True, "tanh", 8.0), **TIGHT)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_first_steps_by_a_walk_over_every_sequence(packed, seed):
    """Resets on padding, padding at starts, sequences that have started and empty ones."""
    g, steps = generator(seed), 16
    spans = [(0, 0, 2), (0, 2, 2), (0, 2, 9), (0, 9, 9), (0, 9, 16)] if packed else [(0, 0, 16), (1, 0, 16)]
    lines = 1 if packed else 2
    cu = torch.tensor([0, 2, 2, 9, 9, 16]) if packed else None
    reset, mask = chance(g, (lines, steps), 0.25), chance(g, (lines, steps), 0.5)
    started = chance(g, (len(spans), 1), 0.5).double()
    want, after = torch.zeros(lines, steps, dtype=torch.bool), started.clone()
    for n, (line, first, end) in enumerate(spans):
        for t in range(first, end):
            if reset[line, t]:
                after[n] = 0
            if mask[line, t]:
                want[line, t] = after[n] == 0
                after[n] = 1
    got = first_steps(lines, steps, started, Segments(reset, cu, mask))
    torch.testing.assert_close(got, (want, after), rtol=0, atol=0)


def test_resets_have_weight_1_in_the_block_and_not_in_the_original():
    x, reset = torch.randn(1, 6, 4, dtype=F64), torch.tensor([[0, 0, 0, 1, 0, 0]])
    for unit_start in (False, True):
        layer = seeded(lambda u=unit_start: RGLRU(4, unit_start=u, a_init="power"))()
        want = torch.cat([loop(layer, part, unit_start, "none", 8.0) for part in x[0].split(3)])
        torch.testing.assert_close(layer(x, reset=reset)[0], want, **TIGHT)


def scanned(r: float, a_log: float, dtype: torch.dtype, first: bool | None = None):
    """h after one step of x = 1, i = 0 from state 0, and the gradients of (r, a_log, x)."""
    make = {"dtype": dtype, "requires_grad": True}
    leaves = [torch.full((1, 1, 1), r, **make), torch.full((1,), a_log, **make), torch.ones(1, 1, 1, **make)]
    rest = {"i": torch.zeros(1, 1, 1, dtype=dtype), "gate": torch.ones(1, 1, 1, dtype=dtype)}
    kind = RGLRUScan if first is None else RGLRUUnitStart
    rest |= {} if first is None else {"first": torch.full((1, 1), first)}
    _, h = sf.scan(kind, r=leaves[0], a_log=leaves[1], x=leaves[2], **rest, return_final_state=True)
    return h.item(), torch.autograd.grad(h.sum(), leaves)


def test_req23_slow_decay_keeps_its_digits():
    """log a_t = -1e-6 in fp32: sqrt(1 - a²) formed from a rounded a is off by 2.3 %."""
    a_log = math.log(1 / math.expm1(1e-6 / 8 / 0.5))
    h, _ = scanned(0.0, a_log, torch.float32)
    assert h / 0.5 == pytest.approx(math.sqrt(-math.expm1(-2e-6)), rel=1e-5)


@pytest.mark.parametrize(("r", "a_log"), [(-200.0, 2.0), (200.0, 200.0), (0.0, 200.0), (-200.0, 200.0)])
def test_req23_at_modulus_1_the_input_has_weight_0_and_gradients_are_finite(r, a_log):
    h, gradients = scanned(r, a_log, torch.float32)
    assert h == 0
    assert all(g.isfinite().all() for g in gradients)


def test_req23_the_slope_of_the_root_is_at_most_1000():
    """At log a_t = -1e-12 the root's own slope is 3.5e5; log a_t = -8 softplus(-a_log) σ(0)."""
    a_log = -math.log(math.expm1(1e-12 / 4))
    _, (_, by_a_log, _) = scanned(0.0, a_log, F64)
    slope = by_a_log.item() / 0.5 / (4 * torch.sigmoid(torch.tensor(-a_log, dtype=F64)).item())
    assert abs(slope) == pytest.approx(1000 * 2, rel=1e-9)


def test_req23_first_steps_have_weight_1_whatever_the_decay():
    for r, a_log in ((-200.0, 200.0), (0.0, 1.0), (200.0, -200.0)):
        h, (by_r, by_a_log, by_x) = scanned(r, a_log, torch.float32, first=True)
        assert (h, by_r.item(), by_a_log.item(), by_x.item()) == (0.5, 0, 0, 0.5)
    assert scanned(0.0, 1.0, F64, first=False) == scanned(0.0, 1.0, F64)


@pytest.mark.parametrize("make", [RGLRU, RecurrentBlock])
@pytest.mark.parametrize("bias", [-1e4, 1e4])
@pytest.mark.parametrize("a_log", [-100.0, 100.0])
def test_req23_layers_with_saturated_gates_have_finite_gradients(make, bias, a_log):
    torch.manual_seed(0)
    layer, x = make(4), torch.randn(2, 30, 4, requires_grad=True)
    with torch.no_grad():
        layer.recurrent_gate_proj.bias.fill_(bias)
        layer.a_log.fill_(a_log)
    layer(x).square().sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())
