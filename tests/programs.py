"""Run a Program's Triton text by itself: one element a lane, nothing but loads and stores around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath as m
import torch
from torch import Tensor

from scanforge.cache import load_kernel_module
from scanforge.emit.triton_maths import helpers
from scanforge.emit.triton_text import function
from scanforge.ir.builder import Builder
from scanforge.ir.program import Program

_KERNEL = '''"""A program on its own, for tests."""

import triton
import triton.language as tl

FLOAT = tl.constexpr(tl.{float_type})
INT = tl.constexpr(tl.int64)
NVIDIA = tl.constexpr({nvidia})


{helpers}

{function}

@triton.jit
def kernel({arguments}, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < N
    {results} = program({loads})
{stores}
'''


def source(program: Program, dtype: torch.dtype) -> str:
    """The text of a kernel that maps the program over tensors."""
    text = function(program, "program", "One element.")
    inputs, outputs = [v.name for v in program.inputs], [f"y{k}" for k in range(len(program.outputs))]
    return _KERNEL.format(
        nvidia=torch.cuda.is_available(),
        float_type=str(dtype).removeprefix("torch."),
        helpers=helpers(text),
        function=text,
        arguments=", ".join(f"{n}_ptr" for n in inputs + outputs),
        results=", ".join(outputs),
        loads=", ".join(f"tl.load({n}_ptr + i, mask=mask)" for n in inputs),
        stores="\n".join(f"    tl.store({n}_ptr + i, {n}, mask=mask)" for n in outputs),
    )


def run(program: Program, tensors: dict[str, Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The program's outputs on these tensors (floats of this dtype, ints of int64), element by element."""
    kernel: Any = load_kernel_module(source(program, dtype)).kernel
    inputs = [tensors[v.name].contiguous() for v in program.inputs]
    kinds = {"float": dtype, "int": torch.int64, "bool": torch.bool}
    outputs = [torch.empty_like(inputs[0], dtype=kinds[program.output(n).kind]) for n, _ in program.outputs]
    count = inputs[0].numel()
    kernel[(-(-count // 256),)](*inputs, *outputs, count, BLOCK=256)
    return outputs


def call(name: str, *tensors: Tensor) -> Tensor:
    """One primitive on float tensors."""
    builder = Builder(name, where="")
    given = {f"x{i}": x for i, x in enumerate(tensors)}
    program = builder.finish({"y": builder.call(name, *(builder.input(n, "float") for n in given))})
    return run(program, given, tensors[0].dtype)[0]


def _logistic(x: Any) -> Any:
    return 1 / (1 + m.exp(-x))


_NEAR = ((-30, 0), (-10.0, 10.0))  # magnitudes as powers of ten, then an interval
_ABOVE = ((-30, 30), (0.5, 2.0))

# A function's truth, and where it is tried: magnitudes of both signs (or of one), and an interval.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], tuple[tuple[float, float], tuple[float, float]]]] = {
    "exp": (m.exp, ((-30, 0), (-87.0, 88.0))),
    "log": (m.log, _ABOVE),
    "expm1": (m.expm1, ((-30, 0), (-87.0, 88.0))),
    "log1p": (m.log1p, ((-30, 0), (-0.99, 100.0))),
    "tanh": (m.tanh, _NEAR),
    "sigmoid": (_logistic, ((-30, 0), (-87.0, 30.0))),
    "softplus": (lambda x: m.log1p(m.exp(x)), ((-30, 0), (-87.0, 20.0))),
    "silu": (lambda x: x * _logistic(x), ((-30, 0), (-87.0, 30.0))),
    "gelu": (lambda x: x * m.erfc(-x / m.sqrt(2)) / 2, ((-30, 0), (-1.0, 10.0))),
    "erf": (m.erf, _NEAR),
    "sqrt": (m.sqrt, _ABOVE),
    "rsqrt": (lambda x: 1 / m.sqrt(x), _ABOVE),
    "sin": (m.sin, _NEAR),
    "cos": (m.cos, _NEAR),
}
POSITIVE = ("log", "sqrt", "rsqrt")


def arguments(name: str, dtype: torch.dtype, count: int = 300) -> Tensor:
    """Where a function is tried: very small and very large numbers, and an interval."""
    g = torch.Generator().manual_seed(len(name))
    (least, most), (low, high) = FUNCTIONS[name][1]
    size = 10 ** (least + (most - least) * torch.rand(count, generator=g, dtype=torch.float64))
    sign = torch.where(torch.rand(count, generator=g) < 0.5, -1.0, 1.0)
    inside = low + (high - low) * torch.rand(count, generator=g, dtype=torch.float64)
    x = torch.cat([size if name in POSITIVE else size * sign, inside])
    return x.clamp(min=-0.9999).to(dtype) if name == "log1p" else x.to(dtype)


def units_off(x: Tensor, y: Tensor, truth: Callable[..., Any], *rest: Tensor) -> Tensor:
    """How far each y is from truth(x), in units in the last place of the truth."""
    digits, least = {torch.float32: (24, -149), torch.float64: (53, -1074)}[y.dtype]
    found = []
    with m.workprec(200):
        for got, *args in zip(y.tolist(), x.tolist(), *(r.tolist() for r in rest), strict=True):
            wanted = truth(*map(m.mpf, args))
            exponent = int(m.floor(m.log(abs(wanted), 2))) if wanted else least
            unit = m.mpf(2) ** max(exponent - digits + 1, least)
            found.append(float(abs(m.mpf(got) - wanted) / unit) if m.isfinite(got) else float("inf"))
    return torch.tensor(found)
