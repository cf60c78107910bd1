"""What torch does to a scan, on a GPU: compiled, exported, mapped, differentiated twice, captured.

Requirements 41 to 43 and 48, on kernels.
"""

from __future__ import annotations

import io
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, hessian, jvp, vmap
from torch.utils.checkpoint import checkpoint

import scanforge as sf
import scanforge.ops
from models import RecurrentLM
from models.named import MIXERS
from tests.catalogue import generator
from tests.models.test_lm_mixers import ARGS
from tests.pytorch.calls import weighed
from tests.pytorch.test_autograd import FIRST_CALLS
from tests.pytorch.test_opcheck import examined
from tests.recurrences import BY_NAME, draw
from tests.subprocesses import ROOT, run_python
from tests.tolerances import assert_close, err

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
Floats = tuple[Tensor, ...]
SIZES = {"b": 3, "t": 100, "d": 6, "n": 4, "h": 2, "k": 16, "v": 17}
NAMES = ["RGLRU", "SelectiveSSM", "HGRN2", "GatedMinMax"]
backends = pytest.mark.parametrize("backend", ["aot_eager", "inductor"])


@pytest.fixture(autouse=True)
def no_graphs():
    torch.compiler.reset()
    torch.use_deterministic_algorithms(False)
    yield
    torch.compiler.reset()


def floats_of(name: str, dtype: torch.dtype = F32, **sizes: int) -> Floats:
    tensors, _ = draw(BY_NAME[name], dtype, **(SIZES | sizes))
    return tuple(x.to(DEVICE).requires_grad_() for x in tensors.values())


def scan(name: str, *floats: Tensor, **options) -> Floats:
    given = dict(zip(BY_NAME[name].inputs, floats, strict=True))
    return sf.scan(BY_NAME[name].recurrence, **given, return_final_state=True, **options)


def outcome(run, floats: Floats) -> Floats:
    shown = run(*floats)
    return (*shown, *torch.autograd.grad(weighed(tuple(x.float() for x in shown)), floats))


@pytest.mark.parametrize("name", NAMES)
@backends
def test_req41_one_graph_for_all_lengths_and_batches(name, backend):
    run = partial(scan, name)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(run, backend=counter, fullgraph=True, dynamic=True)
    for b, t in ((3, 100), (3, 101), (5, 257), (7, 1000), (3, 33)):
        floats = floats_of(name, b=b, t=t)
        for x, y in zip(outcome(compiled, floats), outcome(run, floats), strict=True):
            assert_close(x, y.double(), "gradient", f"{name} {b} {t}")
    assert len(counter.graphs) == 1
    for t in (1, 100):
        floats = floats_of(name, b=3, t=t)
        for x, y in zip(outcome(compiled, floats), outcome(run, floats), strict=True):
            assert_close(x, y.double(), "gradient", f"{name} {t}")
    assert len(counter.graphs) == 2


@pytest.mark.parametrize("options", ["reset", "mask", "packed", "reverse", "split"])
def test_req43_compiled_is_eager(options):
    """Resets, padding, packed sequences; several sums outside of the kernels."""
    flags = (torch.rand(1, 300, generator=generator(1)) < 0.1).to(DEVICE)
    chosen = {
        "reset": {"reset": flags},
        "mask": {"mask": ~flags},
        "packed": {"cu_seqlens": torch.tensor([0, 70, 70, 300], device=DEVICE), "reset": flags},
        "reverse": {"reverse": True},
        "split": {"lowering": "split"},
    }[options]
    run, floats = partial(scan, "RGLRU", **chosen), floats_of("RGLRU", b=1, t=300)
    compiled = torch.compile(run, backend="inductor", fullgraph=True)
    for x, y in zip(outcome(compiled, floats), outcome(run, floats), strict=True):
        assert_close(x, y.double(), "gradient", options)


