"""One step of a recurrence beside an empty kernel, a copy of its bytes, and its peers, all in CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks import decoding
from benchmarks.decoding import SETS, Decoding
from benchmarks.fused_tables import COPY, EMPTY, FUSED
from benchmarks.layers import MAMBA, RG_LRU
from benchmarks.peers.cited import COPY_TB_S, MAMBA_SSM, STEP_MS
from benchmarks.record import rate
from benchmarks.session import FAILURES, Row, Session, told
from benchmarks.tables import FORWARD
from benchmarks.timing import summary
from tests.recurrences import Entry, Sizes
from tests.tolerances import err

CALLED = {RG_LRU.name: "RG-LRU step", MAMBA.name: "Mamba step"}
COMPILED = "torch.compile"
GRAPH_CALLS, ROUNDS, REPLAYS = 16, 5, 6
PEER_BOUND = 2e-2  # of its output's error, as of other peers in bf16


@dataclass(frozen=True)
class StepContest:
    """A batch of one recurrence."""

    entry: Entry
    batch: int

    def run(self, session: Session, *, tiny: bool) -> None:
        """Every implementation's row; the clocks are read in turns."""
        made = self.prepare(session.device, tiny=tiny)
        clocks: dict[str, Any] = {}
        rows: dict[str, Row] = {}
        for name, begin in self.beginnings(made, tiny=tiny).items():
            try:
                rows[name], call = begin(self.row(name))
                clocks[name] = session.clock.Replayed(call, GRAPH_CALLS)
            except FAILURES as failure:
                session.results.add(self.row(name) | {"failed": told(failure)})
                session.settle()
        found: dict[str, list[float]] = {name: [] for name in clocks}
        for _ in range(ROUNDS):
            for name, clock in clocks.items():
                found[name] += [x / SETS for x in clock.sample(REPLAYS)]
        pace = session.results.copy["rate_tb_s"]
        for name, times in found.items():
            session.results.add(self.timed(rows[name], asdict(summary(times)), made, pace))
        cited = STEP_MS.get(CALLED[self.entry.name])
        if cited is not None and self.batch == 64 and not tiny:
            ms = cited * COPY_TB_S / pace
            row = self.row(MAMBA_SSM.name) | {"cited": True}
            session.results.add(self.timed(row, {"min": ms, "median": ms, "max": ms}, made, pace))

    @property
    def sizes(self) -> Sizes:
        return decoding.SIZES[64] | {"b": self.batch}

    def prepare(self, device: str, *, tiny: bool = False) -> Decoding:
        return decoding.prepare(decoding.TINY if tiny else self.sizes, device, self.entry)

    def row(self, name: str) -> Row:
        axes = next(iter(self.entry.states.values())).axes.split()
        at = {
            "section": "step",
            "operator": CALLED[self.entry.name],
            "layout": "".join(axes),
            "dtype": "bfloat16",
        }
        size = [self.sizes[a] for a in axes]
        return {"implementation": name, **at, "size": size, "direction": "step", "error": None}

    def timed(self, row: Row, times: dict[str, float], made: Decoding, pace: float) -> Row:
        row |= {"replayed": times, "clock": "replayed", "copy_tb_s": pace}
        if row["implementation"] == EMPTY:
            return row
        return row | {"bytes": made.nbytes(), "fraction": rate(made.nbytes(), times["median"]) / pace}

    def beginnings(
        self, made: Decoding, *, tiny: bool
    ) -> dict[str, Callable[[Row], tuple[Row, Callable[[], Any]]]]:
        """The row and the call of each implementation, once it has been checked."""
        found = {
            FUSED: lambda row: (row | {"error": {FORWARD: made.check()}}, made.step),
            COPY: lambda row: (row, made.copies()),
        }
        if tiny:
            return found | {EMPTY: lambda row: (row, lambda: None)}
        found |= {EMPTY: lambda row: (row, made.empty())}
        return found | ({COMPILED: partial(compiled, made)} if self.entry is RG_LRU else {})


def compiled(made: Decoding, row: Row) -> tuple[Row, Callable[[], Any]]:
    """RG-LRU's step as torch operations, compiled; the states are overwritten."""
    torch._dynamo.reset()

    def step(h: Tensor, x: Tensor, r: Tensor, i: Tensor, Lambda: Tensor) -> Tensor:
        log_a = -8 * softplus(Lambda) * torch.sigmoid(r.float())
        b = torch.sqrt(-torch.expm1(2 * log_a)) * torch.sigmoid(i.float()) * x.float()
        h.copy_(torch.exp(log_a) * h + b)
        return h.to(x.dtype)

    run = torch.compile(step, dynamic=False)
    state, inputs = made.states[0].clone(), made.inputs[0]
    doubles = {n: x.double() for n, x in inputs.items()}
    want = step(state.double(), **doubles)
    got = run(state, **inputs)
    error = err(got, want)
    assert error <= PEER_BOUND, f"output error {error:.2g}, allowed {PEER_BOUND:.0e}"

    def call() -> None:
        for inputs, state in zip(made.inputs, made.states, strict=True):
            run(state, **inputs)

    return row | {"error": {FORWARD: error}}, call
