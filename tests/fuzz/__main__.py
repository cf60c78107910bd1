"""`python -m tests.fuzz 10000`: so many random calls. The smallest that is wrong is printed as a program."""

from __future__ import annotations

import argparse
import os

import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy
from tqdm import tqdm

from tests.fuzz.cases import Call, calls
from tests.fuzz.judge import faults, short_tiles
from tests.fuzz.program import program


def fuzz(
    count: int, number: int | None = None, every: int = 0, drawn: SearchStrategy[Call] | None = None
) -> str:
    """Judge so many calls; the program of the smallest one that is wrong, else nothing.

    One in `every` runs as kernels too, none with 0.
    """
    found: list[tuple[Call, list[str]]] = []
    with tqdm(total=count, unit=" calls") as bar:

        @settings(
            max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False, print_blob=False,
        )  # fmt: skip
        @given(calls() if drawn is None else drawn)
        def judged(call: Call) -> None:
            bar.update()
            wrong = faults(call, every)
            if wrong:
                found.append((call, wrong))
                raise AssertionError(wrong)

        try:
            (judged if number is None else seed(number)(judged))()
        except AssertionError:
            assert found  # the last one is the smallest
    return program(*found[-1]) if found else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--every", type=int, help="one call in so many runs kernels: 1 on a GPU, else 10")
    parser.add_argument("--seed", type=int, help="draw the same calls again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gpu = torch.cuda.is_available()
    if not gpu:
        os.environ["TRITON_INTERPRET"] = "1"
        from tests import quick_interpreter

        quick_interpreter.install()
    with short_tiles():
        text = fuzz(options.count, options.seed, options.every or (1 if gpu else 10))
    print(text or f"{options.count} calls, and none is wrong.")
    return 1 if text else 0


if __name__ == "__main__":
    raise SystemExit(main())
