"""Functions that generated kernels call: what Triton lacks, or has only from a device library.

The text of those that a kernel uses stands at its head, so that the module runs on its own. They need
`exp`, `log`, `erf` and correctly rounded `sqrt` only, and are good to a few units of rounding in fp32 and
fp64 (the bounds are in the tests): expm1 and log1p use Kahan's quotients, in which the errors of u = exp(x)
and of u = 1 + x cancel.
"""

from __future__ import annotations

import re

_HELPERS = {
    "minimum": """
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "maximum": """
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "sign": """
def sign(x):
    zero = x * 0
    return tl.where(x > 0, zero + 1, tl.where(x < 0, zero - 1, zero))
""",
    "rsqrt": """
def rsqrt(x):
    return 1.0 / tl.sqrt_rn(x)
""",
    "expm1": """
def expm1(x):
    u = tl.exp(x)
    small = (u - 1.0) * (x / tl.log(tl.where(u == 1.0, 2.0 * u, u)))
    return tl.where(u == 1.0, x, tl.where(x < -1.0, u - 1.0, tl.where(x > 1.0, u - 1.0, small)))
""",
    "log1p": """
def log1p(x):
    u = 1.0 + x
    d = u - 1.0
    small = tl.log(u) * (x / tl.where(d == 0.0, 1.0 + d, d))
    return tl.where(d == 0.0, x, tl.where(x > 1.0, tl.log(u), small))
""",
    "sigmoid": """
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))
""",
    "softplus": """
def softplus(x):
    return tl.where(x > 20.0, x, log1p(tl.exp(tl.where(x > 20.0, 0.0 * x, x))))
""",
    "silu": """
def silu(x):
    return x * sigmoid(x)
""",
    "gelu": """
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
""",
    "tanh": """
def tanh(x):
    t = expm1(-2.0 * tl.abs(x))
    y = -t / (t + 2.0)
    return tl.where(x < 0, -y, y)
""",
    "power": """
def power(x, p):
    size = tl.exp(p * tl.log(tl.where(x == 0.0, 1.0 + x, tl.abs(x))))
    whole = tl.floor(p) == p
    odd = whole & (tl.floor(p * 0.5) * 2.0 != p)
    signed = tl.where(x < 0.0, tl.where(odd, -size, tl.where(whole, size, float("nan"))), size)
    at_zero = tl.where(p > 0.0, 0.0 * x, tl.where(p < 0.0, float("inf") + 0.0 * x, 1.0 + x))
    return tl.where(x == 0.0, at_zero, signed)
""",
}


def helpers(text: str) -> str:
    """The helper functions that a text calls, those that they call themselves first."""
    wanted: list[str] = []
    _collect(text, wanted)
    return "\n\n".join(f"@triton.jit\n{_HELPERS[name].strip()}\n" for name in wanted)


def _collect(text: str, wanted: list[str]) -> None:
    for name, body in _HELPERS.items():
        if name not in wanted and re.search(rf"(?<![\w.]){name}\(", text):
            _collect(body.partition(":")[2], wanted)
            wanted.append(name)
