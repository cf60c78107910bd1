"""Scan -> the ordered-tile kernel: a program owns a block of lanes and walks time tile by tile.

Each input is loaded as one `[R, BD]` tile in a pipelined loop, so that the next tiles are in flight; rows are
split out of the tile, so that each thread holds whole rows of its own lane; then the step runs row by row, in
order. It needs `apply` only. A forward kernel walks up. A backward kernel walks down: its scan is the
adjoint, and where that reads the state before the step, the tile is run again from the state at the tile's
first row, which the forward kernel stored. Rows that fill no tile are walked one by one, last in time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from scanforge.emit.triton_maths import helpers
from scanforge.emit.triton_text import function
from scanforge.ir.program import Program
from scanforge.ir.scan import Scan, before
from scanforge.prune import drop_dead
from scanforge.schedule import next_state, step_program

_FENCE = (
    'tl.inline_asm_elementwise("bar.warp.sync 0xffffffff; mov.b32 $0, $1;", "=r,r", [{0}], '
    "dtype=tl.float32, is_pure=False, pack=1)"
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel's text and how to call it: the names of its tensors in order."""

    source: str
    inputs: tuple[str, ...]  # [T, lanes], any strides
    starts: tuple[str, ...]  # [lanes], the states before the first step
    outputs: tuple[str, ...]  # [T, lanes]
    ends: tuple[str, ...]  # [lanes]
    kept: tuple[str, ...]  # [T // spacing + T % spacing, lanes], written by forward, read by backward


@dataclass(frozen=True, slots=True)
class Form:
    """What the text of a kernel is specialised for."""

    rows: int  # R, a power of two
    outer: int  # lane axes beside the innermost
    float_type: str  # float32 | float64
    int_type: str
    spacing: int = 0  # a forward kernel keeps the states before every so many rows; 0: none


def forward_kernel(scan: Scan, form: Form) -> Kernel:
    """Walks up: outputs, final states, and states to start again from if the form asks for them."""
    return _Writer(scan, step_program(scan), form, None).kernel()


def backward_kernel(adjoint: Scan, step: Program, primal: Scan, form: Form) -> Kernel:
    """Walks down with the adjoint; reruns the primal's tiles where it reads states before the step."""
    return _Writer(adjoint, step, form, primal).kernel()


