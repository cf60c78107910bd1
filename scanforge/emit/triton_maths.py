"""Functions that generated kernels call: what Triton lacks, or has only from a device library.

The text of those that a kernel uses stands at its head, so that the module runs on its own. They are good to
a few units of rounding in fp32 and fp64 (the bounds are in the tests). In fp32 they are short, since one warp
a scheduler hides nothing: exp is a power of 2, whose instruction needs no care for tiny results; expm1 is a
polynomial on [-1/2, 1/2], and beyond that u - 1 with u = exp(x); softplus a series of atanh; the reciprocal
of what is at least 1 is one instruction on NVIDIA's devices. In fp64, and for log1p, Kahan's quotients, in
which the errors of u = exp(x) and of u = 1 + x cancel. A power goes through fp64, since exp turns an absolute
error of p log x into a relative one.
"""

from __future__ import annotations

import re

HELPERS = {
    "minimum": """
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "maximum": """
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "gated": """
def gated(a, x):
    if NVIDIA and FLOAT == tl.float32:  # in one piece: shared with others, the condition waits in a register
        return tl.inline_asm_elementwise(
            "{ .reg .pred p; .reg .f32 y; setp.neu.f32 p, $1, 0f00000000; mul.f32 y, $1, $2; "
            "selp.f32 $0, y, 0f00000000, p; }", "=r,r,r", [a, x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return tl.where(a == 0.0, 0.0, a * x)
""",
    "sign": """
def sign(x):
    return tl.where(x > 0, 1, tl.where(x < 0, -1, 0)).to(x.dtype)
""",
    "sqrt": """
def sqrt(x):
    if FLOAT == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return tl.sqrt(x)
""",
    "near_sqrt": """
def near_sqrt(x):
    return tl.sqrt(x)
""",
    "rsqrt": """
def rsqrt(x):
    if FLOAT == tl.float32:
        return tl.rsqrt(x)
    else:
        return 1.0 / tl.sqrt(x)
""",
    "exp": """
def exp(x):
    if FLOAT == tl.float32:
        return tl.exp2(x * 1.4426950408889634)
    else:
        return tl.exp(x)
""",
    "inverse": """
def inverse(x):
    if NVIDIA and FLOAT == tl.float32:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        return 1.0 / x
""",
    "reciprocal": """
def reciprocal(x):
    return 1.0 / x
""",
    "square": """
def square(x):
    return x * x
""",
    "cube": """
def cube(x):
    return x * x * x
""",
    "expm1_of": """
def expm1_of(x, u):
    if FLOAT == tl.float32:
        p = ((((1.3888812e-3 * x + 8.4076826e-3) * x + 4.1668701e-2) * x + 0.16665974) * x + 0.49999983) * x
        return tl.where(tl.abs(x) < 0.5, (p + 1.0000001) * x, u - 1.0)
    else:
        small = (u - 1.0) * (x / tl.log(tl.where(u == 1.0, 2.0 * u, u)))
        return tl.where(u == 1.0, x, tl.where(x < -1.0, u - 1.0, tl.where(x > 1.0, u - 1.0, small)))
""",
    "expm1": """
def expm1(x):
    return expm1_of(x, exp(x))
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
    if FLOAT == tl.float32:
        return inverse(1.0 + tl.exp2(x * -1.4426950408889634))
    else:
        return 1.0 / (1.0 + tl.exp(-x))
""",
    "softplus": """
def softplus(x):
    if FLOAT == tl.float32:
        t = exp(-tl.abs(x))
        s = t * inverse(2.0 + t)
        q = s * s
        series = (((((0.15384615 * q + 0.18181818) * q + 0.22222222) * q + 0.28571429) * q + 0.4) * q
                  + 0.66666667) * q + 2.0
        return tl.where(x > 0.0, x, 0.0) + s * series
    else:
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
    x, p = tl.broadcast(x, p)
    size = tl.exp(p.to(tl.float64) * tl.log(tl.abs(x).to(tl.float64))).to(FLOAT)
    size = tl.where(((tl.abs(x) == 1.0) & (p == p)) | (p == 0.0), 1.0, size)
    whole = tl.floor(p) == p
    odd = whole & (tl.floor(p * 0.5) * 2.0 != p)
    finite = (x < 0.0) & (x > float("-inf")) & (tl.abs(p) < float("inf"))
    signed = tl.where(odd & ((x < 0.0) | ((x == 0.0) & (1.0 / x < 0.0))), -size, size)
    return tl.where(x == 1.0, 1.0, tl.where(finite & (whole == 0), float("nan"), signed))
""",
}


def helpers(text: str) -> str:
    """The helper functions that a text calls, those that they call themselves first."""
    wanted: list[str] = []
    _collect(text, wanted)
    return "\n\n".join(f"@triton.jit\n{HELPERS[name].strip()}\n" for name in wanted)


def _collect(text: str, wanted: list[str]) -> None:
    for name, body in HELPERS.items():
        if name not in wanted and re.search(rf"(?<![\w.]){name}\(", text):
            _collect(body.partition(":")[2], wanted)
            wanted.append(name)
