"""The distributed example learns the same on one rank and on two, and after it was stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.subprocesses import ROOT, run_warm


def losses(folder: Path, ranks: int, steps: int, out: str, resumed: str = "") -> list[float]:
    script = str(ROOT / "examples" / "train_distributed.py")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), script)
    options = ("--steps", str(steps), "--length", "96", "--every", "2", "--out", out)
    printed = run_warm(*launch, *options, cwd=folder)
    assert f"96 bytes over {ranks} ranks" in printed
    assert ("resumed" in printed) == bool(resumed)
    assert resumed in printed
    return json.loads((folder / out / "losses.json").read_text(encoding="utf-8"))


def test_it_resumes_with_the_same_losses_on_any_number_of_ranks(tmp_path: Path):
    whole = losses(tmp_path, 1, 6, "whole")
    assert len(whole) == 6
    assert whole[-1] < whole[0]
    assert losses(tmp_path, 2, 5, "stopped") == pytest.approx(whole[:5], rel=1e-4)
    shutil.rmtree(tmp_path / "stopped" / "step-000005")  # as if killed before the last step was saved
    (tmp_path / "stopped" / "step-000006").mkdir()  # and while another was being saved
    again = losses(tmp_path, 2, 6, "stopped", "resumed after step 4")
    assert again == pytest.approx(whole, rel=1e-4)
    assert (tmp_path / "stopped" / "step-000006" / ".metadata").exists()
