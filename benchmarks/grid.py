"""scanforge beside its peers on a CUDA device, as JSON: every time behind a correctness gate, all in turns.

    python benchmarks/grid.py [--only PATTERN ...] [--peers PATTERN] [--budget SECONDS] [--out FILE.json]
    python benchmarks/grid.py --tiny             # the same cases, small, on a CPU: it measures nothing
    python benchmarks/grid.py --list             # the cases, in the order of their worth

A case is a recurrence on a shape; `--only` takes the ones that contain a pattern, as in "HGRN2*x64x64". After
`--budget` seconds no case begins, and those left out are named. A peer that is missing, refuses, fails or is
wrong is a row that says so. Times are as in benchmarks/scan.py, and as in `Streamed` for JAX, which has
streams of its own. A fraction is least bytes over time, over the rate of a copy that ran beside it in turns.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the checkout runs, installed or not

from benchmarks import ahead, peers, timing, wall
from benchmarks.aims import aims
from benchmarks.grid_cases import Case, cases
from benchmarks.peers import fla
from benchmarks.record import Results, default_out, environment, finish
from benchmarks.session import FAILURES, Session

JOBS = max(1, min(15, (os.cpu_count() or 2) - 1))
COMPILE_SECONDS = 150
NOTHING = {"implementation": "scanforge", "operator": "", "size": [], "layout": "", "dtype": ""}


def main() -> None:
    """Gate and time the cases that were asked for."""
    options = parse()
    chosen = [c for c in cases() if not options.only or any(_has(c.name, p) for p in options.only)]
    if options.list:
        return print(*(c.name for c in chosen), sep="\n")
    if options.compile:
        ahead.compile_part(options.compile, {"grid": partial(makers, chosen, options.peers)}, FAILURES)
        return None
    device = "cpu" if options.tiny else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("There is no CUDA device here: write --tiny for a dry run.")
    began = time.time()
    stamp = environment(device, options.commit, " ".join(options.only)) | {"peers": peers.versions()}
    out = options.out or default_out(stamp, "grid-")
    session = Session(Results(out, stamp), device, wall if options.tiny else timing, options.peers)
    if options.tiny:
        run(session, chosen, began + options.budget)
    else:
        lost = compile_ahead(options)
        print(f"compiled ahead, {time.time() - began:.0f} s, {lost} processes did not end", flush=True)
        with torch.cuda.stream(torch.cuda.Stream()), fla.quick_tuning():  # no capture on the default stream
            run(session, chosen, began + options.budget)
    finish(session.results, began)
    found = aims(vars(session.results))
    missed = [aim for aim in found if not aim.met]
    for aim in missed:
        print(f"missed: {aim.what}, {aim.got:.3f}, wanted {aim.sign} {aim.wanted:g}")
    print(f"{len(found) - len(missed)} of {len(found)} aims are met")
    return None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="the JSON file, dated in benchmarks/results by default")
    parser.add_argument("--only", nargs="*", default=[], metavar="PATTERN", help="cases that contain one")
    parser.add_argument("--peers", default="*", metavar="PATTERN", help="of names; 'none' for none of them")
    parser.add_argument("--budget", type=float, default=1e9, metavar="SECONDS", help="for all of the run")
    parser.add_argument("--compile-seconds", type=float, default=COMPILE_SECONDS, help="at most, beforehand")
    parser.add_argument("--jobs", type=int, default=JOBS, help="processes that compile ahead; 0 for none")
    parser.add_argument("--commit", default="", help="of the code that runs, where git cannot tell")
    parser.add_argument("--tiny", action="store_true", help="small, on the CPU, by the reference")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--compile", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _has(name: str, pattern: str) -> bool:
    return fnmatch.fnmatch(name, f"*{pattern}*")


def compile_ahead(options: argparse.Namespace) -> int:
    """Every kernel of the chosen cases, ours and the peers', by several processes; how many did not end."""
    command = [str(Path(__file__).resolve()), "--peers", options.peers]
    command += ["--only", *options.only] if options.only else []
    compiled = ahead.Ahead([*command, "--compile"], {"grid": options.jobs}, options.compile_seconds)
    compiled.wait("grid")
    return compiled.lost()


def makers(chosen: list[Case], pattern: str) -> ahead.Makers:
    """The calls that launch what the cases need, one case's tensors at a time."""
    return (make for case in chosen for make in case.makers(pattern))


def run(session: Session, chosen: list[Case], end: float) -> None:
    """Case after case, until the time is up."""
    session.attempt(NOTHING | {"implementation": "copy"}, session.copy)
    left, tiny = [case.name for case in chosen], session.device == "cpu"
    for case in chosen:
        if time.time() > end:
            break
        session.attempt(NOTHING | {"operator": case.name}, partial(case.run, session, tiny=tiny))
        left.remove(case.name)
        session.settle()
    session.results.stamp["not_run"] = left
    session.attempt(NOTHING | {"implementation": "copy"}, session.copy_again)
    if left:
        print(f"The time was up before: {', '.join(left)}")


if __name__ == "__main__":
    main()
