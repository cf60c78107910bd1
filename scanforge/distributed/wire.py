"""What one rank tells the others: a composed element of each lane, or the state, as bytes of one length."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

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
        code = hashlib.blake2b(repr((call, both)).encode(), digest_size=_WORD).digest()
        return cls(*both, int.from_bytes(code, "little", signed=True))

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
            return lambda: self._compare(codes.tolist(), ranks)
        here = torch.empty(codes.shape, dtype=codes.dtype, pin_memory=True)
        here.copy_(codes, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()

        def check() -> None:
            copied.synchronize()
            self._compare(here.tolist(), ranks)

        return check

    def _compare(self, codes: Sequence[int], ranks: Ranks) -> None:
        odd = [k for k, code in enumerate(codes) if code != self.digest]
        if odd:
            other = ranks.count - 1 - odd[0] if ranks.reverse else odd[0]
            raise GroupError(
                f"{ranks.name}: rank {ranks.rank} and rank {other} make different calls: operator, dtypes, "
                "options and all sizes but time have to be the same on all ranks of its group; with reset= "
                "and no reset_state=, initial_state= is given on all of them or on none."
            )


def read(message: Tensor, layout: tuple[Spec, ...]) -> list[Tensor]:
    """The tensors of a message."""
    found = []
    for (shape, dtype), (at, _) in zip(layout, pairwise(_places(layout)), strict=True):
        size = torch.Size(shape).numel() * dtype.itemsize
        found.append(message[at : at + size].view(dtype).view(shape))
    return found


def _places(layout: Sequence[Spec]) -> list[int]:
    """Where each tensor begins, and the end."""
    sizes = [-(-torch.Size(s).numel() * d.itemsize // _WORD) * _WORD for s, d in layout]
    return list(accumulate(sizes, initial=_WORD))
