"""When two calls are alike: by what is told of tensors without looking at their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import is_, itemgetter, or_
from typing import Any, Generic, Self, TypeVar

import torch
from torch.autograd import forward_ad

from scanforge.launcher import profiled

Tensor = torch.Tensor
Key = tuple[Any, ...]
V = TypeVar("V")
ALIGNED = 16  # bytes, what kernels may suppose of addresses

_PLAIN = frozenset({bool, int, str, type(None)})  # options that compare as they are
_GUARDS: Any = torch._C._dynamo.guards  # of what Dynamo compiles; importing it imports no compiler
_address = Tensor.data_ptr


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


def modes() -> Key:
    """The switches of torch that what runs depends on."""
    return (
        torch.is_grad_enabled(), torch._C._is_any_autocast_enabled(), torch.is_inference_mode_enabled(),
        torch._C._get_deterministic_algorithms(), torch._C._get_float32_matmul_precision(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Likeness:
    """What calls have in common, told without a key, since most calls are like the one before.

    Torch's own guards compare the tensors, in one call: their classes, shapes, strides, dtypes, devices, and
    whether they want a gradient. They know nothing of alignment, so all are at multiples of 16 bytes.
    """

    head: Key
    modes: Key
    count: int  # of values
    tensors: Callable[[Sequence[Any]], Sequence[Tensor]]
    others: Callable[[Sequence[Any]], Sequence[Any]]
    constants: tuple[Any, ...]
    check: Callable[..., bool]

    @classmethod
    def of(cls, head: Key, values: Sequence[Any]) -> Self | None:
        """Of a call that has a key; None where values nest, or a tensor lies at an odd place."""
        at = [k for k, x in enumerate(values) if isinstance(x, Tensor)]
        rest = [k for k in range(len(values)) if k not in at]
        tensors = [values[k] for k in at]
        nests = any(type(values[k]) not in _PLAIN for k in rest)
        if nests or not at or any(x.data_ptr() % ALIGNED for x in tensors):
            return None
        guards = _GUARDS.TensorGuards(
            *tensors,
            dynamic_dims_sizes=[[*x.shape] for x in tensors],
            dynamic_dims_strides=[[*x.stride()] for x in tensors],
        )
        others, constants = _getter(rest), tuple(values[k] for k in rest)
        return cls(head, modes(), len(values), _getter(at), others, constants, guards.check)

    def tensors_of(self, head: Key, values: Sequence[Any]) -> Sequence[Tensor] | None:
        """The tensors among the values of a call, if it is like this one."""
        if len(values) != self.count or head != self.head or modes() != self.modes:
            return None
        if self.constants and not all(map(is_, self.others(values), self.constants)):
            return None
        found = self.tensors(values)
        alike = self.check(*found) and not reduce(or_, map(_address, found)) % ALIGNED
        return found if alike else None


def _getter(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What gives the values at some places as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return itemgetter(slice(places[0], places[0] + 1) if places else slice(0))


def key_of(head: Key, values: Iterable[Any], tensors: list[Tensor]) -> Key | None:
    """The values as a key, and the tensors among them; None if one compares in no plain way."""
    key = [*head, *modes()]
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
            key += (x.shape, x.stride(), x.dtype, x.device, x.data_ptr() % ALIGNED, x.requires_grad)
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
