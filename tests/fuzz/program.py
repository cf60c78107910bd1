"""A call as a program that runs by itself: the class as a person writes it, every number, what is lost."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from scanforge.ir.primitives import primitive
from scanforge.ir.program import Program
from scanforge.trace import trace_operator
from tests.fuzz.cases import Call
from tests.random_recurrences import BINARY, OPERATORS, UNARY, Drawn, Lines
from tests.reference.test_random_operators import Made

# What the lambdas of tests/random_recurrences.py say; a test holds one against the other.
TEXTS = {
    "exp": "sf.exp(sf.tanh({0}))",
    "log": "sf.log(1 + sf.abs({0}))",
    "log1p": "sf.log1p({0} * {0})",
    "expm1": "sf.expm1(-sf.abs({0}))",
    "sqrt": "sf.sqrt(1 + {0} * {0})",
    "rsqrt": "sf.rsqrt(0.5 + {0} * {0})",
    "power": "(1 + {0} * {0}) ** -0.3",
    "affine": "1.5 - 0.5 * {0}",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / (1 + {1} * {1})",
    "maximum": "sf.maximum({0}, {1})",
    "minimum": "sf.minimum({0}, {1})",
    "where": "sf.where({0} > {1}, 0.5 * {0}, {1})",
}
_HEAD = '''"""{what}"""

import torch
from torch import inf, nan  # noqa: F401

import scanforge as sf
from scanforge.truth import lost


'''


def program(call: Call, faults: list[str]) -> str:
    """The text; it ends with an assertion for each fault."""
    tensors, initial = call.tensors()
    made = _operator(call.made) if isinstance(call.made, Made) else _recurrence(call.made)
    lines = ["", "", "tensors = {"]
    lines += [f"    {n!r}: {_tensor(x)}," for n, x in tensors.items()]
    lines += ["}", "initial = [", *(f"    {_tensor(x)}," for x in initial), "]", "options = {"]
    options = call.options().items()
    lines += [f"    {n!r}: {_tensor(x) if isinstance(x, Tensor) else repr(x)}," for n, x in options]
    lines.append("}")
    for fault in faults:
        where, _, _ = fault.partition(":")
        backend, lowering = where.split(", ")
        device = '"cuda" if torch.cuda.is_available() else "cpu"' if backend == "triton" else '"cpu"'
        lines += [
            f"# {fault}",
            f"device = torch.device({device})",
            f"errors = lost(Found, tensors, initial, device, {backend!r}, {lowering!r}, **options)",
            f"assert max(errors) <= {_allowed(fault)}, errors",
        ]
    needs = "" if torch.cuda.is_available() else " Kernels on a CPU need TRITON_INTERPRET=1."
    what = f"{call.made.name if isinstance(call.made, Made) else 'A recurrence'} as it was found.{needs}"
    return _HEAD.format(what=what) + made + "\n".join(lines) + "\n"


def _allowed(fault: str) -> str:
    """The larger of what values and gradients may lose."""
    return max(re.findall(r"allowed (\S+?)\)", fault), key=float)


def _tensor(x: Tensor) -> str:
    """A tensor with its strides; memory between its entries holds NaN, or 77."""
    text = f"torch.tensor({x.tolist()!r}, dtype={x.dtype})"
    if x.is_contiguous():
        return text
    span = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1
    fill = "nan" if x.is_floating_point() else "77"
    room = f"torch.full(({span},), {fill}).to({x.dtype}).as_strided({tuple(x.shape)}, {x.stride()})"
    return f"{room}.copy_({text})"


def _operator(made: Made) -> str:
    """The class of an operator, from its trace."""
    found = trace_operator(made.operator())
    fields = [
        f"    {x.name} = sf.Element(identity={_number(x.identity)}, kind={x.kind!r}, domain={x.domain!r})"
        for x in found.leaves
    ]
    fields += [
        f"    {s.name} = sf.State(initial={_number(s.initial)}, kind={s.kind!r})" for s in found.states
    ]
    names = {f"earlier_{x.name}": f"self.{x.name}" for x in found.leaves}
    names |= {f"later_{x.name}": f"later.{x.name}" for x in found.leaves}
    body, results = _body(found.combine, names)
    combine = [*body, f"        return Found({', '.join(f'{n}={v}' for n, v in results.items())})"]
    body, results = _body(found.apply, {x.name: f"self.{x.name}" for x in found.leaves})
    states = ", ".join(s.name for s in found.states)
    apply = [*body, f"        return {', '.join(results[s.name] for s in found.states)}"]
    head = ["class Found(sf.Operator):", *fields, "", "    def combine(self, later):", *combine]
    return "\n".join([*head, "", f"    def apply(self, {states}):", *apply, ""])


def _body(body: Program, names: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The lines of a method, and what it hands out."""
    named, lines = dict(names), []
    for line in body.lines:
        if line.value is not None:
            named[line.var.name] = _number(line.value)
            continue
        arguments = [named.get(a, a) for a in line.args]
        text = "sf.where({0}, 1.0, 0.0)" if line.op == "to_float" else primitive(line.op).text
        text = re.sub(r"^(?!sf\.)(\w+)\(", r"sf.\1(", text)
        lines.append(f"        {line.var.name} = {text.format(*arguments)}")
    return lines, {n: named.get(v, v) for n, v in body.outputs}


def _number(x: float | bool) -> str:
    return f"({x!r})" if not isinstance(x, bool) and x < 0 else repr(x)


def _recurrence(drawn: Drawn) -> str:
    """The class of a recurrence, from its data."""
    states = drawn.states()
    lines = ["class Found(sf.Recurrence):"]
    lines += [f"    {n} = sf.Input({' '.join(a)!r})" for n, a in drawn.inputs.items()]
    lines += [f"    {n} = sf.State({' '.join(a)!r})" for n, a in states.items()]
    lines += [f"    y{i} = sf.Output({' '.join(a)!r})" for i, a in enumerate(drawn.outputs)]
    inputs = [f"self.{n}" for n in drawn.inputs]
    lines += ["", "    def element(self):"]
    made = []
    for k, (name, leaves) in enumerate(zip(drawn.operators, drawn.leaves, strict=True)):
        given = []
        for leaf, text in leaves.items():
            last = _evaluated(lines, f"e{k}_{leaf}", text, inputs)
            given.append(f"{leaf}=" + (f"0.7 * sf.tanh({last})" if leaf in OPERATORS[name][1] else last))
        made.append(f"sf.operators.{name}({', '.join(given)})")
    lines += [f"        return {', '.join(made)}", "", "    def readout(self):"]
    known = [*inputs, *(f"self.{n}" for n in states), *(f"sf.previous(self.{n})" for n in states)]
    shown = [_evaluated(lines, f"y{k}", text, known) for k, text in enumerate(drawn.readout)]
    return "\n".join([*lines, f"        return {', '.join(shown)}", ""])


def _evaluated(lines: list[str], prefix: str, text: Lines, known: list[str]) -> str:
    """Write the lines of one value, and give the name of the last."""
    values = list(known)
    for k, (op, i, j) in enumerate(text):
        if op == "sum":
            right = f"sf.sum({values[i]}, {j!r})"
        else:
            template = TEXTS.get(op, f"sf.{op}({{0}})")
            right = template.format(values[i], values[j] if op in BINARY else "")
        assert op == "sum" or op in UNARY or op in BINARY
        lines.append(f"        {prefix}_{k} = {right}")
        values.append(f"{prefix}_{k}")
    return values[-1]
