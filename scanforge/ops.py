"""The torch ops by themselves: importing this module defines them, for programs that torch.export saved.

Elsewhere they are defined at first use. A process that only loads a program writes `import scanforge.ops`.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from scanforge.errors import ArgumentError
from scanforge.ir.scan import TIME, load
from scanforge.launch import Options, evaluate, kept_states, output_dtypes, sizes_of
from scanforge.library import run_scan
from scanforge.op import library

Tensor = torch.Tensor
library()
_SIGNATURE = signature(run_scan)


def decompositions() -> dict[Any, Callable[..., list[Tensor]]]:
    """The scan in plain torch ops, for `torch.export`'s `run_decompositions`. The program has static lengths.

    Without it an exported program keeps one node for each scan.

    Example:
        >>> import torch, scanforge as sf, scanforge.ops
        >>> class Sum(torch.nn.Module):
        ...     def forward(self, x):
        ...         return sf.scan(sf.Affine, a=torch.ones_like(x), b=x)
        >>> program = torch.export.export(Sum(), (torch.ones(1, 3),))
        >>> plain = program.run_decompositions(scanforge.ops.decompositions())
        >>> "scanforge" in str(program.graph), "scanforge" in str(plain.graph)
        (True, False)
    """
    return {torch.ops.scanforge.scan.default: _plain}


def _plain(*given: Any, **named: Any) -> list[Tensor]:
    """The op's function for these arguments, which are those of `run_scan`."""
    call = _SIGNATURE.bind(*given, **named).arguments
    recurrence, inputs, initial = call["recurrence"], call["inputs"], call["initial"]
    dtype, keep = call["dtype"], call["keep"]
    scan = load(recurrence)
    if call["bounds"] is not None:
        raise ArgumentError(
            f"{scan.name}: packed sequences (cu_seqlens) have no form in plain ops, which would depend on "
            "the bounds' values: leave the op in the program, or pad the sequences and write lengths=."
        )
    options = Options(call["reverse"], "loop", dtype)  # the other one writes into tensors of its own
    names = kept_states(scan, output_dtypes(scan, inputs, dtype), dtype) if keep else []
    steps = sizes_of(scan, inputs, initial)[TIME]
    if not isinstance(steps, int) or steps == 0:
        raise ArgumentError(
            f"{scan.name}: {steps} steps have no form in plain ops, which are written out one by one: "
            "export with a static length of 1 or more, or leave the op in the program."
        )
    outputs, finals, states = evaluate(recurrence, inputs, initial, options.lowering, options)
    after = dict(zip((s.name for s in scan.states), states, strict=True))
    return [x.contiguous() for x in (*outputs, *finals, *(after[n] for n in names))]
