"""Scan -> the ordered-tile kernel: a program owns a block of lanes and walks time tile by tile.

Each input is loaded as one `[R, BD]` tile in a pipelined loop, so that the next tiles are in flight; rows are
split out of the tile, so that each thread holds whole rows of its own lane; then the step runs row by row, in
order. It needs `apply` only. A forward kernel walks up. A backward kernel walks down: its scan is the
adjoint, and where that reads the state before the step, the tile is run again from the state at the tile's
first row, which the forward kernel stored. Rows that fill no tile are walked one by one, last in time.

One axis of the state may be held: all its entries lie in one thread's registers, so that a sum over it needs
no other thread, and the step is cut by what each line depends on (schedule.stages).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from scanforge.emit.form import Form, Kernel, Room, input_rooms, output_room, state_room
from scanforge.emit.frame import Frame
from scanforge.emit.rows import lane_sums, shuffles
from scanforge.emit.triton_maths import helpers
from scanforge.emit.triton_text import function
from scanforge.emit.walk import Walk, before_name, state_name
from scanforge.ir.program import Program
from scanforge.ir.scan import Scan, State
from scanforge.narrow import narrowed
from scanforge.prune import drop_dead
from scanforge.schedule import first, next_state, settled, stages, step_program

_FENCE = (
    'tl.inline_asm_elementwise("bar.warp.sync 0xffffffff; mov.b32 $0, $1;", "=r,r", [{0}], '
    "dtype=tl.float32, is_pure=False, pack=1)"
)


def forward_kernel(scan: Scan, form: Form) -> Kernel:
    """Walks up: outputs, final states, and states to start again from if the form asks for them."""
    return _Writer(scan, step_program(scan), form, None).kernel()


def backward_kernel(adjoint: Scan, step: Program, primal: Scan, form: Form) -> Kernel:
    """Walks down with the adjoint; reruns the primal's tiles where it reads states before the step."""
    return _Writer(adjoint, step, form, primal).kernel()


