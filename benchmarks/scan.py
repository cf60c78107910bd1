"""How fast the scans are on a CUDA device, as JSON: each row behind its correctness gate.

    python benchmarks/scan.py [--out FILE.json] [--only TEXT] [--jobs 8] [--commit HASH]
    python benchmarks/scan.py --dry-run          # the rows and the gates alone, small, on a CPU

Times are of the device (`cold`: one call after a flush of L2, launched while the device spins, so that it
waits for no host; `replayed`: a CUDA graph of ten calls, back to back) and as called from Python (`called`:
events around a call after a flush; `host`: until the call returns), in milliseconds, as min, median and max.
A fraction is the least bytes a call moves over its cold median (`fraction_replayed`: replayed), over the rate
of a 1 GiB copy in the same run. Needs torch, Triton and what scanforge needs, and nothing else.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the checkout runs, installed or not

from benchmarks import baselines, first_call, gate, timing
from benchmarks.cases import (
    BACKWARD,
    DIRECTIONS,
    FLOATS,
    FORWARD,
    LONG,
    SIZES,
    Row,
    dtype_name,
    prepare,
    rows,
    tiny,
)
from benchmarks.record import Results, default_out, environment, finish, rate
from benchmarks.session import FAILURES, Session, lowering, told

IN_ROUNDS, ROUNDS_REPEATS = "torch, log2(t) rounds", 5
COMPILE_SECONDS = 200


def main() -> None:
    """Gate and time the rows that were asked for."""
    options = parse()
    chosen = [row for row in rows() if options.only in str(row)]
    if options.compile:
        part, of = map(int, options.compile.split("/"))
        return compile_rows(chosen[part::of])
    device = "cpu" if options.dry_run else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("There is no CUDA device here: write --dry-run for the rows and their gates alone.")
    began, stamp = time.time(), environment(device, options.commit, options.only)
    results = Results(options.out or default_out(stamp), stamp)
    if device == "cpu":
        torch.set_num_threads(1)
        for row in chosen:
            measure(tiny(row), device, results)
        return finish(results, began)
    if not options.only:
        results.first_call = first_calls()
    compile_ahead(min(options.jobs, len(chosen)), options.only)
    with torch.cuda.stream(torch.cuda.Stream()):  # a graph can be captured on any but the default one
        measure_all(chosen, results)
    finish(results, began)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the JSON file, dated in benchmarks/results by default")
    parser.add_argument("--only", default="", help="the rows that contain this text, as in 'MinMax 8x2048'")
    parser.add_argument("--dry-run", action="store_true", help="small, on the CPU, by the reference, untimed")
    parser.add_argument("--commit", default="", help="of the code that runs, where git cannot tell")
    jobs = min(8, (os.cpu_count() or 2) // 2)
    parser.add_argument("--jobs", type=int, default=jobs, help="processes that compile ahead; 1 for none")
    parser.add_argument("--compile", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure_all(chosen: list[Row], results: Results) -> None:
    """The copy first and last, so that a device that changes its pace shows."""
    session = Session(results, "cuda", timing)
    session.copy()
    for row in chosen:
        measure(row, "cuda", results)
    measure_baselines(chosen, results)
    session.copy_again()


def compile_ahead(jobs: int, only: str) -> None:
    """Fill the caches on disk from several processes, so that this one loads what it would compile."""
    if jobs < 2:
        return
    command = [sys.executable, str(Path(__file__).resolve()), "--only", only, "--compile"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    parts = [subprocess.Popen([*command, f"{i}/{jobs}"], **quiet) for i in range(jobs)]
    end = time.time() + COMPILE_SECONDS
    for part in parts:
        try:
            part.wait(max(0.0, end - time.time()))
        except subprocess.TimeoutExpired:
            part.kill()


def compile_rows(chosen: list[Row]) -> None:
    """One call of each direction. What fails is left to the process that measures."""
    for row in chosen:
        try:
            work = prepare(row, "cuda")
            for direction in DIRECTIONS:
                work.call(direction)()
            torch.cuda.synchronize()
        except FAILURES:
            continue


def first_calls() -> dict[str, Any]:
    try:
        return first_call.measure()
    except (RuntimeError, subprocess.TimeoutExpired) as failure:
        return {"failed": told(failure)}


def measure(row: Row, device: str, results: Results) -> None:
    """A row in all directions, or the reason why it has no time."""
    begin = {"implementation": "scanforge", "operator": row.operator, **describe(row)}
    try:
        work = prepare(row, device)
        errors = asdict(gate.check(work))
    except FAILURES as failure:
        return results.add(begin | {"direction": "all", "failed": told(failure)})
    begin |= {"lowering": lowering(), "error": errors}
    for direction in DIRECTIONS:
        one = begin | {"direction": direction, "bytes": work.nbytes(direction)}
        results.add(one if device == "cpu" else one | times(work.call(direction), one["bytes"], results))


def describe(row: Row) -> dict[str, Any]:
    return {"size": list(row.size), "layout": row.layout, "dtype": dtype_name(row.dtype)}


def times(call: Callable[[], Any], nbytes: int, results: Results) -> dict[str, Any]:
    """A call's times and its fractions of the copy, or why it could not be timed."""
    found: dict[str, Any] = {"times_l2": nbytes / results.stamp["l2_bytes"]}
    try:
        called, host = timing.called(call)
        found |= {"called": asdict(called), "host": asdict(host)}
        cold, replayed = timing.cold(call), timing.replayed(call)
    except FAILURES as failure:
        return found | {"failed": told(failure)}
    fractions = [rate(nbytes, t.median) / results.copy["rate_tb_s"] for t in (cold, replayed)]
    found |= {"cold": asdict(cold), "replayed": asdict(replayed)}
    return found | dict(zip(("fraction", "fraction_replayed"), fractions, strict=True))


