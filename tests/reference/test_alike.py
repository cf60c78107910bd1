"""A likeness lets through what has the same key, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor

import scanforge as sf
from scanforge import replay
from scanforge.alike import Likeness, key_of
from tests.launches import Launches
from tests.recurrences import BY_NAME, draw


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype)


def shifted(by: int) -> Tensor:
    return x(64)[by : by + 24].view(2, 3, 4)


GIVEN: dict[str, Callable[[], tuple[Any, ...]]] = {
    "two tensors": lambda: (x(2, 3, 4), x(4)),
    "another shape": lambda: (x(2, 4, 3), x(4)),
    "other strides": lambda: (x(2, 4, 3).mT, x(4)),
    "strides of a size of 1": lambda: (x(2, 3, 4), x(1).expand(4)),
    "another dtype": lambda: (x(2, 3, 4), x(4, dtype=torch.float64)),
    "a wish for a gradient": lambda: (x(2, 3, 4), x(4).requires_grad_()),
    "a parameter": lambda: (x(2, 3, 4), torch.nn.Parameter(x(4), requires_grad=False)),
    "a view that negates": lambda: (torch._neg_view(x(2, 3, 4)), x(4)),
    "at 4 bytes": lambda: (shifted(1), x(4)),
    "at 16 bytes": lambda: (shifted(4), x(4)),
    "on no device": lambda: (x(2, 3, 4).to("meta"), x(4)),
    "an option before": lambda: (True, x(2, 3, 4), x(4)),
    "an option between": lambda: (x(2, 3, 4), True, x(4)),
    "another option": lambda: (x(2, 3, 4), 1, x(4)),
    "None": lambda: (x(2, 3, 4), None, x(4)),
    "None for a tensor": lambda: (x(2, 3, 4), None),
    "a list of tensors": lambda: ([x(2, 3, 4)], x(4)),
    "one tensor": lambda: (x(2, 3, 4),),
    "three": lambda: (x(2, 3, 4), x(4), x(4)),
    "an object": lambda: (x(2, 3, 4), object()),
}
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain": nullcontext,
    "no gradients": torch.no_grad,
    "autocast": partial(torch.autocast, "cpu"),
    "inference": torch.inference_mode,
}


NONE = {"a view that negates", "at 4 bytes", "a list of tensors", "an object"}


@pytest.mark.parametrize("known", GIVEN)
def test_alike_is_what_has_one_key(known):
    """The other way round it is not: a parameter may have the key of a tensor."""
    head, first = ("names",), GIVEN[known]()
    key = key_of(head, first, [])
    like = None if key is None else Likeness.of(head, first)
    assert (like is None) == (known in NONE)
    if like is None:
        return
    for name, make in GIVEN.items():
        for mode, enter in MODES.items():
            values = make()
            with enter():
                found = like.tensors_of(head, values)
                same = key_of(head, values, []) == key
            assert found is None or same, (name, mode)
            if (name, mode) == (known, "plain"):
                assert found is not None
                assert [*map(id, found)] == [id(v) for v in values if isinstance(v, Tensor)]
    assert like.tensors_of(("others",), first) is None


SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "deterministic": (
        partial(torch.use_deterministic_algorithms, False), partial(torch.use_deterministic_algorithms, True),
    ),
    "precision": (
        partial(torch.set_float32_matmul_precision, "high"),
        partial(torch.set_float32_matmul_precision, "highest"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("switch", SWITCHES)
def test_switches_of_torch(switch):
    change, back = SWITCHES[switch]
    values = (x(2, 3),)
    like = Likeness.of((), values)
    assert like is not None
    assert like.tensors_of((), values) is not None
    change()
    try:
        assert like.tensors_of((), values) is None
    finally:
        back()
    assert like.tensors_of((), values) is not None


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    found = Launches()
    found.install(monkeypatch)
    return found


def trained(given: dict[str, Tensor]) -> None:
    y = sf.scan(BY_NAME["Decay"].recurrence, **given, backend="triton")
    torch.autograd.grad(y, list(given.values()), torch.ones_like(y))


def test_a_call_like_the_newest_has_no_key(launches, monkeypatch):
    """Nor has its backward pass; calls of two kinds in turn find theirs by their keys."""
    kinds = [
        {n: t.requires_grad_() for n, t in draw(BY_NAME["Decay"], torch.float32, t=t)[0].items()}
        for t in (4, 6)
    ]
    for given in kinds * 4:
        trained(given)
    assert [z.again for z in launches.taken()[-4:]] == [True] * 4
    trained(kinds[0])
    for module in (replay, replay.Repeats.__call__.__globals__):
        names = module if isinstance(module, dict) else vars(module)
        monkeypatch.setitem(names, "key_of", None)  # whoever calls it fails
    trained(kinds[0])
    with pytest.raises(TypeError, match="NoneType"):
        trained(kinds[1])


def test_nothing_holds_what_was_given(launches):
    given = {n: t.requires_grad_() for n, t in draw(BY_NAME["Decay"], torch.float32, t=4)[0].items()}
    for _ in range(4):
        trained(given)
    assert launches.taken()[-1].again
    seen = [ref(t) for t in given.values()]
    del given
    assert not any(r() is not None for r in seen)
