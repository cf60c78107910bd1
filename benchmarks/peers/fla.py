"""flash-linear-attention: HGRN2 as its layer runs it, and kernels that take logarithms of decays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from benchmarks.peers.peer import Peer, calls, no_gpu
from benchmarks.problems import Calls, Problem

MODULE, DISTRIBUTION = "fla", "fla-core"


def layer_gates(f: Tensor, lower: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys, and the logarithm of the decay, by the operations of `HGRN2Attention.forward`."""
    g = torch.logaddexp(lower.log(), torch.log1p(-lower) + logsigmoid(f))
    return (1 - g.exp()).to(dtype), g


def hgrn2(problem: Problem, bound: torch.dtype) -> Calls:
    """q, f, v as the layer has them after its projections; its lower bound in one dtype."""
    from fla.ops.gla import chunk_gla

    given = problem.inputs | {"lower": problem.inputs["lower"].to(bound)}

    def forward(q: Tensor, f: Tensor, v: Tensor, lower: Tensor) -> Tensor:
        k, g = layer_gates(f, lower, v.dtype)
        return chunk_gla(q=q, k=k, v=v, g=g, scale=1.0, state_v_first=True)[0]

    return calls(forward, given, problem.cotangent)


def bare_gla(problem: Problem) -> Calls:
    """The same with keys and decays made beforehand, which nobody's layer is spared."""
    from fla.ops.gla import chunk_gla

    x = problem.inputs
    gates = {n: x[n].detach().requires_grad_() for n in ("f", "lower")}
    k, g = layer_gates(gates["f"].float(), gates["lower"], torch.float32)
    given = {"q": x["q"], "k": k.detach().to(x["q"].dtype), "v": x["v"], "g": g.detach()}

    def forward(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        return chunk_gla(q=q, k=k, v=v, g=g, scale=1.0, state_v_first=True)[0]

    def gradients(found: dict[str, Tensor]) -> dict[str, Tensor]:
        behind = torch.autograd.grad(
            (k, g), list(gates.values()), (found["k"].float(), found["g"].float()), retain_graph=True
        )
        return {"q": found["q"], "v": found["v"]} | dict(zip(gates, behind, strict=True))

    return calls(forward, given, problem.cotangent, gradients=gradients)


def simple(problem: Problem, *, fused: bool) -> Calls:
    """One decay a head and step."""
    from fla.ops.simple_gla import chunk_simple_gla, fused_chunk_simple_gla

    run = fused_chunk_simple_gla if fused else chunk_simple_gla
    return calls(lambda **x: run(**x, scale=1.0)[0], problem.inputs, problem.cotangent)


def hgrn(problem: Problem, kernel: str) -> Calls:
    """Affine with the decay's logarithm; `kernel` is a function of `fla.ops.hgrn`."""
    import fla.ops.hgrn

    run = getattr(fla.ops.hgrn, kernel)
    a = problem.inputs["a"]
    given = {"x": problem.inputs["b"], "g": a.float().log().to(a.dtype)}

    def gradients(found: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"a": found["g"].float() / a.float(), "b": found["x"]}

    return calls(lambda x, g: run(x, g)[0], given, problem.cotangent, gradients=gradients)


def time_is_first(problem: Problem) -> str:
    return "" if problem.layout == "btd" else "it takes (b, t, d) alone"


def at_most(steps: int, problem: Problem) -> str:
    """Its one program a lane block takes 0.4 µs a step."""
    return time_is_first(problem) or ("" if problem.size[1] <= steps else f"not run beyond {steps} steps")


@contextmanager
def quick_tuning() -> Iterator[None]:
    """Triton's autotuner tries all of a peer's own configurations, each for 10 ms and not for 125."""
    import triton.testing

    before: Callable[..., object] = triton.testing.do_bench
    triton.testing.do_bench = partial(before, warmup=2, rep=8)
    try:
        yield
    finally:
        triton.testing.do_bench = before


def _peer(name: str, operator: str, prepare: Callable[[Problem], Calls], **more: object) -> Peer:
    return Peer(f"fla {name}", MODULE, DISTRIBUTION, (operator,), prepare, needs=no_gpu, **more)  # type: ignore[arg-type]


PEERS = (
    _peer("HGRN2 layer", "HGRN2", partial(hgrn2, bound=torch.bfloat16)),
    _peer("HGRN2 layer, fp32 bound", "HGRN2", partial(hgrn2, bound=torch.float32)),
    _peer("chunk_gla, gates given", "HGRN2", bare_gla),
    _peer("chunk_simple_gla", "scalar decay", partial(simple, fused=False)),
    _peer("fused_chunk_simple_gla", "scalar decay", partial(simple, fused=True)),
    _peer("chunk_hgrn", "Affine", partial(hgrn, kernel="chunk_hgrn"), refuses=time_is_first),
    _peer(
        "fused_recurrent_hgrn",
        "Affine",
        partial(hgrn, kernel="fused_recurrent_hgrn"),
        refuses=partial(at_most, 4096),
    ),
)
