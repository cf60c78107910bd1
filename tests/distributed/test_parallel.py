"""Layers under DDP and FSDP2, with mixed precision and checkpointing, and data beside sequence parallel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import scanforge as sf
from models.hgrn2.lower_bounds import LowerBounds
from models.lm import ResidualLayer
from models.named import MIXERS
from tests.distributed.processes import on_ranks
from tests.models.protocol import seeded
from tests.models.test_lm_mixers import build, drawn
from tests.tolerances import assert_close

BATCH, STEPS = 4, 13
CUT = 5  # where the second rank's steps begin


def model_of(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    return seeded(lambda: build(name, init_std=0.5), dtype)()


def loss_of(model: Any, tokens: Tensor, targets: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(model(tokens, **options).flatten(0, 1), targets.flatten())


def text() -> tuple[Tensor, Tensor]:
    tokens = drawn(BATCH, STEPS + 1)
    return tokens[:, :-1], tokens[:, 1:]


def expected(name: str) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean loss of one process over the whole batch, and its gradients."""
    model = model_of(name)
    loss = loss_of(model, *text())
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in model.named_parameters()}


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Whole gradients by the names that the model has alone."""
    found = {}
    for name, p in model.named_parameters():
        grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        assert grad.dtype == p.dtype, name
        found[name.removeprefix("module.")] = grad
    return found


def check_gradients(model: nn.Module, wanted: dict[str, Tensor], what: str) -> None:
    found = gradients(model)
    assert found.keys() == wanted.keys()
    for n, g in found.items():
        assert_close(g, wanted[n], "gradient", f"{what}: {n}")


def sharded(model: nn.Module, mesh: DeviceMesh, **options: Any) -> nn.Module:
    """A module of its own for what several layers share, then each layer, then the rest."""
    for kind in (LowerBounds, ResidualLayer):
        for module in model.modules():
            if type(module) is kind:
                fully_shard(module, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def remembering_little(model: nn.Module) -> nn.Module:
    """Every mixer runs again in the backward pass instead of keeping what it needs there."""
    for layer in model.stack.layers:
        run = layer.mixer.forward
        layer.mixer.forward = lambda *a, run=run, **k: checkpoint(run, *a, use_reentrant=False, **k)
    return model


def check_data_parallel(rank: int, count: int, names: list[str]) -> None:
    """Each rank has two sequences; DDP and FSDP2 average gradients, so they are the whole batch's."""
    mesh = init_device_mesh("cpu", (count,))
    rows = slice(2 * rank, 2 * rank + 2)
    tokens, targets = (x[rows] for x in text())
    for name in names:
        _, wanted = expected(name)
        for shard in (False, True):
            model = remembering_little(model_of(name)) if shard else model_of(name)
            model = sharded(model, mesh) if shard else DistributedDataParallel(model)
            loss_of(model, tokens, targets).backward()
            check_gradients(model, wanted, f"{name}, FSDP2 and checkpoints {shard}")


def averaged(name: str, dtype: torch.dtype, *, cast: bool) -> dict[str, Tensor]:
    """The fp32 mean of what one process alone makes of each half of the batch."""
    found = []
    for rows in (slice(0, 2), slice(2, 4)):
        model = model_of(name, torch.float32).to(dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            loss = loss_of(model, *(x[rows] for x in text()))
        loss.backward()
        found.append(gradients(model))
    return {n: (g.float() + found[1][n].float()) / 2 for n, g in found[0].items()}


def check_mixed_precision(rank: int, count: int, names: list[str]) -> None:
    """bf16 under autocast and under FSDP2's policy is that of one process, the averages in fp32."""
    mesh = init_device_mesh("cpu", (count,))
    rows = slice(2 * rank, 2 * rank + 2)
    tokens, targets = (x[rows] for x in text())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name in names:
        cast = DistributedDataParallel(remembering_little(model_of(name, torch.float32)))
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(cast, tokens, targets)
        loss.backward()
        check_gradients(cast, averaged(name, torch.float32, cast=True), f"{name}, autocast")
        low = sharded(remembering_little(model_of(name, torch.float32)), mesh, mp_policy=policy)
        loss_of(low, tokens, targets).backward()
        check_gradients(low, averaged(name, torch.bfloat16, cast=False), f"{name}, FSDP2")


def check_data_and_sequence(rank: int, count: int, names: list[str]) -> None:
    """Two batches, each over two ranks of time: loss and gradients are the one process's."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "sequence"))
    rows = slice(2 * (rank // 2), 2 * (rank // 2) + 2)
    steps = slice(0, CUT) if rank % 2 == 0 else slice(CUT, STEPS)
    tokens, targets = (x[rows, steps] for x in text())
    flat = init_device_mesh("cpu", (count,))
    for name in names:
        loss, wanted = expected(name)
        for shard in (False, True):
            model = remembering_little(model_of(name)) if shard else model_of(name)
            model = sharded(model, flat) if shard else DistributedDataParallel(model)
            logits = model(tokens, sequence_group=mesh["sequence"])
            # each rank's share of the mean; they are averaged over all ranks, so times their number
            share = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
            share = share / (BATCH * STEPS)
            (share * count).backward()
            total = share.detach().clone()
            dist.all_reduce(total)
            assert_close(total, loss, "forward", name)
            check_gradients(model, wanted, f"{name}, FSDP2 {shard}")


def check_compiled(rank: int, count: int, names: list[str]) -> None:
    """A compiled model under a group: graphs end where ranks exchange."""
    steps = slice(0, CUT) if rank == 0 else slice(CUT, STEPS)
    tokens, targets = (x[:, steps] for x in text())
    for name in names:
        loss, wanted = expected(name)
        model = model_of(name)
        logits = torch.compile(model, backend="aot_eager")(tokens, sequence_group=dist.group.WORLD)
        share = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / (BATCH * STEPS)
        share.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        dist.all_reduce(share := share.detach())
        assert_close(share, loss, "forward", name)
        check_gradients(model, wanted, f"{name}, compiled")


def _on_ranks(rank: int, count: int, check: Any, names: list[str]) -> None:
    sf.set_law_check(False)  # other tests look at the laws of these layers
    check(rank, count, names)


CHECKS = {"data_parallel": 2, "mixed_precision": 2, "data_and_sequence": 4}
SOME = ["griffin", "hgrn2"]  # a convolution and starts of sequences; bounds that the layers share


@pytest.mark.parametrize("check", CHECKS)
def test_on_ranks(check: str):
    on_ranks(CHECKS[check], _on_ranks, globals()[f"check_{check}"], SOME)


@pytest.mark.slow
def test_compiled():
    on_ranks(2, _on_ranks, check_compiled, SOME)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
def test_the_other_mixers(check: str):
    on_ranks(CHECKS[check], _on_ranks, globals()[f"check_{check}"], [n for n in MIXERS if n not in SOME])
