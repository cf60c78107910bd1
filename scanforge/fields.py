"""The fields of a declaration, and what is checked of each when its class is created."""

from __future__ import annotations

import numbers
from typing import Any, NoReturn, Self, overload

from scanforge.errors import DeclarationError, TraceError
from scanforge.ir.program import Number
from scanforge.ir.typing import KINDS
from scanforge.ir.unknown import location

OPTIONS = (
    "dim", "reverse", "initial_state", "return_final_state", "reset", "reset_state", "cu_seqlens",
    "lengths", "mask", "backend", "lowering", "tune", "memory", "inplace", "dtype",
)  # fmt: skip
METHODS = ("combine", "apply", "element", "readout")
DOMAINS = ("any", "positive", "nonnegative", "unit")


class Field:
    """A named, typed part of a declaration. On an instance it is the value of this name."""

    def __init__(self, kind: str, domain: str | None) -> None:
        self.kind, self.domain = kind, domain or "any"
        self.names: list[str] = []

    def __set_name__(self, owner: type, name: str) -> None:
        self.names.append(name)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Any: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        if instance is None:
            return self
        return _no_value(type(instance).__name__, self.names[0], self)


class Element(Field):
    """A leaf of the element, one tensor of the call.

    `identity` is the leaf's value in the element that leaves every state as it is. `kind` is "float"
    (complex tensors too), "int" or "bool". `domain` ("positive", "nonnegative", "unit") restricts the
    samples of the law check.

    Example:
        >>> import scanforge as sf
        >>> decay = sf.Element(identity=1.0, domain="unit")
    """

    def __init__(
        self, *, identity: Number | None = None, kind: str = "float", domain: str | None = None
    ) -> None:
        super().__init__(kind, domain)
        self.identity = identity


class State(Field):
    """A component of the state. `initial` stands in when no initial state is given, and at resets.

    In a Recurrence a state names its axes, without time: `sf.State("b d n")`, and its `initial` is the
    operator's own unless it is given. In an Operator it has none. `domain` restricts the samples of the law
    check, as an element's does.

    Example:
        >>> import scanforge as sf
        >>> top, h = sf.State(initial=float("-inf")), sf.State("b d n")
    """

    def __init__(
        self,
        axes: str | None = None,
        *,
        initial: Number | None = None,
        kind: str = "float",
        domain: str | None = None,
    ) -> None:
        super().__init__(kind, domain)
        self.axes = axes if axes is None else parse_axes("State", axes)
        self.initial = initial


class Input(Field):
    """A tensor of a Recurrence, with its axes by name: `sf.Input("b t d")`, `""` for a single number.

    It broadcasts over the axes that it lacks: without `t` it is the same at all times, without `b` for the
    whole batch. `kind` is "float" (complex tensors too), "int" or "bool".

    Example:
        >>> import scanforge as sf
        >>> u, A, temperature = sf.Input("b t d"), sf.Input("d n"), sf.Input("")
    """

    def __init__(self, axes: str, *, kind: str = "float", domain: str | None = None) -> None:
        super().__init__(kind, domain)
        self.axes = parse_axes("Input", axes)


class Output(Field):
    """A result of a Recurrence, with its axes by name; it sums over the axes that it lacks.

    The value of each step is broadcast to `b` and `t` first. Outputs that are not declared have all axes of
    their value.

    Example:
        >>> import scanforge as sf
        >>> y, total = sf.Output("b t d"), sf.Output("d")
    """

    def __init__(self, axes: str) -> None:
        super().__init__("float", None)
        self.axes = parse_axes("Output", axes)


def parse_axes(what: str, axes: object) -> tuple[str, ...]:
    """The axes of a field, from their names with spaces between."""
    names = tuple(axes.split()) if isinstance(axes, str) else ()
    if not isinstance(axes, str) or not all(n.isidentifier() for n in names):
        raise DeclarationError(
            f"sf.{what}({axes!r}) ({location()}) does not name axes: write names with spaces between, as in "
            f'sf.{what}("b t d").'
        )
    if len(set(names)) < len(names):
        raise DeclarationError(
            f"sf.{what}({axes!r}) ({location()}) names an axis twice: give each axis a name of its own."
        )
    return names


def _no_value(owner: str, name: str, field: Field) -> NoReturn:
    """Raise for a field that the method has no value for."""
    if isinstance(field, Output):
        raise TraceError(
            f"{owner} ({location()}) reads self.{name}, which is an output: readout returns its value."
        )
    if getattr(field, "axes", None) is not None:
        raise TraceError(
            f"{owner}.element ({location()}) reads self.{name}, which is a state, and the element of a step "
            "does not depend on it: the operator's apply gets the state. Use it in readout."
        )
    raise TraceError(
        f"{owner} ({location()}) reads self.{name}, which is a state. apply gets the states as arguments: "
        f"write `def apply(self, {name})` and use `{name}`."
    )


def check_field(owner: str, name: str, field: Field) -> None:
    """Raise DeclarationError for a field that cannot be one."""
    if len(field.names) > 1:
        raise DeclarationError(
            f"{owner} binds one {type(field).__name__} object to {' and '.join(field.names)}: write one "
            f"`sf.{type(field).__name__}(...)` for each."
        )
    if not name.isidentifier():
        raise DeclarationError(f"{owner}: the field {name!r} has no name of Python's: give it another name.")
    if name in OPTIONS or name in METHODS:
        what = "an option of sf.scan" if name in OPTIONS else "a method"
        raise DeclarationError(f"{owner}.{name} has the name of {what}: give the field another name.")
    if name.startswith(("_", "previous_")):
        raise DeclarationError(
            f"{owner}.{name}: a field's name may not start with `_` or `previous_`: write another."
        )
    if field.kind not in KINDS:
        raise DeclarationError(
            f"{owner}.{name} has kind {field.kind!r}: write kind='float', 'int' or 'bool' (complex is found "
            "from the tensors)."
        )
    if field.domain not in DOMAINS:
        raise DeclarationError(
            f"{owner}.{name} has domain {field.domain!r}: write domain={_listed(DOMAINS[1:])}."
        )
    if isinstance(field, Element) and field.identity is None:
        raise DeclarationError(
            f"{owner}.{name} has no identity: write `{name} = sf.Element(identity=...)` with the value that, "
            "together with the other leaves' identities, leaves every state as it is (1 for a factor, "
            "0 for a summand, inf for an upper bound). Masked and padded steps are filled with it."
        )
    value = field.identity if isinstance(field, Element) else getattr(field, "initial", None)
    if value is not None:
        _check_number(owner, name, field.kind, value)


def _check_number(owner: str, name: str, kind: str, value: object) -> None:
    wanted: Any = {"float": numbers.Real, "int": numbers.Integral, "bool": bool}[kind]
    if not isinstance(value, wanted) or (kind != "bool" and isinstance(value, bool)) or value != value:
        raise DeclarationError(
            f"{owner}.{name} is of kind {kind} and is given {value!r} ({type(value).__name__}): "
            f"write a plain {kind}."
        )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(repr(n) for n in names[:-1]) + f" or {names[-1]!r}"
