"""The rows of `benchmarks/scan.py` as pytest-benchmark cases: a round is one replay of ten calls."""

from __future__ import annotations

import pytest
import torch

from benchmarks import gate, timing
from benchmarks.cases import DIRECTIONS, Row, prepare, rows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("row", rows(), ids=str)
def test_scan(benchmark, row: Row, direction: str):
    with torch.cuda.stream(torch.cuda.Stream()):
        work = prepare(row, "cuda")
        errors = gate.check(work)
        graph = timing.captured(work.call(direction))
        least = work.nbytes(direction)
        benchmark.extra_info |= {"calls": timing.CALLS, "bytes": least, "errors": vars(errors)}

        def replay() -> None:
            graph.replay()
            torch.cuda.synchronize()

        benchmark.pedantic(replay, rounds=timing.REPLAYS, warmup_rounds=3)
