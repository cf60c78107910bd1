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
        if not _spans(scan, s.name):
            lines.append(f"        {x} = {x}.expand({initial}.shape)")
        lines.append(f"        {after}.append({x})")
    for _, x, _, after, final in of_state:
        lines.append(f"    {final} = {x}")
        lines.append(f"    {x} = torch.stack({after}[::-1] if reverse else {after})")
    return lines


def _PARALLEL(scan: Scan, names: _Names) -> list[str]:  # noqa: N802
    first, elements, leaf = names.initial[0], names.of.local("elements"), names.of.local("leaf")
    lines = [
        f"    {elements} = [{_tuple(names.leaves)}]",
        f"    {elements} = [torch.broadcast_to({leaf}, (steps, *{first}.shape)) for {leaf} in {elements}]",
        "    if reverse:",
        f"        {elements} = [{leaf}.flip(0) for {leaf} in {elements}]",
        f"    {_tuple(names.states)} = apply(*prefixes({elements}), {', '.join(names.initial)})",
    ]
    for s, x, final in zip(scan.states, names.states, names.final, strict=True):
        if not _spans(scan, s.name):
            lines.append(f"    {x} = {x}.expand(steps, *{first}.shape)")
        lines.append(f"    {final} = {x}[-1]")
    lines += ["    if reverse:"] + [f"        {x} = {x}.flip(0)" for x in names.states]
    return lines


def _spans(scan: Scan, state: str) -> bool:
    """Whether the new state has the state's whole shape by itself, since it depends on a state."""
    reads = scan.operator.apply.dependencies()[state]
    return bool(reads & {s.name for s in scan.states})


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
