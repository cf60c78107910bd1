"""Class -> Fused: what a person writes to declare a recurrence with named axes, element map and readout."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from scanforge.declare import Declaration, declaration, fields_of
from scanforge.errors import DeclarationError, TraceError
from scanforge.fields import Field, Input, Output, State
from scanforge.ir.program import Number
from scanforge.ir.scan import BATCH, TIME
from scanforge.ir.unknown import NoAttribute, location


@dataclass(frozen=True, slots=True)
class Named:
    """A declared input, state or output with its axes. `initial` is a state's, None for the operator's."""

    name: str
    kind: str
    axes: tuple[str, ...]
    initial: Number | None = None
    domain: str = "any"

    def __str__(self) -> str:
        return f"{self.name} {' '.join(self.axes) or '(no axes)'}"


@dataclass(frozen=True, slots=True)
class Fused:
    """What a Recurrence declares: inputs, states and outputs in order."""

    name: str
    inputs: tuple[Named, ...]
    states: tuple[Named, ...]
    outputs: tuple[Named, ...]
    word: ClassVar[str] = "input"  # what the tensors of a call are

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes, time first, then in the order in which the declaration names them."""
        fields = (*self.inputs, *self.states, *self.outputs)
        return tuple(dict.fromkeys([TIME, *(a for f in fields for a in f.axes)]))

    def tensor_names(self) -> list[str]:
        """The names of the inputs, in declared order."""
        return [i.name for i in self.inputs]


class Recurrence:
    """Base class of a recurrence: an operator, the map from inputs to its elements, and a readout.

        e_t = element(inputs_t);   x_t = apply(e_t, x_{t-1});   y_t = readout(x_t, x_{t-1}, inputs_t)

    The class declares its inputs (`Input`) and states (`State`) with named axes, and may declare its outputs
    (`Output`). `element` returns an operator's element, or a tuple of elements whose states are the declared
    ones in order; `readout` returns one value or a tuple, the states if it is left out. All of it runs in one
    kernel: `sf.scan(MyRecurrence, input=tensor, ...)`.

    Example:
        >>> import torch, scanforge as sf
        >>> class Leaky(sf.Recurrence):
        ...     '''h_t = a h_{t-1} + u_t, y_t = c h_t'''
        ...     u, a, c = sf.Input("b t d"), sf.Input("d"), sf.Input("")
        ...     h = sf.State("b d")
        ...     def element(self):
        ...         return sf.Affine(a=self.a, b=self.u)
        ...     def readout(self):
        ...         return self.c * self.h
        >>> u, a, c = torch.ones(1, 3, 1), torch.tensor([0.5]), torch.tensor(2.0)
        >>> sf.scan(Leaky, u=u, a=a, c=c).flatten()
        tensor([2.0000, 3.0000, 3.5000])
    """

    __scanforge__: ClassVar[Fused]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declared = _declaration(cls)
        if declared is not None:
            cls.__scanforge__ = declared

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = type(self).__name__
        raise TraceError(
            f"{name} ({location()}) is built by hand, and scanforge builds it to trace its methods. To run "
            f"it write sf.scan({name}, ...)."
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(fused(type(self)).tensor_names())
        raise NoAttribute(
            f"{type(self).__name__} ({location()}) has no input {name!r}: its inputs are {known}. Declare "
            f'it: write `{name} = sf.Input("b t d")` in the class.'
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise TraceError(
            f"{type(self).__name__} ({location()}) assigns self.{name}, and a recurrence keeps nothing "
            "between its methods: use a local name, or compute it again."
        )

    def element(self) -> Any:
        """The element of a step, from the inputs; or a tuple of elements."""
        raise DeclarationError(f"{type(self).__name__} has no element.")

    def readout(self) -> Any:
        """The outputs of a step, from the inputs and the states after it."""
        raise DeclarationError(f"{type(self).__name__} has no readout.")


def fused(cls: type) -> Fused:
    """The declaration of a Recurrence class; a base class that declares nothing is refused."""
    declared = getattr(cls, "__scanforge__", None)
    if not isinstance(declared, Fused):
        raise DeclarationError(
            f"{cls.__name__} declares no inputs and states: derive a class from it that does."
        )
    return declared


def declared_of(operator: object) -> Declaration | Fused:
    """The declaration of an operator or a recurrence; anything else is refused with the line to write."""
    if isinstance(operator, type) and issubclass(operator, Recurrence):
        return fused(operator)
    return declaration(operator)


def has_readout(cls: type) -> bool:
    """Whether the class defines a readout of its own."""
    return getattr(cls, "readout", None) is not Recurrence.readout


def _declaration(cls: type) -> Fused | None:
    """The checked declaration of a class, None for a base class that declares nothing yet."""
    fields = fields_of(cls)
    if not fields:
        return None
    inputs = {n: f for n, f in fields.items() if isinstance(f, Input)}
    states = {n: f for n, f in fields.items() if isinstance(f, State)}
    outputs = {n: f for n, f in fields.items() if isinstance(f, Output)}
    for name, field in fields.items():
        _check_field(cls.__name__, name, field)
    for what, found, line in (
        ("input", inputs, 'u = sf.Input("b t d")'),
        ("state", states, 'h = sf.State("b d")'),
        ("element", getattr(cls, "element", None) is not Recurrence.element, "def element(self): ..."),
    ):
        if not found:
            raise DeclarationError(f"{cls.__name__} declares no {what}: write `{line}` in the class.")
    for method in ("element", "readout"):
        _check_method(cls, method)
    return Fused(
        cls.__name__,
        tuple(Named(n, f.kind, f.axes, domain=f.domain) for n, f in inputs.items()),
        tuple(Named(n, f.kind, f.axes or (), f.initial, f.domain) for n, f in states.items()),
        tuple(Named(n, f.kind, f.axes) for n, f in outputs.items()),
    )


def _check_field(owner: str, name: str, field: Field) -> None:
    if not isinstance(field, Input | State | Output):
        raise DeclarationError(
            f"{owner}.{name} is an sf.{type(field).__name__}, and a recurrence has inputs: write "
            f'`{name} = sf.Input("b t d")`, or derive {owner} from sf.Operator.'
        )
    if isinstance(field, State) and field.axes is None:
        raise DeclarationError(
            f'{owner}.{name} names no axes: write `{name} = sf.State("b d")`, all its axes but time.'
        )
    if isinstance(field, State) and TIME in (field.axes or ()):
        rest = " ".join(a for a in field.axes or () if a != TIME)
        raise DeclarationError(
            f"{owner}.{name} has the axis t, and a state is of one time: write `{name} = sf.State({rest!r})`."
        )
    reserved = [a for a in field.axes or () if a != BATCH and a.startswith(BATCH) and a[1:].isdigit()]
    if reserved:
        raise DeclarationError(
            f"{owner}.{name} names the axis {reserved[0]}, which stands for a leading batch axis of a call: "
            "write `b` alone, and the call may have any number of batch axes before it."
        )


def _check_method(cls: type, method: str) -> None:
    """The method takes self alone."""
    signature = inspect.signature(getattr(cls, method))
    try:
        signature.bind("self")
    except TypeError:
        raise DeclarationError(
            f"{cls.__name__}.{method} has the arguments {signature}, and is called with (self): write "
            f"`def {method}(self)`."
        ) from None
