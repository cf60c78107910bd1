"""Selective copying: repeat in order the few letters that matter, wherever they stood among blanks.

A recurrence with fixed gates cannot tell letters from blanks; one whose gates see the input can.
Source: Gu & Dao, Mamba (2023), section 3.1.

    python examples/selective_copy.py --mixer ssm [--steps 300]
"""

from __future__ import annotations

import argparse

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from models import RecurrentLM, create_optimizer_and_scheduler, safe_clip_grad_norm_, set_seed

MIXERS = ("minmax", "ssm", "multiscale", "rglru", "griffin", "hgrn2")
LETTERS, COUNT, LENGTH = 4, 3, 24
BLANK, ASK = LETTERS, LETTERS + 1


def task(batch: int, draw: Generator) -> tuple[Tensor, Tensor]:
    """Text (batch, LENGTH + COUNT) that ends with COUNT questions, and the answers (batch, COUNT)."""
    answers = torch.randint(LETTERS, (batch, COUNT), generator=draw)
    places = torch.rand(batch, LENGTH, generator=draw).topk(COUNT, 1).indices.sort(1).values
    text = torch.full((batch, LENGTH), BLANK).scatter(1, places, answers)
    return torch.cat([text, torch.full((batch, COUNT), ASK)], 1), answers


def train(model: nn.Module, steps: int) -> float:
    """Train; the share of answers that are right on texts that it has not seen."""
    draw = Generator().manual_seed(0)
    optimizer, scheduler = create_optimizer_and_scheduler(
        model, lr=4e-3, warmup_steps=min(50, steps // 4), total_steps=steps
    )
    with tqdm(range(steps), unit="step") as bar:
        for step in bar:
            text, answers = task(64, draw)
            loss = F.cross_entropy(model(text)[:, -COUNT:].flatten(0, 1), answers.flatten())
            optimizer.zero_grad()
            loss.backward()
            safe_clip_grad_norm_(model, 1.0)
            optimizer.step()
            scheduler.step()
            if step % 25 == 0:
                bar.set_postfix(loss=f"{loss.item():.3f}")
    with torch.no_grad():
        text, answers = task(500, draw)
        return (model.eval()(text)[:, -COUNT:].argmax(-1) == answers).double().mean().item()


def main() -> None:
    """Train, and say how many letters are copied right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mixer", choices=MIXERS, default="ssm")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    set_seed(0)
    model = RecurrentLM(LETTERS + 2, 48, 2, options.mixer, ffn="gated", tie_weights=False)
    right = 100 * train(model, options.steps)
    print(f"{options.mixer}: {right:.1f} % of letters right, by chance {100 / LETTERS:.0f} %")


if __name__ == "__main__":
    main()
