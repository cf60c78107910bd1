"""The Triton kernels that two declarations become: written to files to be read, compiled, and run.

On a GPU they run as they would in training. Without one they are compiled for an H100 or H200 (sm_90), and a
small case runs in Triton's interpreter; nothing is timed either way.

    python examples/kernels.py [--out build/demo/kernels]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import scanforge as sf

OPERATORS = (sf.operators.Affine, sf.operators.MinMax)
BATCH, STEPS, LANES = SIZES = (8, 2048, 2048)  # b, t, d
SMALL = (2, 35, 8)
LAUNCH = {"BD": 128, "NS": 3, "MASKED": False, "FENCE": True}  # lanes a program, stages in flight


def main() -> None:
    """Write the kernels, then run them where that can be done."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo/kernels"), help="the folder of the files"
    )
    parser.add_argument("--interpret", action="store_true", help="only run the small case in the interpreter")
    options = parser.parse_args()
    if options.interpret:
        return run_all(SMALL, "cpu")
    written = [write(op, which, options.out) for op in OPERATORS for which in ("forward", "backward")]
    if torch.cuda.is_available():
        print(f"running them on {torch.cuda.get_device_name()}")
        return run_all(SIZES, "cuda")
    print("there is no GPU here: compiling them for sm_90 instead")
    for path in written:
        compiled = compile_for(GPUTarget("cuda", 90, 32), path)
        code, shared = len(compiled.asm["cubin"]), compiled.metadata.shared
        print(f"  {path.name:18} {code:6} bytes of machine code, {shared:6} bytes of shared memory a program")
    print("and running a small case in Triton's interpreter")
    script = [sys.executable, str(Path(__file__).resolve()), "--interpret"]
    subprocess.run(script, env=os.environ | {"TRITON_INTERPRET": "1"}, check=True)


def write(operator: type[sf.Operator], which: str, folder: Path) -> Path:
    """A kernel as a file of its own."""
    b, t, d = SIZES
    text = sf.source(operator, which, backend="triton", b=b, t=t, d=d)
    path = folder / f"{operator.__name__.lower()}_{which}.py"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path}, {len(text.splitlines())} lines")
    return path


def compile_for(target: GPUTarget, path: Path) -> Any:
    """A kernel's machine code for float32 tensors of (b, t, d), without such a device.

    Its arguments are pointers, sizes and strides of the lane axes, and constants: the strides of time (st_)
    and of the innermost lanes (sd_), and what LAUNCH names.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature, constants, aligned = {}, {}, {}
    for i, parameter in enumerate(module.kernel.params):
        name = parameter.name
        if parameter.is_constexpr:
            signature[name] = "constexpr"
            constants[name] = LAUNCH.get(name, LANES if name.startswith("st_") else 1)
            continue
        signature[name] = "*fp32" if name.startswith("ptr_") else "i32"
        if name != "T":  # any number of steps; everything else is a multiple of 16, so that loads are wide
            aligned[i,] = [["tt.divisibility", 16]]
    source = ASTSource(module.kernel, signature, constants, aligned)
    return triton.compile(source, target=target, options={"num_warps": LAUNCH["BD"] // 32})


def run_all(sizes: tuple[int, int, int], device: str) -> None:
    """Forward and backward by the kernels, and how far they are from the reference in float64."""
    for operator in OPERATORS:
        leaves = draw(operator, sizes, device)
        got = states_and_gradients(operator, leaves, "triton")
        want = states_and_gradients(operator, {n: x.double() for n, x in leaves.items()}, "reference")
        gaps = [f"{name} {distance(got[name], want[name]):.0e}" for name in want]
        print(f"  {operator.__name__} {sizes}: relative errors {', '.join(gaps)}")


def draw(operator: type[sf.Operator], sizes: tuple[int, int, int], device: str) -> dict[str, Tensor]:
    """Random leaves; gates between 0 and 1."""
    generator = torch.Generator(device).manual_seed(0)
    names = {sf.operators.Affine: ("a", "b"), sf.operators.MinMax: ("r", "s")}[operator]
    leaves = {n: torch.randn(sizes, device=device, generator=generator) for n in names}
    return leaves | ({"a": leaves["a"].sigmoid()} if "a" in leaves else {})


def states_and_gradients(
    operator: type[sf.Operator], leaves: dict[str, Tensor], backend: str
) -> dict[str, Tensor]:
    """The states, and the gradients of half their squares' sum."""
    learnt = {n: x.detach().requires_grad_() for n, x in leaves.items()}
    states = sf.scan(operator, **learnt, backend=backend)
    gradients = torch.autograd.grad(states.square().sum() / 2, list(learnt.values()))
    return {"states": states.detach()} | {f"d{n}": g for n, g in zip(learnt, gradients, strict=True)}


def distance(x: Tensor, y: Tensor) -> float:
    """The norm of the difference over that of the truth."""
    return ((x.double() - y).norm() / y.norm()).item()


if __name__ == "__main__":
    main()
