"""Watch a computation, and note what it does to tensors: operations, and launches of kernels.

A recorder sees every tensor operation below autograd, and every launch that goes through `launch`. Its tape
has the steps that matter for what comes out: `replay_text` writes a function that does the same to tensors of
the same shapes, strides and dtypes. What depends on numbers in a tensor is noted as trouble.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of a tape."""

    index: int


@dataclass(frozen=True, slots=True)
class Seen:
    """What a tensor was. The tensor itself goes when the computation lets go of it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    address: int

    @staticmethod
    def of(x: Tensor) -> Seen:
        """Of a tensor, now."""
        return Seen((*map(int, x.shape),), (*map(int, x.stride()),), x.dtype, x.device, x.data_ptr())


@dataclass(frozen=True, slots=True)
class Op:
    """A tensor operation, tensors among its arguments as Refs, and the tensors that it makes."""

    run: Any  # an OpOverload
    name: str  # `sum` of aten::sum.dim_IntList
    args: tuple[Any, ...]
    keywords: dict[str, Any]
    made: tuple[int, ...]
    writes: frozenset[int]  # the roots of the tensors that it writes into


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel; `compiled` is what Triton made of it, None in Triton's interpreter."""

    function: Any
    compiled: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any]
    tile: Any = None  # of an ordered-tile kernel, where launches are listed


Step = Op | Launch

# What these make has a shape and a dtype, and nothing else of what they are given.
EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
ZEROS = frozenset({"new_zeros", "zeros", "zeros_like"})


@dataclass(slots=True)
class Tape:
    """Steps from the given tensors, which are the first, to what is returned (nested tuples of Refs)."""

    given: int
    tensors: list[Seen] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)  # of each tensor the one whose memory it lies in
    steps: list[Step] = field(default_factory=list)
    returned: Any = None

    def lacks(self) -> bool:
        """Whether what is returned was made here, and nothing noted has written it."""
        made = {i for s in self.steps if isinstance(s, Op) and s.name in EMPTY for i in s.made}
        for step in self.steps:
            if isinstance(step, Launch):
                made -= {self.roots[i] for i in indices(step.args)}
            else:
                made -= step.writes
        return bool(made & {self.roots[i] for i in indices(self.returned)})

    def live(self) -> list[Step]:
        """The steps that a launch, or something returned or given, depends on."""
        wanted = set(indices(self.returned))
        memory = {*range(self.given), *(self.roots[i] for i in wanted)}  # that is looked at later
        kept: list[Step] = []
        for step in reversed(self.steps):
            if isinstance(step, Launch):
                found = {*indices(step.args)}
                wanted |= {self.roots[i] for i in found} if step.compiled is not None else found
            elif memory & step.writes or (not step.writes and wanted & {*step.made}):
                found = {*indices(step.args), *indices(tuple(step.keywords.values()))}
                wanted |= found
            else:
                continue
            memory |= {self.roots[i] for i in found}
            kept.append(step)
        return kept[::-1]


def indices(value: Any) -> Iterator[int]:
    """The Refs in nested tuples."""
    if isinstance(value, Ref):
        yield value.index
    elif isinstance(value, tuple):
        for item in value:
            yield from indices(item)


