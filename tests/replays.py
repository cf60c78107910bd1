"""A replayed call against the same call as a first one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from scanforge import api, launch_triton, replay

CALLS = 3  # met, recorded, replayed

Given = dict[str, Tensor]


@contextmanager
def only_replays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing plans inside."""

    def planned(*_: Any, **__: Any) -> None:
        raise AssertionError("this call was planned anew")

    with monkeypatch.context() as patch:
        for name in ("forward", "backward", "allocate"):
            patch.setattr(launch_triton, name, planned)
        patch.setattr(api, "prepare", planned)
        yield


def results(call: Callable[[Given], Any], given: Given) -> tuple[Tensor, ...]:
    """What a call gives, flat, and the gradients of all that asks for one."""
    shown = flat(call(given))
    wanted = [x for x in given.values() if x.requires_grad]
    if not wanted or not torch.is_grad_enabled():
        return tuple(x.clone() for x in shown)
    read = [x for x in shown if x.requires_grad]
    slopes = torch.autograd.grad(read, wanted, [torch.ones_like(x) * 0.5 for x in read], allow_unused=True)
    return (*(x.detach().clone() for x in shown), *(g for g in slopes if g is not None))


def flat(x: Any) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else [y for part in x for y in flat(part)]


def assert_replays(monkeypatch, call: Callable[[Given], Any], make: Callable[[int], Given]) -> None:
    """The call on new numbers, replayed, equals the same call as a first one."""
    for seed in range(CALLS):
        results(call, make(seed))
    with only_replays(monkeypatch):
        got = results(call, make(7))
    replay.forget()
    want = results(call, make(7))
    assert len(got) == len(want)
    assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(got, want, strict=True))
    assert all(x.is_contiguous() == y.is_contiguous() for x, y in zip(got, want, strict=True))
