"""Kernels whose files are spoilt, are nowhere, or are written by two processes at once: right results."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from scanforge import cache, pipeline, replay
from tests.catalogue import BY_NAME, draw
from tests.kernels import check, everything

pytestmark = pytest.mark.interpreter
CASE = BY_NAME["MinMax"]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SCANFORGE_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def run() -> None:
    """Forward and backward, as a new process would, against the loop."""
    for cached in (cache.load_kernel_module, pipeline.forward_kernel, pipeline.backward_kernel):
        cached.cache_clear()
    replay.forget()
    leaves, initial = draw(CASE, (1, 21, 3))
    check(CASE, leaves, initial, everything(CASE), lowering="ordered_tile")


def test_spoilt_kernels(folder):
    run()
    files = sorted(folder.glob("*.py"))
    texts = [file.read_text() for file in files]
    assert len(files) == 2
    for content in ("", "raise SystemExit", texts[0].replace("minimum", "maximum")):
        for file in files:
            file.write_text(content)
        run()
        assert [file.read_text() for file in files] == texts


def test_no_place_for_kernels(monkeypatch):
    """Triton reads their text from memory."""
    monkeypatch.setenv("SCANFORGE_CACHE", os.devnull + "/kept")
    run()


def test_two_processes_at_once(folder):
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=run) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(list(folder.glob("*.py"))) == 2
    assert {path.suffix for path in folder.iterdir()} <= {".py", ".json"}  # no part of a file
