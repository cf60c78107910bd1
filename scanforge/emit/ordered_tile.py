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

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from scanforge.emit.form import Form, Kernel, Room, shape_of, state_room
from scanforge.emit.frame import Frame
from scanforge.emit.groups import Composition, Groups, Relay, carried
from scanforge.emit.ring import Ring
from scanforge.emit.rows import lane_sums, shuffles
from scanforge.emit.signature import first_entry, head, signature
from scanforge.emit.stores import Place, Stores
from scanforge.emit.triton_maths import helpers
from scanforge.emit.triton_text import function
from scanforge.emit.walk import RERUN, Walk, before_name, state_name
from scanforge.ir.program import Program
from scanforge.ir.scan import Scan
from scanforge.narrow import narrowed
from scanforge.schedule import (
    Stages,
    first,
    next_state,
    settled,
    stages,
    states_only,
    step_program,
    together,
)

_FENCE = (
    'tl.inline_asm_elementwise("bar.warp.sync 0xffffffff; mov.b32 $0, $1;", "=r,r", [{0}], '
    "dtype=tl.float32, is_pure=False, pack=1)"
)


def forward_kernel(scan: Scan, form: Form, composition: Composition | None = None) -> Kernel:
    """Walks up: outputs, final states, and states to start again from if the form asks for them."""
    return _Writer(scan, step_program(scan), form, None, composition).kernel()


def backward_kernel(
    adjoint: Scan, step: Program, primal: Scan, form: Form, composition: Composition | None = None
) -> Kernel:
    """Walks down with the adjoint; reruns the primal's tiles where it reads states before the step."""
    return _Writer(adjoint, step, form, primal, composition).kernel()


STRIP = 16  # rows that are stored together where time is contiguous: a thread's piece of 32 bytes or more