@pytest.mark.parametrize("name", [*NAMES, "LinearAttention"])
def test_req43_opcheck(name):
    sizes = {"b": 2, "t": 70 if name == "HGRN2" else 12, "d": 3, "n": 2}
    assert examined(partial(scan, name), floats_of(name, **sizes), True) == {"SUCCESS"}


class Layer(nn.Module):
    """A parameter of the recurrence's own, and one before it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.name, self.scale = name, nn.Parameter(torch.rand(()))

    def forward(self, *floats: Tensor) -> Tensor:
        return scan(self.name, floats[0] * self.scale, *floats[1:])[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gradient", [True, False])
def test_req42_exported_with_a_dynamic_length(name, gradient):
    """One node, saved, reloaded, run and differentiated on the GPU."""
    layer, timed = Layer(name).to(DEVICE), torch.export.Dim("t", min=2, max=4096)
    axes = [part.axes.split() for part in BY_NAME[name].inputs.values()]
    sizes = tuple({a.index("t"): timed} if "t" in a else None for a in axes)
    given = tuple(x.detach() for x in floats_of(name, t=90))
    with torch.set_grad_enabled(gradient):
        program = torch.export.export(layer, given, dynamic_shapes=(sizes,))
    assert str(program.graph).count("torch.ops.scanforge.scan.default") == 1
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    for t in (90, 301, 20):
        floats = tuple(x.detach() for x in floats_of(name, t=t))
        found = []
        for module in (again, layer):
            y = module(*floats)
            (parameter,) = module.parameters()
            found.append((y, *torch.autograd.grad(y.cos().sum(), parameter)))
        for x, y in zip(*found, strict=True):
            assert_close(x, y.double(), "gradient", f"{name} {t}")


@pytest.mark.parametrize("name", NAMES)
def test_second_derivatives_and_forward_mode(name):
    small = {"b": 1, "t": 3, "d": 2, "n": 2, "h": 1, "k": 2, "v": 1}
    floats, run = floats_of(name, F64, **small), partial(scan, name)
    assert gradgradcheck(run, floats, fast_mode=True)
    assert gradcheck(run, floats, check_forward_ad=True, fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_func(name):
    """vmap of gradients, jvp and a Hessian, as on the reference."""
    floats = tuple(x.detach() for x in floats_of(name, F64, t=40, b=2))
    every = tuple(range(len(floats)))
    small = tuple(x.detach() for x in floats_of(name, F64, b=1, t=3, d=2, n=2, h=1, k=2, v=1))
    several = [torch.stack([x, 0.5 * x]) for x in floats]
    found = []
    for backend in ("triton", "reference"):
        run = partial(scan, name, backend=backend)

        def loss(*x: Tensor, run=run) -> Tensor:
            return weighed(run(*x))

        found.append((
            *vmap(grad(loss, every))(*several),
            *jvp(run, floats, tuple(torch.ones_like(x) for x in floats))[1],
            hessian(loss)(*small),
        ))  # fmt: skip
    for x, y in zip(*found, strict=True):
        assert_close(x, y, "long", name)


@pytest.mark.parametrize("name", NAMES)
def test_checkpoints_hooks_and_two_backward_passes(name):
    floats, run = floats_of(name), partial(scan, name)
    want = outcome(run, floats)
    got = outcome(lambda *x: checkpoint(run, *x, use_reentrant=False), floats)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))
    with torch.autograd.graph.save_on_cpu(pin_memory=DEVICE == "cuda"):
        loss = weighed(run(*floats))
    for retain in (True, False):
        slopes = torch.autograd.grad(loss, floats, retain_graph=retain)
        assert all(torch.equal(x, y) for x, y in zip(slopes, want[2:], strict=True))


@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
@pytest.mark.parametrize("name", MIXERS)
def test_req48_a_stack_under_autocast(name, dtype):
    """fp32 parameters and gradients, logits in the mode's dtype, nearly those of fp32."""
    torch.manual_seed(0)
    model = RecurrentLM(11, 32, 2, name, mixer_args=ARGS[name], ffn="gated", init_std=0.2).to(DEVICE)
    tokens = torch.randint(11, (2, 70), generator=generator(0)).to(DEVICE)
    whole = model(tokens)
    with torch.autocast(DEVICE, dtype):
        logits = model(tokens)
    assert logits.dtype == dtype
    assert err(logits.float(), whole) <= 0.05
    logits.float().square().mean().backward()
    assert all(
        p.grad is None or (p.grad.dtype == F32 and p.grad.isfinite().all()) for p in model.parameters()
    )


