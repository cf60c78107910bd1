"""A tile's rows in groups: G threads share a lane, and each walks its own part of the tile's time.

One thread a lane leaves few warps for each scheduler where lanes are few, and each then waits for its own
chain of operations. All threads of a lane have the states that tiles hand on. From there to the first row of
each group there are two ways.

Groups   each thread composes the elements of its rows from the identity (`combine`), and the compositions
         carry the states from group to group (`apply`)
Relay    of two groups: the first walks its rows for the states alone, and hands them to the second. That
         takes less than composing where a step does much besides
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scanforge.emit.form import Form
from scanforge.emit.rows import split_tile
from scanforge.emit.signature import seat
from scanforge.emit.triton_text import function, literal
from scanforge.emit.walk import Walk, state_name
from scanforge.ir.scan import Scan, before
from scanforge.schedule import next_state, states_only


@dataclass(frozen=True, slots=True)
class Composition:
    """A scan's operator on itself, and the scan over what it composes."""

    itself: Scan
    carry: Scan


class Groups:
    """The lines that take the states of a tile's first row to the first row of every group."""

    def __init__(self, composition: Composition, form: Form, walk: Walk, *, down: bool) -> None:
        self.walk, self.count, self.down = walk, form.groups, down
        self.program = states_only(composition.carry)
        self.states = [s.name for s in composition.carry.states]
        leaves, prefixes = composition.itself.operator.leaves, composition.itself.states
        self.prefixes = {x.name: s.name for x, s in zip(leaves, prefixes, strict=True)}
        self.identities = {x.name: literal(x.identity) for x in leaves}

    def text(self) -> str:
        """The function that carries states over a group."""
        return function(self.program, "carry", "The states after a group, from those before it.")

    def begin(self) -> list[str]:
        """What stands before the loop."""
        return []

    def before(self, order: list[int]) -> list[str]:
        """Compose every group's rows, then give each group its states."""
        groups = list(reversed(range(self.count))) if self.down else list(range(self.count))
        return [*self.compose(order), *self.give(groups, carried)]

    def compose(self, order: list[int]) -> list[str]:
        """Each thread composes its group's rows, and has the compositions of all groups."""
        lines = [
            f"{state_name(s, None)} = tl.full([BD], {self.identities[x]}, FLOAT)"
            for x, s in self.prefixes.items()
        ]
        for i in order:
            lines += self.walk.call("each", i)
        for leaf, prefix in self.prefixes.items():
            names = [of_group(leaf, k) for k in range(self.count)]
            lines += self.of_all(f"tl.broadcast_to({state_name(prefix, None)}, [BD])", names)
        return lines

    def of_all(self, value: str, names: list[str]) -> list[str]:
        """What the threads of a lane have, for each of them: one trip through shared memory."""
        tile = f"all_{names[0]}"
        lines = [f"{tile} = tl.gather({value}, seats, 0)  # [{self.count} BD]"]
        return lines + split_tile(f"tl.permute(tl.reshape({tile}, [{self.count}, BD]), (1, 0))", names)

    def give(self, groups: list[int], state: Callable[[str], str]) -> list[str]:
        """Carry the program's states from group to group, each of which begins with its own."""
        lines = []
        for k in groups:
            lines += [f"{of_group(s, k)} = {state(s)}" for s in self.states]
            lines.append(self.carry({x: of_group(x, k) for x in self.prefixes}, state))
        return lines + [f"{state_name(s, None)} = {self.spread(s)}" for s in self.states]

    def behind(self) -> list[str]:
        """The carried states are known before the rows are walked."""
        return []

    def carry(self, element: dict[str, str], state: Callable[[str], str]) -> str:
        """The states after an element, from those before it."""
        given = {before(s): state(s) for s in self.states} | element
        names = {next_state(s): state(s) for s in self.states}
        results = ", ".join(names[n] for n, _ in self.program.outputs)
        return f"{results} = carry({', '.join(given[v.name] for v in self.program.inputs)})"

    def spread(self, state: str) -> str:
        """Each group's own state, a value a thread."""
        text = of_group(state, self.count - 1)
        for k in reversed(range(self.count - 1)):
            text = f"tl.where(group == {k}, {of_group(state, k)}, {text})"
        return text


class Relay:
    """The lines that hand the states of a tile's first group to its second, and to the next tile."""

    def __init__(self, walk: Walk, form: Form, *, down: bool) -> None:
        assert form.groups == 2, "one hands on, the other takes"
        self.walk, self.states = walk, [*walk.states]
        self.order = (1, 0) if down else (0, 1)

    def text(self) -> str:
        """No function but the walk's."""
        return ""

    def begin(self) -> list[str]:
        """Nothing stands before the loop."""
        return []

    def before(self, order: list[int]) -> list[str]:
        """Walk all rows for the states alone: those of the first group are what the second begins with."""
        first, _ = self.order
        lines = [f"{state_name(s, None)} = {carried(s)}" for s in self.states]
        for i in order:
            lines += self.walk.call("each", i)
        for s in self.states:
            ends = f"tl.gather({state_name(s, None)}, {seat(first)}, 0)"
            lines.append(f"{state_name(s, None)} = tl.where(group == {first}, {carried(s)}, {ends})")
        return lines

    def behind(self) -> list[str]:
        """The states after the second group, which the next tile begins with."""
        _, last = self.order
        return [f"{carried(s)} = tl.gather({state_name(s, None)}, {seat(last)}, 0)" for s in self.states]


def carried(state: str, _: int | None = None) -> str:
    """A state that tiles hand on."""
    return f"carried_{state}"


def of_group(name: str, k: int) -> str:
    """What group k of a program has."""
    return f"group{k}_{name}"
