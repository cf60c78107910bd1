"""Recurrences with a matrix for a state, on real sizes: HGRN2 with its gates, and a scalar decay by head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

import scanforge as sf
from benchmarks import truths
from benchmarks.problems import OUTPUT, Problem, Truth, own_calls
from tests.recurrences import BY_NAME

BF16 = torch.bfloat16
HGRN2 = BY_NAME["HGRN2"].recurrence
SIZES = ((8, 2048, 16, 128, 128), (4, 4096, 16, 128, 128), (1, 32768, 16, 128, 128), (8, 2048, 8, 64, 64),
         (8, 2048, 4, 256, 512))  # fmt: skip
TINY = (2, 70, 2, 4, 3)
HEADS = 2  # that are compared: the first and the last


class ScalarDecay(sf.Recurrence):
    """S_t = exp(g_t) S_{t-1} + k_t v_t^T,  o_t = S_t^T q_t, with one decay a head and step, as in Mamba-2."""

    q, k = sf.Input("b t h k"), sf.Input("b t h k")
    v = sf.Input("b t h v")
    g = sf.Input("b t h")
    S = sf.State("b h k v")

    def element(self) -> Any:
        return sf.Affine(a=sf.exp(self.g), b=self.k * self.v)

    def readout(self) -> Any:
        return sf.sum(self.q * self.S, "k")


def normal(g: torch.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Drawn in fp32: twice the bytes of these sizes is enough for a while."""
    return torch.randn(shape, generator=g).to(dtype)


def hgrn2(size: tuple[int, ...], device: str, lowering: str | None) -> Problem:
    """q, f, v in bf16, the lower bound of the decay in fp32."""

    def draw(g: torch.Generator) -> dict[str, Tensor]:
        b, t, h, k, v = size
        some = {n: normal(g, (b, t, h, k), BF16) for n in ("q", "f")} | {"v": normal(g, (b, t, h, v), BF16)}
        return some | {"lower": 0.3 * torch.rand((h, k), generator=g)}

    def gates(x: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        decay = x["lower"] + (1 - x["lower"]) * torch.sigmoid(x["f"])
        return 1 - decay, decay.log()

    return _problem("HGRN2", HGRN2, size, device, lowering, draw, gates)


def scalar_decay(size: tuple[int, ...], device: str, lowering: str | None) -> Problem:
    """q, k, v and the logarithm of the decay in bf16."""

    def draw(g: torch.Generator) -> dict[str, Tensor]:
        b, t, h, k, v = size
        some = {n: normal(g, (b, t, h, k), BF16) for n in ("q", "k")} | {"v": normal(g, (b, t, h, v), BF16)}
        return some | {"g": logsigmoid(normal(g, (b, t, h), torch.float32) + 3).to(BF16)}

    def gates(x: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return x["k"], x["g"][..., None]

    return _problem("scalar decay", ScalarDecay, size, device, lowering, draw, gates)


Gates = Callable[[dict[str, Tensor]], tuple[Tensor, Tensor]]  # keys, and the logarithm of the decay


def _problem(
    name: str, recurrence: type[sf.Recurrence], size: tuple[int, ...], device: str, lowering: str | None,
    draw: Callable[[torch.Generator], dict[str, Tensor]], gates: Gates,
) -> Problem:  # fmt: skip
    b, t, h, k, v = size
    with torch.device(device):
        g = torch.Generator(device).manual_seed(0)
        inputs, cotangent = draw(g), normal(g, (b, t, h, v), BF16)
    scan = partial(sf.scan, recurrence, lowering=lowering)
    return Problem(
        section="matrix",
        operator=name,
        size=size,
        layout="bthkv",
        dtype=BF16,
        inputs=inputs,
        cotangent=cotangent,
        find=partial(_truth, inputs, cotangent, gates),
        ours=partial(own_calls, scan, inputs, cotangent),
        products=b * t * h * k * v,
    )


def _cut(heads: Tensor, name: str, x: Tensor) -> Tensor:
    """Some heads of a tensor by name; `lower` is (h, k), every other one (b, t, h ...)."""
    return x.detach().index_select(0 if name == "lower" else 2, heads)


def _truth(inputs: dict[str, Tensor], cotangent: Tensor, gates: Gates) -> Truth:
    heads = torch.tensor(sorted({0, cotangent.shape[2] - 1}), device=cotangent.device)
    cut = partial(_cut, heads)
    given = {n: cut(n, x).double().requires_grad_() for n, x in inputs.items()}
    keys, log_decay = gates(given)
    y = truths.matrix(given["q"], keys, given["v"], log_decay)
    found = torch.autograd.grad(y, list(given.values()), cut(OUTPUT, cotangent).double())
    return Truth({OUTPUT: y.detach()} | dict(zip(given, found, strict=True)), cut)
