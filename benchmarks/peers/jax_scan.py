"""JAX's associative scan under jit, on the same tensors through DLPack; it has a stream of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.peer import Peer
from benchmarks.problems import OUTPUT, Calls, Problem
from benchmarks.tables import BOTH, FORWARD

# Beside torch on one device; what several processes compile ahead is found on disk.
SETTINGS = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "JAX_COMPILATION_CACHE_DIR": str(Path(tempfile.gettempdir(), "jax-compiled")),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def load() -> Any:
    """The package, imported with its settings."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import jax

    return jax


def no_gpu() -> str:
    """Why it would not run where torch's tensors are; empty for no reason."""
    if not torch.cuda.is_available():
        return ""
    jax = load()
    return "" if any(d.platform == "gpu" for d in jax.devices()) else "JAX sees no GPU"


def affine(e: Any, l: Any) -> Any:
    return l[0] * e[0], l[0] * e[1] + l[1]


def min_max(e: Any, l: Any) -> Any:
    np = load().numpy
    return np.minimum(l[0], e[0]), np.maximum(np.minimum(l[0], e[1]), l[1])


def max_plus(e: Any, l: Any) -> Any:
    return l[0] + e[0], load().numpy.maximum(l[0] + e[1], l[1])


COMBINES: dict[str, Callable[[Any, Any], Any]] = {"Affine": affine, "MinMax": min_max, "MaxPlus": max_plus}


def bare(problem: Problem) -> Calls:
    """An operator by itself; MinMax from its initial state, the others from what changes nothing."""
    jax = load()
    axis, combine = problem.layout.index("t"), COMBINES[problem.operator]
    assert problem.initial is not None
    x0 = to_jax(problem.initial.to(problem.dtype).unsqueeze(axis))

    def forward(first: Any, second: Any) -> Any:
        one, two = jax.lax.associative_scan(combine, (first, second), axis=axis)
        return jax.numpy.maximum(jax.numpy.minimum(one, x0), two) if problem.operator == "MinMax" else two

    return calls(forward, problem.inputs, problem.cotangent)


def rg_lru(problem: Problem) -> Calls:
    """Gates and the scan in one program, computed in fp32."""
    jax = load()
    np, nn = jax.numpy, jax.nn

    def layer(x: Any, r: Any, i: Any, Lambda: Any) -> Any:
        r, i, wide = (y.astype(np.float32) for y in (r, i, x))
        log_a = -8 * nn.softplus(Lambda) * nn.sigmoid(r)
        b = np.sqrt(-np.expm1(2 * log_a)) * nn.sigmoid(i) * wide
        return jax.lax.associative_scan(affine, (np.exp(log_a), b), axis=1)[1].astype(x.dtype)

    return calls(layer, problem.inputs, problem.cotangent)


def calls(forward: Callable[..., Any], given: dict[str, Tensor], cotangent: Tensor) -> Calls:
    """Jitted calls of a function of arrays, and of its vector-Jacobian product."""
    jax = load()
    arrays, seed = [to_jax(x) for x in given.values()], to_jax(cotangent)
    run = jax.jit(forward)

    @jax.jit
    def both(seed: Any, *arrays: Any) -> Any:
        return jax.vjp(forward, *arrays)[1](seed)

    def read(direction: str, found: Any) -> dict[str, Tensor]:
        jax.block_until_ready(found)
        if direction == FORWARD:
            return {OUTPUT: torch.from_dlpack(found)}
        return {n: torch.from_dlpack(x) for n, x in zip(given, found, strict=True)}

    made = {FORWARD: lambda: run(*arrays), BOTH: lambda: both(seed, *arrays)}
    return Calls(made, read, wait=jax.block_until_ready)


def to_jax(x: Tensor) -> Any:
    """The same memory; torch must have written it."""
    if x.is_cuda:
        torch.cuda.synchronize()
    return load().dlpack.from_dlpack(x.detach().contiguous())


PEERS = (
    Peer("jax.lax.associative_scan", "jax", "jax", tuple(COMBINES), bare, needs=no_gpu, whole=True),
    Peer("JAX gates and scan", "jax", "jax", ("RG-LRU",), rg_lru, needs=no_gpu, whole=True),
)
