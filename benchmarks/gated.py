"""Layers whose gates and readout run in the scan: RG-LRU and Mamba's selective SSM, on real sizes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

import scanforge as sf
from benchmarks import layers, truths
from benchmarks.layers import MAMBA, RG_LRU
from benchmarks.problems import OUTPUT, Problem, Truth, own_calls
from tests.recurrences import Entry, Sizes

BF16 = torch.bfloat16
RG_LRU_SIZES = ((8, 2048, 2048), (1, 65536, 2048))  # b, t, d
MAMBA_SIZES = tuple(
    (*size, n) for n in (16, 64) for size in ((8, 2048, 2048), (4, 4096, 4096), (1, 65536, 2048))
)
TINY = (2, 37, 5, 3)
CHANNELS = 16  # that are compared, of all sequences
BLOCK = 2**27  # entries of the states of one sequence that are held at a time
TRUTHS = {RG_LRU.name: truths.rg_lru, MAMBA.name: truths.mamba}
CALLED = {RG_LRU.name: "RG-LRU", MAMBA.name: "Mamba"}


def prepare(entry: Entry, size: tuple[int, ...], device: str) -> Problem:
    """Tokens in bf16, parameters in fp32, drawn as `layers.py` does."""
    sizes: Sizes = dict(zip("btdn", size, strict=False))
    with torch.device(device):
        g = torch.Generator(device).manual_seed(0)
        inputs = layers.DRAWS[entry.name](g, sizes)
        cotangent = torch.randn(size[:3], generator=g).to(BF16)
    return Problem(
        section="gated",
        operator=CALLED[entry.name],
        size=size,
        layout="btdn"[: len(size)],
        dtype=BF16,
        inputs=inputs,
        cotangent=cotangent,
        find=partial(_truth, entry, inputs, cotangent),
        ours=partial(own_calls, partial(sf.scan, entry.recurrence), inputs, cotangent),
        exponentials=torch.Size(size).numel() if entry is MAMBA else 0,
    )


def _truth(entry: Entry, inputs: dict[str, Tensor], cotangent: Tensor) -> Truth:
    """Of some channels of all sequences; what is summed over channels, of one sequence."""
    d, device = cotangent.shape[-1], cotangent.device
    picks = torch.linspace(0, d - 1, min(CHANNELS, d), device=device).round().long()

    def cut(name: str, x: Tensor) -> Tensor:
        axes = "b t d" if name == OUTPUT else entry.inputs[name].axes
        return channels(x.detach(), axes, picks) if "d" in axes.split() else x.detach()[:1]

    summed = [n for n, part in entry.inputs.items() if "d" not in part.axes.split()]
    given = {n: cut(n, x) if n not in summed else x.detach() for n, x in inputs.items()}
    y, gradients = differentiated(entry, given, cut(OUTPUT, cotangent))
    found = {n: x for n, x in gradients.items() if n not in summed}
    if summed:
        first = {
            n: x.detach()[:1] if "b" in entry.inputs[n].axes.split() else x.detach()
            for n, x in inputs.items()
        }
        found |= over_channels(entry, first, cotangent[:1], summed)
    return Truth({OUTPUT: y} | found, cut)


def over_channels(
    entry: Entry, inputs: dict[str, Tensor], cotangent: Tensor, names: list[str]
) -> dict[str, Tensor]:
    """The gradients of inputs without channels, summed over all channels, some at a time."""
    states = cotangent[..., 0].numel() * inputs["A_log"].shape[-1]
    total: dict[str, Tensor] = {}
    for block in torch.arange(cotangent.shape[-1], device=cotangent.device).split(max(1, BLOCK // states)):
        given = {n: channels(x, entry.inputs[n].axes, block) for n, x in inputs.items()}
        _, gradients = differentiated(entry, given, channels(cotangent, "b t d", block))
        for name in names:
            total[name] = total[name] + gradients[name] if name in total else gradients[name]
    return total


def channels(x: Tensor, axes: str, picks: Tensor) -> Tensor:
    """Some channels of a tensor that has them."""
    names = axes.split()
    return x.index_select(names.index("d"), picks) if "d" in names else x


def differentiated(
    entry: Entry, inputs: dict[str, Tensor], cotangent: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    leaves = {n: x.double().requires_grad_() for n, x in inputs.items()}
    y = TRUTHS[entry.name](**leaves)
    found = torch.autograd.grad(y, list(leaves.values()), cotangent.double())
    return y.detach(), dict(zip(leaves, found, strict=True))
