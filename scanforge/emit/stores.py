"""Lines that store what an ordered tile has computed: outputs, sums over time and lanes, and states."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scanforge.emit.form import Form, Kernel, Room, kept_at
from scanforge.emit.frame import Frame
from scanforge.emit.groups import carried
from scanforge.emit.rows import join_rows
from scanforge.emit.signature import seat
from scanforge.emit.walk import Walk, state_name

Place = Callable[[str, int], str]


class Stores:
    """The stores of one walk."""

    def __init__(self, kernel: Kernel, form: Form, frame: Frame, walk: Walk) -> None:
        self.shape, self.form, self.frame, self.walk = kernel, form, frame, walk
        self.down = frame.down

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
                if r.inner and self.form.groups > 1:
                    every = " + ".join(f"tl.gather({total}, {seat(k)}, 0)" for k in range(self.form.groups))
                    lines.append(f"{total} = {every}")
                if r.inner:
                    lines.append(f"tl.store({at}, {total}.{stored}, mask=mask)")
                else:
                    live = f"tl.where(mask, {total}, 0.0) if MASKED else {total}"
                    lines.append(f"tl.store({at}, tl.sum({live}, 0).{stored})")
        return lines

    def store_states(self, rooms: Iterable[Room], at: str, mask: str = "mask") -> list[str]:
        """Store the carried states at the address of a lane's first entry, with the state's name for {0}."""
        lines, kind = [], "end" if "at_end_" in at else "kept"
        for r in rooms:
            for n in self.frame.entries(r):
                entry = self.frame.entry(f"{kind}_{r.name}", n)
                lines.append(f"tl.store({at.format(r.name)}{entry}, {state_name(r.name, n)}, mask={mask})")
        return lines

    def store_ends(self) -> list[str]:
        """Store the final states."""
        if self.form.groups > 1:
            return [f"tl.store(at_end_{r.name}, {carried(r.name)}, mask=mask)" for r in self.shape.ends]
        return self.store_states(self.shape.ends, "at_end_{0}")

    def keep(self, i: int, entries: Iterable[int]) -> list[str]:
        """Store the states before a row from which a backward kernel starts a tile."""
        spacing, r = self.form.spacing, self.form.rows
        if not self.shape.kept or i % spacing:
            return []
        if self.form.sparse:  # at the first row of some tiles
            due, at = f"(tile % {spacing // r} == 0)", f"at_kept_{{0}} + tile // {spacing // r}"
            mask = f"mask & {due} if MASKED else {due}"
        else:
            mask, at = "mask", f"tile_kept_{{0}} + {i // spacing}"
        return self.store_states(self.shape.kept, at + " * st_kept_{0}.to(tl.int64)", mask)

    def keep_row(self) -> list[str]:
        """Store the state before a row of the rest where the backward kernel looks for it."""
        if not self.shape.kept:
            return []
        kept = self.store_states(self.shape.kept, "at_kept_{0} + at * st_kept_{0}")
        return [f"now = tiles * {self.form.rows} + t", *kept_at(self.form), *(f"    {x}" for x in kept)]

    def keep_first(self) -> list[str]:
        """Store the state before the only step."""
        return self.store_states(self.shape.kept, "at_kept_{0}")

    # ---- outputs of a row

    def outputs_of(self, part: str) -> list[Room]:
        return [r for r in self.shape.outputs if r.name in self.walk.results[part]]

    def entries(self, part: str, r: Room, entries: list[int]) -> list[int | None]:
        """The entries of the held axis to store: those walked, or all where the value lacks the axis."""
        return [*entries] if self.walk.per_entry(part) else self.frame.entries(r)

    def put(self, part: str, i: int, entries: list[int], place: Place, strip: int = 1) -> list[str]:
        """Store a row's outputs, or add them to what is stored at the end.

        Where time is contiguous `strip` rows are stored together, once the last of them is walked.
        """
        lines = []
        for r in self.outputs_of(part):
            for n in self.entries(part, r, entries):
                value, t = self.walk.result(part, r.name, i, n), f"out_{r.name}"
                if not r.timed:
                    lines.append(f"{_accumulator(r.name, n)} += {value}")
                elif r.name in self.form.along and not r.held and strip > 1:
                    last = i % strip == (0 if self.down else strip - 1)
                    lines += self.put_strip(part, r, i // strip * strip, strip, place) if last else []
                elif r.inner:
                    at = f"{place(t, i)}{self.frame.entry(t, n if r.held else None)}"
                    lines.append(f"tl.store({at}, {value}.to(ptr_{t}.dtype.element_ty), mask=mask)")
        return lines

    def put_strip(self, part: str, r: Room, first: int, strip: int, place: Place) -> list[str]:
        """Store some rows of an output, each thread a piece of memory without gaps."""
        t, rows = f"out_{r.name}", range(first, first + strip)
        values = [f"{self.walk.result(part, r.name, i, None)}.to(ptr_{t}.dtype.element_ty)" for i in rows]
        values = [f"tl.broadcast_to({x}, [BD])" for x in values]
        at = f"({place(t, first)})[:, None] + tl.arange(0, {strip})[None, :]"
        mask = "mask[:, None] if MASKED else None"
        return [f"tl.store({at}, {join_rows(values)}, mask={mask})  # [BD, {strip}]"]

    def put_lane_sums(self, part: str, rows: list[int], entries: list[int], place: Place) -> list[str]:
        """Store the sums over lanes of some rows and entries, as many at a time as a warp has lanes."""
        lines: list[str] = []
        for r in self.outputs_of(part):
            if not r.timed or r.inner:
                continue
            own = self.entries(part, r, entries)
            together = max(32 // len(own), 1)  # rows
            for k in range(0, len(rows), together):
                cells = [(i, n) for i in sorted(rows)[k : k + together] for n in own]
                lines += self.lane_sums(part, r, cells, place)
        return lines

    def lane_sums(self, part: str, r: Room, cells: list[tuple[int, int | None]], place: Place) -> list[str]:
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


def _accumulator(name: str, n: int | None) -> str:
    return f"total_{name}" if n is None else f"total{n}_{name}"
