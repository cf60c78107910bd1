"""What tuning has found, kept for this user's processes: (recurrence, pass, sizes, dtypes, device) -> Choice.

A length of time, and a number of lanes, stand for all numbers that are nearer to the same power of two. The
planner looks a choice up once for each kind of call. No choice changes what a forward pass keeps, so that one
may be found, or lost, between a forward pass and its backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from importlib import metadata
from math import prod

import torch

from scanforge import cache as files
from scanforge import dtypes
from scanforge.errors import BackendError
from scanforge.ir.scan import TIME, load
from scanforge.pipeline import inside_axes
from scanforge.plan import Choice
from scanforge.tile import Tile, bucket

Tensor = torch.Tensor
FORWARD, KEEPING, BACKWARD = "forward", "forward, keeping states", "backward"
WAYS = (FORWARD, KEEPING, BACKWARD)


@dataclass(frozen=True, slots=True)
class Key:
    """What a choice holds for."""

    text: str  # of the recurrence
    way: str
    steps: int  # the power of two that is nearest
    lanes: int
    inside: tuple[int, ...]  # sizes of the axes that a program has whole
    dtypes: tuple[str, ...]  # of inputs over time, and what is computed in
    device: str
    triton: str


@dataclass(frozen=True, slots=True)
class Record:
    """What was found: the choice (None: the shipped plan is the best), when, where, and what both take."""

    choice: Choice | None
    date: str
    device: str
    seconds: float
    shipped: float

    def __str__(self) -> str:
        return f"tuned on {self.date} on {self.device}"

    def sentence(self) -> str:
        """What was found."""
        found = (
            f"{self.choice}, {1e3 * self.seconds:.4g} ms" if self.choice else "the shipped default is best"
        )
        return f"{found}; shipped default {1e3 * self.shipped:.4g} ms"


def key(text: str, way: str, sizes: Mapping[str, int], inputs: Sequence[torch.dtype], device: str) -> Key:
    """The key of a call of these sizes; `inputs` are the dtypes of the recurrence's inputs in order.

    What has no time is read once, so that its dtype does not matter.
    """
    scan, inside = load(text), inside_axes(text).axes
    over_time = [d for i, d in zip(scan.inputs, inputs, strict=True) if TIME in i.axes]
    lanes = prod(sizes[a] for a in scan.lanes if a not in inside)
    return Key(
        text=text,
        way=way,
        steps=bucket(sizes[TIME]),
        lanes=bucket(lanes),
        inside=tuple(sizes[a] for a in inside),
        dtypes=tuple(map(dtypes.name, [*over_time, dtypes.computed(inputs)])),
        device=device,
        triton=_triton(),
    )


@cache
def _triton() -> str:
    return metadata.version("triton")


def device_name(device: torch.device) -> str:
    """What kernels run on: a GPU's name and capability, or Triton's interpreter."""
    if device.type != "cuda":
        return "Triton's interpreter"
    return _gpu_name(torch.cuda.current_device() if device.index is None else device.index)


@cache
def _gpu_name(index: int) -> str:
    major, minor = torch.cuda.get_device_capability(index)
    return f"{torch.cuda.get_device_name(index)} ({major}.{minor})"


_FORCED: ContextVar[Mapping[str, Choice | None] | None] = ContextVar("forced", default=None)


@contextmanager
def forcing(choices: Mapping[str, Choice | None]) -> Iterator[None]:
    """Meanwhile these are the choices, by pass, whatever was found; the shipped plan where there is none."""
    token = _FORCED.set(choices)
    try:
        yield
    finally:
        _FORCED.reset(token)


def choice(text: str, way: str, sizes: Mapping[str, int], tensors: Sequence[Tensor]) -> Choice | None:
    """What was found for such a call, or None: the shipped plan."""
    forced = _FORCED.get()
    if forced is not None:
        return forced.get(way)
    if not sizes[TIME] or not tensors:
        return None
    found = record(key(text, way, sizes, [t.dtype for t in tensors], device_name(tensors[0].device)))
    return found.choice if found else None


@lru_cache(maxsize=4096)
def record(key: Key) -> Record | None:
    """What was found for a key, read once in a process."""
    found = files.recall("tuned", str(key))
    if found is None:
        return None
    made = found.pop("choice")
    chosen = made and Choice(made["lowering"], made["chunk"], Tile(**made["tile"]))
    return Record(chosen, **found)


def store(key: Key, found: Record) -> None:
    """Keep what was found, for this process and others.

    Raises BackendError where it could not be written.
    """
    record.cache_clear()
    files.keep("tuned", str(key), asdict(found))
    if record(key) != found:
        raise BackendError(
            f"{load(key.text).name}: what tuning found could not be written to {files.folder()}: make room "
            "there, or name another folder in SCANFORGE_CACHE."
        )
