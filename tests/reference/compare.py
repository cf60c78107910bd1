"""Run a case through scanforge and through the sequential loop, forward and backward, and compare."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import scanforge as sf
from tests.catalogue import Case, generator
from tests.tolerances import assert_close, assert_equal

LOWERINGS = ("loop", "parallel")


@dataclass(frozen=True)
class Outcome:
    """States and final states in declared order; the gradient of each float leaf and initial state."""

    states: tuple[Tensor, ...]
    finals: tuple[Tensor, ...]
    gradients: dict[str, Tensor]


@dataclass(frozen=True)
class Loss:
    """Which outputs the loss reads: indices into the float states, and into their final states."""

    states: tuple[int, ...] = (0,)
    finals: tuple[int, ...] = ()


def many(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tuple that scan returns, also where there is one state."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


def wide(x: Tensor) -> Tensor:
    """A detached copy in double precision; integers and bools as they are."""
    if x.is_complex():
        return x.detach().to(torch.complex128)
    return x.detach().double() if x.is_floating_point() else x.detach()


def cotangent(like: Tensor, seed: int) -> Tensor:
    """A fixed random cotangent for an output of this shape, representable in 16 bits."""
    g = generator(seed)
    real = torch.randint(-16, 17, like.shape, generator=g).double() / 8
    if not like.is_complex():
        return real
    return torch.complex(real, torch.randint(-16, 17, like.shape, generator=g).double() / 8)


def differentiable(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Leaves of a new graph; integers and bools as they are."""
    return {
        name: x.detach().clone().requires_grad_() if x.is_floating_point() or x.is_complex() else x
        for name, x in tensors.items()
    }


def differentiate(
    case: Case, outputs, loss: Loss, inputs: dict[str, Tensor], missing: bool
) -> dict[str, Tensor]:
    """The gradients of the loss; with `missing`, torch may have none for an input, and it counts as 0."""
    states, finals = outputs
    read = [case.float_outputs(states)[i] for i in loss.states]
    read += [case.float_outputs(finals)[i] for i in loss.finals]
    cotangents = [cotangent(x, seed).to(x.dtype) for seed, x in enumerate(read)]
    wanted = {name: x for name, x in inputs.items() if x.requires_grad}
    if missing:
        pairs = [(x, c) for x, c in zip(read, cotangents, strict=True) if x.requires_grad]
        read, cotangents = [list(column) for column in zip(*pairs, strict=True)] if pairs else ([], [])
        if not read:
            return {name: torch.zeros_like(x) for name, x in wanted.items()}
    found = torch.autograd.grad(
        read, list(wanted.values()), cotangents, allow_unused=missing, materialize_grads=missing
    )
    return dict(zip(wanted, found, strict=True))


def named_initial(case: Case, initial: tuple[Tensor, ...] | None) -> dict[str, Tensor]:
    return {} if initial is None else {f"initial {n}": x for n, x in zip(case.states, initial, strict=True)}


def expected(case: Case, leaves, initial, loss: Loss, reverse: bool = False) -> Outcome:
    """The loop's outcome in float64."""
    tensors = differentiable({name: wide(x) for name, x in leaves.items()})
    start = differentiable(named_initial(case, initial and tuple(wide(x) for x in initial)))
    states, finals = case.loop(tensors, tuple(start.values()) or None, reverse)
    gradients = differentiate(case, (states, finals), loss, tensors | start, missing=True)
    return Outcome(states, finals, gradients)


def actual(case: Case, leaves, initial, loss: Loss, reverse: bool = False, **options) -> Outcome:
    """scanforge's outcome; `options` go to scan."""
    tensors, start = differentiable(leaves), differentiable(named_initial(case, initial))
    first = tuple(start.values()) if len(start) > 1 else next(iter(start.values()), None)
    states, finals = sf.scan(
        case.operator, **tensors, initial_state=first, reverse=reverse, return_final_state=True, **options
    )
    outputs = many(states), many(finals)
    return Outcome(*outputs, differentiate(case, outputs, loss, tensors | start, missing=False))


def assert_same_values(case: Case, got: Outcome, truth: Outcome, quantity: str = "forward") -> None:
    """States and finals agree: bit for bit where the operator selects, else within the table."""
    for label, xs, ys in (("states", got.states, truth.states), ("final", got.finals, truth.finals)):
        if case.vector:
            assert_close(torch.stack(xs), torch.stack(ys), quantity, f"{case.name} {label}")
            continue
        for name, x, y in zip(case.states, xs, ys, strict=True):
            if case.selects or name not in case.float_states:
                assert_equal(x, y, f"{case.name} {label} {name}")
            else:
                assert_close(x, y, quantity, f"{case.name} {label} {name}")


def assert_same_gradients(case: Case, got: Outcome, truth: Outcome, quantity: str = "gradient") -> None:
    assert got.gradients.keys() == truth.gradients.keys()
    for name, x in got.gradients.items():
        assert_close(x, truth.gradients[name], quantity, f"{case.name} gradient of {name}")


def assert_same(case: Case, leaves, initial, loss: Loss, reverse: bool = False, **options) -> Outcome:
    """scanforge's outcome, once it agrees with the loop's."""
    got, truth = (
        actual(case, leaves, initial, loss, reverse, **options),
        expected(case, leaves, initial, loss, reverse),
    )
    assert_same_values(case, got, truth)
    assert_same_gradients(case, got, truth)
    return got
