"""A call under torch.compile: to Dynamo it is one node, which the stages behind it see through.

Dynamo need not follow what happens before an op is reached, reading code objects and proving laws. The call
stands in its graph as one function of tensors; AOTAutograd then runs the call itself, on tensors whose sizes
are symbols, and finds the op `scanforge::scan` in it. A class cannot stand in a graph, so its name does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import torch

from scanforge.recurrence import declared_of

F = TypeVar("F", bound=Callable[..., Any])

# Of the graphs that live. Dynamo guards on the class, so that a graph whose class is gone never runs again.
_OPERATORS: WeakValueDictionary[str, type] = WeakValueDictionary()


def one_node(run: F) -> F:
    """The function, which Dynamo writes into its graph as a call instead of following it."""

    def node(name: str, unnamed: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return run(_OPERATORS[name], *unnamed, **keywords)

    @wraps(run)
    def face(operator: Any, /, *unnamed: Any, **keywords: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            return run(operator, *unnamed, **keywords)
        name = _named(operator, face)
        return node(name, unnamed, keywords)

    face.node = node  # type: ignore[attr-defined]
    return cast("F", face)


def _named(operator: Any, face: Any) -> str:
    """What the graph calls an operator. Dynamo runs this while it traces, before it meets the node."""
    torch.compiler.allow_in_graph(face.node)  # not when scanforge is imported: it imports the compiler
    name = f"{declared_of(operator).name} {id(operator)}"
    _OPERATORS[name] = operator
    return name


def outside(run: F) -> F:
    """The function, at which Dynamo ends a graph: it runs as it stands, and so does all that it calls."""

    @wraps(run)
    def face(*unnamed: Any, **keywords: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            return run(*unnamed, **keywords)
        _disable(face)
        return face.run(*unnamed, **keywords)  # type: ignore[attr-defined]

    face.run = run  # type: ignore[attr-defined]
    return cast("F", face)


def _disable(face: Any) -> None:
    """Have Dynamo not follow a function. It runs this as it traces: earlier would import the compiler."""
    if face.run is face.__wrapped__:
        face.run = torch.compiler.disable(face.run)


# What torch.compiler.assume_constant_result writes; the decorator itself would import the compiler here.
_named._dynamo_marked_constant = True  # type: ignore[attr-defined]
_disable._dynamo_marked_constant = True  # type: ignore[attr-defined]
