"""Scan -> a Python module in plain PyTorch that runs on its own: the sequential loop, or the parallel form.

Both have one function, `run(inputs..., initial states..., steps, reverse)`, on tensors that have the
scan's axes in order (time first, size 1 for an axis that is lacking). It returns the outputs before
their sums, the final states, and the states after every step.
"""

from __future__ import annotations

from collections.abc import Iterable

from scanforge.emit.folding import Locals
from scanforge.emit.torch_text import RESERVED, function
from scanforge.ir.program import Var
from scanforge.ir.scan import Scan, before

LOWERINGS = ("loop", "parallel")


def module(scan: Scan, lowering: str) -> str:
    """The text of the module."""
    names = _Names(scan)
    functions = (
        [function(scan.operator.apply, "apply", "One step: the states after it.")] if scan.states else []
    )
    if scan.states and lowering == "parallel":
        functions.append(
            function(scan.operator.combine, "combine", "The element of two steps, the earlier one first.")
        )
        functions.append(_PREFIXES)
    if not _is_identity(scan):
        functions.insert(0, function(scan.element, "element", "The leaves of every step's element."))
    if not _returns_states(scan):
        functions.append(function(scan.readout, "readout", "The outputs of every step, before their sums."))
    form = {"loop": "one step at a time", "parallel": "in a number of passes logarithmic in time"}[lowering]
    doc = f'"""{scan.name}, {form}. Axes ({", ".join(scan.axes)}); size 1 where a tensor lacks one."""'
    head = f"{doc}\n\nimport torch\nfrom torch import inf, nan  # noqa: F401\n"
    return "\n\n".join([head, *functions, _run(scan, names, lowering)])


class _Names:
    """The local names of `run`, those of one kind in the scan's order."""

    def __init__(self, scan: Scan) -> None:
        states = [s.name for s in scan.states]
        self.of = Locals([*(i.name for i in scan.inputs), *states, *map(before, states)], RESERVED)
        local = self.of.local
        self.inputs = [self.of[i.name] for i in scan.inputs]
        self.states = [self.of[s] for s in states]
        self.initial = [local(f"initial_{s}") for s in states]
        self.final = [local(f"final_{s}") for s in states]
        self.after = [local(f"after_{s}") for s in states]
        leaves = [leaf.name for leaf in scan.operator.leaves]
        if _is_identity(scan):
            self.leaves = [self.of[leaf] for leaf in leaves]
        else:  # a leaf may bear the name of an input
            self.leaves = [local(f"e_{n}" if n in self.of.taken else n) for n in leaves]
        self.rows = [local(f"{leaf}_t") for leaf in self.leaves]

    def called(self, variables: Iterable[Var]) -> str:
        """The arguments of a call."""
        return ", ".join(self.of[v.name] for v in variables)


def _is_identity(scan: Scan) -> bool:
    """Whether the element map hands the inputs through, as a bare operator's does."""
    return all(leaf == variable for leaf, variable in scan.element.outputs)


def _returns_states(scan: Scan) -> bool:
    states = {s.name for s in scan.states}
    return all(variable in states for _, variable in scan.readout.outputs)


def _tuple(names: list[str]) -> str:
    return ", ".join(names) + ("," if len(names) == 1 else "")


def _run(scan: Scan, names: _Names, lowering: str) -> str:
    lines = [f"def run({', '.join([*names.inputs, *names.initial, 'steps', 'reverse=False'])}):"]
    if scan.states:
        if not _is_identity(scan):
            lines.append(f"    {_tuple(names.leaves)} = element({names.called(scan.element.inputs)})")
        lines += _LOOP(scan, names) if lowering == "loop" else _PARALLEL(scan, names)
    outputs = names.of.local("outputs")
    if _returns_states(scan):
        shown = [names.of[variable] for _, variable in scan.readout.outputs]
        lines.append(f"    {outputs} = ({_tuple(shown)})")
    else:
        lines += _previous(scan, names)
        lines.append(f"    {outputs} = readout({names.called(scan.readout.inputs)})")
    lines.append(f"    return {outputs}, ({_tuple(names.final)}), ({_tuple(names.states)})")
    return "\n".join(lines) + "\n"


def _previous(scan: Scan, names: _Names) -> list[str]:
    """The states before every step, where the readout reads them."""
    reads = frozenset().union(*scan.readout.dependencies().values())
    lines = []
    for s, x, initial in zip(scan.states, names.states, names.initial, strict=True):
        x0, previous = f"{initial}[None]", names.of[before(s.name)]
        if before(s.name) in reads:
            parts = f"({x}[1:], {x0}) if reverse else ({x0}, {x}[:-1])"
            lines.append(f"    {previous} = torch.cat({parts})")
        else:
            lines.append(f"    {previous} = None  # not read")
    return lines


