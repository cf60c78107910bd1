"""What machine code reads of uniform registers that nothing has written.

ptxas 12.8 loses the write where the descriptors of two operands of tensor cores begin at one address of
shared memory with different constants, for rows of different widths. The products then read at any address.
"""

from __future__ import annotations

import re
from typing import Any

from tests.compile.ahead import told

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)\s+([^;]*);")
WRITERS = ("U", "S2UR", "R2UR", "REDUX", "LDCU")  # of a uniform register, if it comes first


def undefined(kernel: Any) -> list[str]:
    """The instructions of a cubin, in their order, that read a register before any has written it."""
    written, found = set[int](), []
    for op, operands in INSTRUCTION.findall(told(kernel, "nvdisasm", "-c")):
        parts = [p.strip() for p in operands.split(",")]
        target = re.fullmatch(r"UR(\d+)", parts[0]) if op.startswith(WRITERS) else None
        reads = {r for p in parts[bool(target) :] for r in registers(op, p, parts)}
        found += [f"{op} {operands.strip()}"] if reads - written else []
        if target:
            written |= {int(target[1]) + k for k in range(2 if ".64" in op or ".WIDE" in op else 1)}
    return found


def registers(op: str, operand: str, operands: list[str]) -> set[int]:
    """The uniform registers of an operand."""
    found = set[int]()
    for first in map(int, re.findall(r"gdesc\[UR(\d+)\]", operand)):
        own = op.startswith("HGMMA") and re.fullmatch(r"R\d+", operands[1])  # the left side is in registers
        found |= set(range(first + 2 if own else first, first + 4))
    single = re.sub(r"gdesc\[UR\d+\]", "", operand)
    for first in map(int, re.findall(r"\bUR(\d+)\b", single)):
        found |= {first, first + 1} if op.startswith(("UIADD3.64", "UMOV.64")) else {first}
    return found
