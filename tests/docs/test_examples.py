"""The examples run, and what they fit is the optimum."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from examples import ema_prices as example
from examples import kernels
from tests.subprocesses import ROOT, run_warm


def test_prices_runs_from_the_shell(tmp_path: Path):
    out = tmp_path / "figure.png"
    script = str(ROOT / "examples" / "ema_prices.py")
    printed = run_warm(script, "--steps", "2", "--days", "60", "--out", str(out), cwd=tmp_path)
    assert out.read_bytes().startswith(b"\x89PNG")
    assert "60 days, 2004-08-19" in printed
    assert "proved" in printed


@pytest.mark.slow
def test_kernels_are_written_compiled_and_right(tmp_path: Path):
    printed = run_warm(str(ROOT / "examples" / "kernels.py"), "--out", "kernels", cwd=tmp_path)
    files = sorted((tmp_path / "kernels").iterdir())
    assert len(files) == 2 * len(kernels.OPERATORS)
    for file in files:
        assert "@triton.jit" in file.read_text(encoding="utf-8")
    if not torch.cuda.is_available():
        assert printed.count("bytes of machine code") == len(files)
    errors = [float(number) for number in re.findall(r" (\S+e[-+]\d+)", printed)]
    assert len(errors) == 3 * len(kernels.OPERATORS)
    assert max(errors) < 1e-5


@pytest.fixture(scope="module")
def prices() -> example.Prices:
    return example.load(250)


def test_fitted_average_is_the_best_on_a_grid(prices: example.Prices):
    keep = example.fit_keep(prices.series, 40)
    grid = torch.linspace(0.02, 0.995, 196, dtype=torch.float64)
    for i, fitted in enumerate(keep):
        one = prices.series[..., i : i + 1]
        errors = example.forecast_error(one.expand(-1, -1, len(grid)), grid)
        best = int(errors.argmin())
        assert 0 < best < len(grid) - 1, "the optimum lies inside"
        assert abs(fitted - grid[best]) <= grid[1] - grid[0]
        assert example.forecast_error(one, fitted[None]) <= errors.min()


def test_fitted_width_is_the_best_on_a_grid(prices: example.Prices):
    width = example.fit_width(prices.level, example.COSTS, 40)
    grid = torch.logspace(-1, 2, 400, dtype=torch.float64)
    for fitted, cost in zip(width, example.COSTS, strict=True):
        totals = example.trading_cost(prices.level, grid, cost)
        best = int(totals.argmin())
        assert 0 < best < len(grid) - 1, "the optimum lies inside"
        # The cost has kinks where a day begins or ceases to trade, so the fit may end in a neighbouring one.
        assert example.trading_cost(prices.level, fitted[None], cost[None]) <= 1.005 * totals.min()


def test_average_is_the_one_written_by_hand(prices: example.Prices):
    keep = torch.tensor([0.9, 0.5, 0.0], dtype=torch.float64)
    average = prices.series[:, :20].mean(dim=1)
    for today, got in zip(
        prices.series.unbind(1), example.averages(prices.series, keep).unbind(1), strict=True
    ):
        average = keep * average + (1 - keep) * today
        torch.testing.assert_close(got, average)
