"""Compile what a call would launch, for a GPU that is not here.

The call runs as ever on CPU tensors of the real shape, whose memory nobody touches, but each launch is noted
instead of made. A note is compiled as Triton's launcher would: pointers and sizes that are multiples of 16
say so, and sizes of 1 are constants.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

import scanforge as sf
from scanforge import api, kernel_choice, work
from scanforge.shipped import AT_ONCE
from tests.catalogue import Case, draw
from tests.reference.compare import many

SM80, SM90, SM100 = (GPUTarget("cuda", arch, 32) for arch in (80, 90, 100))
GFX942 = GPUTarget("hip", "gfx942", 64)
BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_TYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
    torch.bool: "i1", torch.uint8: "u8", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32",
    torch.int64: "i64",
}  # fmt: skip


@dataclass(frozen=True)
class Pointer:
    """What specialisation sees of a tensor."""

    dtype: torch.dtype
    aligned: bool  # to 16 bytes


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel, its arguments by name (a Pointer for a tensor), and the launcher's options."""

    function: Any
    arguments: dict[str, Any]
    options: dict[str, Any]

    def __str__(self) -> str:
        tile = ", ".join(f"{n}={self.arguments[n]}" for n in ("BD", "NS", "MASKED"))
        return f"{self.function.__module__} with {tile}"


@dataclass(frozen=True)
class Resources:
    """Of a cubin: registers a thread, bytes of stack (spills and arrays)."""

    registers: int
    stack: int


@contextmanager
def noting() -> Iterator[list[Launch]]:
    """Launches on CPU tensors are noted instead of made, as on a GPU whose programs can be a ring."""
    noted: list[Launch] = []

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        names = self.arg_names
        seen = [Pointer(v.dtype, v.data_ptr() % 16 == 0) if isinstance(v, Tensor) else v for v in args]
        arguments = dict(zip(names, seen, strict=False)) | {n: v for n, v in kwargs.items() if n in names}
        noted.append(Launch(self, arguments, {n: v for n, v in kwargs.items() if n not in names}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", note)
        patch.setattr(api, "choose", lambda *_: "triton")
        for module in (work, kernel_choice):
            patch.setattr(module, "at_once", lambda _: AT_ONCE)
        yield noted


def launches(
    case: Case, shape: tuple[int, ...], dtype: torch.dtype, lowering: str | None = None
) -> tuple[list[Launch], list[Launch]]:
    """What the forward and the backward pass of a call launch, with all gradients wanted."""
    return _launches(case, shape, dtype, lowering)


@lru_cache(maxsize=64)
def _launches(
    case: Case, shape: tuple[int, ...], dtype: torch.dtype, lowering: str | None
) -> tuple[list[Launch], list[Launch]]:
    small, initial = draw(case, (1, 2, 1), dtype)
    leaves = {n: torch.empty(shape, dtype=x.dtype) for n, x in small.items()}
    states = [torch.empty((shape[0], *shape[2:]), dtype=_carried(x)) for x in initial]
    inputs = [x.requires_grad_(x.is_floating_point()) for x in (*leaves.values(), *states)]
    with noting() as noted:
        outputs = sf.scan(
            case.operator, **leaves, initial_state=tuple(states) if len(states) > 1 else states[0],
            return_final_state=True, backend="triton", lowering=lowering,
        )  # fmt: skip
        forward = len(noted)
        read = [x for results in outputs for x in case.float_outputs(many(results))]
        wanted = [x for x in inputs if x.requires_grad]
        torch.autograd.grad(read, wanted, [torch.empty_like(x) for x in read])
    return noted[:forward], noted[forward:]


def _carried(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in {torch.float16, torch.bfloat16} else x.dtype


@dataclass(frozen=True)
class Specialised:
    """What a kernel is compiled for: types by name, and constants and attributes by place."""

    signature: dict[str, str]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]


def specialised(launch: Launch, target: GPUTarget) -> Specialised:
    """What the launcher would compile for."""
    signature, constants, attributes = {}, {}, {}
    for p in launch.function.params:
        value, place = launch.arguments[p.name], (p.num,)
        if p.name == "FENCE":
            value = target.backend == "cuda"
        plain = p.do_not_specialize
        if p.is_constexpr or (not plain and not isinstance(value, Pointer) and value == 1):
            signature[p.name], constants[place] = "constexpr", value
        elif isinstance(value, Pointer):
            signature[p.name] = f"*{_TYPES[value.dtype]}"
        else:
            signature[p.name] = "i32" if abs(value) < 2**31 else "i64"
        multiple = value.aligned if isinstance(value, Pointer) else value % 16 == 0
        if multiple and not (plain or p.do_not_specialize_on_alignment) and signature[p.name] != "constexpr":
            attributes[place] = [["tt.divisibility", 16]]
    return Specialised(signature, constants, attributes)


def compiled_as(launch: Launch) -> str:
    """What tells a compilation from others: the text, and what it is specialised for."""
    return f"{launch.function.__module__} {specialised(launch, SM90)} {launch.options}"


def build(launch: Launch, target: GPUTarget) -> Any:
    """The kernel compiled: its `asm` holds ttir, ttgir, and ptx and cubin or amdgcn."""
    launch.function.fn.__globals__["NVIDIA"] = tl.constexpr(target.backend == "cuda")
    found = specialised(launch, target)
    source = ASTSource(launch.function, found.signature, found.constants, found.attributes)
    return triton.compile(source, target=target, options=launch.options)


def told(kernel: Any, tool: str, option: str) -> str:
    """What one of the tools beside Triton's assembler says of a cubin."""
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(BINARIES / tool), option, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def resources(kernel: Any) -> Resources:
    """What the driver would give each thread of a cubin, as cuobjdump has it."""
    text = told(kernel, "cuobjdump", "--dump-resource-usage")
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found, text
    return Resources(*map(int, found.groups()))


def tile_loads(kernel: Any) -> int:
    """The loads of `[R, BD]` tiles that are left once what nobody reads is dropped."""
    return len(re.findall(r"tt\.load [^\n]*tensor<\d+x\d+x!tt\.ptr", kernel.asm["ttir"]))


def ring_loads(kernel: Any) -> int:
    """The tiles that go through the ring in shared memory."""
    return len(re.findall(r"ttg\.local_load [^\n]*-> tensor<\d+x\d+x", kernel.asm["ttgir"]))


def conversions(kernel: Any) -> int:
    """The changes of layout in loops: shuffles, or trips through shared memory."""
    loops: list[int] = []  # how far the loops that are open stand in
    found = 0
    for line in kernel.asm["ttgir"].splitlines():
        indent = len(line) - len(line.lstrip())
        if loops and indent <= loops[-1] and line.lstrip().startswith("}"):
            loops.pop()
        if "scf.for" in line:
            loops.append(indent)
        found += bool(loops) and "ttg.convert_layout" in line
    return found
