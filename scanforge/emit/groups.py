"""A tile's rows in groups: G threads share a lane, and each walks its own part of the tile's time.

One thread a lane leaves few warps for each scheduler where lanes are few, and each then waits for its own
chain of operations. Here each thread composes the elements of its rows from the identity (`combine`), the
compositions carry the states from group to group (`apply`), and then each walks its rows from the states that
it was given. All threads of a lane have the states that tiles hand on.
"""

from __future__ import annotations

from dataclasses import dataclass

from scanforge.emit.form import Form
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

    def lines(self, order: list[int]) -> list[str]:
        """Compose every group's rows, then give each group its states."""
        lines = [
            f"{state_name(s, None)} = tl.full([BD], {self.identities[x]}, FLOAT)"
            for x, s in self.prefixes.items()
        ]
        for i in order:
            lines += self.walk.call("each", i)
        groups = list(range(self.count))
        for leaf, prefix in self.prefixes.items():
            composed = f"tl.broadcast_to({state_name(prefix, None)}, [BD])"
            lines += [f"{_of_group(leaf, k)} = tl.gather({composed}, {seat(k)}, 0)" for k in groups]
        for k in reversed(groups) if self.down else groups:
            lines += [f"{_of_group(s, k)} = {carried(s)}" for s in self.states]
            lines.append(self.carry(k))
        return lines + [f"{state_name(s, None)} = {self.spread(s)}" for s in self.states]

    def carry(self, k: int) -> str:
        """The states after group k."""
        given = {before(s): carried(s) for s in self.states} | {x: _of_group(x, k) for x in self.prefixes}
        names = {next_state(s): carried(s) for s in self.states}
        results = ", ".join(names[n] for n, _ in self.program.outputs)
        return f"{results} = carry({', '.join(given[v.name] for v in self.program.inputs)})"

    def spread(self, state: str) -> str:
        """Each group's own state, a value a thread."""
        text = _of_group(state, self.count - 1)
        for k in reversed(range(self.count - 1)):
            text = f"tl.where(group == {k}, {_of_group(state, k)}, {text})"
        return text


def carried(state: str, _: int | None = None) -> str:
    """A state that tiles hand on."""
    return f"carried_{state}"


def _of_group(name: str, k: int) -> str:
    return f"group{k}_{name}"
