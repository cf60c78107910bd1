"""The state that a rank's shard starts from, by associativity.

Every rank but the first and the last composes its steps into one element, the first runs its own to their
final state; one gathering later each applies the elements of the ranks between to that state. The adjoint
is a recurrence too, so its carry, the cotangent of a shard's final state, comes the same way in reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch

from scanforge import segments
from scanforge.compose import carry, leaf_axes, on_itself
from scanforge.distributed.chunks import in_chunks
from scanforge.distributed.ranks import Gathering, Ranks, beside
from scanforge.distributed.wire import Wire, read
from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program, check_scan
from scanforge.ir.program import fresh
from scanforge.ir.scan import BATCH, TIME, Input, dump, is_batch, load
from scanforge.launch import state_dtypes
from scanforge.prepared import Prepared

Tensor = torch.Tensor
Run = Callable[[Prepared, bool], tuple[list[Tensor], list[Tensor]]]  # a call, and whether it runs in reverse


@dataclass(frozen=True, slots=True)
class Entering:
    """The states that a shard starts from, and a call over the elements of its chunks, if it has any.

    `settle` looks whether all ranks have made the same call. It waits for the exchange, so it comes after
    what the states are for has been launched.
    """

    states: tuple[Tensor, ...]
    chunks: Prepared | None
    settle: Callable[[], None]

    def before_chunks(self, states: Sequence[Tensor], run: Run, reverse: bool) -> list[Tensor]:
        """The states before every chunk, (count, ...), from those before all of them."""
        assert self.chunks is not None
        with torch.no_grad():
            return run(replace(self.chunks, initial=tuple(states)), reverse)[0]


def entering(
    call: Prepared, run: Run, ranks: Ranks, after: Mapping[str, Tensor] | None = None, count: int = 1
) -> Entering:
    """The states before the first step of this rank's shard, as the ranks processed before leave them.

    `call.initial` is read on the first rank. `after` maps leaves to what the composed element begins with
    in place of the identity. The shard is cut into `count` chunks.
    """
    with torch.no_grad():
        wide = _widened(call, {} if after is None else after)
        start = _identity(replace(wide, text=_aggregate(wide.text)), after or {})
        wire = Wire.of((ranks.name, ranks.reverse, ranks.alike), start, call.initial)
        # nobody reads what the last rank sends, so its own elements come while others' are under way
        gathering = ranks.gather(wire.message([], call.initial[0])) if ranks.last else None
        chunks = _composed(wide, run, ranks, count) if count > 1 else None
        if gathering is None:
            own = _left(chunks or wide, run, ranks, start)
            gathering = ranks.gather(wire.message(own, call.initial[0]))
        if ranks.first:
            return Entering(call.initial, chunks, partial(_settle, wire, gathering))
        messages = gathering.wait()
        settle = wire.checking(messages, ranks)
        return Entering(_folded(wide, run, wire, messages, ranks), chunks, settle)


def _settle(wire: Wire, gathering: Gathering) -> None:
    """Wait for an exchange, on a GPU beside what its stream has to do."""
    with beside(gathering.parts[0].device):
        wire.checking(gathering.wait(), gathering.ranks)()


def _composed(wide: Prepared, run: Run, ranks: Ranks, count: int) -> Prepared:
    """A call over the elements of chunks, which are its steps."""
    cut = in_chunks(wide, count)
    aggregate = replace(cut, text=_aggregate(cut.text))
    found = run(replace(aggregate, initial=_identity(aggregate, {})), ranks.reverse)[1]
    axis = load(cut.text).states[0].axes[0]
    elements = [
        x if axis in s.axes else x.expand(count, *x.shape)  # the same for all: nothing in it is over time
        for s, x in zip(load(aggregate.text).states, found, strict=True)
    ]
    return replace(wide, text=_carry(wide.text), inputs=tuple(elements), sizes=wide.sizes | {TIME: count})


def _left(call: Prepared, run: Run, ranks: Ranks, start: tuple[Tensor, ...]) -> list[Tensor]:
    """What a rank leaves behind: the first one its final states, another the element of all its steps."""
    if ranks.first:
        return run(replace(call, text=_without_outputs(call.text)), ranks.reverse)[1]
    return run(replace(call, text=_aggregate(call.text), initial=start), ranks.reverse)[1]


def _folded(
    wide: Prepared, run: Run, wire: Wire, messages: Sequence[Tensor], ranks: Ranks
) -> tuple[Tensor, ...]:
    """The first rank's states, then the elements of the ranks between, applied in order."""
    states = read(messages[0], wire.states)
    elements = [read(m, wire.element) for m in messages[1 : ranks.place]]
    if elements:
        between = [torch.stack(leaves) for leaves in zip(*elements, strict=True)]
        over = replace(
            wide,
            text=_without_outputs(_carry(wide.text)),
            inputs=tuple(between),
            initial=tuple(states),
            sizes=wide.sizes | {TIME: len(elements)},
            packed=None,
        )
        states = run(over, False)[1]
    return tuple(x.to(x0.dtype) for x, x0 in zip(states, wide.initial, strict=True))


