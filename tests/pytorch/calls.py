"""Every operator and recurrence of the catalogues as a function of its float tensors, beside its loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import scanforge as sf
from tests import catalogue, recurrences

F64 = torch.float64
Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Called:
    """`scan(*floats)` and `loop(*floats)` give the float outputs, then the float final states."""

    name: str
    scan: Callable[..., Tensors]
    loop: Callable[..., Tensors]
    floats: Tensors


def many(x) -> Tensors:
    return x if isinstance(x, tuple) else (x,)


def one(x: Tensors):
    return x if len(x) > 1 else x[0]


def smooth(x: Tensor) -> Tensor:
    """Finite, and no two entries tied."""
    return torch.where(x.isfinite(), x, 0.25) + 1e-3 * torch.rand(
        x.shape, generator=catalogue.generator(5)
    ).to(x)


def of_operator(case: catalogue.Case, shape=(2, 4, 3), dtype=F64, **options) -> Called:
    leaves, initial = catalogue.draw(case, shape, dtype)
    names = case.float_leaves
    fixed = {n: x for n, x in leaves.items() if n not in names}
    carried = [k for k, n in enumerate(case.states) if n in case.float_states]

    def split(floats: Tensors):
        states = list(initial)
        for k, x in zip(carried, floats[len(names) :], strict=True):
            states[k] = x
        return fixed | dict(zip(names, floats, strict=False)), tuple(states)

    def shown(outputs, finals) -> Tensors:
        return (*case.float_outputs(many(outputs)), *case.float_outputs(many(finals)))

    def scan(*floats: Tensor) -> Tensors:
        tensors, states = split(floats)
        return shown(
            *sf.scan(case.operator, **tensors, initial_state=one(states), return_final_state=True, **options)
        )

    def loop(*floats: Tensor) -> Tensors:
        return shown(*case.loop(*split(floats), options.get("reverse", False)))

    return Called(
        case.name, scan, loop, (*(smooth(leaves[n]) for n in names), *(smooth(initial[k]) for k in carried))
    )


def of_recurrence(entry: recurrences.Entry, dtype=F64, sizes=recurrences.SIZES, **options) -> Called:
    tensors, initial = recurrences.draw(entry, dtype, **sizes)
    names = [n for n, x in tensors.items() if x.is_floating_point()]
    fixed = {n: x for n, x in tensors.items() if n not in names}

    def split(floats: Tensors):
        return fixed | dict(zip(names, floats, strict=False)), tuple(floats[len(names) :])

    def scan(*floats: Tensor) -> Tensors:
        given, states = split(floats)
        outputs, finals = sf.scan(
            entry.recurrence, **given, initial_state=one(states), return_final_state=True, **options
        )
        return (*many(outputs), *many(finals))

    def loop(*floats: Tensor) -> Tensors:
        outputs, finals = entry.loop(*split(floats), options.get("reverse", False))
        return (*outputs, *finals)

    return Called(entry.name, scan, loop, (*(smooth(tensors[n]) for n in names), *map(smooth, initial)))


def every(**options: object) -> list[Called]:
    """One call of each; `options` go to scan."""
    return [of_operator(case, **options) for case in catalogue.CASES] + [
        of_recurrence(entry, **options) for entry in recurrences.ENTRIES
    ]


def weighed(outputs: Tensors) -> Tensor:
    """A loss that is not linear, and tells outputs apart."""
    return sum(((k + 1) * x.cos()).sum() for k, x in enumerate(outputs))


def with_gradients(function: Callable[..., Tensors], floats: Tensors) -> Tensors:
    """Outputs and gradients of one run."""
    wanted = [x.detach().clone().requires_grad_() for x in floats]
    outputs = function(*wanted)
    found = torch.autograd.grad(weighed(outputs), wanted, materialize_grads=True, allow_unused=True)
    return *(x.detach() for x in outputs), *found


def gradients(function: Callable[..., Tensors], floats: Tensors) -> Tensors:
    return with_gradients(function, floats)[-len(floats) :]
