"""`benchmarks/grid.py` on a GPU, small: the clocks, the gates and the record of a contest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import bare, gated, matrix, timing
from benchmarks.aims import ADD, OURS
from benchmarks.cases import Row
from benchmarks.contest import Contest
from benchmarks.layers import MAMBA, RG_LRU
from benchmarks.record import Results, environment
from benchmarks.session import Session
from benchmarks.steps import StepContest
from benchmarks.tables import BACKWARD, BOTH, FORWARD

pytestmark = pytest.mark.gpu
ROUNDS = "torch, log2(t) rounds"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """On a stream of its own: none can be captured on the default one. The truth may use what is not
    deterministic: a contest fills memory with NaN by itself, for what is tested."""
    torch.use_deterministic_algorithms(False)
    with torch.cuda.stream(torch.cuda.Stream()):
        made = Session(Results(tmp_path / "r.json", environment("cuda", "abc", "")), "cuda", timing, ROUNDS)
        made.copy()
        yield made


PROBLEMS = {
    "Affine": lambda: bare.prepare(Row("Affine", (2, 300, 65), torch.float32), "cuda"),
    "MaxPlus, turned": lambda: bare.prepare(Row("MaxPlus", (2, 300, 64), torch.bfloat16, "bdt"), "cuda"),
    "HGRN2": lambda: matrix.hgrn2((2, 300, 2, 32, 64), "cuda", "chunked"),
    "scalar decay": lambda: matrix.scalar_decay((2, 300, 2, 32, 64), "cuda", "chunked"),
    "RG-LRU": lambda: gated.prepare(RG_LRU, (2, 300, 65), "cuda"),
    "Mamba": lambda: gated.prepare(MAMBA, (2, 300, 65, 16), "cuda"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_direction_has_its_times(name: str, session: Session):
    Contest(session, PROBLEMS[name]()).run()
    rows = {row["direction"]: row for row in session.results.rows if row["implementation"] == OURS}
    assert set(rows) == {FORWARD, BACKWARD, BOTH}
    for row in rows.values():
        assert "failed" not in row
        assert row["lowering"].startswith("triton, ")
        for clock in ("cold", "replayed"):
            assert 0 < row[clock]["min"] <= row[clock]["median"] <= row[clock]["max"]
        assert row["peak_bytes"] > 0
        assert row["floor_ms"] > 0


def test_a_peer_and_an_addition_are_timed_beside(session: Session):
    Contest(session, bare.prepare(Row("MinMax", (2, 300, 64), torch.float32), "cuda")).run()
    found = {(row["implementation"], row["direction"]) for row in session.results.rows if "clock" in row}
    assert {(ADD, FORWARD), (ROUNDS, FORWARD), (ROUNDS, BOTH), (OURS, BOTH)} <= found


@pytest.mark.parametrize("entry", [RG_LRU, MAMBA], ids=lambda entry: entry.name)
def test_steps_are_timed(entry, session: Session):
    StepContest(entry, 1).run(session, tiny=False)
    rows = {row["implementation"]: row for row in session.results.rows}
    assert {"scanforge", "copy", "empty kernel"} <= set(rows)
    assert all(row["replayed"]["median"] > 0 for row in rows.values() if "failed" not in row)
    assert "failed" not in rows["scanforge"]


def test_a_device_that_is_lost_ends_the_run(session: Session, monkeypatch: pytest.MonkeyPatch):
    def lost() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", lost)
    with pytest.raises(SystemExit, match="The device is lost"):
        session.settle()
    assert session.results.stamp["lost"].startswith("RuntimeError")
