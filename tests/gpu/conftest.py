"""Kernels on a GPU. Uninitialised memory holds NaN, and inputs lie between NaN guard values."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def nan_filled_empties() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """With GPU_REPORT=FILE.json, what ran and what failed, stamped with the device and the versions."""
    place = os.environ.get("GPU_REPORT")
    if not place or hasattr(terminalreporter.config, "workerinput"):
        return
    stats = terminalreporter.stats
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "torch": torch.__version__,
        "triton": metadata.version("triton"),
        "python": platform.python_version(),
        **{name: len(stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")},
        "failures": sorted(r.nodeid for name in ("failed", "error") for r in stats.get(name, [])),
    }
    Path(place).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
