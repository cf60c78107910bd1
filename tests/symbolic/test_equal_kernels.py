"""A kernel's text is its key on disk, so it is the same in every process."""

from __future__ import annotations

from tests.subprocesses import ROOT, run_python

EVERY_KERNEL = """
import scanforge as sf
from tests.recurrences import ENTRIES
for entry in ENTRIES:
    for which in ("forward", "backward"):
        print(sf.source(entry.recurrence, which, backend="triton"))
"""


def test_equal_text_in_every_process(monkeypatch):
    printed = []
    for seed in ("0", "4711"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        printed.append(run_python("-c", EVERY_KERNEL, cwd=ROOT))
    assert printed[0] == printed[1]
    assert "RGLRU" in printed[0]
