"""Generated kernels under Triton's interpreter, in a process that has TRITON_INTERPRET=1.

Uninitialised memory holds NaN. Tiles are short, so that tiny shapes have several, unless a test
asks for the plan's own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests import quick_interpreter
from tests.kernels import Tiles

HERE = Path(__file__).parent

if os.environ.get("TRITON_INTERPRET") == "1":
    quick_interpreter.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason="needs a process with TRITON_INTERPRET=1"))


@pytest.fixture(autouse=True)
def nan_filled_empties() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture
def own_tiles() -> None:
    """Asks for the plan's own tiles instead of short ones."""


@pytest.fixture(autouse=True)
def short_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "own_tiles" not in request.fixturenames:
        Tiles().force(monkeypatch)
