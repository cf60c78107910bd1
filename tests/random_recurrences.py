"""Recurrences that nobody wrote by hand: random element maps and readouts over random axes.

A `Drawn` is a recurrence as data. With `sf` its lines make a class, with torch the same lines make a step of
the sequential loop, on tensors whose axes stand in the order b d n k with size 1 where one is lacking.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

import scanforge as sf
from tests import loops
from tests.catalogue import chance, generator
from tests.recurrence_loops import walk

F64 = torch.float64
ORDER = "bdnk"
TORCH = SimpleNamespace(
    **{n: getattr(torch, n) for n in ("exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "sigmoid", "tanh")},
    **{n: getattr(torch, n) for n in ("sin", "cos", "erf", "abs", "maximum", "minimum", "where")},
    **{n: getattr(functional, n) for n in ("softplus", "silu", "gelu")},
    sum=lambda x, axis: x.sum(ORDER.index(axis), keepdim=True),
)
UNARY = {
    "exp": lambda m, x: m.exp(m.tanh(x)),
    "log": lambda m, x: m.log(1 + m.abs(x)),
    "log1p": lambda m, x: m.log1p(x * x),
    "expm1": lambda m, x: m.expm1(-m.abs(x)),
    "sqrt": lambda m, x: m.sqrt(1 + x * x),
    "rsqrt": lambda m, x: m.rsqrt(0.5 + x * x),
    "power": lambda m, x: (1 + x * x) ** -0.3,
    "affine": lambda m, x: 1.5 - 0.5 * x,
    **{
        name: lambda m, x, name=name: getattr(m, name)(x)
        for name in ("sigmoid", "tanh", "sin", "cos", "erf", "softplus", "silu", "gelu", "abs")
    },
}
BINARY = {
    "add": lambda m, x, y: x + y,
    "sub": lambda m, x, y: x - y,
    "mul": lambda m, x, y: x * y,
    "div": lambda m, x, y: x / (1 + y * y),
    "maximum": lambda m, x, y: m.maximum(x, y),
    "minimum": lambda m, x, y: m.minimum(x, y),
    "where": lambda m, x, y: m.where(x > y, 0.5 * x, y),
}
OPERATORS = {  # leaves, those that a gate's size bounds, and states
    "Affine": (("a", "b"), ("a",), 1),
    "MinMax": (("r", "s"), (), 1),
    "MaxPlus": (("a", "b"), ("a",), 1),
    "ComplexAffine": (("a_re", "a_im", "b_re", "b_im"), ("a_re", "a_im"), 2),
}
STEPS = {
    "Affine": loops.affine,
    "MinMax": loops.min_max,
    "MaxPlus": loops.max_plus,
    "ComplexAffine": loops.complex_affine,
}
Lines = tuple[tuple[str, int, int | str], ...]


def evaluate(m, lines: Lines, values: list):
    """The last line's value; a line is an operation and the places of what it reads."""
    values = list(values)
    for op, i, j in lines:
        if op == "sum":
            values.append(m.sum(values[i], j))
        elif op in UNARY:
            values.append(UNARY[op](m, values[i]))
        else:
            values.append(BINARY[op](m, values[i], values[j]))
    return values[-1]


