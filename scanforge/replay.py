"""A call like one before: what that did to tensors is done again, and nothing is checked or planned anew.

Two calls are alike if the class, all that its methods read, the options, and every tensor's shape, strides,
dtype, device, alignment and wish for a gradient are the same. The first goes its way, the second is recorded
on the way, and from the third on the record is replayed. Whatever is not plain (a transform of torch.func, a
mode that watches operations, a tensor of a class of its own) goes the full way every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar, cast

import torch

from scanforge.alike import Key, Likeness, Recent, capturing, is_plain, key_of
from scanforge.captured import watch
from scanforge.ir.scan import load
from scanforge.launch import LastRun, last_run, ran
from scanforge.laws import law_check
from scanforge.library import OPS
from scanforge.op import Call, gradients
from scanforge.repeats import NEVER, ONCE, Known, Plain, Repeats, is_whole, plain, recorded, with_tensors
from scanforge.replay_text import function_of
from scanforge.tape import Recorder
from scanforge.watch import Watch

Tensor = torch.Tensor
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Watched:
    """A call without gradients, for as long as the class is what it was."""

    watch: Watch
    plain: Plain
    like: Likeness | None

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        """Do it again."""
        return self.plain(tensors)


@dataclass(frozen=True, slots=True)
class Differentiable:
    """A call with gradients: what comes before autograd's function of it, inside, and after."""

    watch: Watch
    like: Likeness | None
    last: LastRun
    call: Call
    inputs: int  # real inputs and initial states
    packed: bool  # the tensor behind them is the bounds of packed sequences
    before: Callable[..., Any]
    inside: Callable[..., Any]
    after: Callable[..., Any]
    shown: int  # of the results; the others are kept for the backward pass
    fixed: tuple[int, ...]  # results that have no gradient
    kept: tuple[int, ...]  # results that the backward pass reads
    backwards: Repeats = field(default_factory=lambda: Repeats(64))

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        """Do it again."""
        ran(self.last)
        return self.after(*_replayed(self, *self.before(*tensors)))

    def gradients(
        self, saved: Sequence[Tensor], cotangents: Sequence[Tensor | None], needs: tuple[bool, ...],
        bounds: Tensor | None,
    ) -> Sequence[Tensor | None]:  # fmt: skip
        """Those of the real inputs and initial states."""
        count = len(saved)

        def run(*values: Any) -> tuple[Tensor | None, ...]:
            *tensors, last = values
            call = self.call if last is None else replace(self.call, bounds=last)
            return tuple(gradients(call, tensors[:count], tensors[count:], list(needs)))

        values = (*saved, *cotangents, bounds)
        found: Sequence[Tensor | None]
        found = run(*values) if torch.is_grad_enabled() else self.backwards(run, needs, values)
        return found


class _Replayed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, entry: Differentiable, *tensors: Tensor) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = entry.inside(*tensors)
        ctx.entry = entry
        ctx.set_materialize_grads(False)
        if entry.fixed:
            ctx.mark_non_differentiable(*[results[k] for k in entry.fixed])
        ctx.bounds = tensors[-1] if entry.packed else None  # beside what a recomputation compares
        ctx.save_for_backward(*tensors[: entry.inputs], *[results[k] for k in entry.kept])
        return results[: entry.shown]

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        entry: Differentiable = ctx.entry
        needs = ctx.needs_input_grad[1:]
        found = entry.gradients(ctx.saved_tensors, cotangents, needs[: entry.inputs], ctx.bounds)
        return (None, *found, *([None] * entry.packed))


# What autograd.Function.apply ends in: torch.func, which it looks for first, is not at work in a replay.
_replayed: Any = super(torch.autograd.Function, _Replayed).apply

Entry = Watched | Differentiable
_CALLS: Recent[Entry | Known] = Recent(2048)
_NEWEST: dict[tuple[Any, type], Entry] = {}  # of each function and class, for as many as are in use
_CLASSES = 512


def forget() -> None:
    """Drop every record. Calls are checked and planned anew."""
    _CALLS.clear()
    _NEWEST.clear()
    OPS.forget()


