"""Class -> Declaration: what a person writes to declare an operator."""

from __future__ import annotations

import inspect
import numbers
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from scanforge.errors import DeclarationError, TraceError
from scanforge.fields import Element, Field, Input, Output, State, check_field
from scanforge.ir.complex import is_value
from scanforge.ir.method import current
from scanforge.ir.program import Number
from scanforge.ir.scan import Leaf
from scanforge.ir.unknown import NoAttribute, foreign, location

_CASTS: dict[str, Any] = {"float": float, "int": int, "bool": bool}


@dataclass(frozen=True, slots=True)
class StateField:
    """A declared state, before the call gives it axes."""

    name: str
    kind: str
    initial: Number
    domain: str = "any"


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a class declares: leaves and states in order."""

    name: str
    leaves: tuple[Leaf, ...]
    states: tuple[StateField, ...]
    word: ClassVar[str] = "element"  # what the tensors of a call are

    def tensor_names(self) -> list[str]:
        """The names of the leaves, in declared order."""
        return [leaf.name for leaf in self.leaves]


class Operator:
    """Base class of an associative operator on a state.

    The class declares the leaves of its element e (`Element`) and its states x (`State`);
    `apply` is one step, x_t = apply(e_t, x_{t-1}), and `combine` the element of two steps:
    `e.combine(later).apply(x)` equals `later.apply(e.apply(x))`. Tensors never meet an instance:
    `sf.scan(MyOperator, leaf=tensor, ...)` runs it.

    Example:
        >>> import scanforge as sf
        >>> class Decay(sf.Operator):
        ...     a = sf.Element(identity=1.0)
        ...     b = sf.Element(identity=0.0)
        ...     h = sf.State()
        ...     def combine(self, later):
        ...         return Decay(a=later.a * self.a, b=later.a * self.b + later.b)
        ...     def apply(self, h):
        ...         return self.a * h + self.b
    """

    __scanforge__: ClassVar[Declaration]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declared = _declaration(cls)
        if declared is not None:
            cls.__scanforge__ = declared

    def __init__(self, /, *unnamed: Any, **leaves: Any) -> None:
        declared = declaration(type(self))
        name, wanted = declared.name, declared.tensor_names()
        arguments = ", ".join(f"{w}=..." for w in wanted)
        for leaf, value in leaves.items():
            if is_value(value) or isinstance(value, numbers.Number) or not hasattr(value, "shape"):
                continue
            if current():  # in the element map of a recurrence
                raise TraceError(f"{name}({leaf}=...) ({location()}) {foreign(value)}")
            raise TraceError(
                f"{name}({leaf}=...) ({location()}) got a {type(value).__name__}, and an instance is an "
                "element inside combine, made of traced values. To run the operator write "
                f"sf.scan({name}, {arguments})."
            )
        if unnamed or set(leaves) != set(wanted):
            parts = [f"from {len(unnamed)} value(s) without names"] * bool(unnamed)
            parts += [f"without {', '.join(n for n in wanted if n not in leaves)}"] * (
                not set(wanted) <= set(leaves)
            )
            parts += [f"with {', '.join(n for n in leaves if n not in wanted)}"] * (
                not set(leaves) <= set(wanted)
            )
            raise TraceError(
                f"{name} ({location()}) is built {' and '.join(parts)}: its elements are "
                f"{', '.join(wanted)}. Write {name}({arguments})."
            )
        self.__dict__.update(leaves)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        declared = declaration(type(self))
        raise NoAttribute(
            f"{declared.name} ({location()}) has no element {name!r}: its elements are "
            f"{', '.join(declared.tensor_names())}. Declare it: write `{name} = sf.Element(identity=...)` "
            "in the class."
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        owner, wanted = type(self).__name__, declaration(type(self)).tensor_names()
        raise TraceError(
            f"{owner} ({location()}) assigns self.{name}, and an element never changes. Use a local name, "
            f"or return a new element: {owner}({', '.join(f'{w}=...' for w in wanted)})."
        )

    def __delattr__(self, name: str) -> NoReturn:
        raise TraceError(
            f"{type(self).__name__} ({location()}) deletes self.{name}, and an element never changes."
            " Use a local name."
        )

    def combine(self, *args: Any, **kwargs: Any) -> Any:
        """The element of two steps, `self` first and `later` after it."""
        raise DeclarationError(f"{type(self).__name__} has no combine.")

    def apply(self, *args: Any, **kwargs: Any) -> Any:
        """The states after one step, in declared order, from the states before it."""
        raise DeclarationError(f"{type(self).__name__} has no apply.")


def declaration(operator: object) -> Declaration:
    """The declaration of an operator class; anything else is refused with the line to write."""
    declared = getattr(operator, "__scanforge__", None)
    if not isinstance(operator, type) or not isinstance(declared, Declaration):
        shown = f"an instance of {type(operator).__name__}"
        if isinstance(operator, type):
            shown = f"the class {operator.__name__}"
        hint = "Write `class Mine(sf.Operator): ...`."
        if isinstance(operator, Operator):
            hint = "Pass the class itself."
        raise DeclarationError(
            "scanforge wants a class that derives from sf.Operator or sf.Recurrence and declares its fields, "
            f"and got {shown}. {hint}"
        )
    return declared


def _declaration(cls: type) -> Declaration | None:
    """The checked declaration of a class, None for a base class that declares nothing yet."""
    fields = fields_of(cls)
    if not fields:
        return None
    for name, field in fields.items():
        _check_of_operator(cls.__name__, name, field)
    leaves = {n: f for n, f in fields.items() if isinstance(f, Element)}
    states = {n: f for n, f in fields.items() if isinstance(f, State)}
    for what, found, line in (
        ("element", leaves, "a = sf.Element(identity=1.0)"),
        ("state", states, "h = sf.State()"),
        ("combine", vars_of(cls, "combine"), "def combine(self, later): ..."),
        ("apply", vars_of(cls, "apply"), f"def apply(self, {', '.join(states) or 'h'}): ..."),
    ):
        if not found:
            raise DeclarationError(f"{cls.__name__} declares no {what}: write `{line}` in the class.")
    _check_method(cls, "combine", ["later"])
    _check_method(cls, "apply", list(states))
    return Declaration(
        cls.__name__,
        tuple(Leaf(n, f.kind, _CASTS[f.kind](f.identity), f.domain) for n, f in leaves.items()),
        tuple(StateField(n, f.kind, _CASTS[f.kind](f.initial or 0), f.domain) for n, f in states.items()),
    )


def fields_of(cls: type) -> dict[str, Field]:
    """The fields of a class and its bases by name, each checked, in declared order."""
    fields: dict[str, Field] = {}
    for base in reversed(cls.__mro__):
        fields = {n: f for n, f in fields.items() if n not in vars(base)}
        fields |= {n: f for n, f in vars(base).items() if isinstance(f, Field)}
    for name, field in fields.items():
        check_field(cls.__name__, name, field)
    return fields


def _check_of_operator(owner: str, name: str, field: Field) -> None:
    """An operator works lane by lane: it has elements and states without axes."""
    if isinstance(field, Input | Output):
        raise DeclarationError(
            f"{owner}.{name} is an sf.{type(field).__name__}, and an operator has elements and states: "
            f"derive {owner} from sf.Recurrence, or write `{name} = sf.Element(identity=...)`."
        )
    if isinstance(field, State) and field.axes is not None:
        raise DeclarationError(
            f"{owner}.{name} names the axes {' '.join(field.axes)!r}, and an operator works lane by lane: "
            f"write `{name} = sf.State()`, and name axes in an sf.Recurrence."
        )


def vars_of(cls: type, method: str) -> bool:
    """Whether the class or a base below Operator defines a method."""
    return getattr(cls, method) is not getattr(Operator, method)


def _check_method(cls: type, method: str, arguments: list[str]) -> None:
    """The method can be called with these arguments."""
    signature = inspect.signature(getattr(cls, method))
    try:
        signature.bind("self", *arguments)
    except TypeError:
        wanted = ", ".join(["self", *arguments])
        raise DeclarationError(
            f"{cls.__name__}.{method} has the arguments {signature}, and is called with ({wanted}): "
            f"write `def {method}({wanted})`."
        ) from None