@dataclass(frozen=True)
class Drawn:
    """Axes of inputs and outputs as the tensors have them; operators, and the lines of each leaf."""

    inputs: dict[str, str]
    operators: tuple[str, ...]
    state_axes: tuple[str, ...]  # one for each operator
    leaves: tuple[dict[str, Lines], ...]
    readout: tuple[Lines, ...]
    outputs: tuple[str, ...]

    def states(self) -> dict[str, str]:
        pairs = zip(self.operators, self.state_axes, strict=True)
        axes = [axes for name, axes in pairs for _ in range(OPERATORS[name][2])]
        return {f"s{i}": a for i, a in enumerate(axes)}

    def elements(self, m, values: list) -> list[dict]:
        made = []
        for name, lines in zip(self.operators, self.leaves, strict=True):
            found = {leaf: evaluate(m, one, values) for leaf, one in lines.items()}
            gates = OPERATORS[name][1]
            made.append({leaf: 0.7 * m.tanh(x) if leaf in gates else x for leaf, x in found.items()})
        return made

    def recurrence(self) -> type[sf.Recurrence]:
        """The class that a person would have written."""
        drawn, states = self, self.states()

        def element(self):
            made = drawn.elements(sf, [getattr(self, n) for n in drawn.inputs])
            kinds = [getattr(sf.operators, name) for name in drawn.operators]
            operators = tuple(kind(**leaves) for kind, leaves in zip(kinds, made, strict=True))
            return operators if len(operators) > 1 else operators[0]

        def readout(self):
            values = [getattr(self, n) for n in (*drawn.inputs, *states)]
            values += [sf.previous(getattr(self, n)) for n in states]
            found = tuple(evaluate(sf, lines, values) for lines in drawn.readout)
            return found if len(found) > 1 else found[0]

        fields = {n: sf.Input(" ".join(axes)) for n, axes in self.inputs.items()}
        fields |= {n: sf.State(" ".join(axes)) for n, axes in states.items()}
        fields |= {f"y{i}": sf.Output(" ".join(axes)) for i, axes in enumerate(self.outputs)}
        return type("Drawn", (sf.Recurrence,), fields | {"element": element, "readout": readout})

    def step(self, states, first, **row):
        values, after, rest = list(row.values()), [], states
        for name, leaves in zip(self.operators, self.elements(TORCH, values), strict=True):
            count = OPERATORS[name][2]
            shape = torch.broadcast_shapes(*(x.shape for x in (*leaves.values(), rest[0])))
            after += [x.expand(shape) for x in STEPS[name](*rest[:count], **leaves)]
            rest = rest[count:]
        values += [*after, *states]
        return tuple(evaluate(TORCH, lines, values) for lines in self.readout), tuple(after)

    def loop(self, tensors, initial, sizes, options):
        """Outputs and final states, in the shapes that scanforge gives."""
        states = self.states()
        rows = [
            {
                n: x.unbind(0)[t] if "t" in self.inputs[n] else x
                for n, x in ((n, arranged(x, self.inputs[n])) for n, x in tensors.items())
            }
            for t in range(sizes["t"])
        ]
        shapes = [[sizes[a] if a in axes else 1 for a in ORDER] for axes in states.values()]
        start = tuple(torch.zeros(shape, dtype=F64) for shape in shapes)
        if initial is not None:
            start = tuple(arranged(x, axes) for x, axes in zip(initial, states.values(), strict=True))
        history, finals = walk(self.step, rows, start, **options)
        outputs = []
        for index, axes in enumerate(self.outputs):
            shape = [sizes[a] for a in ORDER]
            column = [row[index].expand([*shape[:1], *row[index].shape[1:]]) for row in history]
            whole = torch.stack(column) if column else torch.zeros(0, *shape, dtype=F64)
            outputs.append(reduced(whole, axes, sizes))
        finals = tuple(reduced(x[None], axes, sizes) for x, axes in zip(finals, states.values(), strict=True))
        return tuple(outputs), finals


def arranged(x: Tensor, axes: str) -> Tensor:
    """The axes of x in the order t b d n k, with size 1 for one that is lacking (t is left out)."""
    order = [a for a in "t" + ORDER if a in axes]
    x = x.permute([axes.index(a) for a in order])
    shape = iter(x.shape)
    return x.reshape([next(shape) if a in order else 1 for a in "t" + ORDER if a != "t" or a in order])


def reduced(x: Tensor, axes: str, sizes: dict[str, int]) -> Tensor:
    """[t, b, d, n, k] summed to these axes and put in their order, or broadcast to them."""
    order = "t" + ORDER
    x = x.sum([order.index(a) for a in order if a not in axes], keepdim=True) if set(order) - set(axes) else x
    x = x.expand([sizes[a] if a in axes else 1 for a in order])
    kept = x.reshape([sizes[a] for a in order if a in axes])
    left = [a for a in order if a in axes]
    return kept.permute([left.index(a) for a in axes])


@st.composite
def written(draw, start: list[str], inside: str | None = None) -> tuple[Lines, set[str]]:
    """Lines over values with these axes, and the axes of the last one; all others than `inside` summed."""
    lines, axes = [], [set(a) - {"t"} for a in start]
    for _ in range(draw(st.integers(1, 3))):
        op = draw(st.sampled_from(["sum", *UNARY, *BINARY]))
        i, j = (draw(st.integers(0, len(axes) - 1)) for _ in range(2))
        contracted = sorted(axes[i] - {"b"})
        if op == "sum" and not contracted:
            op = "tanh"
        if op == "sum":
            j = draw(st.sampled_from(contracted))
        lines.append((op, i, j))
        axes.append(axes[i] - {j} if op == "sum" else axes[i] | (axes[j] if op in BINARY else set()))
    for axis in sorted(axes[-1] - set(inside if inside is not None else ORDER)):
        lines.append(("sum", len(axes) - 1, axis))
        axes.append(axes[-1] - {axis})
    return tuple(lines), axes[-1]


