"""What threads store for Hopper's tensor cores is fenced before a barrier, not behind it alone.

The tensor cores read by a way of their own. Triton puts a fence right before a product, and a barrier between
that and the product if none has come since the store. Where one has, the fence comes after it, and a warp may
multiply what another one's fence has not shown yet.
"""

from __future__ import annotations

import re

import pytest
import torch

from scanforge import chunked_setting
from tests.compile.ahead import SM90, build
from tests.compile.test_chunked import SHAPES, launches
from tests.matrix_recurrences import Matrix

pytestmark = pytest.mark.compile
slow = pytest.mark.slow
ODD = {
    "b": 2,
    "t": 1000,
    "h": 3,
    "k": 100,
    "v": 72,
}  # no row is of whole vectors: threads store what they load
EVEN = SHAPES["128"]
FORMS = [
    Matrix(keys="tied"),
    Matrix(decay="on values"),
    Matrix(decay="none"),
    Matrix(decay="log", read="before"),
]


def late(text: str) -> list[str]:
    """The operands of products that a barrier comes to before a fence does, each with that line."""
    lines, stored, found = text.splitlines(), dict[str, int](), []
    for n, line in enumerate(lines):
        if made := re.match(r"\s*(%\w+) = ttg\.local_alloc %", line):
            stored[made[1]] = n
        if made := re.match(r"\s*(%\w+) = ttg\.memdesc_trans (%\w+)", line):
            stored |= {made[1]: stored[made[2]]} if made[2] in stored else {}
        if product := re.search(r"ttng\.warp_group_dot (%\w+), (%\w+)", line):
            for operand in {product[1], product[2]} & {*stored}:
                begin = stored[operand] + 1
                fences = (
                    k for k in range(begin, n) if re.search("fence_async_shared|fence.proxy.async", lines[k])
                )
                until = range(begin, next(fences, n))
                found += [f"{operand}: {lines[k].strip()}" for k in until if waits(lines[k], stored, begin)]
    return found


def waits(line: str, stored: dict[str, int], begin: int) -> bool:
    """Whether all threads wait there for what one of them has stored."""
    read = re.search(r"ttg\.local_load (%\w+)", line)
    if read and stored.get(read[1], -1) >= begin:
        return True
    exchanged = "ttg.convert_layout" in line and not re.search(
        r"#mma\d*> -> .*dot_op<{opIdx = 0, parent = #mma", line
    )
    return exchanged or "tt.reduce" in line or "ttg.async_wait" in line


def kernels(matrix: Matrix, sizes: dict[str, int], *, reset: bool = False):
    """All that both passes launch."""
    found = launches(matrix, torch.bfloat16, sizes, reset=reset)
    return found["forward"] + found["backward"]


@pytest.mark.parametrize("sizes", [ODD, pytest.param(EVEN, marks=slow)], ids=["odd", "even"])
@pytest.mark.parametrize("matrix", [FORMS[0], *(pytest.param(m, marks=slow) for m in FORMS[1:])], ids=str)
def test_a_fence_comes_first(matrix, sizes, monkeypatch):
    monkeypatch.setattr(chunked_setting, "fenced", lambda _: True)
    assert not [x for launch in kernels(matrix, sizes) for x in late(build(launch, SM90).asm["ttgir"])]


@slow
def test_with_resets(monkeypatch):
    monkeypatch.setattr(chunked_setting, "fenced", lambda _: True)
    assert not [x for k in kernels(Matrix(), ODD, reset=True) for x in late(build(k, SM90).asm["ttgir"])]


def test_without_ours_some_come_too_late():
    texts = [build(launch, SM90).asm["ttgir"] for launch in kernels(FORMS[0], ODD)]
    assert any(map(late, texts))
