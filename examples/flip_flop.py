"""Flip-flop: which of two letters came last, among many that mean nothing, at lengths never trained on.

`examples/regular_languages.py` compares mixers on this and another task; this is one mixer, to start from.

    python examples/flip_flop.py --mixer minmax [--steps 250]
"""

from __future__ import annotations

import argparse

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from models import RecurrentLM, create_optimizer_and_scheduler, safe_clip_grad_norm_, set_seed

MIXERS = ("minmax", "ssm", "multiscale", "rglru", "griffin", "hgrn2")
LENGTH, MEANT = 40, 6


def task(batch: int, length: int, draw: Generator) -> tuple[Tensor, Tensor]:
    """Letters (batch, length), of which 2 and 3 mean nothing, and which of 0 and 1 came last."""
    meant = torch.rand(batch, length, generator=draw) < MEANT / length
    meant[:, 0] = True
    letter = torch.randint(2, (batch, length), generator=draw)
    last = torch.where(meant, torch.arange(length), 0).cummax(1).values
    return torch.where(meant, letter, letter + 2), letter.gather(1, last)


def train(model: nn.Module, steps: int) -> None:
    """Train on strings of LENGTH letters."""
    draw = Generator().manual_seed(0)
    optimizer, scheduler = create_optimizer_and_scheduler(
        model, lr=3e-3, warmup_steps=min(50, steps // 4), total_steps=steps
    )
    for _ in tqdm(range(steps), unit="step"):
        text, answers = task(64, LENGTH, draw)
        loss = F.cross_entropy(model(text).flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        safe_clip_grad_norm_(model)
        optimizer.step()
        scheduler.step()


@torch.no_grad()
def ask(model: nn.Module, length: int) -> float:
    """The share of right answers on strings that it has not seen."""
    text, answers = task(100, length, Generator().manual_seed(length))
    return (model(text)[..., :2].argmax(-1) == answers).double().mean().item()


def main() -> None:
    """Train, and ask at one to ten times the length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mixer", choices=MIXERS, default="minmax")
    parser.add_argument("--steps", type=int, default=250)
    options = parser.parse_args()
    set_seed(0)
    model = RecurrentLM(4, 32, 2, options.mixer, ffn="gated", tie_weights=False)
    train(model, options.steps)
    for times in (1, 2, 5, 10):
        print(f"{times * LENGTH:4} letters: {100 * ask(model.eval(), times * LENGTH):6.2f} % right")


if __name__ == "__main__":
    main()
