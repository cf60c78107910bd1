"""Programs that share their lanes on a GPU: right at real sizes, every time, beside others, and in graphs."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from tests.catalogue import BY_NAME, draw
from tests.gpu.test_kernels import on_gpu
from tests.kernels import check, everything
from tests.recurrence_kernels import check as check_recurrence
from tests.recurrences import BY_NAME as RECURRENCES
from tests.recurrences import draw as draw_recurrence
from tests.tolerances import assert_equal

pytestmark = pytest.mark.gpu
BF16, F32 = torch.bfloat16, torch.float32
FEW = ["Affine", "MinMax", "MaxPlus", "LogSumExp"]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("size", [(1, 5003, 1000), (2, 4096, 512), (1, 3000, 257), (3, 2049, 288)], ids=str)
@pytest.mark.parametrize("name", FEW)
def test_planned_sizes(name, size, dtype, reverse):
    """Rounds and what is left of them, blocks with lanes that are not there, several sequences."""
    case = BY_NAME[name]
    leaves, initial = draw(case, size, dtype)
    check(case, leaves, initial, everything(case), reverse=reverse, place=on_gpu)
    assert sf.last_run().plan.lowering == "ring"


@pytest.mark.parametrize("name", ["RGLRU", "GatedMinMax"])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_parameters_have_the_gradients_of_all_programs(name, dtype):
    tensors, initial = draw_recurrence(RECURRENCES[name], dtype, b=1, t=3001, d=512)
    check_recurrence(RECURRENCES[name], tensors, initial, quantities=("forward", "gradient"), place=on_gpu)
    assert sf.last_run().plan.lowering == "ring"


@pytest.mark.parametrize("name", ["Affine", "MinMax"])
def test_req49_two_hundred_times_on_two_streams(name):
    """Beside each other and from the third on replayed: the same bits."""
    case = BY_NAME[name]
    leaves, initial = draw(case, (1, 8192, 512), F32)
    check(case, leaves, initial, everything(case), place=on_gpu)
    given = {n: x.cuda() for n, x in leaves.items()}
    start = tuple(x.cuda() for x in initial)
    start = start if len(start) > 1 else start[0]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = []
    for k in range(200):
        with torch.cuda.stream(streams[k % 2]):
            found.append(sf.scan(case.operator, **given, initial_state=start))
    torch.cuda.synchronize()
    for x in found[1:]:
        assert_equal(x, found[0], name)


def test_in_a_cuda_graph():
    """Each replay begins with words of no round; the inputs have changed meanwhile."""
    case = BY_NAME["Affine"]
    leaves, (h0,) = draw(case, (1, 8192, 512), F32)
    given, h0 = {n: x.cuda() for n, x in leaves.items()}, h0.cuda()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            sf.scan(case.operator, **given, initial_state=h0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            y = sf.scan(case.operator, **given, initial_state=h0)
        for seed in range(1, 4):
            for n, x in draw(case, (1, 8192, 512), F32, seed=seed)[0].items():
                given[n].copy_(x)
            graph.replay()
            torch.cuda.synchronize()
            want = sf.scan(case.operator, **given, initial_state=h0, lowering="ordered_tile")
            assert torch.allclose(y, want, rtol=1e-4, atol=1e-4)


SIDES = {
    (1, 2048, 255): "split",
    (1, 2048, 256): "ring",
    (1, 2048, 4095): "ring",
    (1, 2048, 4096): "ordered_tile",
    (1, 1023, 512): "ordered_tile",
    (1, 1024, 512): "ring",
}


@pytest.mark.parametrize("size", SIDES, ids=str)
def test_req32_both_sides_of_each_switch(size):
    case = BY_NAME["MinMax"]
    leaves, initial = draw(case, size, F32)
    check(case, leaves, initial, everything(case), place=on_gpu)
    assert sf.last_run().plan.lowering == SIDES[size]
