"""A Scan: the frozen recurrence that every later stage reads. The adjoint of a Scan is a Scan.

    e_t = element(inputs_t);  x_t = apply(e_t, x_{t-1});  outputs_t = readout(inputs_t, x_{t-1}, x_t)

An Input broadcasts over the axes it lacks; an Output sums over the axes it lacks, `b` and `t`
included (the value is broadcast to `b` and `t` first). So an Input's cotangent is an Output with
the same axes. `dims` name the dimensions of the tensor in order, `1` for one that is broadcast.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from scanforge.ir.program import Line, Number, Program, Var

TIME, BATCH = "t", "b"


def is_batch(axis: str) -> bool:
    """Whether an axis is `b`, or b2, b3, ...: further batch axes of a call."""
    return axis == BATCH or (axis.startswith(BATCH) and axis[1:].isdigit())


def is_outer(axis: str) -> bool:
    """Whether an axis is time or a batch: methods see one step of one, so only outputs sum over it."""
    return axis == TIME or is_batch(axis)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A component of the element; the identity's value; the domain that samples come from."""

    name: str
    kind: str
    identity: Number
    domain: str = "any"


@dataclass(frozen=True, slots=True)
class State:
    """A component of the state; `initial` stands in when no initial state is given."""

    name: str
    kind: str
    axes: tuple[str, ...]
    initial: Number
    domain: str = "any"


@dataclass(frozen=True, slots=True)
class Operator:
    """The associative operator. Its programs work lane by lane, so their variables have no axes.

    `combine` reads `earlier_<leaf>` and `later_<leaf>`; `apply` reads leaves and states by name.
    """

    name: str
    leaves: tuple[Leaf, ...]
    states: tuple[State, ...]
    combine: Program
    apply: Program


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the call brings: given by the user, a cotangent, or the state before the step."""

    name: str
    kind: str
    dims: tuple[str, ...]
    role: str = "given"  # given | cotangent | state_before

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that it has."""
        return tuple(d for d in self.dims if d != "1")


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that comes back. `dtype` is `inputs` (promoted), `state` (computed in) or one by name.

    A derived gradient names the input whose dtype it takes, until the call puts that dtype in.
    """

    name: str
    kind: str
    dims: tuple[str, ...]
    dtype: str = "inputs"

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that it keeps."""
        return tuple(d for d in self.dims if d != "1")


@dataclass(frozen=True, slots=True)
class Scan:
    """The recurrence. `axes` is the order of all axes, time first."""

    name: str
    axes: tuple[str, ...]
    inputs: tuple[Input, ...]
    states: tuple[State, ...]
    operator: Operator
    element: Program
    readout: Program
    outputs: tuple[Output, ...]

    @property
    def lanes(self) -> tuple[str, ...]:
        """All axes but time."""
        return tuple(a for a in self.axes if a != TIME)

    def input(self, name: str) -> Input:
        """The input of that name."""
        return next(i for i in self.inputs if i.name == name)

    def state(self, name: str) -> State:
        """The state of that name."""
        return next(s for s in self.states if s.name == name)

    def order(self, axes: Any) -> tuple[str, ...]:
        """These axes, in the order of the scan."""
        present = set(axes)
        return tuple(a for a in self.axes if a in present)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"scan {self.name} over ({' '.join(self.axes)})",
                *(f"  input  {i.name}: {i.kind}[{' '.join(i.dims)}]  {i.role}" for i in self.inputs),
                *(f"  state  {s.name}: {s.kind}[{' '.join(s.axes)}] = {s.initial!r}" for s in self.states),
                *(f"  output {o.name}: {o.kind}[{' '.join(o.dims)}]  {o.dtype}" for o in self.outputs),
                *(str(p) for p in (self.element, self.operator.apply, self.operator.combine, self.readout)),
            ]
        )


def before(state: str) -> str:
    """How a readout names the state before the step."""
    return f"previous_{state}"


def dump(scan: Scan) -> str:
    """The scan as text: the key of every cache, and what travels through the torch op. No file names."""
    return json.dumps(scan, default=_fields, separators=(",", ":"))


@lru_cache(maxsize=4096)
def load(text: str) -> Scan:
    """The scan of a text that `dump` wrote."""
    return _scan(json.loads(text))


def dump_operator(operator: Operator) -> str:
    """The operator alone as text, the same whatever axes a call gives its states."""
    states = tuple(replace(s, axes=()) for s in operator.states)
    return json.dumps(replace(operator, states=states), default=_fields, separators=(",", ":"))


@lru_cache(maxsize=4096)
def load_operator(text: str) -> Operator:
    """The operator of a text that `dump_operator` wrote."""
    return _operator(json.loads(text))


def _fields(part: Any) -> dict[str, Any]:
    return {f.name: getattr(part, f.name) for f in fields(part) if f.name != "where"}


def _scan(d: dict[str, Any]) -> Scan:
    return Scan(
        name=d["name"],
        axes=tuple(d["axes"]),
        inputs=tuple(Input(i["name"], i["kind"], tuple(i["dims"]), i["role"]) for i in d["inputs"]),
        states=tuple(_state(s) for s in d["states"]),
        operator=_operator(d["operator"]),
        element=_program(d["element"]),
        readout=_program(d["readout"]),
        outputs=tuple(Output(o["name"], o["kind"], tuple(o["dims"]), o["dtype"]) for o in d["outputs"]),
    )


def _operator(d: dict[str, Any]) -> Operator:
    leaves = tuple(Leaf(**leaf) for leaf in d["leaves"])
    states = tuple(_state(s) for s in d["states"])
    return Operator(d["name"], leaves, states, _program(d["combine"]), _program(d["apply"]))


def _state(d: dict[str, Any]) -> State:
    return State(d["name"], d["kind"], tuple(d["axes"]), d["initial"], d["domain"])


def _program(d: dict[str, Any]) -> Program:
    lines = tuple(
        Line(_var(x["var"]), x["op"], tuple(x["args"]), x["value"], tuple(x["over"])) for x in d["lines"]
    )
    outputs = tuple((name, variable) for name, variable in d["outputs"])
    return Program(d["name"], tuple(d["axes"]), tuple(_var(v) for v in d["inputs"]), lines, outputs)


def _var(d: dict[str, Any]) -> Var:
    return Var(d["name"], d["kind"], tuple(d["axes"]))
