"""A step, cut into stages, as lines of a kernel: which registers each part reads and writes at a row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scanforge.emit.form import CASTS, Form, Kernel, Room
from scanforge.emit.frame import row_name, tile_name, untimed_name
from scanforge.emit.rows import split_tile
from scanforge.ir.program import Program
from scanforge.ir.scan import before
from scanforge.schedule import PARTS, Stages, handed_on, next_state
from scanforge.waves import waves

RERUN = "rerun_step"
_LETTERS = {"once": "c", "once_each": "c", "ahead": "a", "each": "e", "behind": "b"}
Entry = int | None


class Walk:
    """The parts of one program at rows.

    `states` are carried in registers x_<state>; those of the walk `named` RERUN are in before<row>_<state>,
    one for each row, where the walk of the adjoint has `seen` them. A walk `beside` another one has only the
    part `each` of its own, and reads what the parts of the other one hand on. With `whole`, what needs no
    state is run on whole tiles.
    """

    def __init__(
        self, stages: Stages, kernel: Kernel, form: Form, states: Iterable[Room], seen: Iterable[Room] = (),
        *, named: str = "step", beside: Walk | None = None, whole: bool = False,
    ) -> None:  # fmt: skip
        self.stages, self.form, self.named = stages, form, named
        self.rerun = named == RERUN
        self.prefix = "re" if self.rerun else ""
        self.beside, self.whole = beside, whole
        self.seen = {r.name: r for r in seen}
        self.inputs = {r.name: r for r in kernel.inputs}
        self.states = {r.name: r for r in states}
        handed = {v: p for p in PARTS for n, v in stages.part(p).outputs if n == handed_on(v)}
        lines = {x.var.name for p in PARTS for x in stages.part(p).lines}
        self.made = {v: p for v, p in handed.items() if v in lines}
        self.waves = waves(stages.ahead) if stages.ahead.outputs and not (beside or whole) else []
        self.made |= {v: "ahead" for w in self.waves for n, v in w.outputs if n == handed_on(v)}
        self.shown = handed.keys() - lines  # inputs of the step that are summands
        self.sums = dict(stages.sums)
        self.results: dict[str, list[str]] = {
            p: [n for n, _ in stages.part(p).outputs] if p == "each" or not beside else [] for p in PARTS
        }

    def functions(self) -> list[tuple[Program, str, str]]:
        """The parts that are not empty, their names in the text, and what they say of themselves."""
        docs = {
            "once": "What does not change over time.",
            "once_each": "What does not change over time, of one entry.",
            "ahead": "What a row needs before its step.",
            "each": "The step of one entry."
            if self.form.held
            else "One step: the states after it, and the outputs.",
            "behind": "What a row's sums over entries are for.",
        }
        found = []
        for p in PARTS:
            if p == "ahead" and not self.whole:
                found += [
                    (w, f"{self.function(p)}{k + 1 if k else ''}", docs[p]) for k, w in enumerate(self.waves)
                ]
            elif self.results[p]:
                found.append((self.stages.part(p), self.function(p), docs[p]))
        return found

    def function(self, part: str) -> str:
        if part == "each" and not self.form.held:
            return self.named
        return f"rerun_{part}" if self.rerun else part

    def per_entry(self, part: str) -> bool:
        return bool(self.form.held) and part in {"once_each", "each"}

    def value(self, name: str, i: int, n: Entry) -> str:
        """The register, or the expression, of an input of a part at row i for entry n."""
        if name in self.sums:
            return f"{self.prefix}sum{i}_{name}"
        if name in self.made:
            return (self.beside or self).result(self.made[name], handed_on(name), i, n)
        if name in self.inputs:
            room = self.inputs[name]
            entry = n if room.held else None
            if not room.timed:
                return untimed_name(name, entry)
            text = row_name(name, i, entry)
            if room.kind == "bool" and not self.form.apart(room):  # spread as numbers
                return f"({text} != 0)"
            return CASTS[room.kind].format(text)
        if name.startswith("first_"):
            return name
        state = name.removeprefix(before(""))
        if state in self.states:
            return self.register(state, n if self.states[state].held else None, i)
        return before_name(state, i, n if self.seen[state].held else None)

    def register(self, state: str, n: Entry, i: int) -> str:
        """Where the state before row i is."""
        return before_name(state, i, n) if self.rerun else state_name(state, n)

    def result(self, part: str, name: str, i: int, n: Entry) -> str:
        """The register of a part's result."""
        for state, room in self.states.items():
            if name == next_state(state):
                late = bool(self.form.held) and not room.held and not self.rerun
                return new_name(state) if late else self.register(state, n if room.held else None, i + 1)
        row = "" if part.startswith("once") else str(i)
        entry = f"n{n}" if self.per_entry(part) and n is not None else ""
        variable = name.removeprefix(handed_on(""))
        letter = "o" if variable == name else _LETTERS[part]
        return f"{self.prefix}{letter}{row}{entry}_{variable}"

    def call(self, part: str, i: int, n: Entry = None) -> list[str]:
        """Run a part at a row, for an entry."""
        if part == "ahead" and not self.whole:
            return self.call_ahead([i])
        program = self.stages.part(part)
        if not self.results[part]:
            return []
        given = ", ".join(self.value(v.name, i, n) for v in program.inputs)
        names = [self.result(part, name, i, n) for name in self.results[part]]
        lines = [f"{', '.join(names)} = {self.function(part)}({given})"]
        if not program.inputs:  # numbers alone
            lines += [f"{name} = tl.broadcast_to({name}, [BD])" for name in names]
        return lines

    def call_ahead(self, rows: Sequence[int]) -> list[str]:
        """Run what needs no state for some rows: on the whole tile, or wave by wave.

        In this order the machine code has the same operation for many rows side by side, and a lone warp
        waits for none of them; row by row it waits for each.
        """
        if self.whole and len(rows) > 1:
            return self.call_whole(len(rows))
        if self.whole:
            return self.call("ahead", rows[0])
        return [x for k in range(len(self.waves)) for i in rows for x in self.call_wave(k, i)]

    def call_whole(self, rows: int) -> list[str]:
        """Run `ahead` on a whole tile, and take its results apart.

        Triton's layouts follow that for a forward kernel's few results, and the order is better still.
        """
        names = [self.result("ahead", name, 0, None) for name in self.results["ahead"]]
        if not names:
            return []
        given = ", ".join(self.all_rows(v.name) for v in self.stages.ahead.inputs)
        tiles = [f"rows_{n}" for n in names]
        lines = [f"{', '.join(tiles)} = {self.function('ahead')}({given})  # [BD, R]"]
        for tile, name in zip(tiles, self.results["ahead"], strict=True):
            taken = [self.result("ahead", name, i, None) for i in range(rows)]
            lines += split_tile(f"tl.broadcast_to({tile}, [BD, {rows}])", taken)
        return lines

    def all_rows(self, name: str) -> str:
        """An input of `ahead` for all rows of a tile."""
        room = self.inputs.get(name)
        if name in self.made or room is None or not room.timed:
            return f"{self.value(name, 0, None)}[:, None]"
        return CASTS[room.kind].format(f"tl.permute({tile_name(name, None)}, (1, 0))")

    def call_wave(self, k: int, i: int) -> list[str]:
        """Run one wave of `ahead` at a row."""
        wave = self.waves[k]
        given = ", ".join(self.value(v.name, i, None) for v in wave.inputs)
        names = [self.result("ahead", name, i, None) for name, _ in wave.outputs]
        return [f"{', '.join(names)} = {self.function('ahead')}{k + 1 if k else ''}({given})"]

    def carry_on(self) -> list[str]:
        """The states without the held axis step on once all entries of a row have read them."""
        late = [r for r in self.states.values() if self.form.held and not r.held and not self.rerun]
        return [f"{state_name(r.name, None)} = {new_name(r.name)}" for r in late]

    def add(self, i: int, entries: Iterable[int], *, begin: bool) -> list[str]:
        """Add the summands of some entries to the row's sums."""
        lines = []
        for name, summand in self.sums.items():
            part = "each" if summand in self.shown else self.made.get(summand)
            terms = [
                self.result(part, handed_on(summand), i, n) if part else self.value(summand, i, n)
                for n in entries
            ]
            total = f"{self.prefix}sum{i}_{name}"
            lines.append(f"{total} = {_chains(terms if begin else [total, *terms])}")
        return lines


def state_name(state: str, n: Entry) -> str:
    """A carried state."""
    return f"x_{state}" if n is None else f"x{n}_{state}"


def new_name(state: str) -> str:
    """A state after a row that still reads the one before it."""
    return f"new_{state}"


def before_name(state: str, i: int, n: Entry) -> str:
    """The state before row i of a tile that was run again."""
    return f"before{i}_{state}" if n is None else f"before{i}n{n}_{state}"


def _chains(terms: list[str]) -> str:
    """A sum in four chains: a product joins its chain in one instruction, and chains do not wait."""
    chains = [" + ".join(terms[k::4]) for k in range(min(4, len(terms)))]
    return " + ".join(f"({c})" if " + " in c and k else c for k, c in enumerate(chains))
