"""How fast fused recurrences are on a CUDA device, as JSON: each time behind its correctness gate.

    python benchmarks/fused.py [--out FILE.json] [--commit HASH] [--no-ahead]
    python benchmarks/fused.py --tiny            # the same cases, small, on a CPU: it measures nothing

RG-LRU with its gates, and the same around a bare scan; Mamba's selective SSM, its peak memory, and with
memory="low"; one step of Mamba in a CUDA graph. Times are `cold` (see scan.py) but for steps, which are
`replayed`, in milliseconds; fractions are least bytes over time, over the rate of a 1 GiB copy in this run.
Most of the run is compilation, which several processes do ahead; cases begin when their kernels are there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the checkout runs, installed or not

from benchmarks import ahead, decoding, fused_tables, layers, timing, wall
from benchmarks.fused_tables import BARE, COPY, FUSED, LOW
from benchmarks.layer_gate import Gated
from benchmarks.layers import MAMBA, RG_LRU, Layer
from benchmarks.record import ROOT, Results, environment, finish, rate
from benchmarks.session import FAILURES, Row, Session
from benchmarks.steps import StepContest
from benchmarks.tables import BACKWARD, BOTH, FORWARD, TRAINING

PARTS = {"mamba backward": 3, "layers": 3, "mamba forward": 2, "steps": 1}  # processes, the slowest first
BARE_BOUND = 0.2  # of errors that are shown: gates near 1 are rounded to bfloat16


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
    compiled = ahead.Ahead([str(Path(__file__).resolve()), "--compile"], {} if options.no_ahead else PARTS)
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
    parser.add_argument("--no-ahead", action="store_true", help="compile in this process alone")
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


class Run(Session):
    """The cases in order. A failure is recorded in place of a time, and what comes after it still runs."""

    def __init__(self, results: Results, device: str, clock: Any, wait: Callable[[str], None]) -> None:
        super().__init__(results, device, clock)
        self.wait = wait
        self.tiny = device == "cpu"

    def all(self) -> None:
        """What compiles quickly first."""
        mamba = {"implementation": FUSED, "operator": "Mamba", **_at(layers.SIZES[MAMBA.name])}
        rg_lru = mamba | {"operator": "RG-LRU", **_at(layers.SIZES[RG_LRU.name])}
        self.wait("layers")
        self.attempt(_COPY, self.copy)
        self.directions(rg_lru, "rg_lru", (FORWARD, TRAINING, BACKWARD, BOTH))
        self.directions(rg_lru | {"implementation": BARE}, "bare", (FORWARD, BOTH))
        self.wait("steps")
        for batch in decoding.SIZES:
            StepContest(MAMBA, batch).run(self, tiny=self.tiny)
        self.wait("mamba forward")
        self.directions(mamba, "mamba", (FORWARD, TRAINING))
        self.wait("mamba backward")
        self.directions(mamba, "mamba", (BACKWARD, BOTH))
        self.directions(mamba | {"implementation": LOW}, "low", (BOTH,))
        self.attempt(_COPY, self.copy_again)

    @cached_property
    def rg_lru(self) -> Gated:
        return Gated(layers.prepare(RG_LRU, self.device, tiny=self.tiny))

    @cached_property
    def bare(self) -> Gated:
        """The same tensors with the gates in torch."""
        return replace(self.rg_lru, layer=replace(self.rg_lru.layer, run=layers.bare), bound=BARE_BOUND)

    @cached_property
    def mamba(self) -> Gated:
        return Gated(layers.prepare(MAMBA, self.device, tiny=self.tiny))

    @cached_property
    def low(self) -> Gated:
        return replace(self.mamba, layer=replace(self.mamba.layer, memory="low"))

    def directions(self, begin: Row, name: str, directions: tuple[str, ...]) -> None:
        for direction in directions:
            self.attempt(begin | {"direction": direction}, partial(self.timed, name, direction))

    def timed(self, name: str, direction: str) -> Row:
        """A direction's times and its fraction of the copy; with gradients, the peak of memory."""
        gated: Gated = getattr(self, name)
        row: Row = {"error": gated.errors(direction)}
        call, nbytes = gated.layer.call(direction), gated.layer.nbytes(direction)
        called, host = self.clock.called(call)
        cold = self.clock.cold(call)
        fraction = rate(nbytes, cold.median) / self.results.copy["rate_tb_s"]
        row |= {"bytes": nbytes, "cold": asdict(cold), "called": asdict(called), "host": asdict(host)}
        row |= {"times_l2": nbytes / self.results.stamp["l2_bytes"]} if not self.tiny else {}
        return row | {"fraction": fraction} | ({"peak": self.peak(gated.layer)} if direction == BOTH else {})

    def peak(self, layer: Layer) -> Row:
        """The most memory that a forward and a backward pass hold, inputs and the cotangent included.

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


def _at(sizes: dict[str, int]) -> Row:
    return {"size": list(sizes.values()), "layout": "".join(sizes), "dtype": "bfloat16"}


_COPY = {"implementation": COPY, "operator": "copy", **_at({"b": timing.COPIED})}


if __name__ == "__main__":
    main()
