"""What one rank does that passes lanes on, where there is no other: its groups, one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import scanforge as sf
from scanforge import launch_triton
from scanforge.distributed.forms import Cut
from scanforge.distributed.passing import Passing
from scanforge.distributed.ranks import Ranks
from scanforge.distributed.shard import Shard
from scanforge.prepared import prepare
from tests import recurrence_declarations as declared
from tests.tolerances import assert_close

Draw = Callable[..., Tensor]


def in_groups(
    operator: Any, axis: str, width: int, lowering: str | None = None, backend: str = "triton",
    **tensors: Tensor,
):  # fmt: skip
    """Outputs and final states of a call in groups of `width` lanes along an axis."""
    call = prepare(operator, tensors, None)
    size = call.sizes[axis]
    ranks = Ranks(operator.__name__, None, 0, 1, reverse=False)  # type: ignore[arg-type]
    options = Shard(ranks, "", backend, lowering).options(call)
    return Passing(ranks, Cut(axis, (*range(0, size, width), size)), options).results(call)


def assert_whole(
    operator: Any, axis: str, width: int, lowering: str, *, exact: bool = True, **tensors: Tensor
) -> str:
    """Groups give what the whole call gives, in one tensor each; the lowering that ran.

    `exact`: bit for bit, but for sums over lanes. Plans for a GPU may compose steps in another order.
    """
    one, other = (
        {n: x.clone().requires_grad_(x.is_floating_point()) for n, x in tensors.items()} for _ in "12"
    )
    (y,), (h,) = in_groups(operator, axis, width, lowering, **one)
    z, k = sf.scan(operator, **other, return_final_state=True, backend="triton", lowering=lowering)
    ran = sf.last_run()
    assert ran is not None
    g = torch.Generator(device=z.device).manual_seed(1)
    weights = [torch.randn(x.shape, generator=g, device=x.device).to(x.dtype) for x in (z, k)]
    torch.autograd.backward([y, h], weights)
    torch.autograd.backward([z, k], weights)
    found = {"y": (y, z), "h": (h, k)} | {n: (x.grad, other[n].grad) for n, x in one.items()}
    for n, (got, truth) in found.items():
        assert got.is_contiguous(), n
        assert got.dtype == truth.dtype, n
        if exact and n in {"y", "h"}:
            assert torch.equal(got, truth), n
        assert_close(got, truth, "gradient", n, dtype=y.dtype)
    return ran.plan.lowering


def matrices(steps: int, heads: int, dtype: torch.dtype, draw: Draw = torch.randn) -> dict[str, Tensor]:
    """HGRN2's tensors."""
    q, f, v = (draw(1, steps, heads, 16).to(dtype) for _ in "qfv")
    return {"q": q, "f": f, "v": v, "lower": draw(heads, 16).sigmoid()}


def channels(steps: int, lanes: int, dtype: torch.dtype, draw: Draw = torch.randn) -> dict[str, Tensor]:
    """The selective SSM's tensors, of which groups of lanes share B and C."""
    u, dt = draw(1, steps, lanes).to(dtype), draw(1, steps, lanes).sigmoid().to(dtype)
    B, C = draw(1, steps, 4).to(dtype), draw(1, steps, 4).to(dtype)
    return {"u": u, "dt": dt, "B": B, "C": C, "A": -draw(lanes, 4).exp(), "D": draw(lanes)}


def pairs(steps: int, lanes: int, dtype: torch.dtype, draw: Draw = torch.randn) -> dict[str, Tensor]:
    """An affine scan's tensors."""
    return {"a": draw(1, steps, lanes).sigmoid().to(dtype), "b": draw(1, steps, lanes).to(dtype)}


KINDS = {
    "affine": (sf.Affine, "d", pairs),
    "ssm": (declared.SelectiveSSM, "d", channels),
    "hgrn2": (declared.HGRN2, "h", matrices),
}


class Plans:
    """How often kernels were planned, not replayed, since it was made."""

    def __init__(self, monkeypatch: Any) -> None:
        self.forward = self.backward = 0
        for name in ("forward", "backward"):
            monkeypatch.setattr(launch_triton, name, self._counted(name, getattr(launch_triton, name)))

    def _counted(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def planned(*args: Any, **options: Any) -> Any:
            setattr(self, name, getattr(self, name) + 1)
            return run(*args, **options)

        return planned
