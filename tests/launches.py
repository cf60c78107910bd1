"""Triton without its compiler: what is launched is written down, so that launching runs on any machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from scanforge import api


@dataclass(frozen=True)
class Launched:
    """A launch: by `JITFunction.run`, or again, of the compiled kernel itself."""

    kernel: str  # the file that it lies in
    grid: tuple[int, ...]
    args: dict[str, Any]  # by name; addresses for tensors
    again: bool
    compiled_for: tuple[Any, ...] = ()  # what Triton compiles apart: constants, and what it sees of numbers

    def numbers(self) -> dict[str, Any]:
        """Sizes, strides and constants."""
        return {n: x for n, x in self.args.items() if not n.startswith("ptr_")}

    def addresses(self) -> dict[str, int]:
        return {n: x for n, x in self.args.items() if n.startswith("ptr_")}


@dataclass
class Launches:
    """Stands in for Triton."""

    seen: list[Launched] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        from triton.runtime.jit import JITFunction

        def run(function: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **constants: Any) -> Any:
            given = dict(zip(function.arg_names, args, strict=False)) | constants
            named = {n: _address(given[n]) for n in function.arg_names}
            name = function.fn.__code__.co_filename
            kinds = tuple(_kind(p, named[p.name]) for p in function.params)
            self.seen.append(Launched(name, grid, named, again=False, compiled_for=(name, *kinds)))
            return Compiled(function, self)

        patch.setattr(JITFunction, "run", run)
        patch.setattr(api, "choose", lambda backend, device, operator: backend or "triton")

    def taken(self) -> list[Launched]:
        """What was launched since this was asked for."""
        taken, self.seen = self.seen, []
        return taken


class Compiled:
    """What Triton's `run` gives back, as far as a replay knows it."""

    def __init__(self, function: Any, launches: Launches | None) -> None:
        self.jit, self.launches = function, launches
        self.function, self.packed_metadata = object(), (1, 1, 0)

    def run(self, *args: Any) -> None:
        """The launcher that Triton compiles: a grid, where to run, and the kernel's arguments."""
        if self.launches is not None:
            *grid, stream, function, packed, metadata, enter, leave = args[:9]
            assert (function, packed, metadata, enter, leave) == (
                self.function, self.packed_metadata, None, None, None,
            )  # fmt: skip
            assert stream == 0
            named = dict(zip(self.jit.arg_names, args[9:], strict=True))
            name = self.jit.fn.__code__.co_filename
            self.launches.seen.append(Launched(name, tuple(grid), named, again=True))


def _address(value: Any) -> Any:
    return value.data_ptr() if isinstance(value, torch.Tensor) else value


def _kind(parameter: Any, value: Any) -> Any:
    """A constant itself; of other numbers whether they are 1, or multiples of 16."""
    if parameter.is_constexpr:
        return value
    return None if parameter.do_not_specialize else (value == 1, value % 16 == 0)
