"""What every run of benchmarks does: its copy first and last, and a failure recorded in place of a time."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
from triton.errors import TritonError

import scanforge as sf
from benchmarks.record import Results, rate

FAILURES = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError,
    RuntimeError, TypeError, ValueError, Warning, sf.ScanforgeError, TritonError,
)  # fmt: skip
Row = dict[str, Any]


def told(failure: BaseException) -> str:
    return f"{type(failure).__name__}: {failure}"[:500]


def lowering() -> str:
    """What the newest pass of scanforge ran."""
    ran = sf.last_run()
    return f"{ran.plan.backend}, {ran.plan.lowering}" if ran else ""


@dataclass
class Session:
    """A run on one device: `clock` is `timing` on a GPU, and `wall` in a dry run."""

    results: Results
    device: str
    clock: Any
    peers: str = "*"  # a pattern of the names of peers that take part

    def attempt(self, begin: Row, case: Callable[[], Row | None]) -> None:
        """Record a case's row, or why it has none."""
        try:
            row = case()
        except FAILURES as failure:
            self.results.add({"direction": "all", "error": None} | begin | {"failed": told(failure)})
        else:
            if row is not None:
                self.results.add(begin | row)

    def copy(self) -> None:
        nbytes, times = 2 * self.clock.COPIED, self.clock.copy_times()
        pace = rate(nbytes, times.median)
        self.results.copy = {"bytes": nbytes, "called": asdict(times), "rate_tb_s": pace, "again_tb_s": pace}

    def copy_again(self) -> None:
        """At the end, so that a device that changed its pace shows."""
        self.results.copy["again_tb_s"] = rate(2 * self.clock.COPIED, self.clock.copy_times().median)

    def left_out(self, peer: str) -> str:
        return "" if fnmatch.fnmatch(peer, self.peers) else "left out of this run"

    @cached_property
    def products_tflop_s(self) -> float:
        """What a product of two large bf16 matrices reaches here."""
        flops, times = self.clock.product_times()
        self.results.copy["products_tflop_s"] = rate(flops, times.median)
        return self.results.copy["products_tflop_s"]

    @property
    def exponentials_per_ms(self) -> float:
        """Of the special-function units: 16 a clock and processor."""
        stamp = self.results.stamp
        return 16 * stamp.get("processors", 1) * stamp.get("clock_mhz", 1e3) * 1e3

    def settle(self) -> None:
        """Wait for the device; where it does not answer any more, nothing after this can be measured."""
        if self.device != "cuda":
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError as failure:
            self.results.stamp["lost"] = told(failure)
            self.results.save()
            raise SystemExit(f"The device is lost: {told(failure)}") from failure
        torch.cuda.empty_cache()
