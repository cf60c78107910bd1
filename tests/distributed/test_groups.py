"""Groups: meshes, DDP, what is refused, what happens when a rank dies or makes another call."""

from __future__ import annotations

import doctest
import importlib
import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import models
import scanforge as sf
from scanforge import distributed, op
from scanforge.distributed import chunks
from scanforge.distributed.ranks import Gathering, Ranks
from scanforge.distributed.shard import Shard
from scanforge.distributed.wire import Wire
from tests import recurrence_declarations as declared
from tests.distributed.processes import TIMEOUT, on_ranks
from tests.tolerances import assert_close

STEPS = 12


class Total(sf.Recurrence):
    """The only output sums over batch and time, so an adjoint's element has fewer axes than its state."""

    x, f = sf.Input("b t d"), sf.Input("t d")
    y = sf.Output("d")
    h = sf.State("b d")

    def element(self):
        return sf.Affine(a=sf.sigmoid(self.f), b=self.x)

    def readout(self):
        return self.h


def draw() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = (4, STEPS, 3), (3,), (STEPS, 3)
    x, w, f = (torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes)
    return x.requires_grad_(), w.requires_grad_(), f.requires_grad_()


def check_mesh(rank: int, count: int) -> None:
    """Two ranks of data times two of time."""
    x, w, _ = draw()
    whole = sf.scan(declared.Decay, x=x, w=w)
    expected = torch.autograd.grad(whole.square().sum(), [x, w])
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "sequence"))
    with pytest.raises(sf.ArgumentError, match=r"2 dimensions.*mesh\['sequence'\]"):
        distributed.scan(declared.Decay, x=x, w=w, group=mesh)
    rows = slice(2 * (rank // 2), 2 * (rank // 2) + 2)
    steps = slice(0, 5) if rank % 2 == 0 else slice(5, STEPS)
    own = x[rows, steps].detach().requires_grad_()
    y = distributed.scan(declared.Decay, x=own, w=w, group=mesh["sequence"])
    assert_close(y, whole[rows, steps], "forward")
    gx, gw = torch.autograd.grad(y.square().sum(), [own, w])
    assert_close(gx, expected[0][rows, steps], "gradient")
    dist.all_reduce(gw)
    assert_close(gw, expected[1], "gradient")


class Averages(torch.nn.Module):
    """A layer whose parameter all ranks share."""

    def __init__(self, w: torch.Tensor) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(w.detach().clone())

    def forward(self, x):
        return distributed.scan(declared.Decay, x=x, w=self.w)


def check_ddp(rank: int, count: int) -> None:
    """DDP averages over all ranks the gradients that each has of its own steps."""
    x, w, _ = draw()
    (expected,) = torch.autograd.grad(sf.scan(declared.Decay, x=x, w=w).square().sum(), [w])
    layer = DistributedDataParallel(Averages(w))
    cuts = [0, 1, 7, STEPS]
    layer(x[:, cuts[rank] : cuts[rank + 1]].detach()).square().sum().backward()
    assert_close(layer.module.w.grad * count, expected, "gradient")


def check_narrow_cotangent(rank: int, count: int) -> None:
    """Cotangents that lack axes of the state meet a final state's, which has them all."""
    x, _, f = draw()
    total, h = sf.scan(Total, x=x, f=f, return_final_state=True)
    expected = torch.autograd.grad(total.sin().sum() + h.square().sum(), [x, f])
    cuts = [0, 4, 9, STEPS]
    own = slice(cuts[rank], cuts[rank + 1])
    mine = [z.detach().requires_grad_() for z in (x[:, own], f[own])]
    y, last = distributed.scan(Total, x=mine[0], f=mine[1], return_final_state=True)
    assert_close(y, total, "forward")
    loss = y.sin().sum() / count + last.square().sum() * (rank == count - 1)
    gx, gf = torch.autograd.grad(loss, mine)
    assert_close(gx, expected[0][:, own], "gradient")
    assert_close(gf, expected[1][own], "gradient")


def check_types(rank: int, count: int) -> None:
    """Outputs in 16 bits, states in 32; complex tensors."""
    x, w, _ = draw()
    own = slice(0, 7) if rank == 0 else slice(7, STEPS)
    low, single = x.detach().bfloat16(), w.detach().float()
    whole, final = sf.scan(declared.Decay, x=low, w=single, return_final_state=True)
    y, state = distributed.scan(declared.Decay, x=low[:, own], w=single, return_final_state=True)
    assert (y.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    assert_close(y, whole[:, own], "forward")
    assert rank == 0 or (state - final).abs().max() <= 1e-6 * final.abs().max()
    a, b = torch.polar(torch.full_like(x, 0.9), x).detach(), torch.complex(x, x).detach()
    states = distributed.scan(sf.Affine, a=a[:, own], b=b[:, own])
    assert_close(states, sf.scan(sf.Affine, a=a, b=b)[:, own], "forward")


def check_different_calls(rank: int, count: int) -> None:
    """Ranks whose elements are of the same bytes and another meaning."""
    x = torch.ones(1, 3, 2)
    operator, first, second = (sf.Affine, "a", "b") if rank else (sf.operators.MinMax, "r", "s")
    with pytest.raises(sf.GroupError, match=r"rank \d and rank \d make different calls"):
        distributed.scan(operator, **{first: x, second: x})


def check_refused(rank: int, count: int) -> None:
    x = torch.ones(1, 3, 2)
    with pytest.raises(sf.ArgumentError, match="an object of type str, expected a process group"):
        distributed.scan(sf.Affine, a=x, b=x, group="sequence")
    with pytest.raises(sf.ArgumentError, match=r"\[0, 3\], expected numbers that rise from 0 to the 6 steps"):
        distributed.scan(sf.Affine, a=x, b=x, cu_seqlens=torch.tensor([0, 3]))
    alone = dist.new_group([0])
    if rank:
        with pytest.raises(sf.ArgumentError, match="does not hold this process, rank 1 of all"):
            distributed.scan(sf.Affine, a=x, b=x, group=alone)
    ones = x.clone().requires_grad_()
    y = distributed.scan(sf.Affine, a=ones, b=x)
    with pytest.raises(sf.ArgumentError, match="no second derivative: leave create_graph out"):
        torch.autograd.grad(y.sum(), [ones], create_graph=True)


def check_states_of_resets(rank: int, count: int) -> None:
    """Resets start from the initial state everywhere, so one that the first rank alone gives is refused."""
    x, starts = torch.ones(1, 3, 2), torch.zeros(1, 3, dtype=torch.bool)
    with pytest.raises(sf.GroupError, match="initial_state= is given on all of them or on none"):
        distributed.scan(sf.Affine, a=x, b=x, reset=starts, initial_state=None if rank else torch.ones(1, 2))


def check_overlap(rank: int, count: int) -> None:
    """The first rank scans, and the last composes its chunks, while the exchange is under way."""
    chunks.chunk_count = lambda call, *_: 3
    happened: list[str] = []

    def noted(owner: Any, method: str, what: str) -> None:
        run = getattr(owner, method)

        def wrapped(*args: object, **options: object) -> object:
            happened.append(what)
            return run(*args, **options)

        setattr(owner, method, wrapped)

    noted(Ranks, "gather", "send")
    noted(Gathering, "wait", "wait")
    noted(Shard, "run", "run")
    noted(op, "gradients", "back")
    x = torch.ones(1, 6, 2, requires_grad=True)
    y = distributed.scan(sf.Affine, a=x, b=x)
    compose, leave, fold, carry, scan = ["run"] * 5
    expected = {
        0: [compose, leave, "send", carry, scan, "wait"],
        1: [compose, leave, "send", "wait", carry, scan],
        2: ["send", compose, "wait", fold, carry, scan],
    }
    assert happened == expected[rank]
    happened.clear()
    y.sum().backward()
    expected = {
        2: [compose, leave, "send", carry, "back", "wait"],
        1: [compose, leave, "send", "wait", carry, "back"],
        0: ["send", compose, "wait", fold, carry, "back"],
    }
    assert happened == expected[rank]


def check_before(rank: int, count: int) -> None:
    """A rank sees the tensors before its own; its own gets what all later ranks send back."""
    x = torch.full((2,), float(rank), requires_grad=True)
    assert distributed.place() == rank
    seen = distributed.before(x)
    assert seen.tolist() == [[k, k] for k in range(rank)]
    (seen * (rank + 1)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [sum(later + 1 for later in range(rank + 1, count))] * 2


def check_layers_refuse(rank: int, count: int) -> None:
    """Whatever takes steps one after another on a rank; `lengths` count the whole sequence."""
    torch.manual_seed(0)
    group, x = dist.group.WORLD, torch.randn(2, 3, 8)
    network = models.MinMaxRNC(models.MinMaxRNCConfig(8, 1, 4))
    with pytest.raises(ValueError, match="unroll_steps=2 takes pieces one after another"):
        network(x, unroll_steps=2, sequence_group=group)
    layer = models.RGLRU(8)
    with pytest.raises(ValueError, match="inference_cache= holds the state of a whole sequence"):
        layer(x, inference_cache=layer.allocate_inference_cache(2, 3), sequence_group=group)
    whole = torch.randn(2, 7, 8)
    own = whole[:, :4] if rank == 0 else whole[:, 4:]
    lengths = torch.tensor([6, 2])
    y = layer(own, lengths=lengths, sequence_group=group)
    expected = layer(whole, lengths=lengths)
    torch.testing.assert_close(y, expected[:, :4] if rank == 0 else expected[:, 4:])


def check_death(rank: int, count: int) -> None:
    """One rank dies between its forward and its backward pass."""
    x = torch.ones(1, 3, 2, requires_grad=True)
    y = distributed.scan(sf.Affine, a=x, b=x)
    if rank == 1:
        os._exit(0)  # as if killed: no farewell to the others
    began = time.monotonic()
    with pytest.raises(sf.GroupError, match="waited for the other ranks"):
        y.sum().backward()
    assert time.monotonic() - began < TIMEOUT.total_seconds()
    os._exit(0)  # no barrier either: a group without one of its ranks cannot be taken down in order


def check_death_in_a_model(rank: int, count: int) -> None:
    """One rank dies after the first of two layers' forward passes, in which others wait for its window."""
    model = models.RecurrentLM(11, 8, 2, "griffin")
    if rank == 1:
        model.stack.layers[1].register_forward_pre_hook(lambda *_: os._exit(0))
    began = time.monotonic()
    with pytest.raises(sf.GroupError, match="waited for the other ranks"):
        model(torch.zeros(1, 3, dtype=torch.long), sequence_group=dist.group.WORLD)
    assert time.monotonic() - began < TIMEOUT.total_seconds()
    os._exit(0)


@pytest.mark.parametrize(
    ("check", "count"),
    [
        (check_mesh, 4),
        (check_ddp, 3),
        (check_narrow_cotangent, 3),
        (check_types, 2),
        (check_different_calls, 2),
        (check_refused, 2),
        (check_states_of_resets, 2),
        (check_before, 3),
        (check_overlap, 3),
        (check_layers_refuse, 2),
        (check_death, 2),
        (check_death_in_a_model, 3),
    ],
    ids=lambda x: x.__name__.removeprefix("check_") if callable(x) else str(x),
)
def test_on_ranks(check, count):
    on_ranks(count, check)


def test_without_a_group():
    x = torch.ones(1, 3, 2)
    with pytest.raises(sf.ArgumentError, match=r"call torch\.distributed\.init_process_group first"):
        distributed.scan(sf.Affine, a=x, b=x)


@pytest.mark.parametrize("module", ["before", "scans"])
def test_the_example_of_the_docstring(module: str):
    found = doctest.testmod(importlib.import_module(f"scanforge.distributed.{module}"))
    assert found.attempted
    assert not found.failed


def test_a_message_is_one_element():
    """HGRN2's element is a gate (k) and a product (k, v) for each head: no more travels, in states' place."""
    gate, product, state = torch.zeros(2, 4, 8), torch.zeros(2, 4, 8, 16), torch.zeros(2, 4, 8, 16)
    wire = Wire.of("HGRN2", [gate, product], [state])
    length = wire.message([gate, product], state).numel()
    assert length == 8 + 4 * (gate.numel() + product.numel())
    assert wire.message([state], state).numel() == length
