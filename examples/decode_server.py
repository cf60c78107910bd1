"""Decoding for many users at once: requests come and go, and every step serves all of them.

A recurrent model needs no cache that grows: a request is one row of each state tensor. A slot that is done is
given to the next request, whose prompt is read in one pass. On a GPU the step is a CUDA graph, captured once:
every call of it reads and writes the same memory.

    python examples/decode_server.py [--requests 12] [--slots 4]
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from models import RecurrentLM, set_seed
from models.mixer import tensors


@dataclass
class Request:
    """A prompt (t,), how many tokens are wanted, and what has been written."""

    prompt: Tensor
    wanted: int
    written: list[int] = field(default_factory=list)


class Server:
    """Slots of one model, which takes the likeliest token at each step."""

    def __init__(self, model: RecurrentLM, slots: int) -> None:
        self.model = model.eval()
        device = next(model.parameters()).device
        self.state = model.initial_state(slots)
        self.tokens = torch.zeros(slots, dtype=torch.long, device=device)
        self.running: list[Request | None] = [None] * slots
        self.graph = self._capture() if device.type == "cuda" else None

    @torch.no_grad()
    def serve(self, requests: Iterable[Request]) -> int:
        """Answer all requests; how many steps that took."""
        waiting, steps = deque(requests), 0
        while waiting or any(self.running):
            for slot, request in enumerate(self.running):
                if request is None and waiting:
                    self._admit(slot, waiting.popleft())
            if any(self.running):
                self._step() if self.graph is None else self.graph.replay()
                self._collect(self.tokens.tolist())
                steps += 1
        return steps

    def _admit(self, slot: int, request: Request) -> None:
        """Read the prompt but for its last token, whose step is the next one of all slots."""
        prompt = request.prompt.to(self.tokens.device)
        _, after = self.model(prompt[None, :-1], return_state=True)
        for mine, new in zip(tensors(self.state), tensors(after), strict=True):
            mine[slot].copy_(new[0])
        self.tokens[slot] = prompt[-1]
        self.running[slot] = request

    def _collect(self, tokens: list[int]) -> None:
        for slot, request in enumerate(self.running):
            if request is not None:
                request.written.append(tokens[slot])
                if len(request.written) == request.wanted:
                    self.running[slot] = None

    def _step(self) -> None:
        """One token more in every slot, written where the last one was."""
        logits, after = self.model.step(self.tokens, self.state)
        for mine, new in zip(tensors(self.state), tensors(after), strict=True):
            mine.copy_(new)
        self.tokens.copy_(logits.argmax(-1))

    @torch.no_grad()
    def _capture(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # kernels are compiled and chosen before anything is captured
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph


def main() -> None:
    """Serve random requests of an untrained model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--mixer", default="rglru")
    options = parser.parse_args()
    set_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = RecurrentLM(256, 64, 2, options.mixer, ffn="gated").to(device)
    lengths = torch.randint(2, 20, (options.requests, 2)).tolist()
    requests = [Request(torch.randint(256, (read,)), write) for read, write in lengths]
    steps = Server(model, options.slots).serve(requests)
    total = sum(len(r.written) for r in requests)
    print(f"{total} tokens of {len(requests)} requests in {steps} steps of {options.slots} slots")


if __name__ == "__main__":
    main()
