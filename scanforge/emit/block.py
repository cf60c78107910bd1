"""Scan -> the block kernel: whole axes of the state lie in one program, and time is walked row by row.

For sums within a step that a thread cannot make in its registers: over an axis of many entries, over several
axes, or where a state depends on one. A row's values are tensors over the whole axes and a block of lanes,
`[B0, ..., BD]`, of size 1 along axes that they lack. A backward kernel walks down in groups of R rows, which
it runs again from the states that were kept.
"""

from __future__ import annotations

from dataclasses import replace

from scanforge.emit.form import CASTS, Form, Kernel, Room, kept_at, shape_of
from scanforge.emit.signature import first_entry, first_step, head, place_in_grid, signature
from scanforge.emit.triton_maths import helpers
from scanforge.emit.triton_text import block_function
from scanforge.ir.program import Program
from scanforge.ir.scan import Scan, before
from scanforge.narrow import narrowed
from scanforge.schedule import first, next_state, settled, states_only, step_program


def forward_kernel(scan: Scan, form: Form) -> Kernel:
    """Walks up: outputs, final states, and states to start again from if the form asks for them."""
    return _Writer(scan, step_program(scan), form, None).kernel()


def backward_kernel(adjoint: Scan, step: Program, primal: Scan, form: Form) -> Kernel:
    """Walks down with the adjoint; reruns the primal where it reads states before the step."""
    return _Writer(adjoint, step, form, primal).kernel()


