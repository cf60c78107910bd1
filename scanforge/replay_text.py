"""Tape -> Python text: a function that does again what a tape notes, and nothing else.

    def replay(t0, t1):
        if current_device() != 0:
            return on_device(0, replay, t0, t1)
        stream = stream_of(0)
        t2 = empty((8, 2048, 64), (131072, 64, 1), dtype_0)
        rooms0 = empty((1048576,), (1,), dtype_1)
        p_t0, p_rooms0 = t0.data_ptr(), rooms0.data_ptr()
        run_0(64, 1, 1, stream, function_0, packed_0, None, None, None, p_t0, p_rooms0, p_rooms0 + 4096, ...)
        run_1(64, 1, 1, stream, function_1, packed_1, None, None, None, p_t0 + 64, p_rooms0, ...)
        del rooms0
        return t2

Pointers are numbers, so that a launcher asks no tensor for its own; views that only gave a kernel its
pointer are gone, and what is made here goes after its last use. Rooms that kernels alone look at share
memory (workspace.py). The text depends on shapes, strides and dtypes, and on the alignment of what
is given.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from typing import Any

import torch

from scanforge.launcher import Known, on_device, unwrapped
from scanforge.lean import lean, touched
from scanforge.tape import EMPTY, ZEROS, Launch, Op, Ref, Step, Tape, indices
from scanforge.workspace import pieces

Tensor = torch.Tensor

# Operations whose schema is that of the tensor method of this name, which is quicker to call.
_METHODS = frozenset({
    "add_", "as_strided", "copy_", "cumsum", "expand", "fill_", "flip", "ne", "permute", "squeeze", "sum",
    "unsqueeze", "zero_",
})  # fmt: skip
_NAME = re.compile(r"\b(?:t|rooms)[0-9]+\b")
_GUARDS: Any = torch._C._dynamo.guards
_QUICK = {  # what Inductor's text calls, on the current device: without parsing, without dispatch
    "cpu": _GUARDS._empty_strided_cpu,
    "cuda": _GUARDS._empty_strided_cuda,
}
_CASTS = frozenset({torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype})


def function_of(tape: Tape) -> Callable[..., Any]:
    """The function that replays a tape: of the tensors that it was given, in order."""
    return _Writer(tape).function()


@cache
def constant(value: float | bool, dtype: torch.dtype, device: torch.device, inference: bool) -> Tensor:
    """One number on a device, kept for good and never written: any stream may read it at any time."""
    with torch.inference_mode(inference):
        made = torch.full((), value, dtype=dtype, device=device)
    if made.is_cuda:
        torch.cuda.synchronize(device)
    return made


class _Writer:
    def __init__(self, tape: Tape) -> None:
        self.tape = lean(tape)
        self.steps = self.tape.steps
        self.names: dict[str, Any] = {"empty_strided": torch.empty_strided}
        self.bound: dict[int, str] = {}
        self.device = next((x.device for x in tape.tensors if x.device.type != "cpu"), torch.device("cpu"))
        self.constants = self._constants()
        self.whole = self._whole()
        self.launches = [s for s in self.steps if isinstance(s, Launch) and s.compiled is not None]
        self.pieces = dict(zip(_rooms(), pieces(self.tape), strict=False))
        self.rooms = {i: (name, at) for name, p in self.pieces.items() for i, at in p.offsets.items()}
        self.often = {i for i, n in self._addressed().items() if n > 1}
        self.lines: list[tuple[str, set[str]]] = []  # and the tensors that they look at

    def function(self) -> Callable[..., Any]:
        for k, step in enumerate(self.steps):
            for name, piece in self.pieces.items():
                if k == piece.room.first:
                    self._add(f"{name} = {self._empty((piece.room.size,), (1,), torch.uint8, self.device)}")
            if isinstance(step, Launch):
                self._launch(step)
            elif not any(i in self.constants or i in self.rooms for i in step.made):
                self._add(self._op(step))
        given = ", ".join(f"t{i}" for i in range(self.tape.given))
        body = [*self._head(given), *self._let_go(), f"return {self._text(self.tape.returned)}"]
        text = f"def replay({given}):\n" + "".join(f"    {line}\n" for line in body)
        names = self.names
        exec(compile(text, "<scanforge replay>", "exec"), names)
        replay: Callable[..., Any] = names["replay"]
        replay.__doc__ = text
        return replay

    def _add(self, line: str, looked_at: Iterator[str] | tuple[str, ...] = ()) -> None:
        if line:
            self.lines.append((line, {*_NAME.findall(line), *looked_at}))

    def _let_go(self) -> Iterator[str]:
        """The lines; a tensor that is made here goes after the last one that looks at it."""
        last = {name: k for k, (_, names) in enumerate(self.lines) for name in names}
        stay = {f"t{i}" for i in range(self.tape.given)} | {*_NAME.findall(self._text(self.tape.returned))}
        for k, (line, names) in enumerate(self.lines):
            yield line
            if gone := sorted(name for name in names - stay if last[name] == k):
                yield f"del {', '.join(gone)}"

    def _head(self, given: str) -> list[str]:
        """Launches go to the tensors' device and to its current stream; so does what is made here."""
        if not self.launches:
            return []
        if self.device.type == "cpu":
            return ["stream = 0"]
        index = self.device.index
        self.names |= {
            "current_device": torch._C._cuda_getDevice,
            "stream_of": torch._C._cuda_getCurrentRawStream,
            "on_device": on_device,
        }
        return [
            f"if current_device() != {index}:",
            f"    return on_device({index}, replay, {given})",
            f"stream = stream_of({index})",
        ]

    def _constants(self) -> dict[int, Tensor]:
        """Numbers that nothing writes, and views of them: they are made once for all."""
        written = {root for s in self.steps if isinstance(s, Op) for root in s.writes}
        found: dict[int, Tensor] = {}
        for step in self.steps:
            if isinstance(step, Launch) or any(self.tape.roots[i] in written for i in step.made):
                continue
            like = self.tape.tensors[step.made[0]] if len(step.made) == 1 else None
            if like is None:
                continue
            if step.name == "full" and step.args[0] == ():
                inference = torch.is_inference_mode_enabled()
                found[step.made[0]] = constant(step.args[1], like.dtype, like.device, inference)
            elif step.run.is_view and isinstance(step.args[0], Ref) and step.args[0].index in found:
                found[step.made[0]] = step.run(found[step.args[0].index], *step.args[1:], **step.keywords)
        return found

    def _whole(self) -> dict[int, int]:
        """Tensors made here of which all is seen through one view alone: the view is made in their place."""
        made = {s.made[0] for s in self.steps if isinstance(s, Op) and s.name in EMPTY | ZEROS}
        seen: dict[int, list[Step | None]] = {i: [None] * (i in indices(self.tape.returned)) for i in made}
        for step in self.steps:
            for i in made.intersection(indices(step.args)):
                addressed = isinstance(step, Launch) and step.compiled is not None
                if not addressed and getattr(step, "name", "") != "as_strided":
                    seen[i].append(step)
        found, tensors = {}, self.tape.tensors
        for i, (use, *more) in ((i, steps) for i, steps in seen.items() if steps):
            if more or not isinstance(use, Op) or use.writes or len(use.made) != 1:
                continue
            view = tensors[use.made[0]]
            is_view = self.tape.roots[use.made[0]] == i and view.dtype == tensors[i].dtype
            all_of_it = math.prod(view.shape) == math.prod(tensors[i].shape)
            if is_view and all_of_it and view.address == tensors[i].address:
                found[i] = use.made[0]
        return found

    def _bind(self, value: Any, name: str) -> str:
        """A name for an object that has no text."""
        if id(value) not in self.bound:
            self.bound[id(value)] = f"{name}_{len(self.bound)}"
            self.names[self.bound[id(value)]] = value
        return self.bound[id(value)]

    def _text(self, value: Any) -> str:
        if isinstance(value, Ref):
            i = value.index
            i = self.whole.get(i, i)
            return self._bind(self.constants[i], "constant") if i in self.constants else f"t{i}"
        if isinstance(value, Known):
            return value.text
        if type(value) is tuple:
            return f"({''.join(f'{self._text(x)}, ' for x in value)})"
        if (
            value is None
            or isinstance(value, bool | int | str)
            or (type(value) is float and math.isfinite(value))
        ):
            return repr(value)
        return self._bind(value, type(value).__name__)

    def _op(self, step: Op) -> str:
        name, made = step.name, ", ".join(f"t{i}" for i in step.made)
        if name in EMPTY | ZEROS:
            return self._allocation(step)
        if not step.writes and self.whole.get(self.tape.roots[step.made[0]]) == step.made[0]:
            return ""
        args = [self._text(x) for x in step.args]
        if name == "as_strided" and len(args) > 3:
            args[3] = f"{args[0]}.storage_offset() + {args[3]}"
        keywords = [f"{n}={self._text(x)}" for n, x in step.keywords.items()]
        if "out" in step.keywords:
            call = f"{self._bind(getattr(torch, name), name)}({', '.join(args + keywords)})"
        elif name in _METHODS and isinstance(step.args[0], Ref):
            call = f"{args[0]}.{name}({', '.join(args[1:] + keywords)})"
        elif step.run in _CASTS and [*step.keywords, *args[1:]] in (["dtype"], args[1:2]):
            call = f"{args[0]}.to({(*args[1:], *keywords)[0]})"
        else:
            call = f"{self._bind(step.run, name)}({', '.join(args + keywords)})"
        return f"{made} = {call}"

    def _allocation(self, step: Op) -> str:
        made = self.whole.get(step.made[0], step.made[0])
        like = self.tape.tensors[made]
        text = f"t{made} = {self._empty(like.shape, like.strides, like.dtype, like.device)}"
        return text if step.name in EMPTY else f"{text}.zero_()"

    def _empty(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> str:
        """Memory that holds anything. Where launches are, the device is the current one."""
        quick = _QUICK.get(device.type) if self.launches and device == self.device else None
        if quick is None or torch.are_deterministic_algorithms_enabled():  # which may fill what is empty
            of = f"dtype={self._text(dtype)}, device={self._text(device)}"
            return f"empty_strided({shape}, {strides}, {of})"
        self.names["empty"] = quick
        return f"empty({shape}, {strides}, {self._text(dtype)})"

    def _launch(self, step: Launch) -> None:
        if step.compiled is None:  # Triton's interpreter takes tensors
            tensors = [*map(self._text, step.args), f"**{self._bind(step.constants, 'constants')}"]
            function = self._bind(step.function, "kernel")
            return self._add(f"{function}[{self._text(step.grid)}]({', '.join(tensors)})")
        names, compiled = step.function.arg_names, step.compiled
        given = dict(zip(names, step.args, strict=False)) | step.constants
        own = (given[n] for n in names)
        args: list[Any] = [Known(self._pointer(x)) if isinstance(x, Ref) else x for x in own]
        head = [*(*step.grid, 1, 1)[:3], Known("stream"), compiled.function, compiled.packed_metadata]
        run, found = unwrapped(compiled.run, (*head, None, None, None, *args))
        looked_at = tuple(self._holder(i) for i in touched(self.tape, step) if i not in self.constants)
        self._add(f"{self._bind(run, 'run')}({', '.join(map(self._text, found))})", looked_at)

    def _addressed(self) -> Counter[int]:
        """How often launches are given an address in each tensor's memory."""
        found = (i for s in self.launches for i in indices((*s.args, *s.constants.values())))
        return Counter(self.tape.roots[i] for i in found)

    def _holder(self, root: int) -> str:
        """What holds a tensor's memory."""
        return self.rooms[root][0] if root in self.rooms else self._text(Ref(root))

    def _pointer(self, ref: Ref) -> str:
        """The address, as a number of bytes behind that of the memory that it lies in."""
        tape, root = self.tape, self.tape.roots[ref.index]
        offset = tape.tensors[ref.index].address - tape.tensors[root].address
        if root in self.constants:
            return str(self.constants[root].data_ptr() + offset)
        holder = self._holder(root)
        address = f"{holder}.data_ptr()"
        if root in self.rooms or root in self.often:
            name = f"p_{holder}"
            if not any(line.startswith(f"{name} = ") for line, _ in self.lines):
                self._add(f"{name} = {address}")
            address, offset = name, offset + self.rooms.get(root, ("", 0))[1]
        return address + (f" + {offset}" if offset else "")


def _rooms() -> Iterator[str]:
    return (f"rooms{k}" for k in count())
