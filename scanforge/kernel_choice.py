"""(recurrence, sizes, options, a tensor) -> KernelPlan: which lowering a call's kernels are of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

import torch

from scanforge import dtypes, pipeline
from scanforge.chunked_choice import form_of
from scanforge.errors import ArgumentError
from scanforge.ir.scan import TIME, is_batch, load
from scanforge.launch import Options
from scanforge.pipeline import Wanted
from scanforge.plan import Choice, KernelPlan, kernel_plan
from scanforge.shipped import OF_RING
from scanforge.tile import Composed
from scanforge.work import at_once

Tensor = torch.Tensor


def like_of(tensors: Sequence[Tensor], bounds: object) -> Tensor | None:
    """A tensor of a call, which tells where it runs; None where sequences are packed."""
    return tensors[0] if bounds is None else None


def kernel_choice(
    text: str, sizes: dict[str, int], options: Options, like: Tensor | None, best: Choice | None = None,
    wanted: Wanted | None = None,
) -> tuple[KernelPlan, Composed | None]:  # fmt: skip
    """The plan of a pass, backward if gradients are `wanted`, and what its groups compose.

    Where a tensor `like` the call's lies, programs may be able to wait for each other: by plan they share
    lanes where there is room for two of each.
    """
    composed = pipeline.composed(text, wanted)
    ring = options.dtype == torch.float32 and _over_lanes(text)
    room = at_once(like) if composed and ring and like is not None else 0
    enough = room >= (1 if options.lowering else 2 * _programs(text, sizes))
    said = composed.leaves if composed and enough else 0
    inside = pipeline.inside_axes(text).axes
    forced = "" if options.lowering == "ring" and not said else options.lowering  # of an adjoint alone
    chosen = kernel_plan(load(text), sizes, forced, inside, best, said=said)
    return chosen, composed and Composed(composed.leaves, composed.special, chosen.plan.lowering == "ring")


def can_ring(text: str) -> bool:
    """Whether a recurrence may run as a ring, where programs can wait for each other."""
    return pipeline.composed(text) is not None and _over_lanes(text)


@cache
def _over_lanes(text: str) -> bool:
    """Whether outputs over time, and gradients, have all lanes: sums over some are added up in one warp."""
    scan = load(text)
    wanted = {a for a in scan.lanes if not is_batch(a)}
    shown = [o.axes for o in scan.outputs] + [i.axes for i in scan.inputs if i.kind == "float"]
    return all(wanted <= {*axes} for axes in shown if TIME in axes)


def _programs(text: str, sizes: dict[str, int]) -> int:
    """How many programs have all lanes, of contiguous tensors: a block of 32 lanes lies in one batch."""
    lanes = load(text).lanes
    batches = prod(sizes[a] for a in lanes if is_batch(a))
    others = prod(sizes[a] for a in lanes if not is_batch(a))
    return batches * -(-others // 32) if others > 1 else -(-batches // 32)


def check_ring(name: str, text: str, computed: torch.dtype, like: Tensor, *, packed: bool) -> None:
    """Raise ArgumentError where lowering="ring" is asked for and does not apply."""
    if packed:
        reason = "sequences are packed, and each would have programs of its own"
    elif computed != torch.float32:
        reason = f"its programs tell each other numbers of float32, and these are {dtypes.name(computed)}"
    elif not can_ring(text):
        reason = (
            "its programs compose floats lane by lane, and a step has others, as resets are, or sums over "
            "an axis"
        )
    elif not at_once(like):
        room = f"an NVIDIA GPU with {OF_RING} bytes of shared memory a processor"
        reason = f"its programs wait for each other on {room}, and the tensors are on {like.device}"
    else:
        return
    raise ArgumentError(
        f"{name}: lowering='ring' does not apply, since {reason}. Write lowering='ordered_tile' or 'split', "
        "or leave lowering out."
    )


def is_fresh(
    text: str, sizes: dict[str, int], options: Options, like: Tensor | None, best: Choice | None = None,
    wanted: Wanted | None = None,
) -> bool:  # fmt: skip
    """Whether the first kernel may write sums over time, to which no other one adds: time is not cut."""
    if 0 in sizes.values() or form_of(text, sizes, options, packed=like is None):
        return False
    return kernel_choice(text, sizes, options, like, best, wanted)[0].chunks is None
