"""A Kalman filter whose noise is learned: the likelihood of all readings is one scan, and so is its gradient.

A level walks with steps of variance Q and is read with noise of variance R. The filter gives each reading a
normal distribution from the readings before it; Q and R are those under which the readings are likeliest.

    python examples/kalman.py [--steps 60] [--length 2000]
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Generator, Tensor

import scanforge as sf


class LocalLevel(sf.Recurrence):
    """x_t = x_{t-1} + N(0, Q),  y_t = x_t + N(0, R),  loss_t = -log p(y_t | y_1 ... y_{t-1})"""

    y = sf.Input("b t")
    log_Q, log_R = sf.Input("b"), sf.Input("b")
    mean, var = sf.State("b"), sf.State("b", initial=1.0)

    def element(self):
        Q, R = sf.exp(self.log_Q), sf.exp(self.log_R)
        S = Q + R
        return sf.operators.Kalman(
            gain=R / S, offset=Q / S * self.y, noise=Q * R / S, eta=self.y / S, info=1 / S
        )

    def readout(self):
        spread = sf.previous(self.var) + sf.exp(self.log_Q) + sf.exp(self.log_R)
        miss = self.y - sf.previous(self.mean)
        return 0.5 * (miss * miss / spread + sf.log(spread) + math.log(2 * math.pi))


def simulate(length: int, Q: float, R: float, seed: int = 0) -> Tensor:
    """Readings (1, length)."""
    noise = torch.randn(2, 1, length, generator=Generator().manual_seed(seed), dtype=torch.float64)
    return (Q**0.5 * noise[0]).cumsum(1) + R**0.5 * noise[1]


def fit(y: Tensor, steps: int) -> tuple[float, float]:
    """The likeliest Q and R, from 1 and 1, by L-BFGS."""
    logs = torch.zeros(2, 1, dtype=y.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([logs], max_iter=steps, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = sf.scan(LocalLevel, y=y, log_Q=logs[0], log_R=logs[1]).mean()
        total.backward()
        return total

    optimizer.step(loss)
    Q, R = logs.detach().exp().flatten().tolist()
    return Q, R


def main() -> None:
    """Simulate three pairs of variances and find them again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="iterations of each fit")
    parser.add_argument("--length", type=int, default=2000, help="readings")
    options = parser.parse_args()
    for Q, R in ((0.01, 1.0), (0.1, 0.5), (0.5, 0.1)):
        found = fit(simulate(options.length, Q, R), options.steps)
        print(f"true Q {Q:5.3f}, R {R:5.3f}   found Q {found[0]:5.3f}, R {found[1]:5.3f}")


if __name__ == "__main__":
    main()
