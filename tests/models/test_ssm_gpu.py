"""Selective SSMs on a GPU: the declarations within the tolerance table, the layers near the reference."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

import scanforge as sf
from models.ssm import Euler, GroupedEuler, GroupedZeroOrderHold, MultiScaleSSM, SelectiveSSM, ZeroOrderHold
from tests.catalogue import generator
from tests.models.on_gpu import check_as_good_as_on_the_reference, check_steps_and_chunks
from tests.tolerances import assert_close

pytestmark = pytest.mark.gpu
BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
PLAIN, GROUPED = {"b": 2, "d": 40, "n": 5}, {"b": 2, "g": 3, "d": 24, "n": 16}
SIZES = {Euler: PLAIN, ZeroOrderHold: PLAIN, GroupedEuler: GROUPED, GroupedZeroOrderHold: GROUPED}


def inputs(declaration: type[sf.Recurrence], steps: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Numbers of 16 bits at most, so that every dtype computes with the same; parameters stay in fp32."""
    fields = {n: f for owner in declaration.__mro__[::-1] for n, f in vars(owner).items()}
    made = {}
    for seed, (name, field) in enumerate((n, f) for n, f in fields.items() if isinstance(f, sf.Input)):
        sizes = SIZES[declaration] | {"t": steps}
        x = torch.randn([sizes[a] for a in field.axes], generator=generator(seed)).to(BF16)
        kept = dtype if "t" in field.axes else max(dtype, F32, key=lambda d: d.itemsize)
        made[name] = x.to("cuda", kept).requires_grad_()
    return made


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("declaration", SIZES)
@pytest.mark.parametrize("steps", [1, 300])
def test_req24_declarations_are_within_the_table(declaration, dtype, steps):
    made = {}
    for kind, backend in ((F64, "reference"), (dtype, "triton")):
        given = inputs(declaration, steps, kind)
        y, h = sf.scan(declaration, **given, return_final_state=True, backend=backend)
        weights = [torch.randn(v.shape, generator=generator(9)).to(BF16).to(v.device) for v in (y, h)]
        sum((w.to(v.dtype) * v).sum() for w, v in zip(weights, (y, h), strict=True)).backward()
        made[kind] = (y, h, {n: x.grad for n, x in given.items()})
    (y, h, slopes), (want_y, want_h, want) = made[dtype], made[F64]
    assert_close(y, want_y, "forward", "y")
    assert_close(h, want_h, "forward", "h")
    for name, slope in slopes.items():
        assert_close(slope, want[name], "gradient", name, dtype)


LAYERS = {
    "multiscale": lambda: MultiScaleSSM(48),
    "multiscale zoh": lambda: MultiScaleSSM(48, 2, 8, discretisation="zoh"),
    "selective": lambda: SelectiveSSM(48),
    "selective groups": lambda: SelectiveSSM(48, 8, n_groups=3, discretisation="zoh", bias=True),
}


@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_layers_are_as_good_as_on_the_reference(build, dtype):
    check_as_good_as_on_the_reference(build, dtype)


@pytest.mark.parametrize(
    "build", [LAYERS["multiscale"], LAYERS["selective"]], ids=["multiscale", "selective"]
)
def test_req37_steps_and_chunks_on_a_gpu(build):
    check_steps_and_chunks(build)


@pytest.mark.parametrize(
    "build", [partial(MultiScaleSSM, 64, 2), partial(SelectiveSSM, 64)], ids=["multiscale", "selective"]
)
def test_no_tensor_holds_all_states(build):
    """What 30 more states a channel add to the peak of both passes is less than half of these states."""

    def peak(states: int) -> tuple[int, int]:
        layer = build(states).cuda()
        x = torch.randn(1, 8192, 64, device="cuda", requires_grad=True)
        layer(x).sum().backward()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        layer(x).sum().backward()
        held = 4 * 8192 * layer.d_inner * layer.d_state
        return torch.cuda.max_memory_allocated() - before, held

    (few, held), (many, all_held) = peak(2), peak(32)
    assert many - few < (all_held - held) / 2