class _Writer:
    def __init__(self, scan: Scan, step: Program, form: Form, primal: Scan | None) -> None:
        self.scan, self.step, self.form, self.primal = scan, step, form, primal
        self.down = primal is not None
        rerun = {i.name for i in scan.inputs if i.role == "state_before"} if primal else set()
        self.rerun_states = [s.name for s in primal.states] if primal and rerun else []
        read = [i.name for i in scan.inputs if i.name not in rerun]
        if self.rerun_states and primal:
            read += [i.name for i in primal.inputs if i.name not in read]
        kinds = {i.name: i.kind for i in (*scan.inputs, *(primal.inputs if primal else ()))}
        self.inputs = {name: kinds[name] for name in read}
        self.states = [s.name for s in scan.states]
        self.outputs = [o.name for o in scan.outputs]
        forward_kept = self.states if form.spacing else []
        self.kept = self.rerun_states if self.down else forward_kept

    def kernel(self) -> Kernel:
        parts = [_HEAD.format(name=self.scan.name, FLOAT=self.form.float_type, INT=self.form.int_type)]
        functions = [function(self.step, "step", "One step: the states after it, and the outputs.")]
        if self.rerun_states and self.primal:
            functions.append(function(_states_only(self.primal), "rerun", "One step of the forward pass."))
        text = "\n\n".join(functions)
        prelude = helpers(text)
        parts += [prelude] * bool(prelude) + [text, self.body()]
        return Kernel(
            "\n\n".join(p.strip("\n") + "\n" for p in parts),
            tuple(self.inputs), tuple(self.states), tuple(self.outputs), tuple(self.states), tuple(self.kept),
        )  # fmt: skip

    def body(self) -> str:
        lines = [*self.signature(), *self.addresses(), *self.start()]
        sections = [self.tiles(), self.rest()]
        for section in reversed(sections) if self.down else sections:
            lines += section
        lines += [f"    tl.store(at_end_{s}, {self.state(s)}, mask=mask)" for s in self.states]
        return "\n".join(lines) + "\n"

    def state(self, name: str) -> str:
        return f"x_{name}"

    def over_time(self) -> list[str]:
        return [f"in_{n}" for n in self.inputs] + [f"out_{n}" for n in self.outputs]

    def tensors(self) -> list[str]:
        """All of them, in the order of the kernel's arguments."""
        ends = [f"start_{s}" for s in self.states] + [f"end_{s}" for s in self.states]
        return self.over_time() + ends + [f"kept_{s}" for s in self.kept]

    def signature(self) -> list[str]:
        outer = range(self.form.outer)
        rows = [", ".join(f"ptr_{t}" for t in self.tensors())]
        rows.append(
            ", ".join(["T", "LANES", *(f"N{k}" for k in outer), *(f"st_kept_{s}" for s in self.kept)])
        )
        rows += [", ".join(f"s{k}_{t}" for k in outer) for t in self.tensors() if outer]
        rows += [f"st_{t}: tl.constexpr" for t in self.over_time()]
        rows += [f"sd_{t}: tl.constexpr" for t in self.tensors()]
        rows.append("BD: tl.constexpr, NS: tl.constexpr, MASKED: tl.constexpr, FENCE: tl.constexpr")
        plain = ", ".join(f'"{n}"' for n in ("T", *(f"st_kept_{s}" for s in self.kept)))  # never constants
        head = f"@triton.jit(do_not_specialize=[{plain}])"
        return [head, "def kernel(", *(f"    {row}," for row in rows), "):"]

    def addresses(self) -> list[str]:
        """The block's lanes, and where each tensor has them at its first step."""
        lines = [
            "    blocks = tl.cdiv(LANES, BD)",
            "    lane = (tl.program_id(0) % blocks) * BD + tl.arange(0, BD)  # [BD]",
            "    mask = (lane < LANES) if MASKED else None",
            "    outer = (tl.program_id(0) // blocks).to(tl.int64)",
        ]
        rest = "outer"
        for k in reversed(range(self.form.outer)):
            lines.append(f"    o{k} = {rest} % N{k}" if k else f"    o0 = {rest}")
            if k:
                lines.append(f"    outer{k} = {rest} // N{k}")
                rest = f"outer{k}"
        for t in self.tensors():
            shift = "".join(f" + o{k} * s{k}_{t}" for k in range(self.form.outer))
            lines.append(f"    at_{t} = ptr_{t}{shift} + lane.to(tl.int64) * sd_{t}  # [BD]")
        lines.append(f"    tiles = T // {self.form.rows}")
        return lines

    def start(self) -> list[str]:
        return [f"    {self.state(s)} = tl.load(at_start_{s}, mask=mask)" for s in self.states]

    def tiles(self) -> list[str]:
        """The loop over whole tiles."""
        r = self.form.rows
        lines = [f"    row = tl.arange(0, {r}).to(tl.int64)  # [R]"]
        last = "(tiles - 1).to(tl.int64)"
        for t in self.over_time():
            at = f"at_{t} + {last} * {r} * st_{t}" if self.down else f"at_{t}"
            if t.startswith("in_"):
                lines.append(f"    tile_{t} = ({at})[None, :] + row[:, None] * st_{t}  # [R, BD]")
            else:
                lines.append(f"    tile_{t} = {at}  # [BD]")
        for s in self.kept:
            lines.append(
                f"    tile_kept_{s} = at_kept_{s}" + (f" + {last} * st_kept_{s}" if self.down else "")
            )
        lines.append("    for _ in tl.range(0, tiles, num_stages=NS):")
        lines += [f"        {line}" for line in self.tile_body()]
        sign, passed = ("-", 1) if self.down else ("+", r // (self.form.spacing or r))
        lines += [f"        tile_{t} {sign}= {r} * st_{t}" for t in self.over_time()]
        lines += [f"        tile_kept_{s} {sign}= {passed} * st_kept_{s}.to(tl.int64)" for s in self.kept]
        return lines

    def tile_body(self) -> list[str]:
        r = self.form.rows
        lines = [
            f"in_{n} = tl.load(tile_in_{n}, mask=mask[None, :] if MASKED else None)  # [R, BD]"
            for n in self.inputs
        ]
        lines += [f"before0_{s} = tl.load(tile_kept_{s}, mask=mask)  # [BD]" for s in self.kept if self.down]
        for n in self.inputs:
            lines += _split_rows(f"in_{n}", r)
        carried = [self.state(s.name) for s in self.scan.states if s.kind == "float"]
        if carried and self.form.float_type == "float32":
            lines += ["if FENCE:", f"    {carried[0]} = {_FENCE.format(carried[0])}"]
        for i in range(r - 1) if self.rerun_states else ():
            now = [f"before{i}_{s}" for s in self.rerun_states]
            after = ", ".join(f"before{i + 1}_{s}" for s in self.rerun_states)
            rows = [self.row(n, i) for n in self.rerun_inputs()]
            lines.append(f"{after} = rerun({', '.join([*rows, *now])})")
        for i in reversed(range(r)) if self.down else range(r):
            if self.kept and not self.down and i % self.form.spacing == 0:
                lines += [
                    f"tl.store(tile_kept_{s} + {i // self.form.spacing} * st_kept_{s}.to(tl.int64), "
                    f"{self.state(s)}, mask=mask)"
                    for s in self.kept
                ]
            lines += self.one_step(partial(self.row, i=i), i, partial(_tile_row, i=i))
        return lines

    def rest(self) -> list[str]:
        """The loop over the rows that fill no tile: the last ones in time."""
        r = self.form.rows
        lines = [f"    rest = T - tiles * {r}"]
        first = "(T - 1)" if self.down else f"(tiles * {r})"
        for t in self.over_time():
            lines.append(f"    row_{t} = at_{t} + {first}.to(tl.int64) * st_{t}  # [BD]")
        if self.down:
            last = "(tiles + rest - 1).to(tl.int64)"
            lines += [f"    row_kept_{s} = at_kept_{s} + {last} * st_kept_{s}" for s in self.kept]
        lines.append("    for t in range(0, rest):")
        body = [f"in_{n} = tl.load(row_in_{n}, mask=mask)  # [BD]" for n in self.inputs]
        body += self.kept_row()
        body += self.one_step(lambda n: self.cast(f"in_{n}", self.inputs[n]), 0, lambda t: f"row_{t}")
        sign = "-" if self.down else "+"
        body += [f"row_{t} {sign}= st_{t}" for t in self.over_time()]
        return lines + [f"        {line}" for line in body]

    def kept_row(self) -> list[str]:
        """A row of the rest: load the state before it, or store it where the backward kernel looks for it."""
        if self.down:
            loads = [f"before0_{s} = tl.load(row_kept_{s}, mask=mask)  # [BD]" for s in self.kept]
            return loads + [f"row_kept_{s} -= st_kept_{s}.to(tl.int64)" for s in self.kept]
        if not self.kept:
            return []
        spacing = self.form.spacing
        lines = [
            f"now = tiles * {self.form.rows} + t",
            f"whole = T // {spacing} * {spacing}",
            f"place = tl.where(now < whole, now // {spacing}, T // {spacing} + now - whole).to(tl.int64)",
            f"if (now >= whole) | (now % {spacing} == 0):",
        ]
        return lines + [
            f"    tl.store(at_kept_{s} + place * st_kept_{s}, {self.state(s)}, mask=mask)" for s in self.kept
        ]

    def one_step(self, read: Callable[[str], str], i: int, place: Callable[[str], str]) -> list[str]:
        """The step at one row, and the stores of its outputs."""
        args = []
        for v in self.step.inputs:
            if v.name in self.inputs:
                args.append(read(v.name))
            elif any(v.name == before(s) for s in self.states):
                args.append(self.state(v.name.removeprefix("previous_")))
            else:
                args.append(f"before{i}_{v.name.removeprefix('previous_')}")
        results = {next_state(s): self.state(s) for s in self.states} | {o: f"out_{o}" for o in self.outputs}
        named = [results[name] for name, _ in self.step.outputs]
        lines = [f"{', '.join(named)} = step({', '.join(args)})"]
        for o in self.outputs:
            lines.append(
                f"tl.store({place(f'out_{o}')}, out_{o}.to(ptr_out_{o}.dtype.element_ty), mask=mask)"
            )
        return lines

    def rerun_inputs(self) -> list[str]:
        return [i.name for i in self.primal.inputs] if self.primal else []

    def row(self, name: str, i: int) -> str:
        return self.cast(f"row{i}_in_{name}", self.inputs[name])

    def cast(self, name: str, kind: str) -> str:
        return {"float": f"{name}.to(FLOAT)", "int": f"{name}.to(INT)", "bool": name}[kind]


def _tile_row(tensor: str, i: int) -> str:
    return f"tile_{tensor} + {i} * st_{tensor}"


def _split_rows(name: str, rows: int) -> list[str]:
    """Rows `row0_name`, `row1_name`, ... of a tile: each split separates the lowest bit that is left."""
    if rows == 1:
        return [f"row0_{name} = tl.reshape({name}, [BD])"]
    halvings = rows.bit_length() - 1
    lines = [f"bits_{name} = tl.reshape(tl.permute({name}, (1, 0)), [BD{', 2' * halvings}])"]
    level = [(f"bits_{name}", 0)]
    for bit in range(halvings):
        after = []
        for text, index in level:
            last = bit == halvings - 1
            low, high = index, index + (1 << bit)
            names = [f"row{i}_{name}" if last else f"half{bit}_{i}_{name}" for i in (low, high)]
            lines.append(f"{names[0]}, {names[1]} = tl.split({text})")
            after += [(names[0], low), (names[1], high)]
        level = after
    return lines


def _states_only(scan: Scan) -> Program:
    """The step without its outputs."""
    program = step_program(scan)
    wanted = {next_state(s.name) for s in scan.states}
    return drop_dead(replace(program, outputs=tuple(o for o in program.outputs if o[0] in wanted)))


_HEAD = '''"""{name}: the ordered tile, generated by scanforge. One lane a thread, R rows a tile."""

import triton
import triton.language as tl

FLOAT = tl.constexpr(tl.{FLOAT})
INT = tl.constexpr(tl.{INT})
'''
