"""A byte-level language model of any mixer, trained on a text of yours.

python examples/char_lm.py --mixer rglru [--text FILE] [--steps 500] [--save FOLDER]
"""

from __future__ import annotations

import argparse
import inspect
import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from models import (
    RecurrentLM,
    create_optimizer_and_scheduler,
    safe_clip_grad_norm_,
    save_pretrained,
    set_seed,
)

MIXERS = ("minmax", "ssm", "multiscale", "rglru", "griffin", "hgrn2")
BATCH, LENGTH = 16, 128


def read(path: Path | None) -> Tensor:
    """The bytes of a file, or the source of a module of Python's own."""
    text = path.read_bytes() if path else inspect.getsource(argparse).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def train(model: RecurrentLM, text: Tensor, steps: int) -> float:
    """Train on random windows; the bits per byte of the last ten batches."""
    device, length = next(model.parameters()).device, min(LENGTH, len(text) - 1)
    optimizer, scheduler = create_optimizer_and_scheduler(
        model, lr=4e-3, warmup_steps=min(20, steps // 4), total_steps=steps
    )
    losses = []
    with tqdm(range(steps), unit="step") as bar:
        for step in bar:
            first = torch.randint(len(text) - length, (BATCH, 1))
            window = text[first + torch.arange(length + 1)].to(device)
            loss = F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            safe_clip_grad_norm_(model, 1.0)
            optimizer.step()
            scheduler.step()
            losses.append(loss.detach())
            if step % 20 == 0:
                bar.set_postfix_str(f"{loss.item() / math.log(2):.2f} bits per byte")
    return torch.stack(losses[-10:]).mean().item() / math.log(2)


def main() -> None:
    """Train, let it write, save it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mixer", choices=MIXERS, default="rglru")
    parser.add_argument("--text", type=Path, help="a file; by default the source of argparse")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--save", type=Path, help="a folder for the model")
    options = parser.parse_args()
    set_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = RecurrentLM(256, options.width, options.layers, options.mixer, ffn="gated").to(device)
    print(f"{train(model, read(options.text), options.steps):.2f} bits per byte")
    prompt = torch.tensor([list(b"    def ")], device=device)
    written = model.generate(prompt, 120, temperature=0.7)
    print(bytes(written[0].tolist()).decode("utf-8", errors="replace"))
    if options.save:
        save_pretrained(model, options.save)
        print(f"saved {options.save}")


if __name__ == "__main__":
    main()
