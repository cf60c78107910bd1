"""The ranks of a group in the order in which a recurrence passes them, and what they gather and sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from scanforge.errors import ArgumentError, GroupError

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Gathering:
    """A gathering under way. `wait` gives every rank's tensor, in the order of processing."""

    ranks: Ranks
    parts: list[Tensor]
    work: Any

    def wait(self) -> list[Tensor]:
        """Block until all ranks' tensors are here."""
        self.ranks.guarded(self.work.wait)
        return self.parts[::-1] if self.ranks.reverse else self.parts


@dataclass(frozen=True, slots=True)
class Message:
    """A message under way, to the next rank or from the one before."""

    ranks: Ranks
    buffer: Tensor
    work: Any
    device: torch.device  # on which it is read

    def wait(self) -> Tensor:
        """What has come. A GPU's stream waits for it, the host does not."""
        self.ranks.guarded(self.work.wait)
        return self.buffer.to(self.device)


def beside(device: torch.device) -> AbstractContextManager[Any]:
    """A stream that waits for nothing that the current one has to do."""
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()


def settle(sent: Sequence[Message]) -> None:
    """Wait until messages have gone, on a GPU beside what its stream has to do."""
    if not sent:
        return
    with beside(sent[0].device):
        for message in sent:
            if message.buffer.is_cuda:  # whose memory is no other tensor's until then
                message.buffer.record_stream(torch.cuda.current_stream(message.device))
            message.ranks.guarded(message.work.wait)


@dataclass(frozen=True, slots=True)
class Ranks:
    """A group whose ranks hold consecutive stretches of time; `reverse` passes them from the last on."""

    name: str  # of the recurrence, for errors
    group: dist.ProcessGroup
    rank: int
    count: int
    reverse: bool
    alike: str = ""  # what the call says that has to be the same on all ranks

    @property
    def place(self) -> int:
        """How many ranks are processed before this one."""
        return self.count - 1 - self.rank if self.reverse else self.rank

    @property
    def first(self) -> bool:
        """Whether the recurrence starts here."""
        return self.place == 0

    @property
    def last(self) -> bool:
        """Whether the recurrence ends here."""
        return self.place == self.count - 1

    def turned(self) -> Ranks:
        """The same ranks, passed the other way: as the adjoint does."""
        return replace(self, reverse=not self.reverse)

    def gather(self, tensor: Tensor) -> Gathering:
        """Begin to gather a tensor of equal shape from each rank."""
        parts = [torch.empty_like(tensor) for _ in range(self.count)]
        work = self.guarded(lambda: dist.all_gather(parts, tensor, group=self.group, async_op=True))
        return Gathering(self, parts, work)

    def gather_numbers(self, numbers: Sequence[int], device: torch.device) -> list[list[int]]:
        """Every rank's numbers, by rank. The host waits for them, but for nothing else that a device does."""
        with beside(device):
            parts = self.gather(torch.tensor([*numbers], device=device)).wait()
            found: list[list[int]] = torch.stack(parts[::-1] if self.reverse else parts).tolist()
        return found

    def send(self, tensor: Tensor) -> Message:
        """Begin to send a tensor to the rank that is processed next, which has asked for it, or will."""
        buffer = tensor.cpu() if self._through_host(tensor.device) else tensor
        work = self.guarded(lambda: dist.isend(buffer, self._neighbour(1), self.group))
        return Message(self, buffer, work, tensor.device)

    def receive(self, size: int, device: torch.device) -> Message:
        """Begin to receive so many bytes from the rank that is processed before."""
        place = torch.device("cpu") if self._through_host(device) else device
        buffer = torch.empty(size, dtype=torch.uint8, device=place)
        work = self.guarded(lambda: dist.irecv(buffer, self._neighbour(-1), self.group))
        return Message(self, buffer, work, device)

    def _neighbour(self, later: int) -> int:
        return dist.get_global_rank(self.group, self.rank + (-later if self.reverse else later))

    def _through_host(self, device: torch.device) -> bool:
        """Whether messages between two ranks are of the host's memory alone: gloo has no others."""
        if device.type == "cpu":
            return False
        backends = dist.BackendConfig(dist.Backend(dist.get_backend_config(self.group)))
        return backends.get_device_backend_map().get(device.type) == "gloo"

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks; the tensor itself stays as it is."""
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        self.guarded(lambda: dist.all_reduce(total, group=self.group))
        return total

    def sum_all(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sums of several tensors, one exchange for each dtype."""
        found = list(tensors)
        for dtype in sorted({x.dtype for x in tensors}, key=str):
            at = [k for k, x in enumerate(tensors) if x.dtype == dtype]
            total = self.sum(torch.cat([tensors[k].reshape(-1) for k in at]))
            parts = total.split([tensors[k].numel() for k in at])
            for k, part in zip(at, parts, strict=True):
                found[k] = part.view(tensors[k].shape)
        return found

    def span(self, steps: int, device: torch.device) -> tuple[int, int]:
        """At which step of the whole sequence this rank begins, and how many there are."""
        counts = [n for (n,) in self.gather_numbers([steps], device)]
        return sum(counts[: self.rank]), sum(counts)

    def guarded(self, call: Callable[[], Any]) -> Any:
        """What a collective returns; torch raises a RuntimeError of many wordings where a rank is missing."""
        try:
            return call()
        except RuntimeError as error:
            raise GroupError(
                f"{self.name}: rank {self.rank} of {self.count} waited for the other ranks of its group in "
                f"vain: {error}. A rank has died, has come later than the group's timeout, or has not made "
                "this call: look at the first error among the ranks, and make the call and its backward "
                "pass on every rank of the group."
            ) from error


def ranks_of(name: str, group: Any, *, reverse: bool) -> Ranks:
    """The ranks of a process group, of a device mesh of one dimension, or of the default group (None)."""
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError(
            f"{name}: scanforge.distributed runs on a group of processes, and there is none: call "
            "torch.distributed.init_process_group first, in processes started by torchrun."
        )
    found = dist.group.WORLD if group is None else _process_group(name, group)
    rank = dist.get_rank(found)
    if rank < 0 or not isinstance(found, dist.ProcessGroup):
        raise ArgumentError(
            f"{name}: group= does not hold this process, rank {dist.get_rank()} of all: make the call on the "
            "ranks of the group only."
        )
    return Ranks(name, found, rank, dist.get_world_size(found), reverse)


def _process_group(name: str, group: Any) -> Any:
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            names = group.mesh_dim_names or ("...",)
            raise ArgumentError(
                f"{name}: group= is a device mesh of {group.ndim} dimensions, expected one, over which time "
                f"is split: write group=mesh[{names[-1]!r}]."
            )
        return group.get_group()
    if isinstance(group, dist.ProcessGroup) or group is dist.GroupMember.NON_GROUP_MEMBER:
        return group
    raise ArgumentError(
        f"{name}: group= is an object of type {type(group).__name__}, expected a process group, a "
        "device mesh of one dimension or None: write group=mesh['sequence'], or leave it out."
    )