def _identity(aggregate: Prepared, after: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The element to compose with first, of one number for each leaf and lane."""
    scan = load(aggregate.text)
    sizes = aggregate.sizes
    if aggregate.packed is not None:
        sizes = sizes | {BATCH: aggregate.packed.numel() - 1}
    dtypes = state_dtypes(scan, aggregate.inputs, aggregate.dtype)
    made = []
    for leaf, s, dtype in zip(scan.operator.leaves, scan.states, dtypes, strict=True):
        shape = [sizes[a] for a in scan.order(s.axes)]
        start = after.get(leaf.name)
        whole = torch.full(shape, s.initial, dtype=dtype, device=aggregate.device)
        made.append(whole if start is None else start.to(dtype).expand(shape))
    return tuple(made)


@lru_cache(maxsize=1024)
def _aggregate(text: str) -> str:
    """The recurrence whose final states are the composed element of all steps."""
    return dump(on_itself(load(text)))


@lru_cache(maxsize=1024)
def _carry(text: str) -> str:
    """The recurrence over such elements, whose outputs are the states before each."""
    scan = load(text)
    used = {TIME}.union(*leaf_axes(scan).values(), *(s.axes for s in scan.states))
    return dump(carry(replace(scan, axes=scan.order(used))))


@lru_cache(maxsize=1024)
def _without_outputs(text: str) -> str:
    """The recurrence for its final states. It keeps all inputs, which say how large the axes are."""
    scan = load(text)
    readout = Builder(f"{scan.name}.finals", scan.axes, where="")
    for v in scan.readout.inputs:
        readout.input(v.name, v.kind, v.axes)
    return dump(replace(scan, name=f"{scan.name}.finals", readout=readout.finish({}), outputs=()))


def _widened(call: Prepared, after: Mapping[str, Tensor]) -> Prepared:
    """The call with leaves wide enough: packed sequences of their own lengths, for what they begin with.

    A gate that all sequences share is one number a step, and its product over a sequence depends on that
    sequence's length.
    """
    if call.packed is not None:
        axes = segments.flag_axes(load(call.text))
        real = torch.ones((), dtype=torch.bool, device=call.device)
        shape = [1 if is_batch(a) else call.sizes[a] for a in axes]
        call = call.adding(segments.padded(call.text, axes).text, [real.expand(shape)])
    for leaf in after:
        text, axes = _widest(call.text, leaf)
        if axes:
            sizes = call.sizes if call.packed is None else call.sizes | {BATCH: 1}
            zero = torch.zeros((), dtype=call.dtype, device=call.device)
            call = call.adding(text, [zero.expand([sizes[a] for a in axes])])
    return call


@lru_cache(maxsize=1024)
def _widest(text: str, leaf: str) -> tuple[str, tuple[str, ...]]:
    """The recurrence with a leaf that has all axes of its states, and those of the zeros to add for it."""
    scan = load(text)
    apply = scan.operator.apply.dependencies()
    own = next(s.axes for s in scan.states if leaf in apply[s.name])
    if {*own} <= {*leaf_axes(scan)[leaf]}:
        return text, ()
    axes = scan.order(own)
    zero = Input(fresh("wide", [i.name for i in scan.inputs]), "float", axes)
    programs = []
    for program in (scan.element, scan.readout):
        builder = Builder(program.name, scan.axes, where="")
        given = {v.name: builder.input(v.name, v.kind, v.axes) for v in program.inputs}
        added = builder.input(zero.name, "float", axes)
        made = builder.inline(program, given)
        if program is scan.element:
            made[leaf] = made[leaf] + added
        programs.append(check_program(builder.finish(made)))
    element, readout = programs
    return dump(
        check_scan(replace(scan, inputs=(*scan.inputs, zero), element=element, readout=readout))
    ), axes
