"""How fast fused recurrences are on a CUDA device, as JSON: each time behind its correctness gate.

    python benchmarks/fused.py [--out FILE.json] [--commit HASH] [--jobs 11]
    python benchmarks/fused.py --tiny            # the same cases, small, on a CPU: it measures nothing

RG-LRU with its gates, and the same around a bare scan; Mamba's selective SSM, its peak memory, and with
memory="low"; one step of Mamba in a CUDA graph. Times are `cold` (see scan.py) but for steps, which are
`replayed`, in milliseconds; fractions are least bytes over time over the rate of a 1 GiB copy in the same run.
Most of the run is compilation: it is done ahead, in `--jobs` processes at most; 1 for none.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the checkout runs, installed or not

from benchmarks import ahead, decoding, fused_tables, layer_gate, layers, timing, wall
from benchmarks.cases import BACKWARD, FORWARD, TRAINING
from benchmarks.layers import BARE, BOTH, FUSED, MAMBA, RG_LRU, Layer
from benchmarks.record import ROOT, Results, environment, finish, rate
from benchmarks.scan import FAILURES as KNOWN
from benchmarks.scan import told
from benchmarks.timing import Times

FAILURES = (*KNOWN, ArithmeticError, AttributeError, LookupError, NameError, OSError, TypeError, ValueError)
PARTS = {"layers": 6, "steps": 2, "mamba forward": 3, "mamba backward": 3}  # processes, about one a kernel
BARE_BOUND = 1.0  # of its errors, which are shown: gates near 1 in bfloat16 are far off
GRAPH_CALLS = 16
Row = dict[str, Any]


def main() -> None:
    """Gate and time every case."""
    options = parse()
    device = "cpu" if options.tiny else "cuda"
    if options.compile:
        ahead.compile_part(options.compile, {n: partial(makers, n, device) for n in PARTS}, FAILURES)
        return
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("There is no CUDA device here: write --tiny for a dry run.")
    began, results = time.time(), Results(options.out, environment(device, options.commit, ""))
    if device == "cpu":
        Run(results, device, wall, lambda name: None).all()
        return finish(results, began)
    parts = PARTS if options.jobs > 1 else {}
    compiled = ahead.Ahead([str(Path(__file__).resolve()), "--compile"], parts)
    with torch.cuda.stream(torch.cuda.Stream()):  # a graph can be captured on any but the default one
        Run(results, device, timing, compiled.wait).all()
    finish(results, began)
    print(*fused_tables.aims(vars(results)), sep="\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ROOT / "build" / "bench" / "fused.json"
    parser.add_argument("--out", type=Path, default=default, help=f"the JSON file, {default} by default")
    parser.add_argument("--commit", default="", help="of the code that runs, where git cannot tell")
    parser.add_argument("--tiny", action="store_true", help="small, on the CPU, by the reference")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="1 to compile nothing ahead")
    parser.add_argument("--compile", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def makers(part: str, device: str) -> ahead.Makers:
    """The calls that launch what a part of the run needs."""
    if part == "steps":
        steps = [decoding.prepare(sizes, device) for sizes in decoding.SIZES.values()]
        return [lambda s=s: s.step for s in steps] + [steps[0].empty]
    if part == "layers":
        some = [layers.prepare(RG_LRU, device, run=run) for run in (layers.fused, layers.bare)]
        return [partial(layer.call, d) for layer in some for d in (FORWARD, TRAINING, BACKWARD)]
    mamba = layers.prepare(MAMBA, device)
    low = replace(mamba, memory="low")
    if part == "mamba forward":
        return [partial(mamba.call, FORWARD), partial(mamba.call, TRAINING), partial(low.call, TRAINING)]
    return [partial(mamba.call, BACKWARD), partial(low.call, BACKWARD)]


class Run:
    """The cases in order. A failure is recorded in place of a case's time, and the others still run."""

    def __init__(self, results: Results, device: str, clock: Any, wait: Callable[[str], None]) -> None:
        self.results, self.device, self.clock, self.wait = results, device, clock, wait
        self.tiny = device == "cpu"

    def all(self) -> None:
        """What compiles quickly first."""
        self.wait("layers")
        self.attempt({"implementation": "copy", "operator": "copy", **_at({})}, self.copy)
        self.layers()
        self.wait("steps")
        self.steps()
        self.mamba()
        self.attempt({"implementation": "copy", "operator": "copy", **_at({})}, self.copy_again)

    def attempt(self, begin: Row, case: Callable[[], Iterator[Row] | None]) -> None:
        """Record the rows of a case, or why it has none."""
        try:
            for row in case() or ():
                self.results.add(begin | row)
        except FAILURES as failure:
            self.results.add({"direction": "all", "error": None} | begin | {"failed": told(failure)})

    def copy(self) -> None:
        nbytes, times = 2 * self.clock.COPIED, self.clock.copy_times()
        pace = rate(nbytes, times.median)
        self.results.copy = {"bytes": nbytes, "called": asdict(times), "rate_tb_s": pace, "again_tb_s": pace}

    def copy_again(self) -> None:
        self.results.copy["again_tb_s"] = rate(2 * self.clock.COPIED, self.clock.copy_times().median)

    def layers(self) -> None:
        """RG-LRU with its gates fused, then with the gates in torch."""
        begin = {"operator": "RG-LRU", **_at(layers.SIZES[RG_LRU.name])}
        expected: list[layer_gate.Truth] = []

        def rows(run: layers.Run, bound: float | None, directions: tuple[str, ...]) -> Iterator[Row]:
            layer = layers.prepare(RG_LRU, self.device, tiny=self.tiny, run=run)
            if not expected:
                expected.extend(layer_gate.truths(layer))
            errors = asdict(layer_gate.check(layer, expected, bound))
            for direction in directions:
                yield self.timed(layer, direction) | {"error": errors}

        every, two = (FORWARD, TRAINING, BACKWARD, BOTH), (FORWARD, BOTH)
        self.attempt(begin | {"implementation": FUSED}, lambda: rows(layers.fused, None, every))
        self.attempt(begin | {"implementation": BARE}, lambda: rows(layers.bare, BARE_BOUND, two))

    def timed(self, layer: Layer, direction: str) -> Row:
        """A direction's times and its fraction of the copy."""
        call, nbytes = layer.call(direction), layer.nbytes(direction)
        called, host = self.clock.called(call)
        cold = self.clock.cold(call)
        fraction = rate(nbytes, cold.median) / self.results.copy["rate_tb_s"]
        times = {"cold": asdict(cold), "called": asdict(called), "host": asdict(host)}
        return {"direction": direction, "bytes": nbytes, **times, "fraction": fraction}

    def mamba(self) -> None:
        """Forward as soon as that is compiled, then the gradients, then memory."""
        begin = {"implementation": FUSED, "operator": "Mamba", **_at(layers.SIZES[MAMBA.name])}
        held: dict[str, Any] = {}

        def forward() -> Iterator[Row]:
            layer = held["layer"] = layers.prepare(MAMBA, self.device, tiny=self.tiny)
            expected = held["expected"] = layer_gate.truths(layer)
            self.wait("mamba forward")
            error = {"forward": layer_gate.check_forward(layer, expected), "gradient": 0.0}
            for direction in (FORWARD, TRAINING):
                yield self.timed(layer, direction) | {"error": error}

        def backward(memory: str | None, directions: tuple[str, ...]) -> Iterator[Row]:
            layer = replace(held["layer"], memory=memory)
            errors = asdict(layer_gate.check(layer, held["expected"]))
            kept = {"error": errors, "memory": memory or "default"}
            for direction in directions:
                found = self.timed(layer, direction) | kept
                yield found | ({"peak": self.peak(layer)} if direction == BOTH else {})

        self.attempt(begin, forward)
        self.wait("mamba backward")
        self.attempt(begin, lambda: backward(None, (BACKWARD, BOTH)))
        low = begin | {"implementation": FUSED + ', memory="low"'}
        self.attempt(low, lambda: backward("low", (BOTH,)))

    def peak(self, layer: Layer) -> Row:
        """The most memory that a forward and a backward pass hold, with the inputs and the output's cotangent.

        `excess` is what that is beyond inputs, output and the gradients of both, over these.
        """
        resident = layer.resident()
        if self.tiny:
            return {"resident_bytes": resident, "peak_bytes": resident, "excess": 0.0}
        call = layer.call(BOTH)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        there = sum(x.nbytes for x in (*layer.inputs.values(), layer.cotangents[0]))
        peak = there + torch.cuda.max_memory_allocated() - before
        return {"resident_bytes": resident, "peak_bytes": peak, "excess": (peak - resident) / resident}

    def steps(self) -> None:
        """Of one sequence beside an empty kernel, of 64 beside a copy of as much."""
        for b, sizes in decoding.SIZES.items():
            begin = {"operator": "Mamba step", **_at({"b": b, "d": sizes["d"], "n": sizes["n"]})}
            held: dict[str, decoding.Decoding] = {}

            def step(sizes: Any = sizes, held: Any = held) -> Iterator[Row]:
                made = held["step"] = decoding.prepare(decoding.TINY if self.tiny else sizes, self.device)
                error = {"forward": made.check(), "gradient": 0.0}
                yield self.replayed(made.step, made.nbytes()) | {"error": error}

            def beside(name: str, held: Any = held) -> Iterator[Row]:
                made = held["step"]
                call = made.copies() if name == "copy" or self.tiny else made.empty()
                yield self.replayed(call, made.nbytes() if name == "copy" else 0) | {"error": None}

            self.attempt(begin | {"implementation": FUSED}, step)
            for name in ("empty kernel", "copy"):
                self.attempt(begin | {"implementation": name}, partial(beside, name))

    def replayed(self, call: Callable[[], Any], nbytes: int) -> Row:
        """The device's time for one of the calls of a set, from a CUDA graph of several sets."""
        found = self.clock.replayed(call, GRAPH_CALLS)
        times = Times(*(x / decoding.SETS for x in asdict(found).values()))
        row = {"direction": "step", "bytes": nbytes, "replayed": asdict(times)}
        if nbytes:
            row["fraction"] = rate(nbytes, times.median) / self.results.copy["rate_tb_s"]
        return row


def _at(sizes: dict[str, int]) -> Row:
    return {"size": list(sizes.values()), "layout": "".join(sizes), "dtype": "bfloat16"}


if __name__ == "__main__":
    main()