@pytest.mark.parametrize("name", MIXERS)
def test_req41_a_stack_of_three_layers_is_compiled(name):
    """Full graph, equal to eager per parameter to 1e-5 in fp32."""
    torch.manual_seed(0)
    model = RecurrentLM(11, 16, 3, name, mixer_args=ARGS[name], ffn="gated", init_std=0.5).to(DEVICE)
    compiled = torch.compile(model, backend="inductor", fullgraph=True, dynamic=True)
    for steps in (12, 70):
        tokens, found = torch.randint(11, (2, steps), generator=generator(steps)).to(DEVICE), []
        for run in (compiled, model):
            model.zero_grad(set_to_none=True)
            run(tokens).square().mean().backward()
            found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        assert found[0].keys() == found[1].keys()
        for part, x in found[0].items():
            assert err(x, found[1][part]) <= 1e-5, part


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_training_step(name):
    """Forward, backward and the optimiser's step in one CUDA graph, replayed, as uncaptured."""
    optimisers, losses = [], []
    for captured in (False, True):
        floats = [x.detach().clone().requires_grad_() for x in floats_of(name)]
        optimiser = torch.optim.SGD(floats, lr=1e-3)
        optimisers.append(floats)

        def step(floats=floats, optimiser=optimiser) -> Tensor:
            optimiser.zero_grad(set_to_none=True)
            loss = weighed(scan(name, *floats)) / 1000
            loss.backward()
            optimiser.step()
            return loss

        if not captured:
            losses.append([step().item() for _ in range(7)])
            continue
        stream, shown = torch.cuda.Stream(), []
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            shown += [step().item() for _ in range(4)]  # caches are warm, and calls are replays
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        optimiser.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            loss = step()
        for _ in range(3):
            graph.replay()
            shown.append(loss.item())
        losses.append(shown)
    assert losses[0] == losses[1]
    for x, y in zip(*optimisers, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_with_cuda_graphs(name):
    """Inductor captures what it compiles: the same bits call after call, on numbers that change."""
    run = partial(scan, name)
    compiled = torch.compile(run, mode="reduce-overhead", fullgraph=True, dynamic=False)
    for seed in range(5):
        floats = floats_of(name)
        with torch.no_grad():
            for x in floats:
                x.mul_(1 - seed / 8)
        torch.compiler.cudagraph_mark_step_begin()
        got = [x.clone() for x in outcome(compiled, floats)]
        for x, y in zip(got, outcome(run, floats), strict=True):
            assert_close(x, y.double(), "gradient", f"{name} {seed}")


def test_several_streams_at_once():
    """Each waits for nobody: no scratch is shared by two calls that run at the same time."""
    name = "RGLRU"
    given = [floats_of(name, b=2, t=4000, d=64 + k) for k in range(4)]
    run = partial(scan, name, lowering="split")
    want = [outcome(run, floats) for floats in given]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in given]
    for _ in range(5):
        got = []
        for stream, floats in zip(streams, given, strict=True):
            with torch.cuda.stream(stream):
                got.append(outcome(run, floats))
        torch.cuda.synchronize()
        for xs, ys in zip(got, want, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(xs, ys, strict=True))


def test_threads_may_all_be_the_first():
    run_python("-c", FIRST_CALLS, DEVICE, cwd=ROOT)
