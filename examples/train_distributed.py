"""A byte-level language model whose one long sequence lies over several processes, started by torchrun.

Every rank holds a stretch of the text and runs the recurrence on it with `scanforge.distributed.scan`; DDP
adds up the parameters' gradients. A checkpoint is written every few steps; started again with the same
--out, the run goes on from the newest one with the same losses, as if nothing had happened.

    torchrun --nproc-per-node 2 examples/train_distributed.py [--steps 60] [--length 4096] [--out build/long]
"""

from __future__ import annotations

import argparse
import json
import os
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import scanforge as sf
from scanforge import distributed

BYTES, WIDTH, LAYERS = 256, 64, 2


class GatedAverage(sf.Recurrence):
    """h_t = a_t h_{t-1} + (1-a_t) σ(i_t) x_t,  a_t = σ(r_t + bias),  y_t = h_t silu(z_t)"""

    x, r, i, z = sf.Input("b t d"), sf.Input("b t d"), sf.Input("b t d"), sf.Input("b t d")
    bias = sf.Input("d")
    h = sf.State("b d")

    def element(self):
        a = sf.sigmoid(self.r + self.bias)
        return sf.Affine(a=a, b=(1 - a) * sf.sigmoid(self.i) * self.x)

    def readout(self):
        return self.h * sf.silu(self.z)


class Layer(nn.Module):
    """The recurrence between two projections, and a residual path around them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.linspace(0, 8, WIDTH))  # memories of 2 to 3000 bytes

    def forward(self, x: Tensor) -> Tensor:
        """x (b, t, d): this rank's stretch of the sequence."""
        u, r, i, z = self.project(self.norm(x)).chunk(4, -1)
        return x + self.out(distributed.scan(GatedAverage, x=u, r=r, i=i, z=z, bias=self.bias))


def language_model() -> nn.Module:
    """Logits of the next byte (b, t, 256) from bytes (b, t)."""
    layers = [Layer() for _ in range(LAYERS)]
    return nn.Sequential(nn.Embedding(BYTES, WIDTH), *layers, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BYTES))


def corpus() -> Tensor:
    """The bytes of the modules at the top of Python's library."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)


def stretch(text: Tensor, step: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """This rank's bytes of the passage of a step, and the bytes that follow each: both (1, own steps)."""
    first = torch.randint(len(text) - length, (), generator=torch.Generator().manual_seed(step))
    passage = text[first : first + length + 1].long().to(device)
    rank, count = dist.get_rank(), dist.get_world_size()
    begin, end = length * rank // count, length * (rank + 1) // count
    return passage[None, begin:end], passage[None, begin + 1 : end + 1]


class Run:
    """What a checkpoint holds: model, optimiser, and the losses so far."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self.model = DistributedDataParallel(language_model().to(device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.losses: list[float] = []

    def step(self, inputs: Tensor, targets: Tensor, length: int) -> float:
        """One step of learning. The loss is the mean over the whole sequence, in bits per byte."""
        logits = self.model(inputs)
        # DDP averages over ranks, so each gives its share of the mean times their number
        share = F.cross_entropy(logits[0], targets[0], reduction="sum") / length
        self.optimizer.zero_grad()
        (share * dist.get_world_size()).backward()
        self.optimizer.step()
        total = share.detach().clone()
        dist.all_reduce(total)
        self.losses.append(total.item() / 0.6931471805599453)
        return self.losses[-1]

    def save(self, folder: Path) -> None:
        """All ranks write; a folder is complete once it holds `.metadata`, which is written last."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        losses = torch.tensor(self.losses, dtype=torch.float64)
        state = {"model": model, "optimizer": optimizer, "losses": losses}
        dcp.save(state, checkpoint_id=str(folder / f"step-{len(self.losses):06d}"))

    def resume(self, folder: Path) -> None:
        """Go on from the newest complete checkpoint, if there is one."""
        complete = sorted(p.parent for p in folder.glob("step-*/.metadata"))
        if not complete:
            return
        model, optimizer = get_state_dict(self.model, self.optimizer)
        losses = torch.zeros(int(complete[-1].name.removeprefix("step-")), dtype=torch.float64)
        state = {"model": model, "optimizer": optimizer, "losses": losses}
        dcp.load(state, checkpoint_id=str(complete[-1]))
        set_state_dict(
            self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        self.losses = state["losses"].tolist()


def train(steps: int, length: int, every: int, folder: Path, device: torch.device) -> list[float]:
    """The losses of all steps, those before a resumption included."""
    text, run, quiet = corpus(), Run(device), dist.get_rank() != 0
    run.resume(folder)
    done = len(run.losses)
    if done and not quiet:
        print(f"resumed after step {done}")
    with tqdm(total=steps, initial=done, disable=quiet, unit="step") as bar:
        for step in range(done, steps):
            bits = run.step(*stretch(text, step, length, device), length)
            bar.set_postfix_str(f"{bits:.3f} bits per byte")
            bar.update()
            if (step + 1) % every == 0 or step + 1 == steps:
                run.save(folder)
    return run.losses


def main() -> None:
    """The shell's entry: a process of torchrun."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--length", type=int, default=4096, help="bytes of the sequence, over all ranks")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--out", type=Path, default=Path("build/long"))
    args = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    losses = train(args.steps, args.length, args.every, args.out, device)
    if dist.get_rank() == 0:
        (args.out / "losses.json").write_text(json.dumps(losses), encoding="utf-8")
        print(f"{args.length} bytes over {dist.get_world_size()} ranks: {losses[0]:.3f} -> {losses[-1]:.3f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