def ordered(axes) -> st.SearchStrategy[str]:
    return st.permutations(sorted(axes)).map("".join)


@st.composite
def recurrences(draw) -> Drawn:
    """Two to four inputs, the first of which has b and t; one operator, or two that do not meet."""
    subset = st.sets(st.sampled_from("btdnk"), max_size=4)
    wanted = [{"b", "t"} | draw(subset), *draw(st.lists(subset, min_size=1, max_size=3))]
    inputs = {f"x{i}": draw(ordered(axes)) for i, axes in enumerate(wanted)}
    known = sorted(set().union(*wanted) - {"b", "t"})
    names = draw(st.lists(st.sampled_from(list(OPERATORS)), min_size=1, max_size=2))
    state_axes = [draw(ordered({"b"} | draw(st.sets(st.sampled_from(known or ["b"]))))) for _ in names]
    start = list(inputs.values())
    leaves = tuple(
        {leaf: draw(written(start, axes))[0] for leaf in OPERATORS[name][0]}
        for name, axes in zip(names, state_axes, strict=True)
    )
    states = [axes for name, axes in zip(names, state_axes, strict=True) for _ in range(OPERATORS[name][2])]
    readout, outputs = [], []
    for _ in range(draw(st.integers(1, 2))):
        lines, axes = draw(written([*start, *states, *states]))
        kept = {a for a in axes | {"b", "t"} if draw(st.integers(0, 4))}
        wider = set(known) - axes
        kept |= {a for a in wider if not draw(st.integers(0, 4))}
        readout.append(lines)
        outputs.append(draw(ordered(kept)))
    return Drawn(inputs, tuple(names), tuple(state_axes), leaves, tuple(readout), tuple(outputs))


@st.composite
def matrices(draw) -> Drawn:
    """A decayed matrix of n and k, written by an outer product and contracted: products over chunks.

    The decay is on either axis or on neither, and may be the same at all times; what is contracted is the
    state after the step or before it, and the output may be gated.
    """
    key, value = draw(st.sampled_from(["nk", "kn"]))
    decay = draw(st.sampled_from(["bt" + key, "bt" + value, "bt", key, ""]))
    inputs = {"x0": draw(ordered("bt" + key)), "x1": draw(ordered("bt" + key))}
    inputs |= {"x2": draw(ordered("bt" + value)), "x3": draw(ordered(decay))}
    gate = draw(st.sampled_from(["sigmoid", "softplus", "abs"]))
    leaves = {"a": ((gate, 3, 0),), "b": (("mul", 1, 2),)}
    state = 4 + draw(st.integers(0, 1))
    readout: list[tuple[str, int, int | str]] = [("mul", 0, state), ("sum", 6, key)]
    if draw(st.booleans()):
        readout += [("sigmoid", 2, 0), ("mul", 7, 8)]
    return Drawn(
        inputs,
        ("Affine",),
        (draw(ordered("bnk")),),
        (leaves,),
        (tuple(readout),),
        (draw(ordered("bt" + value)),),
    )


def tensors_of(drawn: Drawn, sizes: dict[str, int], seed: int, sequences: int = 0):
    """Inputs and initial states; so many packed sequences lie behind each other in a batch of one."""
    g = generator(seed)

    def one(axes, **others):
        found = sizes | others
        return torch.randn([found[a] for a in axes], generator=g, dtype=F64).requires_grad_()

    inputs = {n: one(a, **({"b": 1} if sequences else {})) for n, a in drawn.inputs.items()}
    return inputs, tuple(one(a) for a in drawn.states().values())


def options_of(sizes: dict[str, int], seed: int) -> dict[str, object]:
    """A direction, and now and then resets and padding."""
    g, shape = generator(seed), (sizes["b"], sizes["t"])
    options: dict[str, object] = {"reverse": bool(seed & 1)}
    if seed & 2:
        options["reset"] = chance(g, shape, 0.3)
    if seed & 4:
        options["mask"] = chance(g, shape, 0.7)
    return options
