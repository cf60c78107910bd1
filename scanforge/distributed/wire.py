"""What ranks tell each other: a composed element of each lane, or states, as bytes of one length."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from scanforge.alike import ALIGNED
from scanforge.distributed.ranks import Ranks
from scanforge.errors import GroupError

Tensor = torch.Tensor
Spec = tuple[tuple[int, ...], torch.dtype]
_WORD = 8  # bytes, to which every tensor is aligned


def specs(tensors: Sequence[Tensor]) -> tuple[Spec, ...]:
    """Shapes and dtypes."""
    return tuple((tuple(x.shape), x.dtype) for x in tensors)


@dataclass(frozen=True, slots=True)
class Wire:
    """The layout of a message: a digest of the call, then an element or the states."""

    element: tuple[Spec, ...]
    states: tuple[Spec, ...]
    digest: int

    @classmethod
    def of(cls, call: object, element: Sequence[Tensor], states: Sequence[Tensor]) -> Wire:
        """The layout that both kinds of message fit, and a digest of it and of what `call` says in print."""
        both = specs(element), specs(states)
        return cls(*both, digest_of((call, both)))

    def message(self, tensors: Sequence[Tensor], like: Tensor) -> Tensor:
        """The bytes of an element, of states, or of nothing where nobody reads them."""
        length = max(_places(self.element)[-1], _places(self.states)[-1])
        message = like.new_zeros(length, dtype=torch.uint8)
        message[:_WORD].view(torch.int64).fill_(self.digest)
        for x, (at, _) in zip(tensors, pairwise(_places(specs(tensors))), strict=True):
            flat = x.reshape(-1).view(torch.uint8)
            message[at : at + flat.numel()] = flat
        return message

    def checking(self, messages: Sequence[Tensor], ranks: Ranks) -> Callable[[], None]:
        """Begin to look whether all ranks run the same; what is returned raises where one does not.

        That waits for what has been launched so far, not for what is launched before it is called.
        """
        codes = torch.stack([m[:_WORD].view(torch.int64) for m in messages]).flatten()
        if not codes.is_cuda:
            return lambda: compare(codes.tolist(), self.digest, ranks)
        here = torch.empty(codes.shape, dtype=codes.dtype, pin_memory=True)
        here.copy_(codes, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

        def check() -> None:
            copied.synchronize()
            compare(here.tolist(), self.digest, ranks)

        return check


def digest_of(call: object) -> int:
    """A number of 64 bits for what a call says in print."""
    code = hashlib.blake2b(repr(call).encode(), digest_size=_WORD).digest()
    return int.from_bytes(code, "little", signed=True)


def compare(digests: Sequence[int], own: int, ranks: Ranks) -> None:
    """Raise where a rank, in the order of processing, makes another call than this one."""
    odd = [k for k, digest in enumerate(digests) if digest != own]
    if odd:
        other = ranks.count - 1 - odd[0] if ranks.reverse else odd[0]
        raise GroupError(
            f"{ranks.name}: rank {ranks.rank} and rank {other} make different calls: operator, dtypes, "
            "options and all sizes but time have to be the same on all ranks of its group; with reset= "
            "and no reset_state=, initial_state= is given on all of them or on none."
        )


@dataclass(frozen=True, slots=True)
class Pack:
    """Tensors as the bytes of one message, each where kernels like it; one alone is its own message."""

    layout: tuple[Spec, ...]

    @property
    def size(self) -> int:
        """Bytes of the message."""
        return self._places()[-1]

    def message(self, tensors: Sequence[Tensor]) -> Tensor:
        """The bytes of tensors of this layout."""
        flat = [x.reshape(-1).view(torch.uint8) for x in tensors]
        if len(flat) == 1 and flat[0].numel() == self.size:
            return flat[0]
        message = flat[0].new_empty(self.size)
        for x, at in zip(flat, self._places(), strict=False):
            message[at : at + x.numel()] = x
        return message

    def read(self, message: Tensor) -> list[Tensor]:
        """The tensors of a message."""
        return _read(message, self.layout, self._places())

    def _places(self) -> list[int]:
        return _places(self.layout, 0, ALIGNED if len(self.layout) > 1 else 1)


def read(message: Tensor, layout: tuple[Spec, ...]) -> list[Tensor]:
    """The tensors of a message."""
    return _read(message, layout, _places(layout))


def _read(message: Tensor, layout: tuple[Spec, ...], places: Sequence[int]) -> list[Tensor]:
    found = []
    for (shape, dtype), at in zip(layout, places, strict=False):
        size = torch.Size(shape).numel() * dtype.itemsize
        found.append(message[at : at + size].view(dtype).view(shape))
    return found


def _places(layout: Sequence[Spec], begin: int = _WORD, word: int = _WORD) -> list[int]:
    """Where each tensor begins, and the end."""
    sizes = [-(-torch.Size(s).numel() * d.itemsize // word) * word for s, d in layout]
    return list(accumulate(sizes, initial=begin))
