"""The options of a call that cut time, padding, resets and packed sequences: checked, and put into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from scanforge import dtypes, segments
from scanforge.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from scanforge.ir.scan import TIME
from scanforge.packed import has_values
from scanforge.prepared import Prepared

Tensor = torch.Tensor


def bounded(
    call: Prepared, *, reverse: bool, reset: Any = None, mask: Any = None, lengths: Any = None
) -> Prepared:
    """The call with its padding and its resets."""
    starts, real = checked(call, reset=reset, mask=mask, lengths=lengths)
    begins = _segment_start(call, starts, real, reverse) if call.asks_start else None
    if starts is not None and reverse:
        starts = _between(starts.expand(*starts.shape[:-1], call.sizes[TIME]))
    return cut(call, starts, real, begins)


def checked(
    call: Prepared, *, reset: Any, mask: Any, lengths: Any, begin: int = 0, total: int | None = None
) -> tuple[Tensor | None, Tensor | None]:
    """The resets and the mask of a call, whose first step is number `begin` of the `total` of `lengths`."""
    if call.entering is not None and reset is None:
        raise ArgumentError(
            f"{call.declared.name} got reset_state=, the state that resets start from, and no reset=: write "
            "reset=starts, or leave reset_state out."
        )
    if mask is not None and lengths is not None:
        raise ArgumentError(
            f"{call.declared.name} got mask= and lengths=, which say the same thing: write one of them."
        )
    steps = call.sizes[TIME] if total is None else total
    real = _flag(call, "mask", mask) if lengths is None else _from_lengths(call, lengths, begin, steps)
    return _flag(call, "reset", reset), real


def cut(call: Prepared, starts: Tensor | None, real: Tensor | None, begins: Tensor | None) -> Prepared:
    """The call with flags, in the order of processing: resets, padding, and what sf.segment_start() reads."""
    if begins is not None:
        call = call.adding(call.text, [begins])
    if real is not None:
        padded = segments.padded(call.text, _dims(call, real))
        call = call.adding(padded.text, [real])
    if starts is not None:
        entering = () if call.entering is None and not call.given else call.entering or call.initial
        changed = segments.resetting(call.text, _dims(call, starts), own=not entering)
        call = call.adding(changed.text, [starts, *entering])
    return call


def bounded_step(call: Prepared, *, reset: Any, mask: Any, first: bool) -> Prepared:
    """The call of one step; without a state before it (`first`) it starts a segment."""
    batch = _shape(call)[:-1]
    starts, real = (_of_step(call, n, v, batch) for n, v in (("reset", reset), ("mask", mask)))
    if call.asks_start:
        begins = _flag(call, "reset", starts)
        all_alike = torch.full(_shape(call), first, dtype=torch.bool, device=call.device)
        call = call.adding(call.text, [all_alike if begins is None else all_alike | begins])
    if call.entering is None:
        if starts is None or first:
            return bounded(call, reverse=False, mask=real)
        call = replace(call, entering=tuple(call.own_initial()))
    return bounded(call, reverse=False, reset=starts, mask=real)


def _of_step(call: Prepared, option: str, value: Any, shape: tuple[int, ...]) -> Any:
    """A flag of one step, with time added."""
    if value is None:
        return None
    if not isinstance(value, Tensor):
        raise ArgumentError(
            f"{call.declared.name}: {option} of a step is an object of type {type(value).__name__}, expected "
            f"a bool tensor of shape {shape}: write {option}=torch.as_tensor(...)."
        )
    if value.ndim != len(shape) or any(n not in (1, m) for n, m in zip(value.shape, shape, strict=True)):
        raise ShapeError(
            f"{call.declared.name}: {option} of a step has shape {tuple(value.shape)}, expected {shape}, the "
            f"batch axes: write {option}[:, t]."
        )
    return value[..., None]


def check_writable(call: Prepared, states: Sequence[Any]) -> None:
    """Raise for a state that a step cannot write into."""
    where, wants = f"{call.declared.name}: inplace=True", torch.is_grad_enabled()
    given = [x for x in states if isinstance(x, Tensor)]
    if len(given) != len(call.traced.states):
        raise ArgumentError(
            f"{where} writes into the state, and none is given: leave it out at the first step."
        )
    if wants and any(x.requires_grad for x in (*given, *call.inputs)):
        raise ArgumentError(
            f"{where} would overwrite a state that a gradient needs: step under torch.no_grad()."
        )
    for x, fresh in zip(given, call.states(call.initial), strict=True):
        if x.shape != fresh.shape or x.dtype != fresh.dtype:
            raise ArgumentError(
                f"{where} needs a state of shape {tuple(fresh.shape)} in {fresh.dtype}, and got "
                f"{tuple(x.shape)} in {x.dtype}: pass what sf.scan or sf.step returned."
            )
        if any(stride == 0 and n > 1 for stride, n in zip(x.stride(), x.shape, strict=True)):
            raise ArgumentError(
                f"{where} writes into the state, and the entries of the one that is given share memory: "
                "write state.clone()."
            )


def _axes(call: Prepared) -> tuple[str, ...]:
    return segments.flag_axes(call.scan)


def _shape(call: Prepared) -> tuple[int, ...]:
    return tuple(call.sizes[a] for a in _axes(call))


def _dims(call: Prepared, flag: Tensor) -> tuple[str, ...]:
    """The dims of a flag: 1 where it is shared."""
    sized = zip(_axes(call), flag.shape, strict=True)
    return tuple("1" if n == 1 and (a != TIME or call.sizes[a] != 1) else a for a, n in sized)


def _flag(call: Prepared, option: str, value: Any) -> Tensor | None:
    """A condition for every step, of any dtype: a number that is not 0 counts as true."""
    if value is None:
        return None
    where, shape = f"{call.declared.name}: {option}", _shape(call)
    if not isinstance(value, Tensor):
        raise ArgumentError(
            f"{where} is an object of type {type(value).__name__}, expected a bool tensor of shape {shape}: "
            f"write {option}=torch.as_tensor(...)."
        )
    if value.is_complex():
        raise DTypeError(f"{where} is complex, expected a bool tensor: write {option}={option} != 0.")
    _check_device(call, option, value)
    if value.ndim != len(shape) or any(n not in (1, m) for n, m in zip(value.shape, shape, strict=True)):
        raise ShapeError(
            f"{where} has shape {tuple(value.shape)}, expected {shape} ({', '.join(_axes(call))}): give it "
            "that shape, or size 1 where it is shared."
        )
    _check_rows(call, option, value)
    return value if value.dtype == torch.bool else value != 0


def _check_rows(call: Prepared, option: str, flag: Tensor) -> None:
    """A state that all sequences share cannot be cut for some of them."""
    shared = next((s.name for s in call.scan.states if not {*_axes(call)[:-1]} <= {*s.axes}), None)
    if shared is not None and any(n != 1 for n in flag.shape[:-1]):
        raise ShapeError(
            f"{call.declared.name}: {option} has shape {tuple(flag.shape)}, and the state {shared} has no "
            f"axis b: give it that axis, or pass {option} with size 1 in the batch axes."
        )


def _check_device(call: Prepared, option: str, value: Tensor) -> None:
    if value.device != call.device:
        raise DeviceError(
            f"{call.declared.name}: {option} is on {value.device}, and the tensors are on {call.device}: "
            f"write {option}.to({str(call.device)!r})."
        )


def _from_lengths(call: Prepared, lengths: Any, begin: int, steps: int) -> Tensor:
    """The mask of sequences of `steps` steps that are padded on the right; the call begins at `begin`."""
    where, shape = f"{call.declared.name}: lengths", _shape(call)[:-1]
    if not isinstance(lengths, Tensor) or lengths.dtype not in dtypes.INTS:
        raise ArgumentError(
            f"{where} is no tensor of ints: write lengths=torch.tensor([...]), one a sequence."
        )
    if tuple(lengths.shape) != shape:
        raise ShapeError(f"{where} has shape {tuple(lengths.shape)}, expected {shape}, the batch axes.")
    _check_device(call, "lengths", lengths)
    if has_values(lengths) and ((lengths < 0) | (lengths > steps)).any():
        raise ArgumentError(
            f"{where} is {lengths.tolist()}, expected numbers from 0 to the {steps} steps of the tensors: "
            "write how many steps of each sequence are real."
        )
    own = torch.arange(begin, begin + call.sizes[TIME], device=call.device)
    mask = own < lengths[..., None]
    _check_rows(call, "lengths", mask)
    return mask


def _between(starts: Tensor) -> Tensor:
    """From the right, a boundary before step t makes step t - 1 the first of its segment."""
    return torch.cat([starts[..., 1:], torch.zeros_like(starts[..., :1])], -1)


def _segment_start(call: Prepared, starts: Tensor | None, real: Tensor | None, reverse: bool) -> Tensor:
    """True at the first step of every segment that is no padding, in the order of processing."""
    steps = call.sizes[TIME]
    found = torch.zeros(_shape(call), dtype=torch.bool, device=call.device)
    if starts is not None:
        found = found | starts
    if call.packed is not None:
        at = torch.zeros(steps + 1, dtype=torch.bool, device=call.device)
        at[call.packed.long()] = True
        found = found | at[:steps]
    if reverse:
        found = _between(found)
    if steps:
        found[..., -1 if reverse else 0] = True
    return found if real is None else first_real(found, real, reverse)


def first_real(found: Tensor, real: Tensor, reverse: bool) -> Tensor:
    """The first real step at or after each boundary, in the order of processing."""
    shown, kept = (x.flip(-1) if reverse else x for x in (found, real.expand(found.shape).long()))
    before = kept.cumsum(-1) - kept  # how many steps before this one are real
    last = torch.where(shown, before, -1).cummax(-1).values if found.shape[-1] else before
    first = before == last
    return first.flip(-1) if reverse else first
