"""Run a Program's Triton text by itself: one element a lane, nothing but loads and stores around it."""

from __future__ import annotations

from typing import Any

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
