"""Checks of arguments: a ValueError names the class, the argument, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

Tensor = torch.Tensor


def positive(where: str, **sizes: int) -> None:
    """Every size is an int of at least 1."""
    for name, n in sizes.items():
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ValueError(f"{where}: {name}={n!r} is no size: write an int of at least 1.")


def one_of(where: str, name: str, value: object, allowed: Collection[object]) -> None:
    """`value` is one of the `allowed` ones."""
    if value not in allowed:
        shown = ", ".join(map(repr, allowed))
        raise ValueError(f"{where}: {name}={value!r} is unknown, and the choices are {shown}.")


def divides(where: str, part: tuple[str, int], whole: tuple[str, int]) -> None:
    """The part divides the whole; each is (name, value)."""
    if whole[1] % part[1]:
        raise ValueError(
            f"{where}: {part[0]}={part[1]} does not divide {whole[0]}={whole[1]}: choose a divisor."
        )


def between(where: str, name: str, value: float, low: float, high: float) -> None:
    """low <= value <= high"""
    if not low <= value <= high:
        raise ValueError(f"{where}: {name}={value!r} is outside of [{low:g}, {high:g}].")


def sequence(where: str, x: Tensor, width: int) -> None:
    """x has shape (B, T, width)."""
    if x.ndim != 3 or x.shape[-1] != width:
        raise ValueError(f"{where}: x has shape {tuple(x.shape)}, expected (B, T, {width}).")


def token(where: str, x_t: Tensor, width: int) -> None:
    """x_t has shape (B, width)."""
    if x_t.ndim != 2 or x_t.shape[-1] != width:
        raise ValueError(f"{where}: x_t has shape {tuple(x_t.shape)}, expected (B, {width}).")


def state(where: str, name: str, value: object, shape: Sequence[int]) -> Tensor:
    """The state tensor `name` of exactly this shape."""
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{where}: state {name!r} is a {type(value).__name__}, expected a tensor of shape "
            f"{tuple(shape)}: pass what forward, step or initial_state returned."
        )
    if tuple(value.shape) != tuple(shape):
        raise ValueError(
            f"{where}: state {name!r} has shape {tuple(value.shape)}, expected {tuple(shape)}: pass what "
            "forward, step or initial_state returned for this batch."
        )
    return value


def states(where: str, given: object, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """A layer's state: a dict of exactly these tensors."""
    if not isinstance(given, dict) or set(given) != set(shapes):
        got = sorted(given) if isinstance(given, dict) else type(given).__name__
        raise ValueError(
            f"{where}: state is {got}, expected a dict with {sorted(shapes)}: pass what forward, step or "
            "initial_state returned."
        )
    return {name: state(where, name, given[name], shape) for name, shape in shapes.items()}


def tokens(where: str, given: object, name: str = "tokens") -> None:
    """Tokens (B, T) of an integer type."""
    if not isinstance(given, Tensor) or given.ndim != 2 or given.dtype not in (torch.int64, torch.int32):
        got = f"{given.dtype} {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(f"{where}: {name} is {got}, expected int64 of shape (B, T).")
