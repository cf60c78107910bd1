"""Two recurrences fitted to four years of Google's daily stock prices, by gradients that nobody wrote.

An exponential average has one parameter, how much of yesterday it keeps. It is fitted to forecast
tomorrow's move, range and volume. A dead band holds a position until the price is more than a width
away. It is fitted to follow the price at the least cost, when every trade costs something.

    python examples/ema_prices.py [--steps 40] [--days 1047] [--out build/demo/prices.png]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib import cbook
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from torch import Tensor
from tqdm import tqdm

import scanforge as sf


class Average(sf.Operator):
    """h_t = a h_{t-1} + b_t; with b_t = (1 - a) x_t, the exponential average of x."""

    a = sf.Element(identity=1.0)
    b = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return Average(a=later.a * self.a, b=later.a * self.b + later.b)

    def apply(self, h):
        return self.a * h + self.b


class DeadBand(sf.Operator):
    """x_t = max(min(r_t, x_{t-1}), s_t): x stays where it is until the band [s, r] pushes it."""

    r = sf.Element(identity=float("inf"))
    s = sf.Element(identity=float("-inf"))
    x = sf.State()

    def combine(self, later):
        return DeadBand(r=sf.minimum(later.r, self.r), s=sf.maximum(sf.minimum(later.r, self.s), later.s))

    def apply(self, x):
        return sf.maximum(sf.minimum(self.r, x), self.s)


@dataclass(frozen=True)
class Prices:
    """Daily data. `level` is 100 log(close), so that differences are percent; shape (1, days, 1)."""

    date: np.ndarray
    close: np.ndarray
    level: Tensor
    series: Tensor  # (1, days - 1, 3), what is forecast, in the order of SERIES


SERIES = ("|return|, %", "log of the day's range", "log of volume")
COSTS = torch.tensor([10.0, 50.0, 200.0, 1000.0], dtype=torch.float64)


def load(days: int | None = None) -> Prices:
    """The table of Google's daily prices, 2004 to 2008, that comes with matplotlib."""
    table = cbook.get_sample_data("goog.npz")["price_data"][:days]
    level = 100 * torch.from_numpy(np.log(table["adj_close"]))
    span = torch.from_numpy(np.log(np.log(table["high"] / table["low"])))
    volume = torch.from_numpy(np.log(table["volume"].astype(np.float64)))
    series = torch.stack([level.diff().abs(), span[1:], volume[1:]], dim=-1)
    return Prices(table["date"], table["adj_close"], level[None, :, None], series[None])


def averages(series: Tensor, keep: Tensor) -> Tensor:
    """Exponential averages of (1, t, d) series that keep a share `keep` (d,) of yesterday's."""
    start = series[:, :20].mean(dim=1)
    return sf.scan(Average, a=keep.expand(1, 1, -1), b=(1 - keep) * series, initial_state=start)


def forecast_error(series: Tensor, keep: Tensor) -> Tensor:
    """Mean square of today's value less yesterday's average, over the variance, per series; shape (d,)."""
    miss = series[:, 1:] - averages(series, keep)[:, :-1]
    return miss.square().mean(dim=(0, 1)) / series.var(dim=(0, 1))


def held(level: Tensor, width: Tensor) -> Tensor:
    """The position that a dead band of `width` (d,) percent holds against (1, t, 1) prices."""
    return sf.scan(
        DeadBand, r=level + width, s=level - width, initial_state=level[:, 0].expand(1, len(width))
    )


def trading_cost(level: Tensor, width: Tensor, cost: Tensor) -> Tensor:
    """Mean squared gap to the price, plus `cost` for each percent traded, per day; shape (d,)."""
    position = held(level, width)
    gap = (position - level).square().mean(dim=(0, 1))
    return gap + cost * position.diff(dim=1).abs().sum(dim=(0, 1)) / level.shape[1]