class _Writer:
    def __init__(
        self, scan: Scan, step: Program, form: Form, primal: Scan | None, composition: Composition | None
    ) -> None:
        composes = form.groups > 1 and not form.relay
        assert composes == (composition is not None), "groups compose, and nothing else does"
        self.scan, self.form, self.down = scan, form, primal is not None
        within = frozenset([form.held] if form.held else [])
        step = settled(scan, step, within)
        self.shape, seen = shape_of(form, scan, primal)
        self.frame = Frame(self.shape, form, down=self.down)
        again = settled(primal, states_only(primal), within) if seen and primal else None
        self.walk, self.rerun, self.cut = self.walks(step, again, seen, composition)
        self.stores = Stores(self.shape, form, self.frame, self.walk)
        self.firsts = [v.name for v in step.inputs if v.name.startswith(first(""))]

    def walks(
        self, step: Program, again: Program | None, seen: Sequence[Room], composition: Composition | None
    ) -> tuple[Walk, Walk | None, Groups | Relay | None]:
        """The walks of the step and of the states again, and groups; without a held axis they share parts."""
        shares = again is not None and not self.form.held
        composed = step_program(composition.itself) if composition else None
        beside = [p for p in (again if shares else None, composed) if p]
        made = stages(narrowed(reduce(together, beside, step)), self.form.held)
        assert made is not None, f"{self.scan.name}: the plan holds {self.form.held}, a sum of which it needs"
        others = {n for p in beside for n, _ in p.outputs}
        own = made.each_for({n for n, _ in made.each.outputs} - others) if beside else made
        whole = not self.down and not self.form.held
        walk = Walk(own, self.shape, self.form, self.shape.starts, seen, whole=whole)
        groups: Groups | Relay | None = None
        rerun = None
        if composition and composed:
            rooms = [state_room(self.form, s) for s in composition.itself.states]
            parts = made.each_for(n for n, _ in composed.outputs)
            compose = Walk(parts, self.shape, self.form, rooms, seen, named="compose", beside=walk)
            made_of = Ring if self.form.members > 1 else Groups
            groups = made_of(composition, self.form, compose, down=self.down)
        if self.form.relay:
            alone = made.each_for(next_state(s.name) for s in self.scan.states)
            relay = Walk(alone, self.shape, self.form, self.shape.starts, seen, named="relay", beside=walk)
            groups = Relay(relay, self.form, down=self.down)
        if again:
            parts_again = made.each_for(n for n, _ in again.outputs) if shares else self.apart(again)
            rerun = Walk(
                parts_again, self.shape, self.form, seen, seen, named=RERUN, beside=walk if shares else None
            )
        return walk, rerun, groups

    def apart(self, again: Program) -> Stages:
        """The states again by themselves."""
        parts = stages(narrowed(again), self.form.held)
        assert parts is not None, f"{again.name}: its states depend on a sum over {self.form.held}"
        return parts

    def kernel(self) -> Kernel:
        parts = [head(self.scan.name, "the ordered tile, one lane a thread, R rows a tile", self.form)]
        walks = [w for w in (self.walk, self.rerun, self.cut.walk if self.cut else None) if w]
        texts = [function(p, name, doc) for w in walks for p, name, doc in w.functions()]
        text = "\n\n".join([*texts, *([t] if self.cut and (t := self.cut.text()) else [])])
        body = self.body()
        prelude = helpers(text)
        sums = "\n\n".join(lane_sums(1 << k) for k in range(6) if f"lane_sums{1 << k}(" in body)
        parts += [x for x in (shuffles(sums), sums, prelude, text) if x] + [body]
        said = len(self.cut.leaves) if isinstance(self.cut, Ring) else 0
        return replace(self.shape, source="\n\n".join(p.strip("\n") + "\n" for p in parts), said=said)

    def body(self) -> str:
        f = self.frame
        lines = [*signature(self.shape, self.form), *f.addresses()]
        begin = carried if self.cut else state_name
        lines += [f"    {x}" for x in f.load_states("start", begin, "at_")]
        lines += f.untimed()
        lines += [f"    {first_entry(name, self.form)}" for name in self.firsts]
        for w in (self.walk, self.rerun):
            if w:
                lines += [f"    {x}" for x in w.call("once", 0)]
                lines += [f"    {x}" for n in range(self.form.entries) for x in w.call("once_each", 0, n)]
        lines += [f"    {x} = tl.zeros([BD], FLOAT)" for x in self.stores.accumulators()]
        sections = [self.only_step()] if self.form.single else [self.tiles()]
        sections += [self.rest()] if self.form.ragged and not self.form.single else []
        assert not self.cut or len(sections) == 1, "groups walk whole tiles only"
        for section in reversed(sections) if self.down else sections:
            lines += section
        lines += [f"    {x}" for x in (*self.stores.store_ends(), *self.stores.store_accumulators())]
        return "\n".join(lines) + "\n"

    # ---- the loop over whole tiles

    def tiles(self) -> list[str]:
        f, r = self.frame, self.form.rows
        lines = f.tile_pointers()
        lines += [f"    {x}" for x in self.cut.begin()] if self.cut else []
        lines.append("    for tile in tl.range(0, tiles, num_stages=NS):")
        body = f.load_tiles()
        body += self.load_kept("tile_") if self.down else []
        body += self.fence()
        body += self.rows(r, lambda t, i: f"tile_{t} + {i} * st_{t}")
        body += f.advance("tile", f.round, f.passed * self.form.members)
        return lines + [f"        {x}" for x in body]

    def load_kept(self, at: str) -> list[str]:
        return self.frame.load_states("kept", lambda s, n: before_name(s, 0, n), at)

    def fence(self) -> list[str]:
        """Results wait until what is in shared memory has been read."""
        name = carried if self.cut else state_name
        states = [name(r.name, 0 if r.held else None) for r in self.shape.starts if r.kind == "float"]
        if not states or self.form.float_type != "float32":
            return []
        return ["if FENCE:", f"    {states[0]} = {_FENCE.format(states[0])}"]

    def rows(self, count: int, place: Place, *, keeps: bool = True) -> list[str]:
        """The rows of a tile, in the order of walking."""
        order = list(reversed(range(count))) if self.down else list(range(count))
        lines: list[str] = []
        ahead, strip = not self.carries_alone(), min(count, STRIP)
        if ahead:
            lines += self.walk.call_ahead(order)
            lines += self.rerun.call_ahead(range(count - 1)) if self.rerun else []
        groups = self.groups(ahead)
        for entries in groups:
            lines += self.run_again(count, entries, ahead=ahead)
            lines += self.cut.before(order) if self.cut else []
            for i in order:
                if not ahead:
                    lines += self.walk.call("ahead", i)
                lines += self.stores.keep(i, entries) if keeps and not self.down else []
                for n in entries:
                    lines += self.walk.call("each", i, n if self.form.held else None)
                lines += self.walk.add(i, entries, begin=entries is groups[0])
                lines += self.stores.put("each", i, entries, place, strip)
                if len(groups) == 1:
                    lines += [*self.walk.call("behind", i), *self.stores.put("ahead", i, [], place, strip)]
                    lines += [*self.stores.put("behind", i, [], place, strip), *self.walk.carry_on()]
            lines += self.stores.put_lane_sums("each", order, entries, place)
        for i in order if len(groups) > 1 else []:
            lines += [
                *self.walk.call("behind", i),
                *self.stores.put("ahead", i, [], place, strip),
                *self.stores.put("behind", i, [], place, strip),
            ]
        lines += self.cut.behind() if self.cut else []
        return lines + [
            x for p in ("ahead", "behind") for x in self.stores.put_lane_sums(p, order, [], place)
        ]

    def carries_alone(self) -> bool:
        """Whether a state is stepped outside `each`, so that a row's parts must run in one go."""
        walks = [self.walk, *([self.rerun] if self.rerun else [])]
        return any(
            next_state(s) in w.results[p] for w in walks for s in w.states for p in ("ahead", "behind")
        )

    def groups(self, ahead: bool) -> list[list[int]]:
        """The entries of the held axis that are walked together."""
        every = list(range(self.form.entries))
        size = self.form.together if ahead and self.down else len(every)
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
        body += self.load_kept("row_") if self.down else self.stores.keep_row()
        body += self.rows(1, lambda t, _: f"row_{t}", keeps=False)
        return lines + [f"        {x}" for x in (*body, *f.advance("row", 1, 1))]

    def only_step(self) -> list[str]:
        """One step, without a loop around it."""
        f = self.frame
        lines = [f"row_{t} = at_{t}" for t in f.timed]
        lines += f.load_row()
        lines += self.stores.keep_first() if not self.down else self.load_kept("at_")
        return [f"    {x}" for x in (*lines, *self.rows(1, lambda t, _: f"row_{t}", keeps=False))]
