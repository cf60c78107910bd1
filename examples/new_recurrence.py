"""A recurrence of one's own, trained against RG-LRU on a task that suits it.

The task: say, at every step, the largest value since the last mark. A peak that fades and that a gate can
open is declared in a dozen lines; its kernels and its gradients are derived.

    python examples/new_recurrence.py [--steps 300]
"""

from __future__ import annotations

import argparse

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

import scanforge as sf
from models import RGLRU


class Peak(sf.Operator):
    """x_t = max(a_t x_{t-1}, u_t), a_t > 0"""

    a = sf.Element(identity=1.0, domain="positive")
    u = sf.Element(identity=float("-inf"))
    x = sf.State()

    def combine(self, later):
        return Peak(a=later.a * self.a, u=sf.maximum(later.a * self.u, later.u))

    def apply(self, x):
        return sf.maximum(self.a * x, self.u)


class GatedPeak(sf.Recurrence):
    """x_t = max(sigmoid(keep_t) x_{t-1}, softplus(u_t))"""

    u, keep = sf.Input("b t d"), sf.Input("b t d")
    x = sf.State("b d")

    def element(self):
        return Peak(a=sf.sigmoid(self.keep), u=sf.softplus(self.u))


class PeakLayer(nn.Module):
    """x (b, t, width) -> (b, t, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(width, 2 * width)
        nn.init.constant_(self.gates.bias[width:], 4.0)  # it begins by keeping, as RG-LRU does

    def forward(self, x: Tensor) -> Tensor:
        u, keep = self.gates(x).chunk(2, -1)
        return sf.scan(GatedPeak, u=u, keep=keep)


LAYERS = {"peak": PeakLayer, "RG-LRU": RGLRU}
WIDTH, BATCH, LENGTH = 16, 32, 64


def task(batch: int, length: int, draw: Generator) -> tuple[Tensor, Tensor]:
    """Values and marks (batch, length, 2), and the largest value since the last mark (batch, length, 1)."""
    value = torch.rand(batch, length, generator=draw)
    mark = torch.rand(batch, length, generator=draw) < 0.05
    start = torch.where(mark, torch.arange(length), 0).cummax(1).values
    inside = (torch.arange(length) >= start[..., None]) & torch.ones(length, length).tril().bool()
    return torch.stack([value, mark.float()], -1), (value[:, None] * inside).amax(-1, keepdim=True)


def train(name: str, steps: int) -> float:
    """Train one layer between two projections; its squared error on strings that it has not seen."""
    torch.manual_seed(0)
    draw = Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(2, WIDTH), LAYERS[name](WIDTH), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in tqdm(range(steps), desc=f"{name:6}", unit="step"):
        x, y = task(BATCH, LENGTH, draw)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        x, y = task(500, LENGTH, draw)
        return F.mse_loss(model(x), y).item()


def main() -> None:
    """Check the declaration, train both, say how they do."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="steps of each training")
    options = parser.parse_args()
    print(sf.check(GatedPeak, show=False))
    for name in LAYERS:
        print(f"{name:6}  squared error {train(name, options.steps):.5f}")


if __name__ == "__main__":
    main()