class _Writer:
    def __init__(self, scan: Scan, step: Program, form: Form, primal: Scan | None) -> None:
        self.scan, self.form, self.down = scan, form, primal is not None
        within = frozenset([form.held] if form.held else [])
        step = narrowed(settled(scan, step, within))
        again = {i.name for i in scan.inputs if i.role == "state_before"} if primal else set()
        rerun_states: tuple[State, ...] = primal.states if primal and again else ()
        read = [i.name for i in scan.inputs if i.name not in again]
        if rerun_states and primal:
            read += [i.name for i in primal.inputs if i.name not in read]
        seen = tuple(state_room(form, s) for s in rerun_states)
        own = tuple(state_room(form, s) for s in scan.states)
        forward_kept = own if form.spacing else ()
        self.shape = Kernel(
            "",
            input_rooms(form, [scan, *([primal] if primal else [])], read),
            tuple(output_room(form, o) for o in scan.outputs),
            own,
            own,
            seen if self.down else forward_kept,
        )
        self.frame = Frame(self.shape, form, down=self.down)
        made = stages(step, form.held)
        assert made is not None, f"{scan.name}: the plan holds {form.held}, whose entries depend on a sum"
        self.walk = Walk(made, self.shape, form, own, seen)
        self.rerun = None
        if rerun_states and primal:
            again_stages = stages(narrowed(settled(primal, _states_only(primal), within)), form.held)
            assert again_stages is not None, f"{primal.name}: its states depend on a sum over {form.held}"
            self.rerun = Walk(again_stages, self.shape, form, seen, seen, rerun=True)
        self.firsts = [v.name for v in step.inputs if v.name.startswith(first(""))]

    def kernel(self) -> Kernel:
        parts = [
            _HEAD.format(
                name=self.scan.name,
                FLOAT=self.form.float_type,
                INT=self.form.int_type,
                NVIDIA=self.form.nvidia,
            )
        ]
        walks = [self.walk, *([self.rerun] if self.rerun else [])]
        text = "\n\n".join(function(p, name, doc) for w in walks for p, name, doc in w.functions())
        body = self.body()
        prelude = helpers(text)
        sums = "\n\n".join(lane_sums(1 << k) for k in range(6) if f"lane_sums{1 << k}(" in body)
        parts += [x for x in (shuffles(sums), sums, prelude, text) if x] + [body]
        return replace(self.shape, source="\n\n".join(p.strip("\n") + "\n" for p in parts))

    def body(self) -> str:
        f = self.frame
        lines = [*f.signature(), *f.addresses()]
        lines += [f"    {x}" for x in f.load_states("start", state_name, "at_")]
        lines += f.untimed()
        lines += [f"    {self.first_entry(name)}" for name in self.firsts]
        for w in (self.walk, self.rerun):
            if w:
                lines += [f"    {x}" for x in w.call("once", 0)]
                lines += [f"    {x}" for n in range(self.form.entries) for x in w.call("once_each", 0, n)]
        lines += [f"    {x} = tl.zeros([BD], FLOAT)" for x in self.accumulators()]
        sections = [self.only_step()] if self.form.single else [self.tiles(), self.rest()]
        for section in reversed(sections) if self.down else sections:
            lines += section
        lines += [f"    {x}" for x in (*self.store_ends(), *self.store_accumulators())]
        return "\n".join(lines) + "\n"

    def first_entry(self, name: str) -> str:
        axis = name.removeprefix(first(""))
        if axis in self.form.inner:
            return f"{name} = lane == 0"
        k = next((k for k, group in enumerate(self.form.grid) if axis in group), None)
        return f"{name} = (lane >= 0)" + ("" if k is None else f" & (o{k} == 0)")

    # ---- accumulators of outputs without time

    def untimed_outputs(self) -> list[Room]:
        return [r for r in self.shape.outputs if not r.timed]

    def accumulators(self) -> list[str]:
        return [_accumulator(r.name, n) for r in self.untimed_outputs() for n in self.frame.entries(r)]

    def store_accumulators(self) -> list[str]:
        lines = []
        for r in self.untimed_outputs():
            for n in self.frame.entries(r):
                total, t = _accumulator(r.name, n), f"out_{r.name}"
                at = f"at_{t}{self.frame.entry(t, n)}"
                stored = f"to(ptr_{t}.dtype.element_ty)"
                if r.inner:
                    lines.append(f"tl.store({at}, {total}.{stored}, mask=mask)")
                else:
                    live = f"tl.where(mask, {total}, 0.0) if MASKED else {total}"
                    lines.append(f"tl.store({at}, tl.sum({live}, 0).{stored})")
        return lines

    def store_ends(self) -> list[str]:
        return [
            f"tl.store(at_end_{r.name}{self.frame.entry(f'end_{r.name}', n)}, {state_name(r.name, n)}, mask=mask)"
            for r in self.shape.ends
            for n in self.frame.entries(r)
        ]

    # ---- the loop over whole tiles

    def tiles(self) -> list[str]:
        f, r = self.frame, self.form.rows
        lines = [*f.tile_pointers(), "    for tile in tl.range(0, tiles, num_stages=NS):"]
        body = f.load_tiles()
        body += self.load_kept("tile_") if self.down else []
        body += self.fence()
        body += self.rows(r, lambda t, i: f"tile_{t} + {i} * st_{t}")
        passed = 1 if self.down else r // (self.form.spacing or r)
        return lines + [f"        {x}" for x in (*body, *f.advance("tile", r, passed))]

    def load_kept(self, at: str) -> list[str]:
        return self.frame.load_states("kept", lambda s, n: before_name(s, 0, n), at)

    def fence(self) -> list[str]:
        """Results wait until what is in shared memory has been read."""
        carried = [state_name(r.name, 0 if r.held else None) for r in self.shape.starts if r.kind == "float"]
        if not carried or self.form.float_type != "float32":
            return []
        return ["if FENCE:", f"    {carried[0]} = {_FENCE.format(carried[0])}"]

    def rows(self, count: int, place: Callable[[str, int], str]) -> list[str]:
        """The rows of a tile, in the order of walking."""
        order = list(reversed(range(count))) if self.down else list(range(count))
        lines: list[str] = []
        ahead = not self.carries_alone()
        if ahead:
            lines += [x for i in order for x in self.walk.call("ahead", i)]
            lines += [
                x for i in range(count - 1) for x in (self.rerun.call("ahead", i) if self.rerun else [])
            ]
        groups = self.groups(ahead)
        for entries in groups:
            lines += self.run_again(count, entries, ahead=ahead)
            for i in order:
                if not ahead:
                    lines += self.walk.call("ahead", i)
                lines += self.keep(i, entries) if not self.down else []
                for n in entries:
                    lines += self.walk.call("each", i, n if self.form.held else None)
                lines += self.walk.add(i, entries, begin=entries is groups[0])
                lines += self.put("each", i, entries, place)
                if len(groups) == 1:
                    lines += [*self.walk.call("behind", i), *self.put("ahead", i, [], place)]
                    lines += self.put("behind", i, [], place)
            lines += self.put_lane_sums("each", order, entries, place)
        for i in order if len(groups) > 1 else []:
            lines += [
                *self.walk.call("behind", i),
                *self.put("ahead", i, [], place),
                *self.put("behind", i, [], place),
            ]
        return lines + [x for p in ("ahead", "behind") for x in self.put_lane_sums(p, order, [], place)]

    def carries_alone(self) -> bool:
        """Whether a state is stepped outside `each`, so that a row's parts must run in one go."""
        walks = [self.walk, *([self.rerun] if self.rerun else [])]
        return any(
            next_state(s) in w.results[p] for w in walks for s in w.states for p in ("ahead", "behind")
        )

    def groups(self, ahead: bool) -> list[list[int]]:
        """The entries of the held axis that are walked together."""
        every = list(range(self.form.entries))
        size = self.form.group if ahead and self.down else len(every)
        return [every[k : k + size] for k in range(0, len(every), size)]

    def run_again(self, count: int, entries: list[int], *, ahead: bool) -> list[str]:
        """The states before the rows of the tile."""
        lines: list[str] = []
        for i in range(count - 1) if self.rerun else ():
            assert self.rerun
            lines += [] if ahead else self.rerun.call("ahead", i)
            for n in entries:
                lines += self.rerun.call("each", i, n if self.form.held else None)
            lines += self.rerun.add(i, entries, begin=True) if self.rerun.results["behind"] else []
            lines += self.rerun.call("behind", i)
        return lines

    def keep(self, i: int, entries: Iterable[int]) -> list[str]:
        """Store the states before a row from which a backward kernel starts a tile."""
        spacing, r = self.form.spacing, self.form.rows
        if not self.shape.kept or i % spacing:
            return []
        if self.form.sparse:  # at the first row of some tiles
            due = f"(tile % {spacing // r} == 0)"
            mask, at = (
                f"mask & {due} if MASKED else {due}",
                f"at_kept_{{0}} + tile // {spacing // r}",
            )
        else:
            mask, at = "mask", f"tile_kept_{{0}} + {i // spacing}"
        return [
            f"tl.store({at.format(k.name)} * st_kept_{k.name}.to(tl.int64){self.frame.entry(f'kept_{k.name}', n)}, "
            f"{state_name(k.name, n)}, mask={mask})"
            for k in self.shape.kept
            for n in self.frame.entries(k)
        ]

    # ---- outputs of a row

    def outputs_of(self, part: str) -> list[Room]:
        return [r for r in self.shape.outputs if r.name in self.walk.results[part]]

    def put(self, part: str, i: int, entries: list[int], place: Callable[[str, int], str]) -> list[str]:
        """Store a row's outputs, or add them to what is stored at the end."""
        lines = []
        for r in self.outputs_of(part):
            for n in entries if self.walk.per_entry(part) else [None]:
                value, t = self.walk.result(part, r.name, i, n), f"out_{r.name}"
                if not r.timed:
                    lines.append(f"{_accumulator(r.name, n)} += {value}")
                elif r.inner:
                    at = f"{place(t, i)}{self.frame.entry(t, n if r.held else None)}"
                    lines.append(f"tl.store({at}, {value}.to(ptr_{t}.dtype.element_ty), mask=mask)")
        return lines

    def put_lane_sums(
        self, part: str, rows: list[int], entries: list[int], place: Callable[[str, int], str]
    ) -> list[str]:
        """Store the sums over lanes of some rows and entries, as many at a time as a warp has lanes."""
        lines: list[str] = []
        for r in self.outputs_of(part):
            if not r.timed or r.inner:
                continue
            own: list[int | None] = [*entries] if self.walk.per_entry(part) else [None]
            together = max(32 // len(own), 1)  # rows
            for k in range(0, len(rows), together):
                cells = [(i, n) for i in sorted(rows)[k : k + together] for n in own]
                lines += self.lane_sums(part, r, cells, place)
        return lines

    def lane_sums(
        self, part: str, r: Room, cells: list[tuple[int, int | None]], place: Callable[[str, int], str]
    ) -> list[str]:
        t, count = f"out_{r.name}", 1 << (len(cells) - 1).bit_length()
        values = [self.walk.result(part, r.name, i, n) for i, n in cells]
        values = [f"(tl.where(mask, {v}, 0.0) if MASKED else {v})" for v in values]
        values += ["tl.zeros([BD], FLOAT)"] * (count - len(cells))
        (i0, n0), per = cells[0], 32 // count
        entries = len({n for _, n in cells})
        which = f"thread // {per}" if per > 1 else "thread"
        lines = [f"sums = lane_sums{count}({', '.join(values)}, thread, FENCE)", f"which = {which}"]
        row, entry = (
            (f"which // {entries}", f" + (which % {entries}) * sn_{t}") if n0 is not None else ("which", "")
        )
        at = f"{place(t, i0)}{self.frame.entry(t, n0)} + ({row}) * st_{t}{entry}"
        live = f"(thread % {per} == 0) & (which < {len(cells)})"
        return [*lines, f"tl.store({at}, sums, mask={live})"]

    # ---- the loop over the rows that fill no tile: the last ones in time

    def rest(self) -> list[str]:
        f, r = self.frame, self.form.rows
        lines = [f"    rest = T - tiles * {r}"]
        start = "(T - 1)" if self.down else f"(tiles * {r})"
        lines += [f"    row_{t} = at_{t} + {start}.to(tl.int64) * st_{t}" for t in f.timed]
        if self.down:
            last = "(tiles + rest - 1).to(tl.int64)"
            lines += [
                f"    row_kept_{k.name} = at_kept_{k.name} + {last} * st_kept_{k.name}"
                for k in self.shape.kept
            ]
        lines.append("    for t in range(0, rest):")
        body = f.load_row()
        body += self.load_kept("row_") if self.down else self.keep_row()
        body += self.without_keeping().rows(1, lambda t, _: f"row_{t}")
        return lines + [f"        {x}" for x in (*body, *f.advance("row", 1, 1))]

    def only_step(self) -> list[str]:
        """One step, without a loop around it."""
        f = self.frame
        lines = [f"row_{t} = at_{t}" for t in f.timed]
        lines += f.load_row()
        lines += [
            f"tl.store(at_kept_{k.name}{f.entry(f'kept_{k.name}', n)}, {state_name(k.name, n)}, mask=mask)"
            for k in self.shape.kept
            for n in f.entries(k)
        ]
        return [f"    {x}" for x in (*lines, *self.without_keeping().rows(1, lambda t, _: f"row_{t}"))]

    def without_keeping(self) -> _Writer:
        """Itself, for rows whose states `keep_row` stores."""
        plain = object.__new__(_Writer)
        plain.__dict__ |= self.__dict__
        plain.shape = replace(self.shape, kept=self.shape.kept if self.down else ())
        return plain

    def keep_row(self) -> list[str]:
        """Store the state before a row of the rest where the backward kernel looks for it."""
        if not self.shape.kept:
            return []
        spacing = self.form.spacing
        lines = [f"now = tiles * {self.form.rows} + t"]
        if self.form.sparse:
            lines += [f"at = (now // {spacing}).to(tl.int64)", f"if now % {spacing} == 0:"]
        else:
            lines += [
                f"whole = T // {spacing} * {spacing}",
                f"at = tl.where(now < whole, now // {spacing}, T // {spacing} + now - whole).to(tl.int64)",
                f"if (now >= whole) | (now % {spacing} == 0):",
            ]
        return lines + [
            f"    tl.store(at_kept_{r.name} + at * st_kept_{r.name}{self.frame.entry(f'kept_{r.name}', n)}, "
            f"{state_name(r.name, n)}, mask=mask)"
            for r in self.shape.kept
            for n in self.frame.entries(r)
        ]


def _accumulator(name: str, n: int | None) -> str:
    return f"total_{name}" if n is None else f"total{n}_{name}"


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
NVIDIA = tl.constexpr({NVIDIA})
'''
