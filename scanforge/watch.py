"""Whether what was read is still the same: a few comparisons of objects, instead of reading it all again.

Whoever reads names out of namespaces, and the contents of containers and closures, notes each read. As long
as each would give the very same object, what was found out is still so. Another object may be as good; then
all is read again.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import is_, itemgetter
from typing import Any


@dataclass(frozen=True, slots=True)
class Watch:
    """Checks, each of which is true as long as what it looks at is the same."""

    checks: tuple[Callable[[], bool], ...]

    def holds(self) -> bool:
        """Whether nothing has changed."""
        for check in self.checks:  # noqa: SIM110 - quicker than a generator, at every call
            if not check():
                return False
        return True


class Reads:
    """What was read. `lost` if something was that cannot be watched."""

    def __init__(self) -> None:
        self.lost = False
        self.asked: dict[int, tuple[Any, Mapping[str, Any], dict[str, None]]] = {}
        self.classes: dict[int, Callable[[], bool]] = {}
        self.others: dict[int, Callable[[], bool]] = {}
        self.kept: list[Any] = []  # so that no id is used twice

    def name(self, owner: Any, names: Mapping[str, Any], name: str) -> None:
        """A name was looked up, and found or not."""
        self.asked.setdefault(id(owner), (owner, names, {}))[2][name] = None

    def whole(self, cls: type) -> None:
        """All of a class's own namespace was read."""
        names, order = vars(cls), cls.__mro__
        found, values = list(names), list(names.values())

        def same() -> bool:
            return cls.__mro__ is order and [*names] == found and all(map(is_, names.values(), values))

        self.kept.append(cls)
        self.classes[id(cls)] = same

    def function(self, function: types.FunctionType) -> None:
        """A function's code, closure, defaults and attributes were read."""
        f, code, names = function, function.__code__, [*function.__dict__]
        by_place, by_name = function.__defaults__, function.__kwdefaults__

        def same() -> bool:
            told = f.__defaults__ is by_place and f.__kwdefaults__ is by_name
            return told and f.__code__ is code and [*f.__dict__] == names

        self._add(function, same)
        if function.__closure__ or function.__kwdefaults__:
            self.kept.append(same)
            self._add(same, _same_parts(lambda: _inner_parts(f)))

    def instance(self, value: Any) -> None:
        """The contents of a container were read, or that an object is of its class."""
        if type(value) is tuple:
            return
        self._add(
            value, _same_parts(lambda: [type(value), getattr(value, "__dict__", None), *_contents(value)])
        )

    def _add(self, owner: Any, same: Callable[[], bool]) -> None:
        self.kept.append(owner)
        self.others.setdefault(id(owner), same)

    def watch(self) -> Watch:
        """What was read as checks."""
        names = [
            _same_names(names, asked)
            for owner, (_, names, asked) in self.asked.items()
            if owner not in self.classes
        ]
        return Watch((*self.classes.values(), *self.others.values(), *names))


def _same_parts(parts: Callable[[], list[Any]]) -> Callable[[], bool]:
    """Whether these objects stay the same."""
    found = parts()

    def same() -> bool:
        now = parts()
        return len(now) == len(found) and all(map(is_, now, found))

    return same


def _inner_parts(function: types.FunctionType) -> list[Any]:
    """What a closure holds, and the defaults of arguments that go by name alone."""
    cells = [None if is_empty(cell) else cell.cell_contents for cell in function.__closure__ or ()]
    return cells + _contents(function.__kwdefaults__)


def _contents(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if isinstance(value, list) else []


def is_empty(cell: types.CellType) -> bool:
    """Whether a variable of a closure has no value yet."""
    try:
        cell.cell_contents  # noqa: B018 - asking is the only way to know
    except ValueError:
        return True
    return False


def _same_names(names: Mapping[str, Any], asked: Mapping[str, None]) -> Callable[[], bool]:
    """Whether these names still give the same objects, and those that were not there still are not."""
    present = [n for n in asked if n in names]
    absent, keys = frozenset(asked).difference(present), names.keys()
    if not present:
        return lambda: keys.isdisjoint(absent)
    first = present[0]  # which an itemgetter of one name returns without a tuple
    get, values = itemgetter(first, *present), (names[first], *(names[n] for n in present))

    def same() -> bool:
        try:
            return all(map(is_, get(names), values)) and keys.isdisjoint(absent)
        except KeyError:
            return False

    return same
