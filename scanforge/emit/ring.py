"""A ring of programs that share their lanes, where those are too few to fill the device: time goes in rounds.

In each round program m of S walks the m-th of S tiles. It composes its rows, says the composition to the
others, hears theirs, and carries the states over those before it; all of them carry the states over the whole
round. So every input is read once. What a program says are words of 64 bits, a number and the round that it
belongs to: whoever reads a word knows whether it is there, without another flag. Two sets of words take
turns, since a program that hears round k knows that all others have heard round k - 1.

All programs must be at work at one time. A launch says so (it is cooperative), or fails.
"""

from __future__ import annotations

from scanforge.emit.form import Form
from scanforge.emit.groups import Composition, Groups, carried, of_group
from scanforge.emit.signature import lanes_of
from scanforge.emit.triton_text import function
from scanforge.emit.walk import Walk

SAY = '''
@triton.jit
def say(at, value, turn, mask):
    """Leave a number for the others, with the round that it is of."""
    number = value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    tl.store(at, (turn.to(tl.int64) << 32) | number, mask=mask)
'''

HEAR = '''
@triton.jit
def hear({pointers}, turn):
    """The numbers of a round, as soon as all of them are there."""
    if NVIDIA:
        {names} = tl.inline_asm_elementwise(
{asm}
            "{constraints}", [{pointers}, turn], dtype={dtype}, is_pure=False, pack=1,
        )
    else:
        late = 1
        while late > 0:
{loads}
            late = tl.max({late}, 0)
{numbers}
    return {results}
'''


class Ring(Groups):
    """The lines that take the states of a round's first row to the first row of every group of a program."""

    def __init__(self, composition: Composition, form: Form, walk: Walk, *, down: bool) -> None:
        super().__init__(composition, form, walk, down=down)
        self.combine = composition.itself.operator.combine
        self.members, self.lanes = form.members, lanes_of(form)
        self.each = -(-self.members // self.count)  # programs that a thread listens to
        self.leaves = [*self.prefixes]

    def text(self) -> str:
        """The functions that carry, combine, say and hear."""
        doc = "The composition of two elements."
        return "\n\n".join([super().text(), function(self.combine, "combined", doc), SAY, self.hear()])

    def begin(self) -> list[str]:
        """Where the words of the program's lanes are, before the loop."""
        count = 2 * self.members * len(self.leaves)
        return [
            f"seat = (thread % {self.lanes}).to(tl.int64)",
            f"words = ptr_words + place.to(tl.int64) * ({count} * {self.lanes}) + seat  # [BD]",
        ]

    def before(self, order: list[int]) -> list[str]:
        """Compose, exchange, and give each group its states."""
        groups = list(reversed(range(self.count))) if self.down else list(range(self.count))
        lines = [*self.compose(order), *self.total(groups), *self.exchange()]
        own = {s: f"own_{s}" for s in self.states}
        lines += [f"{own[s]} = {carried(s)}" for s in self.states]
        for j in range(self.members):
            lines += [f"{own[s]} = tl.where(member == {j}, {carried(s)}, {own[s]})" for s in self.states if j]
            lines.append(self.carry({x: _of_member(x, j) for x in self.leaves}, carried))
        return lines + self.give(groups, own.__getitem__)

    def total(self, groups: list[int]) -> list[str]:
        """The composition of all groups."""
        lines = [f"whole_{x} = {of_group(x, groups[0])}" for x in self.leaves]
        results = ", ".join(f"whole_{n}" for n, _ in self.combine.outputs)
        for k in groups[1:]:
            given = {f"earlier_{x}": f"whole_{x}" for x in self.leaves}
            given |= {f"later_{x}": of_group(x, k) for x in self.leaves}
            lines.append(f"{results} = combined({', '.join(given[v.name] for v in self.combine.inputs)})")
        return lines

    def exchange(self) -> list[str]:
        """Say the composition, and hear those of all; each group listens to some programs."""
        n = len(self.leaves)
        lines = [
            "turn = tile + 1 + tl.zeros([BD], tl.int32)",
            f"round_words = words + (tile % 2) * ({self.members * n} * {self.lanes})",
        ]
        for i, x in enumerate(self.leaves):
            at = f"round_words + (member * {n} + {i}) * {self.lanes}"
            value = f"tl.broadcast_to(whole_{x}, [BD])"
            lines.append(f"say({at}, {value}, turn, group == 0)  # lanes beyond the last too")
        heard, pointers = [], []
        for i in range(self.each):
            which = f"((group + {i * self.count}) % {self.members})"
            for k, x in enumerate(self.leaves):
                heard.append(f"heard{i}_{x}")
                pointers.append(f"round_words + ({which} * {n} + {k}) * {self.lanes}")
        lines.append(f"{', '.join(heard)} = hear({', '.join(pointers)}, turn)")
        for i in range(self.each):
            for x in self.leaves:
                names = [_of_member(x, i * self.count + k) for k in range(self.count)]
                lines += self.of_all(f"heard{i}_{x}", names)
        return lines

    def hear(self) -> str:
        """The function that waits for the words."""
        count = self.each * len(self.leaves)
        every = range(count)
        asm = ["{ .reg .pred late; .reg .b32 round, wrong;", *(f".reg .b64 word{i};" for i in every)]
        asm += ["again: mov.b32 wrong, 0;"]
        asm += [f"ld.relaxed.gpu.global.b64 word{i}, [${count + i}];" for i in every]
        for i in every:
            asm.append(f"mov.b64 {{${i}, round}}, word{i};")
            asm.append(f"xor.b32 round, round, ${2 * count}; or.b32 wrong, wrong, round;")
        asm += ["setp.ne.b32 late, wrong, 0;", "@late bra again; }"]
        names = [f"number{i}" for i in every]
        loads = [f"            word{i} = tl.load(at{i}, volatile=True)" for i in every]
        late = " | ".join(f"((word{i} >> 32).to(tl.int32) != turn).to(tl.int32)" for i in every)
        numbers = [f"        number{i} = word{i}.to(tl.int32)" for i in every]
        constraints = ",".join(["=&r"] * count + ["l"] * count + ["r"])
        return HEAR.format(
            pointers=", ".join(f"at{i}" for i in every),
            names=", ".join(names),
            asm="\n".join(f'            "{x} "' for x in asm[:-1]) + f'\n            "{asm[-1]}",',
            constraints=constraints,
            dtype=f"({', '.join(['tl.int32'] * count)})" if count > 1 else "tl.int32",
            loads="\n".join(loads),
            late=late,
            numbers="\n".join(numbers),
            results=", ".join(f"{n}.to(tl.float32, bitcast=True)" for n in names),
        )


def _of_member(leaf: str, j: int) -> str:
    return f"member{j}_{leaf}"
