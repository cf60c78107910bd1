"""Program -> programs one after another, in none of which a line waits for a slow primitive.

The parts of a step that need no state run for many rows of a tile. Wave by wave the machine code has the same
operation for all rows side by side; row by row a lone warp would wait for each.
"""

from __future__ import annotations

from scanforge.ir.program import Program
from scanforge.schedule import handed_on, part_of

# Primitives that take long to answer, though the device takes several at a time.
SLOW = {
    "div", "exp", "exp2", "log", "log1p", "expm1", "expm1_of", "sqrt", "capped_sqrt", "rsqrt", "sigmoid",
    "softplus", "silu", "gelu", "erf", "tanh", "sin", "cos", "pow",
}  # fmt: skip


def waves(program: Program) -> list[Program]:
    """A part in waves. What a later wave reads is handed on, under the same name."""
    slow = {x.var.name for x in program.lines if x.op in SLOW}
    wave: dict[str, int] = {}
    for line in program.lines:
        wave[line.var.name] = max((wave.get(a, 0) + (a in slow) for a in line.args), default=0)
    made: list[Program] = []
    count = max(wave.values(), default=0) + 1
    for k in range(count):
        lines = tuple(x for x in program.lines if wave[x.var.name] == k and x.op != "const")
        own = {x.var.name for x in lines}
        later = {a for x in program.lines if wave[x.var.name] > k for a in x.args}
        outputs = [o for o in program.outputs if wave.get(o[1], count - 1) == k]
        known = {v for n, v in outputs if n == handed_on(v)}
        handed = [(handed_on(v), v) for v in sorted((later & own) - known)]
        made.append(part_of(program, f"wave{k}", lines, [*outputs, *handed]))
    return made
