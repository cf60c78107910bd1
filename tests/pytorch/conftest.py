"""torch.compile starts anew in every test, so that one test's graphs count nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def no_graphs() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()
