"""ir.Scan -> ir.Scan: forward mode. The tangents of a recurrence are an affine recurrence beside it.

    dx_t = J_t dx_{t-1} + dF/de_t · de_t,   dy_t = the readout's differential of (dx_t, dx_{t-1}, dinputs_t)

The adjoint is linear in what it starts from, and the adjoint of a linear map is its transpose: that of the
adjoint, taken with respect to its cotangents, is this recurrence, run in the primal's own direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from scanforge.ir.scan import Scan, load
from scanforge.pipeline import Wanted, backward


@dataclass(frozen=True, slots=True)
class Tangent:
    """The tangent scan, and which of its names stand for what of the primal."""

    text: str
    scan: Scan
    states_before: tuple[tuple[str, str], ...]  # primal state -> input of the tangent scan
    inputs: tuple[tuple[str, str], ...]  # primal input -> input, its tangent
    sizes: tuple[tuple[str, str], ...]  # primal output -> input of its shape, where an axis has no other
    outputs: tuple[tuple[str, str], ...]  # primal output -> output, its tangent
    states: tuple[tuple[str, str], ...]  # primal state -> state, its tangent


@lru_cache(maxsize=1024)
def tangent(
    text: str, moving: frozenset[str], input_dtypes: tuple[str, ...], output_dtypes: tuple[str, ...],
    state_dtypes: tuple[str, ...],
) -> Tangent:  # fmt: skip
    """The recurrence of the tangents of all float outputs and states, where these inputs move."""
    scan = load(text)
    floats = frozenset(o.name for o in scan.outputs if o.kind == "float")
    there, down = backward(text, Wanted(moving, floats, True), input_dtypes)
    dtype = dict(zip((i.name for i in scan.inputs), input_dtypes, strict=True))
    of_output = dict(zip((o.name for o in scan.outputs), output_dtypes, strict=True))
    of_state = dict(zip((s.name for s in scan.states), state_dtypes, strict=True))
    dtype |= {name: of_output[output] for output, name in down.cotangents}
    dtype |= {name: of_state[state] for state, name in down.states_before}
    wanted = Wanted(
        frozenset(name for _, name in down.cotangents), frozenset(name for _, name in down.gradients), True
    )
    back, up = backward(there, wanted, tuple(dtype[i.name] for i in load(there).inputs))
    assert not up.states_before, f"{scan.name}: the adjoint is not linear in its state"
    seen, shown, mu = dict(up.cotangents), dict(up.gradients), dict(up.initial)
    read = {i.name for i in up.scan.inputs}
    return Tangent(
        back,
        load(back),
        tuple((state, name) for state, name in down.states_before if name in read),
        tuple((i, seen[g]) for i, g in down.gradients if g in seen),
        tuple((output, name) for output, name in down.cotangents if name in read),
        tuple((output, shown[name]) for output, name in down.cotangents if name in shown),
        tuple((state, mu[name]) for state, name in down.initial if name in mu),
    )
