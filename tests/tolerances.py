"""The one table of tolerances: a bound for each dtype and quantity, with the reason for its width.

`err(x, y) = norm(x - y) / norm(y)`, with y from the sequential loop in float64 on the same (upcast) inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bound:
    """A relative error, and why no smaller one holds."""

    value: float
    reason: str


F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16

TOLERANCES = {
    (F64, "forward"): Bound(1e-12, "2^-53 times a few thousand roundings of gates with modulus at most 1"),
    (F64, "gradient"): Bound(1e-12, "as forward: the adjoint is an affine scan with the same gates"),
    (F64, "long"): Bound(1e-10, "tens of thousands of steps that forget nothing, or a map that amplifies"),
    (F32, "forward"): Bound(2e-6, "2^-24 = 6e-8 times the steps that a gate near 1 remembers"),
    (F32, "gradient"): Bound(1e-5, "as forward, twice: it multiplies a rounded state by a rounded cotangent"),
    (BF16, "forward"): Bound(4e-3, "one rounding of a float32 state: half a unit in the last place, 2^-8"),
    (BF16, "gradient"): Bound(1e-2, "two of them and some: the state that it reads may have been rounded"),
    (F16, "forward"): Bound(5e-4, "one rounding of a float32 state: half a unit in the last place, 2^-11"),
    (F16, "gradient"): Bound(1.25e-3, "two of them and some: the state that it reads may have been rounded"),
}

REAL = {torch.complex128: F64, torch.complex64: F32}


def err(x: Tensor, y: Tensor) -> float:
    """Relative distance of x from the truth y. Equal infinities are no distance; a NaN is a NaN."""
    if x.shape != y.shape:
        return float("inf")
    wide = torch.complex128 if y.is_complex() else F64
    x, y = x.detach().to(wide), y.detach().to(wide)
    gap = torch.where(x == y, 0, x - y).norm().item()
    size = torch.where(y.isfinite(), y, 0).norm().item()
    return gap / size if size else gap


def assert_close(
    x: Tensor, y: Tensor, quantity: str, what: str = "", dtype: torch.dtype | None = None
) -> None:
    """x is as near to the truth y as the table asks of its dtype (or of `dtype`)."""
    kind = REAL.get(dtype or x.dtype, dtype or x.dtype)
    bound = TOLERANCES[kind, quantity]
    assert x.shape == y.shape, f"{what}: shape {tuple(x.shape)}, expected {tuple(y.shape)}"
    gap = err(x, y)
    assert gap <= bound.value, (
        f"{what}: error {gap:.3g} in {kind}, allowed {bound.value:.0e} ({bound.reason})"
    )


def assert_equal(x: Tensor, y: Tensor, what: str = "") -> None:
    """Equal bit for bit but for the dtype of the truth: y is exact in x's dtype, and NaN equals NaN."""
    assert x.shape == y.shape, f"{what}: shape {tuple(x.shape)}, expected {tuple(y.shape)}"
    assert torch.equal(x.detach().nan_to_num(nan=1e30), y.detach().to(x.dtype).nan_to_num(nan=1e30)), (
        f"{what}: {x} is not {y}"
    )
