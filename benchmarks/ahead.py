"""Kernels compiled ahead in several processes: the one that measures loads them from the cache on disk.

A process makes the calls of one part with its tensors on the GPU, and launches nothing: of the distinct
kernels that the calls would launch it compiles every n-th, each exactly as its launch would.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

SECONDS = 150  # after which what is not compiled is left to the process that measures
ALONE = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # each is one of many
Call = Callable[[], Any]
Makers = Iterable[Callable[[], Call]]  # each makes a call; what it launches meanwhile is another part's


class Ahead:
    """The processes of each part."""

    def __init__(self, command: list[str], parts: dict[str, int], seconds: float = SECONDS) -> None:
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        quiet["env"] = os.environ | ALONE
        self.end = time.time() + seconds
        self.running = {
            name: [
                subprocess.Popen([sys.executable, *command, f"{name}:{k}/{count}"], **quiet)
                for k in range(count)
            ]
            for name, count in parts.items()
        }

    def wait(self, name: str) -> None:
        """Until a part is compiled, or time is up."""
        for process in self.running.get(name, []):
            try:
                process.wait(max(0.0, self.end - time.time()))
            except subprocess.TimeoutExpired:
                process.kill()

    def lost(self) -> int:
        """How many processes have not come to their end by themselves."""
        return sum(process.poll() != 0 for some in self.running.values() for process in some)


def compile_part(text: str, makers: dict[str, Callable[[], Makers]], failures: tuple[type, ...]) -> int:
    """Compile "name:k/n". What fails is left to the process that measures. The number of kernels compiled."""
    name, _, share = text.partition(":")
    mine, of = map(int, share.split("/"))
    return compile_share(makers[name](), mine, of, failures)


class Whole:
    """A maker whose call compiles in its own way: one process makes it, as it is."""

    def __init__(self, make: Callable[[], Call]) -> None:
        self.make = make

    def __call__(self) -> Call:
        return self.make()


def compile_share(makers: Makers, mine: int, of: int, failures: tuple[type, ...]) -> int:
    """Of the distinct kernels that the calls launch, every n-th. The number of kernels compiled."""
    seen: dict[Any, bool] = {}
    turns = count()
    with launches(lambda key: False):
        for make in makers:
            if isinstance(make, Whole) and next(turns) % of != mine:
                continue
            try:
                call = make()
                with launches(lambda key: seen.setdefault(key, len(seen) % of == mine)):
                    call()
            except failures:
                continue
    return sum(seen.values())


@contextmanager
def launches(chosen: Callable[[Any], bool]) -> Iterator[None]:
    """No kernel is launched; those that are chosen, by what they are specialised on, are compiled.

    A kernel with an autotuner is one of each of its configurations, none of which is timed.
    """

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        named = ((n, _seen(x) if isinstance(x, torch.Tensor) else x) for n, x in sorted(kwargs.items()))
        if chosen((id(self), *map(_seen, args), *named)):
            _RUN(self, *args, grid=grid, warmup=True, **kwargs)

    before = JITFunction.run, Autotuner._bench, Autotuner.check_disk_cache
    JITFunction.run, Autotuner._bench, Autotuner.check_disk_cache = compile_only, _untimed, _unsaved
    try:
        yield
    finally:
        JITFunction.run, Autotuner._bench, Autotuner.check_disk_cache = before


def _untimed(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
    """In place of a configuration's times; one that cannot be compiled is no choice."""
    try:
        tuner.fn.run(*args, **meta, **config.all_kwargs())
    except (OutOfResources, PTXASError, CompileTimeAssertionFailure):
        return [float("inf")]
    return [0.0]


def _unsaved(tuner: Any, key: Any, configs: Any, bench: Callable[[], None]) -> bool:
    """Times that nobody took are not kept on disk."""
    bench()
    return False


_RUN = JITFunction.run


def _seen(x: Any) -> Any:
    """What a launch is specialised on, roughly: a kernel that is compiled by two processes does no harm."""
    if isinstance(x, torch.Tensor):
        return x.dtype, x.data_ptr() % 16 == 0
    return (x == 1, x % 16 == 0) if isinstance(x, int) else x