def fit(loss: Callable[[Tensor], Tensor], start: Tensor, steps: int, name: str) -> Tensor:
    """The free parameters (d,) that minimise `loss` (d,), each for itself, by the sign of its gradient."""
    free = start.clone().requires_grad_()
    optimiser = torch.optim.Rprop([free], lr=0.2, step_sizes=(1e-6, 0.5))
    with tqdm(range(steps), desc=name, unit="step") as bar:
        for _ in bar:
            optimiser.zero_grad()
            value = loss(free).sum()
            value.backward()
            optimiser.step()
            bar.set_postfix(loss=f"{value.item():.5f}")
    return free.detach()


def fit_keep(series: Tensor, steps: int) -> Tensor:
    """The shares of yesterday that forecast best; a sigmoid keeps them between 0 and 1."""
    start = torch.zeros(series.shape[-1], dtype=series.dtype)
    return torch.sigmoid(fit(lambda z: forecast_error(series, torch.sigmoid(z)), start, steps, "average"))


def fit_width(level: Tensor, cost: Tensor, steps: int) -> Tensor:
    """The widths that cost least, in percent; the exponential keeps them positive."""
    start = torch.ones_like(cost)
    return torch.exp(fit(lambda z: trading_cost(level, torch.exp(z), cost), start, steps, "dead band"))


def half_life(keep: Tensor) -> Tensor:
    """Days after which half of an observation is forgotten."""
    return np.log(0.5) / torch.log(keep)


def brownian_width(level: Tensor, cost: Tensor) -> Tensor:
    """The best width if prices were a Brownian motion seen once a day: (3 cost σ²/4)^(1/3) - 0.58 σ.

    The first term balances the mean square of a uniform gap, w²/3, against the trades at its ends, σ²/2w.
    The second is how far a daily walk oversteps a barrier (Siegmund 1985; Broadie, Glasserman and Kou 1997).
    """
    sigma = level.diff(dim=1).std()
    return (0.75 * cost * sigma**2) ** (1 / 3) - 0.5826 * sigma


def figure(prices: Prices, keep: Tensor, width: Tensor, out: Path) -> None:
    """Save four panels: what was fitted, and each fit against a scan over its parameter."""
    fig = Figure(figsize=(13, 8.5), layout="constrained")
    fig.suptitle("Two recurrences fitted to Google's daily prices through derived backward scans")
    (over_time, held_position), (over_half_life, over_width) = fig.subplots(2, 2)
    draw_range(over_time, prices, keep)
    draw_band(held_position, prices, width)
    draw_forecasts(over_half_life, prices.series, keep)
    draw_costs(over_width, prices.level, width)
    for axes in fig.axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    for axes in (over_half_life, over_width):
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    out.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(out, dpi=130)


def draw_range(axes: Axes, prices: Prices, keep: Tensor) -> None:
    """The day's range and its fitted average."""
    day_range = 100 * prices.series[0, :, 1].exp()
    average = 100 * averages(prices.series, keep)[0, :, 1].exp()
    axes.plot(prices.date[1:], day_range, lw=0.6, color="0.65", label="day's range, high to low")
    days = half_life(keep)[1].item()
    axes.plot(
        prices.date[1:], average, lw=1.8, color="C1", label=f"fitted average, half-life {days:.1f} days"
    )
    axes.set(yscale="log", ylabel="percent of the price", ylim=(0.4, 40))
    axes.set(yticks=[0.5, 1, 2, 5, 10, 20], title="Average: how wide will tomorrow's range be?")
    axes.legend(loc="upper left", frameon=False)


def draw_band(axes: Axes, prices: Prices, width: Tensor) -> None:
    """The price, and what a fitted dead band holds."""
    pick = len(width) // 2
    level, band = prices.level[0, :, 0], width[pick].item()
    position = held(prices.level, width)[0, :, pick]
    axes.fill_between(
        prices.date,
        torch.exp((level - band) / 100),
        torch.exp((level + band) / 100),
        color="C0",
        alpha=0.2,
        lw=0,
        label=f"band, fitted width ±{band:.1f} %",
    )
    axes.plot(prices.date, prices.close, lw=0.6, color="0.4", label="closing price")
    axes.plot(prices.date, torch.exp(position / 100), lw=1.8, color="C3", label="position held")
    axes.set(yscale="log", ylabel="dollars", yticks=[100, 150, 200, 300, 400, 600, 800])
    axes.set(title=f"Dead band: trade only when it pays (cost {COSTS[pick]:.0f})")
    axes.legend(loc="upper left", frameon=False)