class Recorder(TorchDispatchMode):
    """Notes what runs while it is entered. With `gradient` a tape ends where autograd stands between two."""

    _should_skip_dynamo = classmethod(lambda _: False)  # to be told, torch would import its whole compiler

    def __init__(self, given: Sequence[Tensor], *, gradient: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gradient, self.trouble, self.notes = gradient, "", []  # type: ignore[var-annotated]
        self.tapes: list[Tape] = []
        self._begin(given)

    def _begin(self, given: Sequence[Tensor]) -> None:
        self.tapes.append(Tape(len(given)))
        self.known: dict[int, tuple[ref[Tensor], int]] = {}  # by id, which a tensor that is gone leaves free
        for x in given:
            self._add(x, None)

    def _add(self, x: Tensor, root: int | None) -> int:
        tape = self.tapes[-1]
        index = len(tape.tensors)
        if self._index(x) is None:
            self.known[id(x)] = (ref(x), index)
        tape.tensors.append(Seen.of(x))
        tape.roots.append(index if root is None else root)
        return index

    def _index(self, x: Tensor) -> int | None:
        found = self.known.get(id(x))
        return found[1] if found and found[0]() is x else None

    def ends(self, returned: Any) -> None:
        """What the present tape returns: tensors in nested tuples."""
        self.tapes[-1].returned = self._noted(returned)

    def cut(self, tensors: Sequence[Tensor], count: int | None = None) -> None:
        """Autograd stands here, if it does: these tensors end a tape, the first of them begin the next."""
        if self.gradient:
            self.ends(tuple(tensors))
            self._begin(tensors[:count])

    def __torch_dispatch__(
        self, run: Any, types: Any, args: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        found = run(*args, **(keywords or {}))
        self._note(run, args, keywords or {}, found)
        return found

    def _note(self, run: Any, args: tuple[Any, ...], keywords: dict[str, Any], found: Any) -> None:
        made = list(found) if isinstance(found, tuple | list) else [found]
        read = [*_tensors((args, tuple(keywords.values())))]
        if not read and not any(isinstance(x, Tensor) for x in made):  # of dtypes, say
            return
        if not all(isinstance(x, Tensor) for x in made) or torch.Tag.nondeterministic_seeded in run.tags:
            self.trouble = f"{run} gives what depends on numbers"
            return
        if any(x.device != y.device for x in made for y in read):
            self.trouble = f"{run} moves between devices"
            return
        given, named = self._noted(_from_its_own(run, args)), {n: self._noted(x) for n, x in keywords.items()}
        tape, memory = self.tapes[-1], {x.untyped_storage()._cdata: x for x in reversed(read)}
        fresh = [x for x in made if self._index(x) is None]
        for x in fresh:
            source = memory.get(x.untyped_storage()._cdata)
            at = None if source is None else self._index(source)
            self._add(x, None if at is None else tape.roots[at])
        values = dict(zip((a.name for a in run._schema.arguments), args, strict=False)) | keywords
        written = [
            values.get(a.name)
            for a in run._schema.arguments
            if a.alias_info is not None and a.alias_info.is_write
        ]
        roots = frozenset(tape.roots[i] for i in indices(self._noted(tuple(written))))
        if not roots and not fresh:
            return  # it gave what it was given
        name = run._schema.name.partition("::")[2]
        if name in EMPTY | ZEROS:
            given, named = (), {}
        elif name == "new_full":
            run, name, given = torch.ops.aten.full.default, "full", given[1:]
            named = {"dtype": made[0].dtype, "device": made[0].device}
        tape.steps.append(Op(run, name, given, named, (*indices(self._noted(made)),), roots))

    def launch(
        self, function: Any, grid: tuple[int, ...], args: Sequence[Any], constants: dict[str, Any], tile: Any
    ) -> None:
        """Launch a kernel, and note it."""
        with _disable_current_modes():  # what a launcher does to tensors is its own business
            compiled = function[grid](*args, **constants)
        self.tapes[-1].steps.append(Launch(function, compiled, grid, self._noted(tuple(args)), constants))

    def _noted(self, value: Any) -> Any:
        """The value with Refs for tensors, and tuples for lists."""
        if isinstance(value, Tensor):
            index = self._index(value)
            if index is None:
                self.trouble = "a tensor comes from elsewhere"
                return None
            return Ref(index)
        return tuple(map(self._noted, value)) if isinstance(value, tuple | list) else value


def _from_its_own(run: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The offset of as_strided, counted from the tensor's own: the next one may begin elsewhere in memory."""
    absolute = run is torch.ops.aten.as_strided.default and args[3:] not in {(), (None,)}
    return (*args[:3], args[3] - args[0].storage_offset()) if absolute else args


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


@dataclass(slots=True)
class Listing:
    """Launches noted instead of made, with tensors that need no memory."""

    launches: list[Launch] = field(default_factory=list)

    def launch(
        self, function: Any, grid: tuple[int, ...], args: Sequence[Any], constants: dict[str, Any], tile: Any
    ) -> None:
        """Note what would be launched."""
        self.launches.append(Launch(function, None, grid, tuple(args), constants, tile))


_NOW: ContextVar[Recorder | Listing | None] = ContextVar("recorder", default=None)


def recording() -> Recorder | None:
    """The recorder that watches, if one does."""
    found = _NOW.get()
    return found if isinstance(found, Recorder) else None


@contextmanager
def listed() -> Iterator[list[Launch]]:
    """The launches of what runs inside, none of which is made."""
    listing = Listing()
    token = _NOW.set(listing)
    try:
        yield listing.launches
    finally:
        _NOW.reset(token)


@contextmanager
def watched(recorder: Recorder) -> Iterator[None]:
    """Let the recorder see what runs inside, below autograd: no gradient flows through it.

    There the tensors that an operation gives are the objects that its caller gets.
    """
    views = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    token = _NOW.set(recorder)
    try:
        with (
            torch._C._AutoDispatchBelowAutograd(),
            torch._C._ExcludeDispatchKeyGuard(views),
            recorder,
        ):
            yield
    finally:
        _NOW.reset(token)


def launch(
    function: Any, grid: tuple[int, ...], args: Sequence[Any], constants: dict[str, Any], tile: Any = None
) -> None:
    """Launch a kernel of Triton's, on the current device and stream; the `tile` is for who lists it."""
    watcher = _NOW.get()
    if watcher is None:
        function[grid](*args, **constants)
    else:
        watcher.launch(function, grid, args, constants, tile)
