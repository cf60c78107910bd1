"""ir.Scan -> Graph: which value of a step is made from which, as nodes in bands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from scanforge.emit.folding import Folder
from scanforge.ir.program import Program
from scanforge.ir.scan import Output, Scan, State, before, is_outer
from scanforge.report import renamed

BANDS = ("reads", "element", "step", "readout")


@dataclass(frozen=True, slots=True)
class Node:
    """A value: what it is called, how it is made, over which axes, at which line of the user's file."""

    key: str
    band: str
    role: str  # given | cotangent | state_before | carried | made | output
    name: str
    expression: str
    axes: tuple[str, ...]
    where: str = ""
    reads: tuple[str, ...] = ()  # keys
    summed: tuple[str, ...] = ()  # over these axes, where it is written


@dataclass(frozen=True, slots=True)
class Graph:
    """One step. The nodes of role `carried` are the states that enter and leave it."""

    name: str
    nodes: tuple[Node, ...]

    def node(self, key: str) -> Node:
        """The node of a key."""
        return next(n for n in self.nodes if n.key == key)


def graph(scan: Scan, *, back: bool) -> Graph:
    """The step of a recurrence; `back` for an adjoint, whose states come from t + 1.

    A state after the step has a dash behind its name.
    """
    inputs = {i.name: f"in.{i.name}" for i in scan.inputs}
    enters = {s.name: f"enters.{s.name}" for s in scan.states}
    after_names = {s.name: f"{s.name}'" for s in scan.states}
    nodes = [Node(inputs[i.name], "reads", i.role, i.name, "", i.dims) for i in scan.inputs]
    nodes = [replace(n, where="before the step" if n.role == "state_before" else "") for n in nodes]
    nodes += [_carried(enters[s.name], s.name, s, f"t{'+' if back else '-'}1") for s in scan.states]
    made, leaves = _program("element", scan.element, inputs)
    nodes += made
    made, after = _program("step", scan.operator.apply, leaves | enters, after_names)
    axes = {after[s.name]: s.axes for s in scan.states}
    nodes += [replace(n, axes=axes.get(n.key, ())) for n in made]  # the operator's own lines have no axes
    nodes += [_carried(f"leaves.{s.name}", f"{s.name}'", s, "t", after[s.name]) for s in scan.states]
    previous = {s.name: enters[s.name] for s in scan.states}
    read = inputs | {after_names[s.name]: after[s.name] for s in scan.states} | previous
    people = after_names | {before(s.name): s.name for s in scan.states}
    readout = renamed(scan.readout, people)
    made, results = _program("readout", readout, read)
    times = Counter(results.values())
    written = {results[o.name]: o for o in scan.outputs if times[results[o.name]] == 1}
    shown = {n.key for n in made} & set(written)
    nodes += [_written(n, written[n.key], scan) if n.key in written else n for n in made]
    nodes += [
        _written(_output(o.name, readout, results[o.name]), o, scan)
        for o in scan.outputs
        if results[o.name] not in shown
    ]
    return Graph(scan.name, _read(nodes))


def _carried(key: str, name: str, state: State, at: str, *reads: str) -> Node:
    return Node(key, "step", "carried", name, "", state.axes, f"at {at}", reads)


def _output(name: str, readout: Program, source: str) -> Node:
    """An output that hands out a value which has a node of its own."""
    value = readout.output(name)
    expression = value.name if value.name != name else ""
    return Node(f"out.{name}", "readout", "output", name, expression, value.axes, reads=(source,))


def _written(node: Node, output: Output, scan: Scan) -> Node:
    """An output's value, with the axes that it keeps; over the others, batch and time too, it is summed."""
    present = {a for a in scan.axes if is_outer(a)} | set(node.axes)
    over = tuple(a for a in scan.axes if a in present and a not in output.axes)
    return replace(node, role="output", axes=output.dims, summed=over)


def _program(
    band: str, program: Program, names: dict[str, str], people: dict[str, str] | None = None
) -> tuple[list[Node], dict[str, str]]:
    """The nodes of a program's statements, and the key of each of its outputs.

    `names` are the keys of its inputs, `people` other names for outputs. An output that is an input as it
    stands makes no node, unless it gives it another name.
    """
    folder = Folder(program)
    statements = list(folder.statements())
    shown = {line.var.name: text for line, text in statements}
    keys = {v.name: names[v.name] for v in program.inputs} | {n: f"{band}.{n}" for n in shown}
    by_name = {line.var.name: line for line in folder.program.lines}

    def reads(name: str) -> Iterator[str]:
        for arg in by_name[name].args:
            if arg in keys:
                yield keys[arg]
            elif arg in by_name:
                yield from reads(arg)

    def node(key: str, title: str, variable: str, text: str) -> Node:
        line = by_name[variable]
        found = tuple(dict.fromkeys(reads(variable)))
        return Node(key, band, "made", title, text, line.var.axes, line.where, found)

    titles: dict[str, list[str]] = {}
    results, made = {}, []
    for (output, text), (_, variable) in zip(folder.results(), folder.program.outputs, strict=True):
        if variable in keys and band == "element" and variable in names and variable != output:
            results[output] = f"{band}.{output}"
            axes = folder.variables[variable].axes
            made.append(Node(results[output], band, "made", output, variable, axes, reads=(keys[variable],)))
        elif variable in keys:
            results[output] = keys[variable]
            titles.setdefault(variable, []).append((people or {}).get(output, output))
        else:
            results[output] = f"{band}.{output}"
            made.append(node(results[output], (people or {}).get(output, output), variable, text))
    named = [node(keys[n], " = ".join([*titles.get(n, []), n]), n, text) for n, text in shown.items()]
    return named + made, results


def _read(nodes: list[Node]) -> tuple[Node, ...]:
    """Without the values that nothing reads and nothing shows."""
    kept: set[str] = set()
    by_key = {n.key: n for n in nodes}
    todo = [n.key for n in nodes if n.role not in {"made"}]
    while todo:
        key = todo.pop()
        if key not in kept:
            kept.add(key)
            todo += by_key[key].reads
    return tuple(n for n in nodes if n.key in kept)
