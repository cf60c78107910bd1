"""Class -> Declaration: what a person writes to declare an operator."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Self, overload

from scanforge.errors import DeclarationError, TraceError
from scanforge.ir.complex import is_value
from scanforge.ir.program import Number
from scanforge.ir.scan import Leaf
from scanforge.ir.typing import KINDS

OPTIONS = (
    "dim", "reverse", "initial_state", "return_final_state", "reset", "cu_seqlens", "lengths", "mask",
    "backend", "lowering", "tune", "memory", "inplace", "dtype",
)  # fmt: skip
METHODS = ("combine", "apply", "element", "readout")
DOMAINS = ("any", "positive", "nonnegative", "unit")
_CASTS: dict[str, Any] = {"float": float, "int": int, "bool": bool}


class Field:
    """A named, typed part of a declaration. On an instance it is the value of this name."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
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
        return _field_value(instance, self.names[0])

    def __set__(self, instance: object, value: object) -> NoReturn:
        owner = type(instance).__name__
        raise TraceError(
            f"{owner}.{self.names[0]} is assigned, and an element never changes. "
            f"Return a new one: {owner}({self.names[0]}=..., ...)."
        )


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
        super().__init__(kind)
        self.identity, self.domain = identity, domain or "any"


class State(Field):
    """A component of the state. `initial` stands in when no initial state is given.

    Example:
        >>> import scanforge as sf
        >>> top = sf.State(initial=float("-inf"))
    """

    def __init__(self, *, initial: Number = 0, kind: str = "float") -> None:
        super().__init__(kind)
        self.initial = initial


@dataclass(frozen=True, slots=True)
class StateField:
    """A declared state, before the call gives it axes."""

    name: str
    kind: str
    initial: Number


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a class declares: leaves and states in order."""

    name: str
    leaves: tuple[Leaf, ...]
    states: tuple[StateField, ...]

    def leaf_names(self) -> list[str]:
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

    def __init__(self, **leaves: Any) -> None:
        declared = declaration(type(self))
        name, wanted = declared.name, declared.leaf_names()
        for leaf, value in leaves.items():
            if hasattr(value, "shape") and not is_value(value):
                raise TraceError(
                    f"{name}({leaf}=...) got a {type(value).__name__}, and an instance is an "
                    "element inside combine, "
                    f"made of traced values. To run the operator write sf.scan({name}, {leaf}=tensor, ...)."
                )
        if set(leaves) != set(wanted):
            missing, unknown = [w for w in wanted if w not in leaves], [k for k in leaves if k not in wanted]
            parts = [f"without {', '.join(missing)}"] * bool(missing) + [f"with {', '.join(unknown)}"] * bool(
                unknown
            )
            raise TraceError(
                f"{name} is built {' and '.join(parts)}: its fields are {', '.join(wanted)}. "
                f"Write {name}({', '.join(f'{w}=...' for w in wanted)})."
            )
        self.__dict__.update(leaves)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        declared = declaration(type(self))
        raise TraceError(
            f"{declared.name} has no field {name!r}: its elements are {', '.join(declared.leaf_names())}. "
            f"Declare it: write `{name} = sf.Element(identity=...)` in the class."
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
        shown = operator.__name__ if isinstance(operator, type) else f"a {type(operator).__name__}"
        hint = " Pass the class itself, not an instance." if isinstance(operator, Operator) else ""
        raise DeclarationError(
            "scanforge wants a class that derives from sf.Operator and declares elements and "
            f"states, and got {shown}.{hint}"
        )
    return declared


def _field_value(instance: object, name: str) -> Any:
    if name in instance.__dict__:
        return instance.__dict__[name]
    raise TraceError(
        f"{type(instance).__name__} reads self.{name}, which is a state. apply gets the states as arguments: "
        f"write `def apply(self, {name})` and use `{name}`."
    )


def _declaration(cls: type) -> Declaration | None:
    """The checked declaration of a class, None for a base class that declares nothing yet."""
    fields: dict[str, Field] = {}
    for base in reversed(cls.__mro__):
        fields |= {n: f for n, f in vars(base).items() if isinstance(f, Field)}
    if not fields:
        return None
    for name, field in fields.items():
        _check_field(cls.__name__, name, field)
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
    return Declaration(
        cls.__name__,
        tuple(Leaf(n, f.kind, _CASTS[f.kind](f.identity), f.domain) for n, f in leaves.items()),
        tuple(StateField(n, f.kind, _CASTS[f.kind](f.initial)) for n, f in states.items()),
    )


def vars_of(cls: type, method: str) -> bool:
    """Whether the class or a base below Operator defines a method."""
    return getattr(cls, method) is not getattr(Operator, method)


def _check_field(owner: str, name: str, field: Field) -> None:
    if len(field.names) > 1:
        raise DeclarationError(
            f"{owner} binds one {type(field).__name__} object to {' and '.join(field.names)}: write one "
            f"`sf.{type(field).__name__}(...)` for each."
        )
    if name in OPTIONS or name in METHODS:
        what = "an option of sf.scan" if name in OPTIONS else "a method"
        raise DeclarationError(f"{owner}.{name} has the name of {what}: give the field another name.")
    if name.startswith(("_", "previous_")):
        raise DeclarationError(
            f"{owner}.{name}: a field's name may not start with `_` or `previous_`; rename it."
        )
    if field.kind not in KINDS:
        raise DeclarationError(
            f"{owner}.{name} has kind {field.kind!r}, and a kind is 'float', 'int' or 'bool' "
            "(complex is found from the tensors)."
        )
    if isinstance(field, Element):
        if field.domain not in DOMAINS:
            raise DeclarationError(
                f"{owner}.{name} has domain {field.domain!r}, and a domain is {_listed(DOMAINS[1:])}."
            )
        if field.identity is None:
            raise DeclarationError(
                f"{owner}.{name} has no identity: write `{name} = sf.Element(identity=...)` with "
                "the value that, "
                "together with the other leaves' identities, leaves every state as it is (1 for a "
                "factor, 0 for a "
                "summand, inf for an upper bound). Masked and padded steps are filled with it."
            )
    value = field.identity if isinstance(field, Element) else getattr(field, "initial", 0)
    _check_number(owner, name, field.kind, value)


def _check_number(owner: str, name: str, kind: str, value: object) -> None:
    wanted: Any = {"float": numbers.Real, "int": numbers.Integral, "bool": bool}[kind]
    if not isinstance(value, wanted) or (kind != "bool" and isinstance(value, bool)):
        raise DeclarationError(
            f"{owner}.{name} is of kind {kind} and is given {value!r} ({type(value).__name__}): "
            f"write a plain {kind}."
        )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(repr(n) for n in names[:-1]) + f" or {names[-1]!r}"
