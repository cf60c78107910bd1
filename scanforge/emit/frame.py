"""What stands around the walk of an ordered tile: arguments, addresses, loads, and sums stored at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from scanforge.emit.form import CASTS, Form, Kernel, Room
from scanforge.emit.rows import power_of_two, split_tile
from scanforge.emit.signature import adds_lanes, first_step, lanes_of, parted, place_in_grid, seats, timed


class Frame:
    """Names and addresses of a kernel's tensors."""

    def __init__(self, kernel: Kernel, form: Form, *, down: bool) -> None:
        self.kernel, self.form, self.down = kernel, form, down
        self.tensors = kernel.tensors()
        self.rooms = dict(self.tensors)
        self.timed = timed(kernel)
        self.sign, self.rows = ("-" if down else "+"), form.rows
        self.tile_rows = form.rows * form.groups  # rows of a tile
        self.round = self.tile_rows * form.members  # rows that all programs of a lane walk side by side

    def entries(self, room: Room) -> list[int | None]:
        """The entries of the held axis that a tensor has; None for a tensor without it."""
        return list(range(self.form.entries)) if room.held else [None]

    def addresses(self) -> list[str]:
        """The block's lanes, and where each tensor has them at its first step."""
        lines = [*place_in_grid(self.form), *self.threads()]
        if self.form.held:
            lines.append(f"    entry = tl.arange(0, {power_of_two(self.form.entries)})")
        lines += [self.address(t, room) for t, room in self.tensors]
        lines.append(f"    tiles = T // {self.round}")
        return lines

    def threads(self) -> list[str]:
        """Each thread's lane, and whether it is there; in groups, its group, and its lane's other threads."""
        g = self.form.groups
        seat = "thread" if g == 1 else f"thread % (BD // {g})"
        lines = ["thread = tl.arange(0, BD)", f"lane = block * {lanes_of(self.form)} + {seat}  # [BD]"]
        lines.append("mask = (lane < LANES) if MASKED else None")
        if g > 1:
            lines += [f"group = (thread // (BD // {g})).to(tl.int64)  # [BD]", *seats(g)]
        return [f"    {x}" for x in lines]

    def address(self, tensor: str, room: Room) -> str:
        at = f"    at_{tensor} = {first_step(tensor, room, self.form)}"
        if tensor in parted(self.kernel, self.form):
            at += f" + member * sm_{tensor}"
        if adds_lanes(tensor, room):  # one sum a block
            return f"{at} + block.to(tl.int64) * sd_{tensor}"
        if self.form.groups > 1:
            return f"{at}{self.of_group(tensor, room)} + lane.to(tl.int64) * sd_{tensor}  # [BD]"
        if tensor.startswith("in_") and room.timed and not room.inner:
            return f"{at}  # the same for all lanes"
        return f"{at} + lane.to(tl.int64) * sd_{tensor}  # [BD]"

    def of_group(self, tensor: str, room: Room) -> str:
        """How far a group's rows lie from the first group's."""
        if tensor.startswith("kept_"):
            return f" + group * {self.passed // self.form.groups} * st_{tensor}"
        return f" + group * ({self.rows} * st_{tensor})" if tensor in self.timed else ""

    @property
    def passed(self) -> int:
        """How many kept states a tile has."""
        return self.form.groups * (1 if self.down else self.rows // (self.form.spacing or self.rows))

    def entry(self, tensor: str, n: int | None) -> str:
        """How far an entry of the held axis lies."""
        return "" if n is None else f" + {n} * sn_{tensor}"

    def load_states(self, prefix: str, names: Callable[[str, int | None], str], at: str) -> list[str]:
        """Load the states of these tensors into registers."""
        rooms = [r for t, r in self.tensors if t == f"{prefix}_{r.name}"]
        return [
            x for r in rooms for x in self.load_lanes(f"{prefix}_{r.name}", r, at, partial(names, r.name))
        ]

    def load_lanes(
        self, tensor: str, room: Room, at: str, names: Callable[[int | None], str], cast: str = "{0}"
    ) -> list[str]:
        """Load what a lane has of a tensor: one value, or its entries as one tile."""
        if not room.held:
            loaded = f"tl.load({at}{tensor}, mask=mask)"
            return [f"{names(None)} = {cast.format(loaded)}  # [BD]"]
        width = power_of_two(self.form.entries)
        full = width == self.form.entries
        live = "mask[None, :] if MASKED else None" if full else self.entry_mask("mask[None, :]")
        tile = f"entries_{names(0)}"
        loaded = f"tl.load(({at}{tensor})[None, :] + entry[:, None] * sn_{tensor}, mask={live})"
        lines = [f"{tile} = {loaded}  # [{width}, BD]"]
        return lines + split_tile(
            f"tl.permute({cast.format(tile)}, (1, 0))", [names(n) for n in range(width)]
        )

    def entry_mask(self, lanes: str) -> str:
        """Entries that are there, of lanes that are there."""
        some = f"(entry < {self.form.entries})[:, None]"
        return f"{some} & {lanes} if MASKED else {some}"

    def untimed(self) -> list[str]:
        """Load inputs without time, once."""
        lines = []
        for room in self.kernel.inputs:
            if not room.timed:
                name, cast = room.name, CASTS[room.kind]
                lines += self.load_lanes(f"in_{name}", room, "at_", partial(untimed_name, name), cast)
        return [f"    {x}" for x in lines]

    def tile_pointers(self) -> list[str]:
        """Where the first tile in the order of walking is."""
        r, lines = self.rows, []
        first = self.first_tile()
        for t in self.timed:
            room = self.rooms[t]
            at = f"at_{t} + {first} * {self.tile_rows} * st_{t}" if first else f"at_{t}"
            if t.startswith("out_"):
                lines.append(f"    tile_{t} = {at}")
            elif self.form.apart(room):
                lines.append(f"    tile_{t} = ({at})[None, :] + row[:, None] * st_{t}  # [R, BD]")
            else:
                entry = f" + entry[None, :] * sn_{t}" if room.held else ""
                width = "entries" if room.held else "1"
                lines.append(f"    tile_{t} = {at} + row[:, None] * st_{t}{entry}  # [R, {width}]")
        for room in self.kernel.kept:
            passed = "" if self.passed == 1 else f"{self.passed} * "
            at = f" + {first} * {passed}st_kept_{room.name}" if first else ""
            lines.append(f"    tile_kept_{room.name} = at_kept_{room.name}{at}")
        return [f"    row = tl.arange(0, {r}).to(tl.int64)  # [R]", *lines]

    def first_tile(self) -> str:
        """Which one a program walks first, if that is not the first in time."""
        if self.form.members > 1:
            first = f"(tiles * {self.form.members} - 1 - member)" if self.down else "member"
            return f"{first}.to(tl.int64)"
        return "(tiles - 1).to(tl.int64)" if self.down else ""

    def load_tiles(self) -> list[str]:
        """Load the tiles, then take them apart."""
        loads: list[str] = []
        splits: list[str] = []
        for room in self.kernel.inputs:
            if room.timed:
                for part in self.entries(room) if self.form.apart(room) else [None]:
                    loads.append(self.load_tile(room, part))
                    splits += self.split(room, part, self.rows)
        return loads + splits

    def load_tile(self, room: Room, n: int | None) -> str:
        t = f"in_{room.name}"
        name = tile_name(room.name, n)
        if self.form.apart(room):
            live = "mask[None, :] if MASKED else None"
            return f"{name} = tl.load(tile_{t}{self.entry(t, n)}, mask={live})  # [R, BD]"
        full = not room.held or power_of_two(self.form.entries) == self.form.entries
        mask = "" if full else f", mask=(entry < {self.form.entries})[None, :]"
        return (
            f"{name} = tl.load(tile_{t}{mask})  # [R, {power_of_two(self.form.entries) if room.held else 1}]"
        )

    def split(self, room: Room, n: int | None, rows: int) -> list[str]:
        name = tile_name(room.name, n)
        if self.form.apart(room):
            names = [row_name(room.name, i, n) for i in range(rows)]
            return split_tile(f"tl.permute({name}, (1, 0))", names)
        width = power_of_two(self.form.entries) if room.held else 1
        cast = "{0}.to(tl.int8)" if room.kind == "bool" else CASTS[room.kind]
        spread = f"tl.broadcast_to({cast.format(name)}[None, :, :], [BD, {rows}, {width}])"
        names = [row_name(room.name, i, k if room.held else None) for i in range(rows) for k in range(width)]
        return split_tile(spread, names)

    def load_row(self) -> list[str]:
        """Load one row of every input."""
        lines = []
        for room in self.kernel.inputs:
            t = f"in_{room.name}"
            if room.timed and room.inner:
                for n in self.entries(room):
                    at = f"row_{t}{self.entry(t, n)}"
                    lines.append(f"{row_name(room.name, 0, n)} = tl.load({at}, mask=mask)  # [BD]")
            elif room.timed:
                full = not room.held or power_of_two(self.form.entries) == self.form.entries
                mask = "" if full else f", mask=(entry < {self.form.entries})[None, :]"
                at = f"row_{t} + tl.zeros([1, 1], tl.int64)" + (
                    f" + entry[None, :] * sn_{t}" if room.held else ""
                )
                lines.append(f"{tile_name(room.name, None)} = tl.load({at}{mask})")
                lines += self.split(room, None, 1)
        return lines

    def advance(self, pointers: str, rows: int, passed: int) -> list[str]:
        """Move the pointers on."""
        lines = [f"{pointers}_{t} {self.sign}= {rows} * st_{t}" for t in self.timed]
        return lines + [
            f"{pointers}_kept_{r.name} {self.sign}= {passed} * st_kept_{r.name}.to(tl.int64)"
            for r in self.kernel.kept
            if pointers == "tile" or self.down
        ]


def untimed_name(name: str, n: int | None) -> str:
    """An input without time, in registers."""
    return f"in_{name}" if n is None else f"in{n}_{name}"


def tile_name(name: str, n: int | None) -> str:
    """A loaded tile."""
    return f"tile_of_{name}" if n is None else f"tile{n}_of_{name}"


def row_name(name: str, i: int, n: int | None) -> str:
    """Row i of an input's tile."""
    return f"row{i}_in_{name}" if n is None else f"row{i}_in{n}_{name}"
