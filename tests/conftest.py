"""What every suite shares: one thread, so that workers do not fight for cores, a cache, the GPU's mark."""

from __future__ import annotations

import os

import pytest
import torch


def pytest_configure() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Laws that a test has bent must not be kept for anybody, nor what a user has kept be believed."""
    os.environ["SCANFORGE_CACHE"] = str(tmp_path_factory.mktemp("scanforge") / "cache")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="no GPU here"))


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    """No test replays what another one ran, perhaps under another plan."""
    from scanforge import replay

    replay.forget()