def draw_forecasts(axes: Axes, series: Tensor, keep: Tensor) -> None:
    """Forecast error over the half-life, and where the gradient ended."""
    days = torch.logspace(-0.5, 2.5, 60, dtype=series.dtype)
    grid = 0.5 ** (1 / days)
    for i, name in enumerate(SERIES):
        one = series[..., i : i + 1]
        curve = forecast_error(one.expand(-1, -1, len(grid)), grid)
        axes.plot(days, curve, color=f"C{i}", label=name)
    best = half_life(keep)
    axes.scatter(
        best, forecast_error(series, keep), color=[f"C{i}" for i in range(len(best))], zorder=3, s=60
    )
    axes.set(
        xscale="log",
        xlabel="half-life of the average, days",
        ylabel="squared error of the forecast / variance",
    )
    axes.set(ylim=(0.3, 1.1), xticks=[0.5, 1, 2, 5, 10, 20, 50, 100, 200])
    axes.set(title="Each series has its own memory (dots: fitted by gradient)")
    axes.legend(frameon=False, ncols=3, loc="lower center")


def draw_costs(axes: Axes, level: Tensor, width: Tensor) -> None:
    """Cost over the width for each cost of trading, and where the gradient ended."""
    grid = torch.logspace(-0.5, 1.7, 80, dtype=level.dtype)
    least = trading_cost(level, width, COSTS)
    expected = brownian_width(level, COSTS)
    for i, cost in enumerate(COSTS):
        curve = trading_cost(level, grid, cost)
        axes.plot(grid, curve / least[i], color=f"C{i}", label=f"cost {cost:.0f}")
        axes.axvline(expected[i].item(), ymin=0.13, color=f"C{i}", ls=":", lw=1)
    axes.scatter(width, torch.ones_like(width), color=[f"C{i}" for i in range(len(width))], zorder=3, s=60)
    axes.set(xscale="log", xlabel="width of the band, percent", ylabel="cost per day / least cost found")
    axes.set(ylim=(0.85, 2), xticks=[0.5, 1, 2, 5, 10, 20, 50])
    axes.set(title="Dearer trades, wider band (dots: fitted; dotted: Brownian theory)")
    axes.legend(frameon=False, ncols=4, loc="lower center")


def main() -> None:
    """Print the laws and the derived backward, fit both, say what came out, save the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40, help="steps of each fit")
    parser.add_argument("--days", type=int, default=None, help="use the first days only")
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo/prices.png"), help="where the figure goes"
    )
    options = parser.parse_args()

    prices = load(options.days)
    for operator, lanes in ((Average, len(SERIES)), (DeadBand, len(COSTS))):
        sf.check(operator)
        print(sf.explain(operator, b=1, t=len(prices.date), d=lanes, dtype=torch.float64), end="\n\n")

    print(f"{len(prices.date)} days, {prices.date[0]} to {prices.date[-1]}")
    keep = fit_keep(prices.series, options.steps)
    for name, share, days in zip(SERIES, keep, half_life(keep), strict=True):
        print(f"  {name:24} keeps {share:.3f} of yesterday, half-life {days:5.1f} days")
    width = fit_width(prices.level, COSTS, options.steps)
    for cost, fitted, theory in zip(COSTS, width, brownian_width(prices.level, COSTS), strict=True):
        print(f"  trading at cost {cost:6.0f}: width {fitted:5.2f} %, Brownian theory {theory:5.2f} %")
    figure(prices, keep, width, options.out)
    print(f"saved {options.out}")


if __name__ == "__main__":
    main()
