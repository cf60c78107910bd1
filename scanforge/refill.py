"""The backward pass of expanded states: segment by segment, forward again, then the adjoint.

A forward pass keeps the states before long segments only. The backward pass takes the segments from the last
one on: it runs forward over a segment, keeping the states of every tile in scratch, and then the adjoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from scanforge import pipeline
from scanforge.ir.scan import BATCH, Scan, State, load
from scanforge.pipeline import Wanted
from scanforge.plan import Keep, held_plan
from scanforge.sums import Sums
from scanforge.tile import Tile
from scanforge.views import of_state
from scanforge.work import Views, Work, launch

Tensor = torch.Tensor
NEVER = 1 << 30  # steps: more than there are


def in_segments(
    text: str, wanted: Wanted, work: Work, kept: Sequence[Tensor], keep: Keep, sizes: dict[str, int],
    computed: torch.dtype, best: Tile | None = None,
) -> None:  # fmt: skip
    """Segment by segment, from the last: forward again from the state kept before it, then the adjoint."""
    scan, axis = load(text), pipeline.held_axis(text)
    held = partial(held_plan, pipeline.inside_axes(text), sizes)
    refill, back = (
        partial(pipeline.forward_kernel, pipeline.states_only(text)),
        partial(pipeline.backward_kernel, text, wanted),
    )
    dense = Keep(keep.refill)
    rows = keep.spacing // keep.refill + keep.refill - 1  # the last segment may end within a tile
    rooms = [room(scan, s, x[0], rows, axis) for s, x in zip(scan.states, kept, strict=True)]
    again = states(scan, scan.states, rooms, sizes, over=True)
    spare = states(scan, scan.states, [torch.empty_like(x[0]) for x in kept], sizes)
    passed = [{n: v.like() for n, v in work.starts.items()} for _ in range(2)]
    mu, count, sums = work.starts, keep.rows(work.steps), Sums()
    work = replace(work, sums=sums)
    for k in reversed(range(count)):
        start = k * keep.spacing
        length = min(keep.spacing, work.steps - start)
        part = replace(work.part(start, length, k, 1), kept=again)
        first = {n: v.row(k) for n, v in work.kept.items()}
        forward_part = replace(part, outputs={}, starts=first, ends=spare)
        launch(refill, forward_part, computed, held(length, backward=False), keep=dense)
        after = passed[k % 2] if k else work.ends
        down = held(length, backward=True, best=best)
        launch(back, replace(part, starts=mu, ends=after), computed, down, rows=keep.refill)
        mu = after
    sums.settle()


def fenced(scan: Scan, work: Work, sizes: dict[str, int], axis: str) -> tuple[Work, Keep]:
    """A forward pass without gradients keeps its first state.

    The stores, of which no other is due, stand between the loads of a tile and its arithmetic, so that ptxas
    does not mix them (0.27 ms against 0.44 for the selective SSM on an H200).
    """
    x0 = [v.like().tensor for v in work.starts.values()]
    rooms = [room(scan, s, x, 1, axis) for s, x in zip(scan.states, x0, strict=True)]
    keep = Keep(NEVER, 1)
    return replace(work, kept=states(scan, scan.states, rooms, sizes, over=True)), keep


def room(scan: Scan, state: State, x0: Tensor, rows: int, held: str, *, alone: bool = False) -> Tensor:
    """Room for states, of which the lanes of threads lie side by side: the held axis stands before them.

    With `alone` the rows of all sequences of a batch stand behind each other.
    """
    axes = scan.order(state.axes)
    shape = [1 if alone and a == BATCH else n for a, n in zip(axes, x0.shape, strict=True)]
    if held not in axes:
        return x0.new_empty((rows, *shape))
    at = axes.index(held)
    rest = [n for i, n in enumerate(shape) if i != at]
    return x0.new_empty((rows, shape[at], *rest)).movedim(1, at + 1)


def states(
    scan: Scan,
    states: Sequence[State],
    tensors: Sequence[Tensor],
    sizes: dict[str, int],
    *,
    over: bool = False,
    alone: bool = False,
) -> Views:
    """The views of states, over time or tiles if they are there; `alone` as in `room`."""
    return {
        s.name: of_state(scan, s, t, sizes, over=over, alone=alone)
        for s, t in zip(states, tensors, strict=True)
    }
