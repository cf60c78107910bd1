"""Byte-level language models of four mixers, trained on the texts of Python's own standard library.

Each model reads bytes of some modules and is judged on others: bits per byte, against the order-0 entropy
of what it is judged on, the least that any model without memory can reach. Then it writes a few lines.

    python examples/train_languages.py [--steps 250] [--models MinMax,SSM] [--out build/demo/languages.png]
"""

from __future__ import annotations

import argparse
import math
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from models import (
    MinMaxRNC_LM,
    MinMaxRNCConfig,
    MinMaxRNCLMConfig,
    RecurrentLM,
    create_optimizer_and_scheduler,
    generate,
    safe_clip_grad_norm_,
    set_seed,
)

BYTES, WIDTH, LAYERS = 256, 96, 2
BATCH, LENGTH = 16, 128  # windows of a step, bytes of a window
PROMPT = b"    def "


def minmax() -> MinMaxRNC_LM:
    """The whole network of the MinMax paper: convolution, feedforward and neuron in each layer."""
    return MinMaxRNC_LM(BYTES, MinMaxRNCLMConfig(MinMaxRNCConfig(WIDTH, LAYERS, WIDTH, ffn_dropout=0.0)))


def recurrent(mixer: str, **args: object) -> RecurrentLM:
    """A residual stack of this mixer and gated feedforwards."""
    return RecurrentLM(BYTES, WIDTH, LAYERS, mixer, mixer_args=args, ffn="gated")


MODELS: dict[str, Callable[[], nn.Module]] = {
    "MinMax": minmax,
    "SSM": lambda: recurrent("ssm", d_state=8, expand=1),
    "RG-LRU": lambda: recurrent("rglru"),
    "HGRN2": lambda: recurrent("hgrn2", num_heads=12),
}


@dataclass(frozen=True)
class Corpus:
    """Bytes (N,) to learn from, and bytes of other files to judge by."""

    train: Tensor
    test: Tensor

    @property
    def entropy(self) -> float:
        """Order-0 entropy of `test`, in bits per byte: -Σ p log2 p of its own frequencies."""
        share = torch.bincount(self.test).double() / len(self.test)
        return -(share * share.clamp(min=1e-300).log2()).sum().item()


def load() -> Corpus:
    """Python's licence and the modules at the top of its library; every tenth is kept to judge by."""
    folder = Path(sysconfig.get_path("stdlib"))
    texts = [
        path.read_bytes() for path in [folder / "LICENSE.txt", *sorted(folder.glob("*.py"))] if path.exists()
    ]
    parts = [[t for i, t in enumerate(texts) if (i % 10 == 9) == held] for held in (False, True)]
    return Corpus(*(torch.frombuffer(bytearray(b"".join(part)), dtype=torch.uint8).long() for part in parts))


def windows(text: Tensor, steps: int, device: torch.device) -> Iterator[Tensor]:
    """Random windows (BATCH, LENGTH + 1), one batch for each step."""
    within, text = torch.arange(LENGTH + 1), text.to(device)
    for _ in range(steps):
        first = torch.randint(len(text) - LENGTH, (BATCH, 1))
        yield text[(first + within).to(device)]


@torch.no_grad()
def bits_per_byte(
    model: nn.Module, text: Tensor, device: torch.device, rows: int = 32, length: int = 512
) -> float:
    """Mean of -log2 p over `rows` passages of the text, read in two chunks with the state carried between."""
    begins = torch.linspace(0, len(text) - length - 1, rows).long()[:, None]
    passages = text[begins + torch.arange(length + 1)].to(device)
    first, state = model(passages[:, : length // 2], state=None, return_state=True)
    logits = torch.cat([first, model(passages[:, length // 2 : -1], state=state)], 1)
    return F.cross_entropy(logits.flatten(0, 1), passages[:, 1:].flatten()).item() / math.log(2)


def train(model: nn.Module, corpus: Corpus, steps: int, name: str) -> list[tuple[int, float]]:
    """Train, and return (step, bits per byte on the test text) along the way."""
    device = next(model.parameters()).device
    optimizer, scheduler = create_optimizer_and_scheduler(
        model, lr=4e-3, weight_decay=0.1, warmup_steps=min(20, steps // 4), total_steps=steps
    )
    curve = []
    with tqdm(windows(corpus.train, steps, device), desc=f"{name:6}", total=steps, unit="step") as bar:
        for step, batch in enumerate(bar):
            if step % max(steps // 12, 1) == 0:
                curve.append((step, bits_per_byte(model, corpus.test, device)))
                bar.set_postfix_str(f"{curve[-1][1]:.2f} bits per byte")
            optimizer.zero_grad()
            F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
            safe_clip_grad_norm_(model, 1.0)
            optimizer.step()
            scheduler.step()
        curve.append((steps, bits_per_byte(model, corpus.test, device)))
        bar.set_postfix_str(f"{curve[-1][1]:.2f} bits per byte")
    return curve


def sample(model: nn.Module, n: int = 160) -> str:
    """The prompt and n bytes more, read by one forward and written by steps of the state."""
    device = next(model.parameters()).device
    prompt = torch.tensor([list(PROMPT)], device=device)
    written = generate(model, prompt, n, temperature=0.8)
    return bytes(written[0].tolist()).decode("utf-8", errors="replace")


def figure(curves: dict[str, list[tuple[int, float]]], entropy: float, out: Path) -> None:
    """Save the learning curves, with the line that no memoryless model passes."""
    fig = Figure(figsize=(8, 5), layout="constrained")
    axes = fig.subplots()
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), marker=".", label=f"{name}, {curve[-1][1]:.2f} at the end")
    axes.axhline(entropy, color="0.4", ls="--", lw=1, label=f"order-0 entropy, {entropy:.2f}")
    axes.set(xlabel=f"steps of {BATCH * LENGTH} bytes", ylabel="bits per byte, on modules not trained on")
    axes.set(title="Language models of four recurrences on the standard library's source", ylim=(0, 8.2))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(out, dpi=120)


def main() -> None:
    """Train every model, say what came of it, let it write, save the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=250, help="steps of each training")
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(MODELS)}")
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo/languages.png"), help="where the figure goes"
    )
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)  # operations this small lose more to threads than they gain

    corpus = load()
    print(f"{len(corpus.train)} bytes to train on, {len(corpus.test)} of other modules to test on")
    curves = {}
    for name in options.models.split(","):
        set_seed(0)
        model = MODELS[name]().to(device)
        curves[name] = train(model, corpus, options.steps, name)
        print(f"  {curves[name][-1][1]:.2f} bits per byte; order-0 entropy {corpus.entropy:.2f}. It writes:")
        print(*(f"  | {line}" for line in sample(model).splitlines()), sep="\n")
    figure(curves, corpus.entropy, options.out)
    print(f"saved {options.out}")


if __name__ == "__main__":
    main()
