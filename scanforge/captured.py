"""What a class's methods can read besides their arguments: the part of the trace's key that can change.

A number in a closure, a global or a class attribute is read while a method is traced. Its value
belongs to the key, so that the next call sees a changed number. Every function that the methods can
reach is walked, and every object that is met is asked for every name that any of them mentions; none
of the user's code runs. What cannot be compared makes the class opaque: it is then traced anew at
every call.
"""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Any

from scanforge.fields import METHODS, Field
from scanforge.watch import Reads, Watch, is_empty

_ATOMS = (type(None), bool, int, float, complex, str, bytes)
_C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_CONSTANT = frozenset({"numpy.ufunc", "torch.dtype", "torch.device", "collections._tuplegetter"})
_NAMESPACES = frozenset({"types.SimpleNamespace", "argparse.Namespace"})
_LIBRARIES = frozenset({*sys.stdlib_module_names, "scanforge", "torch", "numpy"})
_COMPUTED = frozenset({"eval", "exec", "getattr", "globals", "vars", "__dict__", "attrgetter"})
_NOT_CALLED = frozenset({"__repr__", "__str__", "__reduce__", "__hash__", "__del__", "__replace__"})
LIMIT = 500  # of objects: beyond, tracing is quicker than looking


class Opaque(Exception):
    """Something that a method reads cannot be compared."""


def fingerprint(cls: type) -> tuple[Hashable, ...] | None:
    """A hashable picture of all that the methods can read; None when there is no such picture."""
    reader = _read(cls)
    return None if reader is None else tuple(reader.found)


def watch(cls: type) -> Watch | None:
    """What tells at once that the picture is still the same; None when there is none."""
    reader = _read(cls)
    return None if reader is None or reader.reads.lost else reader.reads.watch()


def _read(cls: type) -> _Reader | None:
    reader = _Reader()
    try:
        reader.visit(cls)
        reader.mention(METHODS)
    except (Opaque, RecursionError):
        return None
    return reader