def _LOOP(scan: Scan, names: _Names) -> list[str]:  # noqa: N802 - skeletons are in capitals
    rows = names.of.local("rows")
    unbound = ", ".join(f"{n}.expand(steps, *{n}.shape[1:]).unbind(0)" for n in names.leaves)
    lines = [
        f"    {rows} = list(zip({unbound}, strict=True))" if names.rows else f"    {rows} = [()] * steps"
    ]
    of_state = list(zip(scan.states, names.states, names.initial, names.after, names.final, strict=True))
    lines += [f"    {after}, {x} = [], {initial}" for _, x, initial, after, _ in of_state]
    lines += [
        f"    for {_tuple(names.rows) or '_'} in reversed({rows}) if reverse else {rows}:",
        f"        {_tuple(names.states)} = apply({', '.join([*names.rows, *names.states])})",
    ]
    for s, x, initial, after, _ in of_state:
        if not _reads_state(scan, s.name):
            lines.append(f"        {x} = {x}.expand({initial}.shape)")
        lines.append(f"        {after}.append({x})")
    for _, x, _, after, final in of_state:
        lines.append(f"    {final} = {x}")
        lines.append(f"    {x} = torch.stack({after}[::-1] if reverse else {after})")
    return lines


def _PARALLEL(scan: Scan, names: _Names) -> list[str]:  # noqa: N802
    elements, leaf = names.of.local("elements"), names.of.local("leaf")
    shapes = _shapes_of_leaves(scan, names)
    whole = [f"torch.broadcast_to({x}, (steps, {n}))" for x, n in zip(names.leaves, shapes, strict=True)]
    lines = [
        f"    {elements} = [",
        *(f"        {x}," for x in whole),
        "    ]",
        "    if reverse:",
        f"        {elements} = [{leaf}.flip(0) for {leaf} in {elements}]",
        f"    {_tuple(names.states)} = apply(*prefixes({elements}), {', '.join(names.initial)})",
    ]
    for s, x, initial, final in zip(scan.states, names.states, names.initial, names.final, strict=True):
        if not (_reads_state(scan, s.name) and _reads_leaf(scan, s.name)):
            lines.append(f"    {x} = {x}.expand(steps, *{initial}.shape)")
        lines.append(f"    {final} = {x}[-1]")
    lines += ["    if reverse:"] + [f"        {x} = {x}.flip(0)" for x in names.states]
    return lines


def _shapes_of_leaves(scan: Scan, names: _Names) -> list[str]:
    """The lanes of each leaf once it is composed: its own, and those of the leaves that combine mixes in."""
    reads = scan.operator.combine.dependencies()  # earlier_<leaf> and later_<leaf>
    mixes = {n: {r.partition("_")[2] for r in found} for n, found in reads.items()}
    axes = {leaf.name: set(scan.element.output(leaf.name).axes) for leaf in scan.operator.leaves}
    for _ in axes:  # until nothing changes
        axes = {n: own.union(*(axes[m] for m in mixes[n])) for n, own in axes.items()}
    return [_lanes(scan, names, own) for own in axes.values()]


def _lanes(scan: Scan, names: _Names, axes: set[str]) -> str:
    """The sizes of all lane axes, 1 for those that are not among `axes`, read off the initial states."""
    for state, initial in zip(scan.states, names.initial, strict=True):
        if set(state.axes) == axes & set(scan.lanes):
            return f"*{initial}.shape"
    owners = dict(zip(names.initial, scan.states, strict=True))
    sized = {a: next(i for i, s in owners.items() if a in s.axes) for a in scan.lanes if a in axes}
    return ", ".join(f"{sized[a]}.shape[{k}]" if a in sized else "1" for k, a in enumerate(scan.lanes))


def _reads_state(scan: Scan, state: str) -> bool:
    """Whether the new state depends on a state: it then has a state's whole shape by itself."""
    return bool(scan.operator.apply.dependencies()[state] & {s.name for s in scan.states})


def _reads_leaf(scan: Scan, state: str) -> bool:
    """Whether the new state depends on the element: if not, no step changes it."""
    return bool(scan.operator.apply.dependencies()[state] & {x.name for x in scan.operator.leaves})


_PREFIXES = '''def prefixes(elements):
    """The composed element of steps 0..t, for every t: pairs, their prefixes, and the steps between."""
    steps = elements[0].shape[0]
    if steps == 1:
        return elements
    pairs = combine(*(x[: steps - 1 : 2] for x in elements), *(x[1::2] for x in elements))
    odd = prefixes(pairs)
    even = combine(*(x[: (steps - 1) // 2] for x in odd), *(x[2::2] for x in elements))
    result = [torch.empty_like(x) for x in elements]
    for whole, first, after_odd, after_even in zip(result, elements, odd, even, strict=True):
        whole[0], whole[1::2], whole[2::2] = first[0], after_odd, after_even
    return result
'''