def replayed(run: F) -> F:
    """The function of a class and tensors, which replays calls like those before."""

    @wraps(run)
    def face(operator: Any, /, *unnamed: Any, **keywords: Any) -> Any:
        if not is_plain() or not isinstance(operator, type):
            return run(operator, *unnamed, **keywords)
        head, values = (law_check(), *keywords), (*unnamed, *keywords.values())
        newest = _NEWEST.get((run, operator))
        if newest is not None and newest.like is not None:
            again = newest.like.tensors_of(head, values)
            if again is not None and newest.watch.holds():
                return newest(again)
        tensors: list[Tensor] = []
        key = _call_key((run, operator, *head), keywords, values, tensors)
        if key is None:
            return run(operator, *unnamed, **keywords)
        found = _CALLS.get(key)
        if found is None or isinstance(found, Known):
            if found is ONCE and not capturing(tensors):
                return _record(key, run, operator, unnamed, keywords, tensors)
            _CALLS.put(key, found or ONCE)
        elif found.watch.holds():
            _keep_newest(run, operator, found)
            return found(tensors)
        else:
            _CALLS.put(key, ONCE)
        return run(operator, *unnamed, **keywords)

    return cast("F", face)


def _keep_newest(run: Any, operator: type, entry: Entry) -> None:
    if len(_NEWEST) >= _CLASSES:
        _NEWEST.clear()
    _NEWEST[run, operator] = entry


def _call_key(
    head: Key, keywords: dict[str, Any], values: Sequence[Any], tensors: list[Tensor]
) -> Key | None:
    """What calls must have in common to be alike; None for one that is not plain, or not for kernels."""
    key = key_of(head, values, tensors)
    if key is None or not tensors or not (tensors[0].is_cuda or keywords.get("backend") == "triton"):
        return None
    bounds = keywords.get("cu_seqlens")  # of a CPU are looked at, every time
    return None if bounds is not None and not bounds.is_cuda else key


def _record(
    key: Key, run: Any, operator: Any, unnamed: tuple[Any, ...], keywords: dict[str, Any],
    tensors: list[Tensor],
) -> Any:  # fmt: skip
    """Run, and keep how it is replayed."""
    seen = watch(operator)
    if seen is None:
        _CALLS.put(key, NEVER)
        return run(operator, *unnamed, **keywords)
    gradient = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)

    def same(given: Iterable[Tensor]) -> Any:
        rest = iter(given)
        return run(
            operator,
            *with_tensors(unnamed, rest),
            **dict(zip(keywords, with_tensors(keywords.values(), rest), strict=True)),
        )

    recorder, result = recorded(same, tensors, gradient=gradient)
    like = Likeness.of((law_check(), *keywords), (*unnamed, *keywords.values()))
    entry = _entry(recorder, seen, like)
    _CALLS.put(key, entry or NEVER)
    if not gradient:
        return result
    del result  # before room for another is asked for
    return run(operator, *unnamed, **keywords) if entry is None else entry(tensors)


def _entry(recorder: Recorder, seen: Watch, like: Likeness | None) -> Entry | None:
    if not recorder.gradient:
        run = plain(recorder, None)
        return None if run is None else Watched(seen, run, like)
    if not is_whole(recorder) or len(recorder.tapes) != 3:
        return None
    before, inside, after = map(function_of, recorder.tapes)
    last = last_run()
    assert last is not None
    (call,) = recorder.notes
    packed = call.bounds is not None
    shown, outputs = recorder.tapes[2].given, len(load(call.text).outputs)
    results = [recorder.tapes[1].tensors[ref.index] for ref in recorder.tapes[1].returned]
    return Differentiable(
        seen,
        like,
        last,
        replace(call, bounds=None),
        recorder.tapes[1].given - packed,
        packed,
        before,
        inside,
        after,
        shown,
        tuple(k for k in range(shown) if not results[k].dtype.is_floating_point),
        (*range(outputs), *range(shown, len(results))),
    )
