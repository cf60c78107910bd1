"""When two calls are alike: by what is told of tensors without looking at their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch.autograd import forward_ad

from scanforge.replay_text import profiled

Tensor = torch.Tensor
Key = tuple[Any, ...]
V = TypeVar("V")

_PLAIN = frozenset({bool, int, str, type(None)})  # options that compare as they are


class Recent(Generic[V]):
    """A cache of what was used of late: when it is full, what was not used since the last time goes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.new: dict[Key, V] = {}
        self.old: dict[Key, V] = {}

    def get(self, key: Key) -> V | None:
        """The value, or None."""
        found = self.new.get(key)
        if found is None and (found := self.old.get(key)) is not None:
            self.put(key, found)
        return found

    def put(self, key: Key, value: V) -> None:
        """Keep a value."""
        if len(self.new) >= self.size // 2:
            self.old, self.new = self.new, {}
        self.new[key] = value

    def clear(self) -> None:
        """Forget all."""
        self.old, self.new = {}, {}


def is_plain() -> bool:
    """Whether nothing watches or transforms what runs here."""
    return not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state()
        or torch.compiler.is_compiling()
        or profiled()
    )


def key_of(head: list[Any], values: Iterable[Any], tensors: list[Tensor]) -> Key | None:
    """The values as a key, and the tensors among them; None if one compares in no plain way."""
    modes = (
        torch._C._is_any_autocast_enabled(), torch.is_inference_mode_enabled(),
        torch._C._get_deterministic_algorithms(),
    )  # fmt: skip
    key = [*head, *modes, torch.get_float32_matmul_precision()]
    try:
        return tuple(key) if _add(key, values, tensors) else None
    except RuntimeError:  # of a tensor without strides or memory
        return None


def _add(key: list[Any], values: Iterable[Any], tensors: list[Tensor]) -> bool:
    for x in values:
        kind = type(x)
        if kind is Tensor or kind is torch.nn.Parameter:
            if x.is_neg() or x.is_conj():
                return False
            tensors.append(x)
            key += (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() & 15, x.requires_grad)
        elif kind in _PLAIN:
            key += (kind, x)
        elif kind is tuple or kind is list:
            key += (kind, len(x))
            if not _add(key, x, tensors):
                return False
        else:
            return False
    return True


def capturing(tensors: Sequence[Tensor]) -> bool:
    """Whether a graph is being captured, whose memory is its own."""
    return tensors[0].is_cuda and torch.cuda.is_current_stream_capturing()