def measure_baselines(chosen: list[Row], results: Results) -> None:
    """`torch.add` on every shape that is measured, and MinMax in rounds of torch operations."""
    for row in (Row("MinMax", size, dtype) for size in (*SIZES, LONG) for dtype in FLOATS):
        if any((r.size, r.dtype) == (row.size, row.dtype) for r in chosen):
            results.add(addition(row, results))
        if row in chosen:
            for one in in_rounds(row, results):
                results.add(one)


def addition(row: Row, results: Results) -> dict[str, Any]:
    x, y, room = baselines.addends(row.shape, row.dtype, "cuda")
    one = {"implementation": "torch.add", "operator": "add", **describe(row), "direction": FORWARD}
    one |= {"bytes": 3 * x.nbytes, "error": None}
    return one | times(lambda: torch.add(x, y, out=room), 3 * x.nbytes, results)


def in_rounds(row: Row, results: Results) -> Iterator[dict[str, Any]]:
    """MinMax in rounds, forward, and forward and backward: its values exact, its gradients autograd's."""
    begin, work = {"implementation": IN_ROUNDS, "operator": "MinMax", **describe(row)}, prepare(row, "cuda")
    leaves, x0, cotangent = work.trainable(), work.initial[0].to(row.dtype), work.cotangents[0]

    def forward() -> torch.Tensor:
        return baselines.min_max_rounds(**work.leaves, x0=x0)

    def both() -> tuple[torch.Tensor, ...]:
        states = baselines.min_max_rounds(**leaves, x0=x0)
        return torch.autograd.grad(states, tuple(leaves.values()), cotangent)

    for direction, call in ((FORWARD, forward), ("forward and backward", both)):
        nbytes = work.nbytes(FORWARD) + (work.nbytes(BACKWARD) if call is both else 0)
        one = begin | {"direction": direction, "bytes": nbytes, "error": None}
        try:
            assert torch.equal(forward(), work.scan(work.leaves)[0]), f"{row}: the two differ"
            called, host = timing.called(call, ROUNDS_REPEATS)
        except FAILURES as failure:
            yield one | {"failed": told(failure)}
            continue
        fraction = rate(nbytes, called.median) / results.copy["rate_tb_s"]
        yield one | {"called": asdict(called), "host": asdict(host), "fraction": fraction}


if __name__ == "__main__":
    main()
