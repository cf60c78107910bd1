"""What every suite shares: one thread, so that workers do not fight for cores, and the GPU's mark."""

from __future__ import annotations

import pytest
import torch


def pytest_configure() -> None:
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no GPU here"))
