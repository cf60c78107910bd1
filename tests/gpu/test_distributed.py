"""One sequence over two ranks on GPUs: two that share one through gloo, two of their own through NCCL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import scanforge as sf
from scanforge import distributed
from scanforge.distributed.forms import FORMS
from tests import catalogue, recurrences
from tests.distributed.groups import KINDS, assert_whole, pairs
from tests.distributed.layers import LAYERS, LayerRun, boundaries, check_layer
from tests.distributed.problems import Problem, bare, check_rank, fused
from tests.distributed.processes import on_ranks
from tests.reference.compare import wide

pytestmark = pytest.mark.gpu
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
SHARDS = [4096, 1000]  # few lanes: the first is cut into chunks, the second is too short for that
SOME = ("MinMaxRNC_LM", "SelectiveSSM", "RecurrentLM griffin", "HGRN2")

needs_two = pytest.mark.skipif(
    torch.cuda.device_count() < 2,
    reason=f"NCCL wants a GPU for each of two ranks, and there are {torch.cuda.device_count()}",
)


def problems() -> list[Problem]:
    steps, g = sum(SHARDS), catalogue.generator(3)
    some = [bare(catalogue.BY_NAME[n], steps, reverse=r) for n in ("Affine", "MinMax") for r in (False, True)]
    some += [fused(recurrences.BY_NAME[n], steps) for n in ("RGLRU", "Mamba", "HGRN2")]
    cut = {"reset": torch.rand(2, steps, generator=g) > 0.99, "mask": torch.rand(2, steps, generator=g) > 0.1}
    some += [replace(bare(catalogue.BY_NAME["Affine"], steps), flags=cut)]
    return [
        replace(low, outputs=p.outputs, finals=p.finals, gradients=p.gradients)
        for some_p in some
        for dtype in DTYPES
        for low in [narrow(some_p, dtype)]
        for p in [widened(low).solved()]
    ]


def narrow(p: Problem, dtype: torch.dtype) -> Problem:
    """The problem in a dtype; states are in the dtype of the computation."""
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    tensors = {n: x.to(dtype) if x.is_floating_point() else x for n, x in p.tensors.items()}
    return replace(p, tensors=tensors, initial=tuple(x.to(kept) for x in p.initial))


def widened(p: Problem) -> Problem:
    tensors = {n: wide(x) for n, x in p.tensors.items()}
    return replace(p, tensors=tensors, initial=tuple(wide(x) for x in p.initial))


def on_gpu(p: Problem) -> Problem:
    tensors = {n: x.cuda() for n, x in p.tensors.items()}
    flags = {n: x.cuda() for n, x in p.flags.items()}
    return replace(p, tensors=tensors, initial=tuple(x.cuda() for x in p.initial), flags=flags)


def check(rank: int, count: int, file: str, form: str) -> None:
    for k, problem in enumerate(torch.load(file, weights_only=False)):
        resets = "reset" in problem.flags
        check_rank(on_gpu(problem), SHARDS, rank, dist.group.WORLD, reduces=resets or k % 2 == 0, form=form)
        assert distributed.last_form().name == form


def check_layers(rank: int, count: int, file: str) -> None:
    for run in torch.load(file, weights_only=False):
        check_layer(run, SHARDS, rank, dist.group.WORLD, device="cuda")


def check_many_lanes(rank: int, count: int) -> None:
    """They are passed on without being asked to, also where time is the outermost axis."""
    given = pairs(8192, 2**14, torch.float32, draw=Draw(0))
    own = {n: x[0].unflatten(-1, (8, 2048)).transpose(0, 1) for n, x in given.items()}  # (8, t, 2048)
    whole = sf.scan(sf.Affine, **own)
    steps = slice(0, 4096) if rank == 0 else slice(4096, 8192)
    y = distributed.scan(sf.Affine, **{n: x[:, steps] for n, x in own.items()})
    form = distributed.last_form()
    assert form.name == "pass", form
    torch.testing.assert_close(y, whole[:, steps], rtol=1e-5, atol=1e-5)


class Draw:
    """Numbers on the GPU, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator(device="cuda").manual_seed(seed)

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator, device="cuda")


def solve(folder: Path, backend: str, form: str) -> None:
    torch.save(problems(), folder / "problems.pt")
    on_ranks(2, check, str(folder / "problems.pt"), form, backend=backend)


def solve_layers(folder: Path, backend: str) -> None:
    assert {*SOME} <= {*LAYERS}
    runs = [
        LayerRun(n, sum(SHARDS), carried=True, flags=f) for n in SOME for f in boundaries(sum(SHARDS))[:2]
    ]
    torch.save([run.solved() for run in runs], folder / "runs.pt")
    on_ranks(2, check_layers, str(folder / "runs.pt"), backend=backend)


@pytest.mark.parametrize("form", FORMS)
def test_two_ranks_on_one_gpu(tmp_path: Path, form: str):
    """Messages between two ranks go through the host, since gloo has no others."""
    solve(tmp_path, "gloo", form)


def test_many_lanes_on_one_gpu():
    on_ranks(2, check_many_lanes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("kind", "steps", "size", "width", "lowering"),
    [
        ("affine", 2048, 512, 128, "split"),
        ("affine", 300, 512, 64, "ordered_tile"),
        ("ssm", 300, 256, 64, "ordered_tile"),
        ("hgrn2", 300, 8, 2, "chunked"),
    ],
)
def test_groups_of_lanes(kind: str, steps: int, size: int, width: int, lowering: str, dtype: torch.dtype):
    operator, axis, draw = KINDS[kind]
    for seed in range(3):  # met, recorded, replayed
        given = draw(steps, size, dtype, Draw(seed))
        assert assert_whole(operator, axis, width, lowering, exact=False, **given) == lowering


def test_layers_on_one_gpu(tmp_path: Path):
    solve_layers(tmp_path, "gloo")


@needs_two
@pytest.mark.parametrize("form", FORMS)
def test_two_gpus(tmp_path: Path, form: str):
    solve(tmp_path, "nccl", form)


@needs_two
def test_many_lanes_on_two_gpus():
    on_ranks(2, check_many_lanes, backend="nccl")


@needs_two
def test_layers_on_two_gpus(tmp_path: Path):
    solve_layers(tmp_path, "nccl")
