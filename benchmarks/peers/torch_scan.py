"""PyTorch itself: its associative scan, compiled, and MinMax as its users write it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks import baselines, truths
from benchmarks.peers.peer import Peer, calls
from benchmarks.problems import Calls, Problem
from benchmarks.tables import BOTH
from tests.tolerances import err

Pair = tuple[Tensor, Tensor]


def affine(e: Pair, l: Pair) -> Pair:
    return l[0] * e[0], l[0] * e[1] + l[1]


def min_max(e: Pair, l: Pair) -> Pair:
    return torch.minimum(l[0], e[0]), torch.maximum(torch.minimum(l[0], e[1]), l[1])


def max_plus(e: Pair, l: Pair) -> Pair:
    return l[0] + e[0], torch.maximum(l[0] + e[1], l[1])


COMBINES: dict[str, Callable[[Pair, Pair], Pair]] = {
    "Affine": affine,
    "MinMax": min_max,
    "MaxPlus": max_plus,
}


def scan(
    operator: str, dim: int, x0: Tensor | None, mode: str = "pointwise"
) -> Callable[[Tensor, Tensor], Tensor]:
    """The states of two leaves; an initial state only where it counts, for MinMax."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def run(first: Tensor, second: Tensor) -> Tensor:
        composed = associative_scan(COMBINES[operator], (first, second), dim, combine_mode=mode)
        if x0 is None:
            return composed[1]
        return torch.maximum(torch.minimum(composed[0], x0.unsqueeze(dim)), composed[1])

    return run


def start(problem: Problem) -> Tensor | None:
    """Zero and minus infinity, the others', change nothing."""
    assert problem.initial is not None
    return problem.initial.to(problem.dtype) if problem.operator == "MinMax" else None


def compiled(problem: Problem) -> Calls:
    """One graph, compiled for these shapes."""
    torch._dynamo.reset()  # a limit on how often one function is compiled counts over all problems
    run = torch.compile(scan(problem.operator, problem.layout.index("t"), start(problem)), dynamic=False)
    lacks = {BOTH: wrong_gradient(problem.operator, problem.cotangent.device.type)}
    return _leaves(problem, run, {d: reason for d, reason in lacks.items() if reason})


def rg_lru(problem: Problem) -> Calls:
    """Gates and the scan in one graph, computed in fp32."""
    torch._dynamo.reset()
    combine = scan("Affine", 1, None)

    def layer(x: Tensor, r: Tensor, i: Tensor, Lambda: Tensor) -> Tensor:
        log_a = -8 * softplus(Lambda) * torch.sigmoid(r.float())
        multiplier = torch.sqrt(-torch.expm1(2 * log_a))
        return combine(torch.exp(log_a), multiplier * torch.sigmoid(i.float()) * x.float()).to(x.dtype)

    wrong = wrong_gradient("Affine", problem.cotangent.device.type)
    run = torch.compile(layer, dynamic=False)
    return calls(run, problem.inputs, problem.cotangent, lacks={BOTH: wrong} if wrong else {})


def _leaves(problem: Problem, run: Callable[[Tensor, Tensor], Tensor], lacks: dict[str, str]) -> Calls:
    return calls(lambda **x: run(*x.values()), problem.inputs, problem.cotangent, lacks=lacks)


@cache
def wrong_gradient(operator: str, device: str, steps: int = 8) -> str:
    """Why its gradients are not worth minutes of compilation: what they are on a few steps, uncompiled."""
    g = torch.Generator().manual_seed(0)
    drawn = (torch.rand(1, steps, 2, generator=g, dtype=torch.float64) for _ in range(2))
    leaves = [x.to(device).requires_grad_() for x in drawn]
    try:
        y = scan(operator, 1, None, "pointwise" if device == "cuda" else "generic")(*leaves)
        found = torch.autograd.grad(y.sum(), leaves)
    except (RuntimeError, NotImplementedError) as failure:
        return f"no gradient on {steps} steps: {type(failure).__name__}: {failure}"[:200]
    names = {"Affine": ("a", "b"), "MinMax": ("r", "s"), "MaxPlus": ("a", "b")}[operator]
    turned = {n: x.detach().movedim(1, -1) for n, x in zip(names, leaves, strict=True)}
    x0 = torch.full(
        (1, 2), 0.0 if operator == "Affine" else float("-inf"), dtype=torch.float64, device=device
    )
    _, expected = truths.bare(operator, turned, x0, torch.ones_like(turned[names[0]]))
    errors = {n: err(x.movedim(1, -1), expected[n]) for n, x in zip(names, found, strict=True)}
    worst = max(errors, key=lambda n: errors[n])
    if errors[worst] < 1e-6:
        return ""
    return f"its gradient of {worst} is wrong on {steps} steps: relative error {errors[worst]:.1g}"


def in_rounds(problem: Problem) -> Calls:
    """MinMax in log2(t) rounds of whole-tensor operations, eager."""
    x0: Any = start(problem)
    return calls(lambda r, s: baselines.min_max_rounds(r, s, x0), problem.inputs, problem.cotangent)


def needs_gpu(problem: Problem) -> str:
    return "" if problem.cotangent.is_cuda else "its scan of several tensors needs a GPU"


def time_is_first(problem: Problem) -> str:
    return "" if problem.layout == "btd" else "it takes (b, t, d) alone"


PEERS = (
    Peer(
        "torch.compile associative_scan", "torch", "torch", tuple(COMBINES), compiled, needs_gpu, whole=True
    ),
    Peer("torch.compile gates and scan", "torch", "torch", ("RG-LRU",), rg_lru, needs_gpu, whole=True),
    Peer("torch, log2(t) rounds", "torch", "torch", ("MinMax",), in_rounds, time_is_first),
)