class _Writer:
    def __init__(self, scan: Scan, step: Program, form: Form, primal: Scan | None) -> None:
        self.scan, self.form, self.down = scan, form, primal is not None
        within = frozenset(form.whole)
        self.step = narrowed(settled(scan, step, within))
        self.shape, seen = shape_of(form, scan, primal)
        self.rerun = narrowed(settled(primal, states_only(primal), within)) if primal and seen else None
        self.tensors = self.shape.tensors()
        self.padded = [a for a, n in zip(form.whole, form.sizes, strict=True) if n & (n - 1)]

    def kernel(self) -> Kernel:
        top = head(self.scan.name, "a block of the state in one program", self.form)
        text = block_function(self.step, "step", "One step: the states after it, and the outputs.", self.form)
        if self.rerun:
            text += "\n\n" + block_function(self.rerun, "rerun", "One step of the forward pass.", self.form)
        parts = [top, helpers(text), text, self.body()]
        return replace(self.shape, source="\n\n".join(p.strip("\n") + "\n" for p in parts if p))

    # ---- shapes

    def size(self, room: Room, *, lanes: bool | None = None) -> str:
        """The shape of a tensor's row."""
        sizes = [f"B{k}" if has else "1" for k, has in enumerate(room.whole)]
        return f"[{', '.join([*sizes, 'BD' if (room.inner if lanes is None else lanes) else '1'])}]"

    def spread(self, text: str, at: int) -> str:
        """A range along one of the dimensions."""
        rank = len(self.form.whole) + 1
        return f"{text}[{', '.join(':' if k == at else 'None' for k in range(rank))}]"

    def mask(self, room: Room) -> str:
        """Where a row's entries are real."""
        live = [
            f"live_{a}"
            for a, has in zip(self.form.whole, room.whole, strict=True)
            if has and a in self.padded
        ]
        live += ["live"] if room.inner else []
        return " & ".join(live) or "None"

    def body(self) -> str:
        lines = [*signature(self.shape, self.form), *self.addresses()]
        lines += [f"    x_{r.name} = {self.load(f'at_start_{r.name}', r)}" for r in self.shape.starts]
        lines += [
            f"    in_{r.name} = {self.cast(self.load(f'at_in_{r.name}', r), r)}"
            for r in self.shape.inputs
            if not r.timed
        ]
        lines += [
            f"    total_{r.name} = tl.zeros({self.size(r, lanes=True)}, FLOAT)"
            for r in self.shape.outputs
            if not r.timed
        ]
        lines += self.walk_down() if self.down else self.walk_up()
        lines += [f"    {self.store(f'end_{r.name}', f'x_{r.name}', r)}" for r in self.shape.ends]
        for r in self.shape.outputs:
            if not r.timed:
                value = f"total_{r.name}" if r.inner else self.lane_sum(f"total_{r.name}")
                lines.append(f"    {self.store(f'out_{r.name}', value, r)}")
        return "\n".join(lines) + "\n"

    def addresses(self) -> list[str]:
        last = len(self.form.whole)
        lines = [
            *place_in_grid(self.form),
            f"    lane = {self.spread('(block * BD + tl.arange(0, BD))', last)}",
            "    live = lane < LANES",
        ]
        for k, axis in enumerate(self.form.whole):
            lines.append(f"    i_{axis} = {self.spread(f'tl.arange(0, B{k})', k)}")
            lines += [f"    live_{axis} = i_{axis} < W{k}"] if axis in self.padded else []
        lines += [self.address(t, r) for t, r in self.tensors]
        lines.append("    zero = (T * 0).to(tl.int64)")
        firsts = [v.name for v in self.step.inputs if v.name.startswith(first(""))]
        return lines + [f"    {first_entry(name, self.form)}" for name in firsts]

    def address(self, t: str, room: Room) -> str:
        at = first_step(t, room, self.form)
        if room.inner:
            at += f" + lane.to(tl.int64) * sd_{t}"
        else:
            at += f" + block.to(tl.int64) * sd_{t}" if t.startswith("out_") else ""
            at += f" + tl.zeros({self.size(room)}, tl.int64)"
        for k, (axis, has) in enumerate(zip(self.form.whole, room.whole, strict=True)):
            at += f" + i_{axis}.to(tl.int64) * sw{k}_{t}" if has else ""
        return f"    at_{t} = {at}  # {self.size(room)}"

    # ---- lines

    def load(self, at: str, room: Room) -> str:
        return f"tl.load({at}, mask={self.mask(room)})"

    def store(self, tensor: str, value: str, room: Room, row: str = "") -> str:
        """A value, broadcast to all that the tensor has, at its address or at a row of it."""
        at = f"at_{tensor} + {row} * st_{tensor}" if row else f"at_{tensor}"
        whole = f"tl.broadcast_to({value}, {self.size(room)}).to(ptr_{tensor}.dtype.element_ty)"
        return f"tl.store({at}, {whole}, mask={self.mask(room)})"

    def lane_sum(self, value: str) -> str:
        """Over the program's lanes, dead ones left out; what has no lanes counts once a lane."""
        return f"tl.sum(tl.where(live, {value}, 0.0), {len(self.form.whole)}, keep_dims=True)"

    def cast(self, text: str, room: Room) -> str:
        return CASTS[room.kind].format(text)

    def one_step(self, row: str, i: int) -> list[str]:
        """The step at one row; `row` gives the row of a pointer."""
        given = []
        states, inputs = {r.name for r in self.shape.starts}, {r.name: r for r in self.shape.inputs}
        for v in self.step.inputs:
            state = v.name.removeprefix(before(""))
            if v.name in inputs:
                given.append(f"row{i}_{v.name}" if inputs[v.name].timed else f"in_{v.name}")
            elif v.name.startswith(first("")):
                given.append(v.name)
            else:
                given.append(f"x_{state}" if state in states else f"before{i}_{state}")
        names = {next_state(s): f"new_{s}" for s in states}
        results = [names.get(n, f"out_{n}") for n, _ in self.step.outputs]
        lines = [f"{', '.join(results)} = step({', '.join([*given, *self.lives()])})"]
        lines += [f"x_{r.name} = {self.stated(f'new_{r.name}', r)}" for r in self.shape.starts]
        for r in self.shape.outputs:
            if not r.timed:
                lines.append(f"total_{r.name} += out_{r.name}")
            else:
                value = f"out_{r.name}" if r.inner else self.lane_sum(f"out_{r.name}")
                lines.append(self.store(f"out_{r.name}", value, r, row))
        return lines

    def stated(self, value: str, room: Room) -> str:
        kind = {"float": "FLOAT", "int": "INT", "bool": "tl.int1"}[room.kind]
        return f"tl.broadcast_to({value}, {self.size(room)}).to({kind})"

    def lives(self) -> list[str]:
        """Conditions that sums within the step need."""
        return [f"live_{a}" for a in self.padded]

    def load_rows(self, row: str, i: int) -> list[str]:
        return [
            f"row{i}_{r.name} = {self.cast(self.load(f'at_in_{r.name} + {row} * st_in_{r.name}', r), r)}"
            for r in self.shape.inputs
            if r.timed
        ]

    def only_step(self) -> list[str]:
        """One step, without a loop around it."""
        body = self.load_rows("0", 0)
        for r in self.shape.kept:
            value = f"tl.broadcast_to(x_{r.name}, {self.size(r)})"
            body.append(f"tl.store(at_kept_{r.name}, {value}, mask={self.mask(r)})")
        return [f"    {x}" for x in (*body, *self.one_step("0", 0))]

    def walk_up(self) -> list[str]:
        if self.form.single:
            return self.only_step()
        lines = ["    for t in tl.range(0, T, num_stages=NS):", "        row = zero + t"]
        body = self.load_rows("row", 0)
        body += ["now = row", *kept_at(self.form)] if self.shape.kept else []
        for r in self.shape.kept:
            value = f"tl.broadcast_to(x_{r.name}, {self.size(r)})"
            body.append(
                f"    tl.store(at_kept_{r.name} + at * st_kept_{r.name}, {value}, mask={self.mask(r)})"
            )
        return lines + [f"        {x}" for x in (*body, *self.one_step("row", 0))]

    def walk_down(self) -> list[str]:
        r = self.form.rows
        lines = [f"    tiles = T // {r}", f"    for t in range(0, T - tiles * {r}):"]
        body = [
            "row = zero + (T - 1 - t)",
            f"at = row - tiles * {r} + tiles",
            *self.load_rows("row", 0),
        ]
        body += [f"before0_{k.name} = {self.load_kept(k, 'at')}" for k in self.shape.kept]
        lines += [f"        {x}" for x in (*body, *self.one_step("row", 0))]
        lines.append("    for tile in range(0, tiles):")
        body = ["at = zero + (tiles - 1 - tile)"]
        for i in range(r):
            body += [f"row{i} = at * {r} + {i}", *self.load_rows(f"row{i}", i)]
        body += [f"before0_{k.name} = {self.load_kept(k, 'at')}" for k in self.shape.kept]
        for i in range(r - 1) if self.rerun else ():
            body += self.run_again(i)
        for i in reversed(range(r)):
            body += self.one_step(f"row{i}", i)
        return lines + [f"        {x}" for x in body]

    def load_kept(self, room: Room, at: str) -> str:
        return self.load(f"at_kept_{room.name} + {at} * st_kept_{room.name}", room)

    def run_again(self, i: int) -> list[str]:
        """The states before the next row of a group."""
        assert self.rerun
        inputs = {r.name: r for r in self.shape.inputs}
        given = [
            (f"row{i}_{v.name}" if inputs[v.name].timed else f"in_{v.name}")
            if v.name in inputs
            else f"before{i}_{v.name.removeprefix(before(''))}"
            for v in self.rerun.inputs
        ]
        names = [f"new_{n.removeprefix(next_state(''))}" for n, _ in self.rerun.outputs]
        lines = [f"{', '.join(names)} = rerun({', '.join([*given, *self.lives()])})"]
        return lines + [
            f"before{i + 1}_{k.name} = {self.stated(f'new_{k.name}', k)}" for k in self.shape.kept
        ]
