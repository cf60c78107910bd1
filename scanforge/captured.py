"""What a class's methods can read besides their arguments: the part of the trace's key that can change.

A number in a closure, a global or a class attribute is read while a method is traced. Its value
belongs to the key, so that the next call sees a changed number. What cannot be compared makes the
class opaque: it is then traced anew at every call.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Hashable, Iterator
from typing import Any

from scanforge.declare import METHODS, Field

_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_PLAIN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)


class Opaque(Exception):
    """Something that a method reads cannot be compared."""


def fingerprint(cls: type) -> tuple[Hashable, ...] | None:
    """A hashable picture of all that the methods can read; None when there is no such picture."""
    try:
        return tuple(_Reader(cls).class_methods())
    except Opaque:
        return None


class _Reader:
    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.seen: set[int] = set()

    def class_methods(self) -> Iterator[Hashable]:
        for name in METHODS:
            method = getattr(self.cls, name, None)
            if method is not None:
                yield from self.value(method, frozenset())

    def value(self, value: Any, names: frozenset[str]) -> Iterator[Hashable]:
        if isinstance(value, _ATOMS):
            yield type(value).__name__, repr(value)
            return
        if id(value) in self.seen or isinstance(value, (Field, *_PLAIN)):
            return
        self.seen.add(id(value))
        if isinstance(value, types.MethodType):
            yield from self.value(value.__self__, names)
            yield from self.value(value.__func__, names)
        elif isinstance(value, types.FunctionType):
            yield from self.function(value)
        elif isinstance(value, tuple | list):
            yield len(value)
            for item in value:
                yield from self.value(item, names)
        elif isinstance(value, dict):
            for key, item in value.items():
                yield repr(key)
                yield from self.value(item, names)
        elif isinstance(value, types.ModuleType | type):
            yield from self.attributes(value, names)
        elif (
            hasattr(value, "__dict__")
            and type(value).__module__ != "builtins"
            and not hasattr(value, "shape")
        ):
            yield from self.attributes(value, names)
            yield from self.attributes(type(value), names)
        else:
            raise Opaque

    def function(self, function: types.FunctionType) -> Iterator[Hashable]:
        if function.__module__.startswith("scanforge.") and not function.__module__.startswith(
            "scanforge.operators"
        ):
            return
        yield function.__code__
        names = frozenset(_names(function.__code__))
        for cell in function.__closure__ or ():
            if cell is not None and not _empty(cell):
                yield from self.value(cell.cell_contents, names)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            yield from self.value(default, names)
        for name in sorted(names):
            if name in function.__globals__:
                yield name
                yield from self.value(function.__globals__[name], names)
            elif name not in vars(builtins):
                yield from self.attribute(self.cls, name, names)

    def attributes(self, owner: Any, names: frozenset[str]) -> Iterator[Hashable]:
        if isinstance(owner, types.ModuleType) and owner.__name__.split(".")[0] in {"scanforge", "math"}:
            return
        for name in sorted(names):
            yield from self.attribute(owner, name, names)

    def attribute(self, owner: Any, name: str, names: frozenset[str]) -> Iterator[Hashable]:
        held = getattr(owner, name, self)
        if held is not self:
            yield name
            yield from self.value(held, names)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False
