"""(scan, sizes, device) -> Plan: which lowering runs, and what is kept for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from scanforge.errors import ArgumentError
from scanforge.ir.scan import TIME, Scan

LOWERINGS = ("loop", "parallel")


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run, as data."""

    backend: str
    lowering: str
    why: str


def plan(scan: Scan, sizes: dict[str, int], lowering: str = "") -> Plan:
    """The plan of the reference backend; `lowering` forces one."""
    if lowering:
        return Plan("reference", lowering, "forced by lowering=")
    steps = sizes[TIME]
    lanes = prod(sizes[a] for a in scan.lanes)
    if not scan.states or steps < PARALLEL_STEPS:
        return Plan("reference", "loop", f"{steps} steps are few")
    if lanes > PARALLEL_LANES:
        return Plan("reference", "loop", f"{lanes} lanes fill a step's tensor operations")
    return Plan("reference", "parallel", f"{steps} steps of only {lanes} lanes")


PARALLEL_STEPS, PARALLEL_LANES = (
    64,
    1024,
)  # measured on two cores: beyond, a step is bound by bytes, not calls


def check_lowering(lowering: str | None) -> str:
    """The name of a lowering, empty for none."""
    if lowering is None:
        return ""
    if lowering not in LOWERINGS:
        names = " or ".join(repr(n) for n in LOWERINGS)
        raise ArgumentError(
            f"lowering={lowering!r} is not a lowering of the reference backend: write {names}."
        )
    return lowering


def state_outputs(scan: Scan) -> dict[str, str]:
    """The states that an output of full axes hands out as they are: state -> output."""
    states = {s.name: s for s in scan.states}
    outputs = {o.name: o for o in scan.outputs}
    found: dict[str, str] = {}
    for output, variable in scan.readout.outputs:
        if variable in states and set(outputs[output].axes) == {TIME, *states[variable].axes}:
            found.setdefault(variable, output)
    return found
