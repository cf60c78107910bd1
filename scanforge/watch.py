"""Whether what was read is still the same: a few comparisons of objects, instead of reading it all again.

Whoever reads names out of namespaces, and the contents of containers and closures, notes each read. As long
as each would give the very same object, what was found out is still so. Another object may be as good; then
all is read again.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_, itemgetter
from typing import Any


@dataclass(frozen=True, slots=True)
class Watch:
    """Whether nothing has changed: one function, since it runs at every call."""

    holds: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class _Check:
    """An expression that is true as long as what it looks at is the same, of objects by number."""

    text: str
    objects: tuple[Any, ...]


class Reads:
    """What was read. `lost` if something was that cannot be watched."""

    def __init__(self) -> None:
        self.lost = False
        self.asked: dict[int, tuple[Any, Mapping[str, Any], dict[str, None]]] = {}
        self.classes: dict[int, _Check] = {}
        self.others: dict[int, _Check] = {}
        self.kept: list[Any] = []  # so that no id is used twice

    def name(self, owner: Any, names: Mapping[str, Any], name: str) -> None:
        """A name was looked up, and found or not."""
        self.asked.setdefault(id(owner), (owner, names, {}))[2][name] = None

    def whole(self, cls: type) -> None:
        """All of a class's own namespace was read."""
        names = vars(cls)
        self.kept.append(cls)
        self.classes[id(cls)] = _Check(
            "{0}.__mro__ is {1} and [*{2}] == {3} and all(map(is_, {2}.values(), {4}))",
            (cls, cls.__mro__, names, [*names], [*names.values()]),
        )

    def function(self, function: types.FunctionType) -> None:
        """A function's code, closure, defaults and attributes were read."""
        f = function
        same = _Check(
            "{0}.__code__ is {1} and {0}.__defaults__ is {2} and {0}.__kwdefaults__ is {3}"
            " and [*{0}.__dict__] == {4}",
            (f, f.__code__, f.__defaults__, f.__kwdefaults__, [*f.__dict__]),
        )
        self._add(f, same)
        if f.__closure__ or f.__kwdefaults__:
            self.kept.append(same)
            self._add(same, _same_parts(lambda: _inner_parts(f)))

    def instance(self, value: Any) -> None:
        """The contents of a container were read, or that an object is of its class."""
        if type(value) is tuple:
            return
        self._add(
            value, _same_parts(lambda: [type(value), getattr(value, "__dict__", None), *_contents(value)])
        )

    def _add(self, owner: Any, same: _Check) -> None:
        self.kept.append(owner)
        self.others.setdefault(id(owner), same)

    def watch(self) -> Watch:
        """What was read as checks."""
        names = [
            _same_names(names, asked)
            for owner, (_, names, asked) in self.asked.items()
            if owner not in self.classes
        ]
        return Watch(_function([*self.classes.values(), *self.others.values(), *names]))


def _function(checks: Sequence[_Check]) -> Callable[[], bool]:
    """All checks, one after another."""
    objects: dict[str, Any] = {"is_": is_}
    lines = []
    for check in checks:
        names = [f"x{len(objects) + k}" for k in range(len(check.objects))]
        objects |= zip(names, check.objects, strict=True)
        lines.append(check.text.format(*names))
    body = "\n            and ".join(lines) or "True"
    text = f"""
def holds():
    try:
        return (
            {body}
        )
    except KeyError:  # a name is gone
        return False
"""
    exec(compile(text, "<scanforge watch>", "exec"), objects)
    holds: Callable[[], bool] = objects["holds"]
    return holds


def _same_parts(parts: Callable[[], list[Any]]) -> _Check:
    """Whether these objects stay the same."""
    found = parts()

    def same() -> bool:
        now = parts()
        return len(now) == len(found) and all(map(is_, now, found))

    return _Check("{0}()", (same,))


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


def _same_names(names: Mapping[str, Any], asked: Mapping[str, None]) -> _Check:
    """Whether these names still give the same objects, and those that were not there still are not."""
    present = [n for n in asked if n in names]
    absent, keys = frozenset(asked).difference(present), names.keys()
    if not present:
        return _Check("{0}.isdisjoint({1})", (keys, absent))
    first = present[0]  # which an itemgetter of one name returns without a tuple
    get, values = itemgetter(first, *present), (names[first], *(names[n] for n in present))
    return _Check("all(map(is_, {0}({1}), {2})) and {3}.isdisjoint({4})", (get, names, values, keys, absent))
