"""A new length of time compiles nothing: what spans all of time is an argument of a kernel, and no constant.

Triton tells multiples of 16 from other numbers, since memory is then read 16 bytes at a time: two kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import scanforge as sf
from scanforge import work
from tests.catalogue import BY_NAME
from tests.compile.ahead import SM90, Launch, build, compiled_as, noting, resources, ring_loads, tile_loads
from tests.recurrences import BY_NAME as RECURRENCES

pytestmark = pytest.mark.compile
F32, BF16 = torch.float32, torch.bfloat16
LENGTHS = [1040, 1008, 1000, 1001]
LEAVES = {"Affine": ("a", "b"), "MinMax": ("r", "s")}
DECLARED = {n: BY_NAME[n].operator for n in LEAVES} | {"RGLRU": RECURRENCES["RGLRU"].recurrence}
LAYOUTS = {"b t d": False, "b d t": True}


def launches(
    name: str, sizes: tuple[int, int, int], contiguous: bool, dtype: torch.dtype = F32, **options: Any
) -> tuple[list[Launch], ...]:
    """Those of the forward and of the backward pass, time being contiguous in memory or not."""
    b, t, d = sizes
    shapes = {n: p.shape({"b": b, "t": t, "d": d}) for n, p in RECURRENCES["RGLRU"].inputs.items()}
    if name != "RGLRU":
        shapes = dict.fromkeys(LEAVES[name], (b, d, t) if contiguous else (b, t, d))
        options["dim"] = 2 if contiguous else 1
    tensors = {n: torch.empty(shape, dtype=dtype) for n, shape in shapes.items()}
    if name == "RGLRU" and contiguous:
        tensors = {n: x.mT.contiguous().mT if x.ndim == 3 else x for n, x in tensors.items()}
    tensors = {n: x.requires_grad_() for n, x in tensors.items()}
    with noting() as noted:
        y = sf.scan(DECLARED[name], **tensors, **options)
        forward = len(noted)
        torch.autograd.grad(y, list(tensors.values()), torch.empty_like(y))
    return noted[:forward], noted[forward:]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", DECLARED)
def test_two_kernels_for_all_lengths(name, layout, reverse):
    """A launch of whole tiles and one of the rest, where groups share them: two kernels each."""
    for way in (0, 1):
        by_length = [launches(name, (8, t, 2048), LAYOUTS[layout], reverse=reverse)[way] for t in LENGTHS]
        most = max(map(len, by_length))
        found = {compiled_as(launch) for noted in by_length for launch in noted}
        assert len(found) <= 2 * most, found
        divisible = {compiled_as(launch) for noted in by_length[:2] for launch in noted}
        assert len(divisible) <= most


@pytest.mark.parametrize("name", DECLARED)
def test_constants_of_all_of_time_would_be_found(name, monkeypatch):
    """The test above fails without the arguments."""
    monkeypatch.setattr(work, "across_time", lambda *_: frozenset())
    found = {compiled_as(launch) for t in LENGTHS for launch in launches(name, (8, t, 2048), True)[0]}
    assert len(found) > 2 * len(launches(name, (8, 1040, 2048), True)[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_time_in_chunks(layout):
    """The number of chunks and the steps that fill none are no constants either."""
    for way in (0, 1):
        by_length = [
            launches("MinMax", (1, t, 1024), LAYOUTS[layout], lowering="split")[way] for t in LENGTHS
        ]
        kernels = {x.function.__module__ for noted in by_length for x in noted}
        assert len(kernels) == 4  # aggregates, carries, chunks, and what fills none
        assert len({compiled_as(x) for noted in by_length for x in noted}) <= 2 * len(kernels)


def test_an_axis_that_a_thread_holds():
    """Steps that fill whole tiles have a kernel of their own, which compiles in half of the time."""
    entry, found = RECURRENCES["Mamba"], []
    for t in LENGTHS:
        sizes = {"b": 8, "t": t, "d": 64, "n": 16}
        tensors = {n: torch.empty(p.shape(sizes)) for n, p in entry.inputs.items()}
        with noting() as noted:
            sf.scan(entry.recurrence, **tensors, lowering="ordered_tile")
        found += noted
    assert len({compiled_as(launch) for launch in found}) == 2


def test_what_is_contiguous_is_moved_16_bytes_at_a_time():
    """The stride of lanes is an argument, of which Triton knows that it is a multiple of 16."""
    (launch,), _ = launches("Affine", (8, 1040, 2048), True, dtype=BF16)
    kernel = build(launch, SM90)
    assert resources(kernel).stack == 0
    assert ring_loads(kernel) == tile_loads(kernel) == 2
    assert "st.global.v4.b32" in kernel.asm["ptx"]
    assert "cp.async.cg.shared.global" in kernel.asm["ptx"]


@pytest.mark.parametrize(("dtype", "rows"), [(F32, 32), (BF16, 64)], ids=["fp32", "bf16"])
def test_tiles_are_whole_lines_of_contiguous_time(dtype, rows):
    """Of 128 bytes, with no gradient wanted, too."""
    x = torch.empty(8, 2048, 1024, dtype=dtype)
    with noting() as noted:
        sf.scan(sf.Affine, a=x, b=x, dim=2, backend="triton")
    (launch,) = noted
    assert f"T // {rows}" in Path(launch.function.fn.__code__.co_filename).read_text()
    assert resources(build(launch, SM90)).stack == 0