class _Reader:
    def __init__(self) -> None:
        self.found: list[Hashable] = []
        self.met: dict[int, int] = {}
        self.alive: list[Any] = []  # so that no id is used twice
        self.owners: list[Any] = []
        self.names: dict[str, None] = {}
        self.reads = Reads()

    def own(self, owner: Any) -> None:
        """Ask the owner for every name known so far, and for those to come."""
        self.owners.append(owner)
        for name in list(self.names):
            self.attribute(owner, name)

    def mention(self, names: tuple[str, ...]) -> None:
        """Ask every owner for the names that are new."""
        for name in names:
            if name in _COMPUTED:
                raise Opaque
            if name not in self.names:
                self.names[name] = None
                for owner in list(self.owners):
                    self.attribute(owner, name)

    def attribute(self, owner: Any, name: str) -> None:
        """What the owner holds by this name, in itself and, since super() may be called, in every base."""
        for base in _bases(owner) if isinstance(owner, type) else (owner,):
            held = getattr(base, "__dict__", {})
            self.reads.name(base, held, name)
            if name in held:
                self.found.append(name)
                self.visit(held[name])

    def visit(self, value: Any) -> None:
        """Add what this value is to the picture."""
        if isinstance(value, _ATOMS):
            self.found.append((type(value), repr(value)))
            self.reads.lost |= type(value) not in _ATOMS  # whose text may change
            return
        if id(value) in self.met:
            self.found.append(("again", self.met[id(value)]))
            return
        self.met[id(value)] = len(self.met)
        self.alive.append(value)
        if len(self.alive) > LIMIT:
            raise Opaque
        if isinstance(value, types.FunctionType):
            self.function(value)
        elif isinstance(value, _C_FUNCTIONS):
            self.c_function(value)
        elif isinstance(value, types.MethodType):
            self.all([value.__self__, value.__func__])
        elif isinstance(value, staticmethod | classmethod):
            self.visit(value.__func__)
        elif isinstance(value, property):
            self.visit(value.fget)
        elif isinstance(value, types.ModuleType):
            self.found.append(value.__name__)
            self.own(value)
            self.reads.name(value, vars(value), "__getattr__")
            self.visit(vars(value).get("__getattr__"))
        elif isinstance(value, type):
            self.type(value)
        elif not isinstance(value, Field):
            self.object(value)

    def all(self, values: Any) -> None:
        """Each of them, and how many."""
        items = list(values)
        self.found.append(len(items))
        for item in items:
            self.visit(item)

    def function(self, function: types.FunctionType) -> None:
        """Its code, cells, defaults, globals and attributes; of a library's, that it is this one."""
        if _is_library(function):
            self.found.append(function)
            return
        self.found.append(function.__code__)
        self.reads.function(function)
        names = _names(function.__code__)
        cells = [c for c in function.__closure__ or () if not is_empty(c)]
        self.all(c.cell_contents for c in cells)
        self.all([*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()])
        for name in names:
            self.reads.name(function.__globals__, function.__globals__, name)
            self.reads.name(sys.modules, sys.modules, name)
            if name in function.__globals__:
                self.found.append(name)
                self.visit(function.__globals__[name])
            elif name in sys.modules and not hasattr(builtins, name):  # imported inside the function
                self.visit(sys.modules[name])
        if function.__dict__:
            self.own(function)
        self.mention(names)

    def c_function(self, function: Any) -> None:
        owner = getattr(function, "__self__", None)
        if owner is None or isinstance(owner, types.ModuleType | type):
            self.found.append(function)
        else:
            self.found.append(function.__name__)
            self.visit(owner)

    def type(self, cls: type) -> None:
        """A class: that it is this one, its special methods, and what is asked of it by name."""
        self.found.append(cls)
        if _is_library(cls):
            return
        self.own(cls)
        for base in _bases(cls):
            self.reads.whole(base)
            for name, held in list(vars(base).items()):
                special = name.startswith("__") and isinstance(held, types.FunctionType)
                if special and name not in _NOT_CALLED:
                    self.visit(held)

    def object(self, value: Any) -> None:
        """An instance. Containers are read whole, plain objects by name; what hides its state is opaque."""
        cls = type(value)
        place = f"{cls.__module__}.{cls.__qualname__}"
        if place in _CONSTANT:
            self.found.append(str(value))
            return
        self.reads.instance(value)
        if isinstance(value, tuple | list):
            self.all(value)
        elif isinstance(value, dict):
            self.all([*value, *value.values()])
        elif place in _NAMESPACES:
            self.found.append(place)
            self.own(value)
            return
        elif _is_library(cls) or not _is_readable(cls):
            raise Opaque
        if cls not in {tuple, list, dict}:
            self.found.append(id(value))
            self.own(value)
            self.visit(cls)


def _is_library(owner: Any) -> bool:
    """Whether a function or class is of Python, torch, NumPy or scanforge, but for the shipped operators."""
    return _is_of_library(owner.__module__ or "")


@lru_cache(maxsize=4096)
def _is_of_library(module: str) -> bool:
    return module.split(".")[0] in _LIBRARIES and not module.startswith("scanforge.operators")


def _bases(cls: type) -> list[type]:
    """The class and the bases that the user may change."""
    return [base for base in cls.__mro__ if not _is_library(base)]


def _is_readable(cls: type) -> bool:
    """Whether instances keep all they hold in their `__dict__`."""
    hiding = ("__getattr__", "__getattribute__", "__new__")
    return not any(
        vars(base).get("__slots__") or any(name in vars(base) for name in hiding) for base in cls.__mro__[:-1]
    )


@lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The globals and attributes that a function mentions, those of the functions inside it included."""
    return tuple(dict.fromkeys(_walk(code)))


def _walk(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _walk(constant)
