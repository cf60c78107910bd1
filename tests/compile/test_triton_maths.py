"""Every row of the primitive table and its derivative compile, in both float types."""

from __future__ import annotations

import pytest
import torch

from scanforge.cache import load_kernel_module
from scanforge.ir.primitives import TABLE
from tests import programs
from tests.compile.ahead import SM90, Launch, Pointer, build, resources
from tests.reference.test_primitives import derivatives, kinds_of

pytestmark = pytest.mark.compile
F32, F64 = torch.float32, torch.float64
KINDS = {"bool": torch.bool, "int": torch.int64}


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_row(name, dtype):
    made = derivatives(name, kinds_of(name))
    for program in (made.value, made.first):
        if not program.outputs:
            continue
        kernel = load_kernel_module(programs.source(program, dtype)).kernel
        tensors = {f"{v.name}_ptr": Pointer(KINDS.get(v.kind, dtype), True) for v in program.inputs}
        for k, (output, _) in enumerate(program.outputs):
            tensors[f"y{k}_ptr"] = Pointer(KINDS.get(program.output(output).kind, dtype), True)
        built = build(Launch(kernel, tensors | {"N": 1024, "BLOCK": 128}, {"num_warps": 4}), SM90)
        assert resources(built).registers > 0
