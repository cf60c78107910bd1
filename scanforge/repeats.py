"""Functions of tensors that are met, recorded, then replayed: after that nothing is planned anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from scanforge.alike import Key, Likeness, Recent, capturing, is_plain, key_of
from scanforge.launch import LastRun, last_run, ran
from scanforge.replay_text import function_of
from scanforge.tape import Launch, Recorder, recording, watched

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Known:
    """What is not replayed: it was met once, or (`never`) it cannot be."""

    never: bool


ONCE, NEVER = Known(never=False), Known(never=True)


@dataclass(frozen=True, slots=True)
class Plain:
    """What a function did to tensors, as a function of these alone, and what `last_run` says of it."""

    run: Callable[..., Any]
    last: LastRun | None
    like: Likeness | None

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        """Do it again."""
        if self.last is not None:
            ran(self.last)
        return self.run(*tensors)


class Repeats:
    """The records of pure functions of constants and tensors."""

    def __init__(self, size: int) -> None:
        self.known: Recent[Plain | Known] = Recent(size)
        self.newest: Plain | None = None

    def __call__(self, run: Callable[..., Any], head: Key, values: Sequence[Any]) -> Any:
        """`run(*values)`; it depends on the head, and on the values' numbers no other way than kernels do.

        Values are tensors and None; what is returned is a tuple of tensors and None.
        """
        if recording() is not None or not is_plain():
            return run(*values)
        newest = self.newest
        if newest is not None and newest.like is not None:
            again = newest.like.tensors_of(head, values)
            if again is not None:
                return newest(again)
        tensors: list[Tensor] = []
        key = key_of(head, values, tensors)
        if key is None:
            return run(*values)
        found = self.known.get(key)
        if isinstance(found, Plain):
            self.newest = found
            return found(tensors)
        if found is None or found.never or capturing(tensors):
            self.known.put(key, found or ONCE)
            return run(*values)
        recorder, result = recorded(lambda own: run(*with_tensors(values, own)), tensors, gradient=False)
        self.known.put(key, plain(recorder, Likeness.of(head, values)) or NEVER)
        return result

    def forget(self) -> None:
        """Drop all."""
        self.known.clear()
        self.newest = None


def with_tensors(values: Iterable[Any], tensors: Iterable[Tensor]) -> list[Any]:
    """The values with other tensors in the places of theirs."""
    rest = iter(tensors)
    return [
        next(rest) if isinstance(x, Tensor) else type(x)(with_tensors(x, rest)) if _nests(x) else x
        for x in values
    ]


def _nests(x: object) -> bool:
    return type(x) is tuple or type(x) is list


def recorded(
    run: Callable[[Iterable[Tensor]], Any], tensors: Sequence[Tensor], *, gradient: bool
) -> tuple[Recorder, Any]:
    """The recorder, and what was given. Objects of its own stand for the tensors, two of which may be one."""
    own = [x.detach().requires_grad_(x.requires_grad) for x in tensors]
    recorder = Recorder(own, gradient=gradient)
    with watched(recorder):
        result = run(own)
        recorder.ends(result)
    return recorder, _given(result, {id(mine): x for mine, x in zip(own, tensors, strict=True)})


def _given(result: Any, own: dict[int, Tensor]) -> Any:
    if isinstance(result, Tensor):
        return own.get(id(result), result)
    return tuple(_given(x, own) for x in result) if _nests(result) else result


def plain(recorder: Recorder, like: Likeness | None) -> Plain | None:
    """What was recorded without gradients, unless it cannot be replayed."""
    return Plain(function_of(recorder.tapes[0]), last_run(), like) if is_whole(recorder) else None


def is_whole(recorder: Recorder) -> bool:
    """Whether the tapes tell all that was done, and there is a launch in it."""
    launches = any(isinstance(s, Launch) for tape in recorder.tapes for s in tape.steps)
    return launches and not recorder.trouble and not any(tape.lacks() for tape in recorder.tapes)
