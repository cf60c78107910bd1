"""Tape -> tape: what comes out is the same, and less is done.

What nobody looks at is not written, a view that is all of its tensor is the tensor, and of memory that is
made here

    x = zeros(n); x.add_(y)      is  x = empty(n); x.copy_(y)     0 + y is y, but for the sign of a zero
    x = empty(n); x.copy_(y)     is  y                            if y is made here, and used no more
                                 or  x = y.to(dtype)              in another dtype
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch

from scanforge.tape import EMPTY, ZEROS, Launch, Op, Ref, Seen, Step, Tape, indices

_COPY = torch.ops.aten.copy_.default
_CAST = torch.ops.aten._to_copy.default
_EMPTY = torch.ops.aten.empty_strided.default


def lean(tape: Tape) -> Tape:
    """The same from the given tensors to what is returned, in fewer steps."""
    tape = Tape(tape.given, tape.tensors, [*tape.roots], tape.live(), tape.returned)
    tape = _without_same_views(tape)
    for at in reversed(range(len(tape.steps))):  # what is done for one step leaves those before it in place
        step = tape.steps[at]
        if isinstance(step, Op) and step.name in EMPTY | ZEROS:
            tape = _settled(tape, at, step)
    tape.steps = tape.live()
    return tape


def touched(tape: Tape, step: Step) -> set[int]:
    """The roots of the tensors that a step is given."""
    keywords = tuple(step.keywords.values()) if isinstance(step, Op) else ()
    return {tape.roots[i] for i in (*indices(step.args), *indices(keywords))}


def _is_view(step: Step) -> bool:
    return isinstance(step, Op) and step.run.is_view and not step.writes


def _without_same_views(tape: Tape) -> Tape:
    """Views of the shape, strides, dtype and place of what they are of: none is made."""
    returned, names = {*indices(tape.returned)}, dict[int, int]()
    for step in tape.steps:
        if _is_view(step) and isinstance(step, Op) and len(step.made) == 1:
            (made,), source = step.made, step.args[0]
            if made not in returned and tape.tensors[made] == tape.tensors[source.index]:
                names[made] = names.get(source.index, source.index)
    return _renamed(tape, names)


def _settled(tape: Tape, at: int, alloc: Op) -> Tape:
    """What is first written into some memory, if that is all of it, in the place of the memory."""
    (root,) = alloc.made
    uses = (k for k in range(at + 1, len(tape.steps)) if root in touched(tape, tape.steps[k]))
    k = next((k for k in uses if not _is_view(tape.steps[k])), None)
    first = None if k is None else tape.steps[k]
    if not isinstance(first, Op) or first.name not in {"add_", "copy_"} or len(first.args) != 2:
        return tape
    into, source = (x.index if isinstance(x, Ref) else None for x in first.args)
    if into is None or source is None or first.keywords or tape.roots[source] == root:
        return tape
    seen, given, all_of_it = (tape.tensors[i] for i in (into, source, root))
    fits = seen.shape == given.shape and _is_all(seen, all_of_it)
    if not fits or (first.name == "add_" and alloc.name in EMPTY):
        return tape
    assert k is not None
    steps = [*tape.steps]
    steps[at] = replace(alloc, run=_EMPTY, name="empty_strided")
    steps[k] = replace(first, run=_COPY, name="copy_")
    tape = replace(tape, steps=steps)
    if into != root or seen.strides != given.strides:
        return tape
    return _in_place_of(tape, at, k, root, source)


def _is_all(seen: Seen, memory: Seen) -> bool:
    """Whether a view that is written is all of some memory."""
    same = seen.address == memory.address and seen.dtype == memory.dtype
    return same and prod(seen.shape) == prod(memory.shape)


def _is_dense(seen: Seen) -> bool:
    """Whether a tensor like it would have its strides."""
    expected = 1
    for stride, size in sorted((t, n) for t, n in zip(seen.strides, seen.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _in_place_of(tape: Tape, at: int, k: int, root: int, source: int) -> Tape:
    """The memory made at step `at` is first a copy of the source, by step k: the source itself, or a cast."""
    views = [s for s in tape.steps[at + 1 : k] if root in touched(tape, s)]
    between = [s for s in tape.steps[at + 1 : k] if not any(s is v for v in views)]
    before, after = [*tape.steps[:at], *between], [*views, *tape.steps[k + 1 :]]
    if tape.tensors[source].dtype != tape.tensors[root].dtype:
        if not _is_dense(tape.tensors[root]):
            return tape
        dtype = {"dtype": tape.tensors[root].dtype}
        cast = Op(_CAST, "_to_copy", (Ref(source),), dtype, (root,), frozenset())
        return replace(tape, steps=[*before, cast, *after])
    later = {tape.roots[i] for i in indices(tape.returned)}.union(*(touched(tape, s) for s in after))
    own = tape.roots[source] == source >= tape.given and not _is_one_number(before, source)
    if not own or source in later:
        return tape
    return _renamed(replace(tape, steps=[*before, *after]), {root: source})


def _is_one_number(steps: list[Step], index: int) -> bool:
    """Whether a tensor may be one that is made once for all."""
    return any(isinstance(s, Op) and s.name == "full" and index in s.made for s in steps)


def _renamed(tape: Tape, names: dict[int, int]) -> Tape:
    """The tape with tensors in the place of others, and without the steps that made those."""

    def named(value: Any) -> Any:
        if isinstance(value, Ref):
            return Ref(names.get(value.index, value.index))
        return tuple(map(named, value)) if isinstance(value, tuple) else value

    def again(step: Step) -> Step:
        args = named(step.args)
        if isinstance(step, Launch):
            return replace(step, args=args)
        return replace(
            step,
            args=args,
            keywords={n: named(x) for n, x in step.keywords.items()},
            made=tuple(names.get(i, i) for i in step.made),
            writes=frozenset(names.get(i, i) for i in step.writes),
        )

    gone = [s for s in tape.steps if isinstance(s, Op) and _is_view(s) and names.keys() & {*s.made}]
    steps = [again(s) for s in tape.steps if not any(s is x for x in gone)]
    tensors, roots = [*tape.tensors], [names.get(r, r) for r in tape.roots]
    for i, (old, new) in enumerate(zip(tape.roots, roots, strict=True)):
        moved = tensors[new].address - tape.tensors[old].address
        tensors[i] = replace(tensors[i], address=tensors[i].address + moved)
    return Tape(tape.given, tensors, roots, steps, named(tape.returned))
