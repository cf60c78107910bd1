"""One-process runs, kept, and the same on the ranks of a group: outputs, states and every gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import scanforge as sf
from scanforge import distributed
from tests import catalogue, recurrences
from tests.reference.compare import cotangent, many
from tests.tolerances import assert_close, assert_equal

Dims = tuple[str, ...]


@dataclass
class Problem:
    """A call, the dims of its tensors and outputs, and what one process makes of it."""

    name: str
    operator: Any
    tensors: dict[str, Tensor]
    initial: tuple[Tensor, ...]
    dims: dict[str, Dims]
    shown: tuple[Dims, ...]
    exact: bool = False
    reverse: bool = False
    cu_seqlens: Tensor | None = None
    flags: dict[str, Tensor] = field(default_factory=dict)  # reset, mask, lengths
    entering: tuple[Tensor, ...] = ()  # what resets start from
    outputs: tuple[Tensor, ...] = ()
    finals: tuple[Tensor, ...] = ()
    gradients: dict[str, Tensor] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return next(x.shape[d.index("t")] for n, x in self.tensors.items() if "t" in (d := self.dims[n]))

    @property
    def states(self) -> dict[str, Tensor]:
        initial = {f"initial {k}": x for k, x in enumerate(self.initial)}
        return initial | {f"entering {k}": x for k, x in enumerate(self.entering)}

    def flags_of(self, begin: int, end: int) -> dict[str, Tensor]:
        return {n: x if n == "lengths" else x[..., begin:end] for n, x in self.flags.items()}

    def solved(self) -> Problem:
        """With the results of one process."""
        tensors, initial = _fresh(self.tensors), _fresh(self.states)
        outputs, finals = _scan(sf.scan, self, tensors, initial, **self.flags)
        read = [(x, cotangent(x, k)) for k, x in enumerate((*outputs, *finals)) if x.is_floating_point()]
        wanted = {n: x for n, x in (tensors | initial).items() if x.requires_grad}
        xs, gs = zip(*read, strict=True)
        found = torch.autograd.grad(xs, list(wanted.values()), gs)
        self.outputs, self.finals = tuple(x.detach() for x in outputs), tuple(x.detach() for x in finals)
        self.gradients = dict(zip(wanted, found, strict=True))
        return self


def _scan(scan: Any, p: Problem, tensors: Any, states: dict[str, Tensor], **options: Any):
    given, n = tuple(states.values()), len(p.initial)
    start, entering = (x if len(x) > 1 else x[0] if x else None for x in (given[:n], given[n:]))
    outputs, finals = scan(
        p.operator, **tensors, initial_state=start, reset_state=entering, reverse=p.reverse,
        cu_seqlens=p.cu_seqlens, return_final_state=True, **options,
    )  # fmt: skip
    return many(outputs), many(finals)


def _fresh(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        n: x.detach().clone().requires_grad_() if x.is_floating_point() else x for n, x in tensors.items()
    }


def bare(case: catalogue.Case, steps: int, *, reverse: bool = False, cu: list[int] | None = None) -> Problem:
    batch = 2 if cu is None else 1
    tensors, initial = catalogue.draw(case, (batch, steps, 3), seed=steps)
    if cu is not None:
        initial = case.draw_initial(catalogue.generator(1), (len(cu) - 1, 3), torch.float64)
    dims = ("b", "t", "d")
    bounds = None if cu is None else torch.tensor(cu)
    shown = (dims,) * len(case.states)
    return Problem(
        case.name, case.operator, tensors, initial, dict.fromkeys(tensors, dims), shown,
        case.selects, reverse, bounds,
    )  # fmt: skip


def fused(
    entry: recurrences.Entry, steps: int, *, reverse: bool = False, cu: list[int] | None = None
) -> Problem:
    sizes = {"t": steps} | ({} if cu is None else {"b": 1})
    tensors, initial = recurrences.draw(entry, seed=steps, **sizes)
    if cu is not None:
        _, initial = recurrences.draw(entry, seed=1, b=len(cu) - 1)
    dims = {n: tuple(p.axes.split()) for n, p in entry.inputs.items()}
    bounds = None if cu is None else torch.tensor(cu)
    shown = tuple(tuple(o.split()) for o in entry.outputs)
    return Problem(
        entry.name, entry.recurrence, tensors, initial, dims, shown, reverse=reverse, cu_seqlens=bounds
    )


def cut(x: Tensor, dims: Dims, begin: int, end: int) -> Tensor:
    return x.narrow(dims.index("t"), begin, end - begin) if "t" in dims else x


def check_rank(
    p: Problem, shards: list[int], rank: int, group: Any, reduces: bool, **how: str | None
) -> None:
    """This rank's part of a problem equals the one process's run, and so do all gradients; `how` it runs."""
    assert sum(shards) == p.steps
    begin, end = sum(shards[:rank]), sum(shards[: rank + 1])
    place, last = (len(shards) - 1 - rank, rank == 0) if p.reverse else (rank, rank == len(shards) - 1)
    tensors = _fresh({n: cut(x, p.dims[n], begin, end) for n, x in p.tensors.items()})
    initial = _fresh(p.states)
    if place and not reduces:  # not read
        with torch.no_grad():
            for x in initial.values():
                x.fill_(7)
    options = {"group": group, "reduce_gradients": reduces} | how | p.flags_of(begin, end)
    outputs, finals = _scan(distributed.scan, p, tensors, initial, **options)
    what = f"{p.name}, rank {rank} of {shards}{', reversed' if p.reverse else ''}"
    close = assert_equal if p.exact else lambda x, y, w: assert_close(x, y, "forward", w)
    for k, (y, whole) in enumerate(zip(outputs, p.outputs, strict=True)):
        close(y.cpu(), cut(whole, p.shown[k], begin, end), f"{what}: output {k}, {[*p.flags]}")
    for k, (x, whole) in enumerate(zip(finals, p.finals, strict=True)):
        if last:
            close(x.cpu(), whole, f"{what}: final state {k}")
    shares = [
        cut(cotangent(y, k), dims, begin, end) / (1 if "t" in dims else len(shards))
        for k, (y, dims) in enumerate(zip(p.outputs, p.shown, strict=True))
    ]
    shares += [cotangent(x, len(p.outputs) + k) * last for k, x in enumerate(p.finals)]
    read = [(x, g.to(x)) for x, g in zip((*outputs, *finals), shares, strict=True) if x.is_floating_point()]
    wanted = {n: x for n, x in (tensors | initial).items() if x.requires_grad}
    xs, gs = zip(*read, strict=True)
    found = dict(zip(wanted, torch.autograd.grad(xs, list(wanted.values()), gs), strict=True))
    _check_gradients(p, found, begin, end, place, group, reduces, what)


def _check_gradients(p, found, begin, end, place, group, reduces, what) -> None:
    for name, g in found.items():
        whole, dims = p.gradients[name], p.dims.get(name, ())
        if name not in p.dims and place and not reduces:
            assert not g.any(), f"{what}: a gradient of {name}, which is not read"
            continue
        if name in p.dims and "t" not in dims and not reduces:
            dist.all_reduce(g, group=group)
        assert_close(g.cpu(), cut(whole, dims, begin, end), "gradient", f"{what}: gradient of {name}")
