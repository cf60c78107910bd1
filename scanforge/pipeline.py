"""The compiler on one page. Every step is a pure function from one frozen value to the next.

A recurrence travels as text from `front` on: the text is the key of every cache and the argument of
the torch op. The step's name here is its name in `explain` and in the documentation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from scanforge.adjoint import Adjoint, adjoint
from scanforge.cache import load_module
from scanforge.declare import Operator, declaration
from scanforge.emit.reference import module
from scanforge.ir.builder import Builder
from scanforge.ir.scan import TIME, Output, Scan, before, dump, load
from scanforge.laws import ensure
from scanforge.trace import Signature, Traced, trace


def front(cls: type[Operator], signature: Signature) -> Traced:
    """What happens at a call, before any tensor is touched."""
    # class -> Declaration
    declaration(cls)
    # class, Signature -> Traced, which holds the ir.Scan and its text
    traced = trace(cls, signature)
    # text of the operator -> LawResults, or a LawError
    ensure(traced.operator)
    return traced


@lru_cache(maxsize=4096)
def backward(
    text: str, wanted: frozenset[str], present: frozenset[str], initial: bool, input_dtypes: tuple[str, ...]
) -> tuple[str, Adjoint]:
    """The adjoint recurrence for the gradients wanted, from the cotangents present."""
    # text -> ir.Scan
    scan = load(text)
    # ir.Scan -> Adjoint, whose ir.Scan runs the other way
    derived = adjoint(scan, wanted, present, initial)
    # a gradient has its input's dtype
    typed = _with_dtypes(derived.scan, dict(zip((i.name for i in scan.inputs), input_dtypes, strict=True)))
    # ir.Scan -> text
    return dump(typed), derived


@lru_cache(maxsize=4096)
def executable(text: str, lowering: str) -> Callable[..., Any]:
    """The function that runs a recurrence on aligned tensors."""
    # text -> ir.Scan
    scan = load(text)
    # ir.Scan -> Python text
    source = module(scan, lowering)
    # Python text -> names
    names = load_module(source)
    run: Callable[..., Any] = names["run"]
    return run


@lru_cache(maxsize=4096)
def states(text: str) -> str:
    """The same recurrence, read out as its states before each step: what a second derivative goes through."""
    scan = load(text)
    builder = Builder(f"{scan.name}.states", scan.axes, where="")
    made = {v.name: builder.input(v.name, v.kind, v.axes) for v in scan.readout.inputs}
    readout = builder.finish({before(s.name): made[before(s.name)] for s in scan.states})
    outputs = tuple(Output(before(s.name), s.kind, scan.order((TIME, *s.axes)), "state") for s in scan.states)
    return dump(replace(scan, name=f"{scan.name}.states", readout=readout, outputs=outputs))


def _with_dtypes(scan: Scan, own: dict[str, str]) -> Scan:
    return replace(scan, outputs=tuple(replace(o, dtype=own[o.dtype]) for o in scan.outputs))
