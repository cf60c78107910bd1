"""What is learned on strings of 40 letters, asked on strings of 400: min-max memory holds, decay forgets.

Two tasks, each with two letters that mean something and two that mean nothing. A string holds about six
letters that mean something, however long it is, so that a longer string is a longer wait.

flip-flop    say, after every letter, which of a and b came last
alternating  say, after every letter, whether what stands so far is in the language (ab)* once c and d are
             struck out, or may still become a word of it, or never will

Both are star-free, which is what a stack of clamps can do: clamps compose to clamps, and a clamp of a
number holds it for ever or overwrites it, but never turns two values into each other. So no channel counts
modulo two. In a linear recurrence, what is held shrinks with every step that a gate is not exactly 1.

    python examples/regular_languages.py [--steps 300] [--models MinMax,SSM] [--out build/demo/regular.png]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from models import (
    MinMaxRNC_LM,
    MinMaxRNCConfig,
    MinMaxRNCLMConfig,
    RecurrentLM,
    create_optimizer_and_scheduler,
    safe_clip_grad_norm_,
    set_seed,
)

A, B, C, D = LETTERS = range(4)  # C and D mean nothing
MEANT = 6  # letters of a string that mean something, on average
LENGTH = 40  # of a training string
TIMES = (1, 2, 5, 10)  # this much longer are those that are asked
WIDTH, LAYERS, BATCH = 32, 2, 64

Task = Callable[[int, int, Generator], tuple[Tensor, Tensor]]


def letters(batch: int, length: int, draw: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """(batch, length) each: where letters mean something, random A or B, and random C or D."""
    meant = torch.rand(batch, length, generator=draw) < MEANT / length
    two = torch.randint(2, (2, batch, length), generator=draw)
    return meant, two[0], two[1] + C


def flip_flop(batch: int, length: int, draw: Generator) -> tuple[Tensor, Tensor]:
    """Strings (batch, length) that begin with A or B, and which of them came last."""
    meant, two, idle = letters(batch, length, draw)
    meant[:, 0] = True
    last = torch.where(meant, torch.arange(length), 0).cummax(1).values
    return torch.where(meant, two, idle), two.gather(1, last)


def alternating(batch: int, length: int, draw: Generator) -> tuple[Tensor, Tensor]:
    """Strings (batch, length), and at each letter: 0 in the language, 1 on the way to it, 2 out for ever.

    Six in ten strings break the alternation at one of their first letters, and are random from there on.
    """
    meant, two, idle = letters(batch, length, draw)
    count = meant.long().cumsum(1)
    broken = torch.rand(batch, 1, generator=draw) < 0.6
    breaks_at = torch.where(broken, torch.randint(1, MEANT + 1, (batch, 1), generator=draw), length + 1)
    right = (count - 1) % 2
    text = torch.where(count < breaks_at, right, torch.where(count == breaks_at, 1 - right, two))
    return torch.where(meant, text, idle), torch.where(count >= breaks_at, 2, count % 2)


TASKS: dict[str, Task] = {"flip-flop": flip_flop, "alternating": alternating}


def minmax() -> MinMaxRNC_LM:
    """The network of the MinMax paper."""
    backbone = MinMaxRNCConfig(WIDTH, LAYERS, WIDTH, ffn_dropout=0.0)
    return MinMaxRNC_LM(len(LETTERS), MinMaxRNCLMConfig(backbone, tie_weights=False))


def recurrent(mixer: str, **args: object) -> RecurrentLM:
    """A residual stack of this mixer and gated feedforwards."""
    return RecurrentLM(len(LETTERS), WIDTH, LAYERS, mixer, mixer_args=args, ffn="gated", tie_weights=False)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "MinMax": minmax,
    "SSM": lambda: recurrent("ssm", d_state=8),
    "RG-LRU": lambda: recurrent("rglru"),
    "HGRN2": lambda: recurrent("hgrn2", num_heads=4),
}


def train(model: nn.Module, task: Task, steps: int, name: str, seed: int = 0) -> None:
    """Train on strings of LENGTH letters."""
    draw = Generator().manual_seed(seed)
    device = next(model.parameters()).device
    optimizer, scheduler = create_optimizer_and_scheduler(
        model, lr=3e-3, warmup_steps=min(50, steps // 4), total_steps=steps
    )
    with tqdm(range(steps), desc=name, unit="step") as bar:
        for step in bar:
            text, answers = (x.to(device) for x in task(BATCH, LENGTH, draw))
            loss = F.cross_entropy(model(text).flatten(0, 1), answers.flatten())
            optimizer.zero_grad()
            loss.backward()
            safe_clip_grad_norm_(model)
            optimizer.step()
            scheduler.step()
            if step % 25 == 0 or step == steps - 1:
                bar.set_postfix(loss=f"{loss.item():.4f}")
    model.eval()


@torch.no_grad()
def ask(model: nn.Module, task: Task, length: int, strings: int = 200) -> tuple[float, float]:
    """The share of answers that are right, and of strings with every answer right, on strings never seen."""
    text, answers = task(strings, length, Generator().manual_seed(length + 10**6))
    right = model(text.to(next(model.parameters()).device)).argmax(-1).cpu() == answers
    return right.double().mean().item(), right.all(1).double().mean().item()


def figure(results: dict[str, dict[str, list[tuple[float, float]]]], out: Path) -> None:
    """Save one panel for each task: right answers against the length of the strings."""
    fig = Figure(figsize=(10, 4.2), layout="constrained")
    fig.suptitle(f"Trained on strings of {LENGTH} letters")
    panels = fig.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for axes, (task, rows) in zip(panels, results.items(), strict=True):
        for name, row in rows.items():
            axes.plot([LENGTH * n for n in TIMES], [100 * right for right, _ in row], marker="o", label=name)
        axes.axvline(LENGTH, color="0.6", ls=":", lw=1)
        axes.set(xscale="log", xlabel="letters of a string", title=task)
        axes.set_xticks([LENGTH * n for n in TIMES], [f"{LENGTH * n}" for n in TIMES])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    fig.axes[0].set_ylabel("right answers, percent")
    fig.axes[0].legend(frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(out, dpi=120)


def main() -> None:
    """Train every model on every task, print how it does on longer strings, save the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="steps of each training")
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {', '.join(MODELS)}")
    parser.add_argument("--seed", type=int, default=0, help="of weights and strings")
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo/regular.png"), help="where the figure goes"
    )
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)  # operations this small lose more to threads than they gain

    results: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for task_name, task in TASKS.items():
        results[task_name] = {}
        for name in options.models.split(","):
            set_seed(options.seed)
            model = MODELS[name]().to(device)
            train(model, task, options.steps, f"{task_name}, {name}", options.seed)
            results[task_name][name] = [ask(model, task, LENGTH * times) for times in TIMES]
    print("percent of answers right / of strings with every answer right")
    print(f"{'':22}", *(f"{LENGTH * times:>9} letters" for times in TIMES))
    for task_name, rows in results.items():
        for name, row in rows.items():
            print(f"{task_name:12} {name:9}", *(f"{100 * a:9.2f} /{100 * s:6.1f}" for a, s in row))
    figure(results, options.out)
    print(f"saved {options.out}")


if __name__ == "__main__":
    main()
