"""torch.compile of a scan: one graph for all lengths and batches, a node for each scan, equal to eager."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend, EagerAndRecordGraphs
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

import scanforge as sf
from tests import catalogue, recurrences
from tests.catalogue import generator
from tests.pytorch.calls import Called, every, gradients, weighed, with_gradients
from tests.tolerances import assert_close

AFFINE, F32 = sf.operators.Affine, torch.float32
CALLS = every(dtype=F32)
every_call = pytest.mark.parametrize("call", CALLS, ids=[c.name for c in CALLS])
backends = pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
WITHOUT = {"Affine", "RunningMax", "Mamba", "HGRN2"}  # graphs without gradients; the others' are much alike
Decay, SelectiveSSM = recurrences.declared.Decay, recurrences.declared.SelectiveSSM


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = F32) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def full(function, backend="aot_eager"):
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=True)


def assert_equal_to_eager(function, *tensors: Tensor, backend="aot_eager", compiled=None) -> None:
    """Outputs and gradients of what is compiled are eager's: bit for bit where no code is generated."""
    results = []
    for run in (function, full(function, backend) if compiled is None else compiled):
        own = [x.detach().clone().requires_grad_(x.requires_grad) for x in tensors]
        outputs = tree_leaves(run(*own))
        wanted = [x for x in own if x.requires_grad]
        loss = weighed(tuple(y for y in outputs if y.requires_grad)) if wanted else None
        results.append([*outputs, *(torch.autograd.grad(loss, wanted) if wanted else ())])
    for x, y in zip(*results, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if backend == "inductor" and y.is_floating_point():
            assert_close(y, x, "gradient")
        else:
            assert torch.equal(x, y)


class Layer(nn.Module):
    """Gates from two projections, as layers have them."""

    def __init__(self, d: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.value = nn.Linear(d, d), nn.Linear(d, d)
        self.w = nn.Parameter(torch.rand(d))

    def forward(self, x: Tensor) -> Tensor:
        h = sf.scan(AFFINE, a=self.gate(x).sigmoid(), b=self.value(x))
        return x + sf.scan(Decay, x=h, w=self.w)


@backends
@pytest.mark.parametrize("which", ["operator", "recurrence", "layer"])
def test_req41_one_graph_for_all_lengths_and_batches(which, backend):
    """T = 100, 101, 257, 1000 and B = 3, 2, 4 share a graph; a size of 1 has one of its own.

    Beyond B T = 4096 Inductor has another graph for sums over it, as for the gradient of a bias.
    """
    layer = Layer()
    function = {
        "operator": lambda x: sf.scan(AFFINE, a=x.sigmoid(), b=x),
        "recurrence": lambda x: sf.scan(Decay, x=x, w=layer.w.detach()),
        "layer": layer,
    }[which]
    counter = CompileCounterWithBackend(backend)
    compiled = full(function, counter)
    for batch, steps in [(3, 100), (3, 101), (2, 257), (4, 1000)]:
        x = drawn(batch, steps, 4).requires_grad_()
        assert_equal_to_eager(function, x, backend=backend, compiled=compiled)
    assert len(counter.graphs) == 1
    for batch, steps in [(3, 1), (7, 1)]:
        x = drawn(batch, steps, 4).requires_grad_()
        assert_equal_to_eager(function, x, backend=backend, compiled=compiled)
    assert len(counter.graphs) == 2
    for batch, steps in [(1, 100), (1, 9)]:
        x = drawn(batch, steps, 4).requires_grad_()
        assert_equal_to_eager(function, x, backend=backend, compiled=compiled)
    assert len(counter.graphs) == 3


RECIPE = [(batch, steps) for batch in (3, 1) for steps in (100, 101, 257, 1000, 1)]
SCANS = {
    "operator": lambda x: sf.scan(AFFINE, a=x.sigmoid(), b=x),
    "recurrence": lambda x: sf.scan(Decay, x=x, w=torch.ones_like(x[0, 0])),
}


def graphs(function) -> int:
    """How many graphs the calls of requirement 41 make."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = full(function, counter)
    for batch, steps in RECIPE:
        x = drawn(batch, steps, 4)
        assert torch.equal(compiled(x), function(x))
    return len(counter.graphs)


@pytest.mark.parametrize("function", SCANS.values(), ids=SCANS)
def test_req41_a_size_of_1_costs_what_it_costs_torch_s_own_ops(function):
    """torch makes a graph for each way in which sizes of inputs are 1, before it meets any op."""
    assert graphs(function) == graphs(lambda x: x.cumsum(1)) == 4


@pytest.mark.parametrize("function", SCANS.values(), ids=SCANS)
def test_req41_one_graph_for_every_size_where_torch_does_not_single_out_1(function):
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        assert graphs(function) == 1


@every_call
def test_req43_compiled_is_eager(call: Called):
    """Values and gradients of everything that ships, bit for bit."""
    got, want = (with_gradients(f, call.floats) for f in (full(call.scan), call.scan))
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


@pytest.mark.parametrize(
    "call",
    [pytest.param(c, id=c.name, marks=() if c.name in WITHOUT else pytest.mark.slow) for c in CALLS],
)
def test_compiled_is_eager_without_gradients(call: Called):
    got, want = full(call.scan)(*call.floats), call.scan(*call.floats)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


@pytest.mark.slow
@every_call
def test_req43_inductor_is_eager(call: Called):
    compiled = full(call.scan, "inductor")
    for x, y in zip(compiled(*call.floats), call.scan(*call.floats), strict=True):
        assert_close(x, y, "forward", call.name)
    got, want = (gradients(f, call.floats) for f in (compiled, call.scan))
    for x, y in zip(got, want, strict=True):
        assert_close(x, y, "gradient", call.name)


@pytest.mark.parametrize("lowering", ["loop", "parallel"])
def test_req43_either_lowering(lowering):
    """The one that splits time, too."""
    a, b = drawn(2, 300, 3).sigmoid().requires_grad_(), drawn(2, 300, 3).requires_grad_()
    assert_equal_to_eager(lambda a, b: sf.scan(AFFINE, a=a, b=b, lowering=lowering), a, b)


def test_a_scan_is_one_node():
    recorded = EagerAndRecordGraphs()
    full(Layer(), recorded)(drawn(2, 5, 4))
    (graph,) = recorded.graphs
    named = [n for n in graph.graph.nodes if n.op == "call_function" and n.target.__name__ == "node"]
    assert len(named) == 2  # and one op each, once AOTAutograd has looked inside
    ops: list[str] = []

    def keep(graph: torch.fx.GraphModule, inputs) -> object:
        ops.extend(str(n.target) for n in graph.graph.nodes)
        return graph.forward

    backend = torch._dynamo.backends.common.aot_autograd(fw_compiler=keep)
    torch.compile(Layer().requires_grad_(False), backend=backend, fullgraph=True)(drawn(2, 5, 4))
    assert ops.count("scanforge.scan.default") == 2


OPTIONS = {
    "reverse": lambda a, b, h, starts: sf.scan(AFFINE, a=a, b=b, reverse=True),
    "final state": lambda a, b, h, starts: sf.scan(
        AFFINE, a=a, b=b, initial_state=h, return_final_state=True
    ),
    "reset": lambda a, b, h, starts: sf.scan(AFFINE, a=a, b=b, reset=starts, initial_state=h),
    "reset from the right": lambda a, b, h, starts: sf.scan(AFFINE, a=a, b=b, reset=starts, reverse=True),
    "reset_state": lambda a, b, h, starts: sf.scan(
        AFFINE, a=a, b=b, reset=starts, initial_state=h, reset_state=2 * h
    ),
    "mask": lambda a, b, h, starts: sf.scan(AFFINE, a=a, b=b, mask=starts),
    "lengths": lambda a, b, h, starts: sf.scan(AFFINE, a=a, b=b, lengths=starts.sum(1)),
    "time elsewhere": lambda a, b, h, starts: sf.scan(AFFINE, a=a, b=b, dim=0, memory="low"),
    "prefixes": lambda a, b, h, starts: sf.prefixes(AFFINE, a=a, b=b).b,
    "step": lambda a, b, h, starts: sf.step(AFFINE, h, a=a[:, 0], b=b[:, 0]),
    "step, reset": lambda a, b, h, starts: sf.step(AFFINE, h, a=a[:, 0], b=b[:, 0], reset=starts[:, 0]),
    "first step": lambda a, b, h, starts: sf.step(AFFINE, None, a=a[:, 0], b=b[:, 0]),
    "a step in place": lambda a, b, h, starts: sf.step(
        AFFINE, h.detach().clone(), a=a[:, 0].detach(), b=b[:, 0].detach(), inplace=True
    ),
    "scan of a scan": lambda a, b, h, starts: sf.scan(AFFINE, a=a, b=sf.scan(AFFINE, a=a, b=b)),
    "an int leaf": lambda a, b, h, starts: sf.scan(
        sf.operators.RunningMax, value=b, index=torch.arange(b.shape[1]).view(1, -1, 1).expand(b.shape)
    ),
    "half precision": lambda a, b, h, starts: sf.scan(AFFINE, a=a, b=b.bfloat16(), initial_state=h),
    "complex": lambda a, b, h, starts: sf.scan(AFFINE, a=torch.polar(a, b), b=b).real,
    "no grad": lambda a, b, h, starts: sf.scan(AFFINE, a=a.detach(), b=b.detach()),
}  # fmt: skip


@pytest.mark.parametrize("function", OPTIONS.values(), ids=OPTIONS)
def test_options(function):
    a, b, h = drawn(3, 6, 4, seed=1).sigmoid(), drawn(3, 6, 4), drawn(3, 4)
    starts = drawn(3, 6, seed=2) > 0.3
    tensors = [x.requires_grad_() for x in (a, b, h)]
    shown = [x for x in tree_leaves(function(*tensors, starts)) if x.requires_grad]
    used = torch.autograd.grad(weighed(tuple(shown)), tensors, allow_unused=True) if shown else [None] * 3
    read = [x.detach().requires_grad_(g is not None) for x, g in zip(tensors, used, strict=True)]
    assert_equal_to_eager(function, *read, starts)


class TestPacked:
    bounds = torch.tensor([0, 4, 4, 9])

    @pytest.mark.parametrize("reverse", [False, True])
    @pytest.mark.parametrize("recurrence", [False, True])
    def test_equal_to_eager(self, reverse, recurrence):
        x, w = drawn(1, 9, 3).requires_grad_(), torch.rand(3).requires_grad_()
        h = drawn(3, 3).requires_grad_()

        def function(x, w, h, bounds):
            options = {
                "cu_seqlens": bounds, "reverse": reverse, "initial_state": h, "return_final_state": True
            }  # fmt: skip
            if recurrence:
                return sf.scan(Decay, x=x, w=w, **options)
            return sf.scan(AFFINE, a=w[None, None], b=x, **options)

        assert_equal_to_eager(function, x, w, h, self.bounds)

    def test_bounds_are_values_not_shapes(self):
        """Other bounds, and another number of sequences, need no other graph."""
        counter = CompileCounterWithBackend("aot_eager")
        function = full(
            lambda x, bounds: sf.scan(AFFINE, a=torch.ones_like(x), b=x, cu_seqlens=bounds), counter
        )
        for ends in ([0, 4, 9], [0, 1, 9], [0, 2, 5, 9], [0, 3, 3, 3, 9]):
            x, bounds = drawn(1, 9, 7), torch.tensor(ends)
            want = torch.cat([x[:, i:j].cumsum(1) for i, j in pairwise(ends)], 1)
            assert_close(function(x, bounds), want, "forward")
        assert len(counter.graphs) == 1


class TestState:
    def test_a_state_that_is_written(self):
        """A decoding loop that keeps its state in one tensor."""
        h, k = drawn(2, 3), drawn(2, 3)
        k.copy_(h)
        compiled = full(lambda h, a, b: sf.step(AFFINE, h, a=a, b=b, inplace=True)[0])
        for t in range(3):
            a, b = drawn(2, 3, seed=t).sigmoid(), drawn(2, 3, seed=t + 9)
            y = sf.step(AFFINE, h, a=a, b=b, inplace=True)[0]
            assert torch.equal(compiled(k, a, b), y)
        assert torch.equal(h, k)

    def test_inputs_are_left_alone(self):
        a, b = drawn(2, 5, 3).sigmoid(), drawn(2, 5, 3)
        before = a.clone(), b.clone()
        full(lambda a, b: sf.scan(AFFINE, a=a, b=b))(a, b)
        assert torch.equal(a, before[0])
        assert torch.equal(b, before[1])


def declare(number: float) -> type[sf.Operator]:
    class Shrunk(sf.Operator):
        """h_t = number · a_t h_{t-1} + b_t"""

        a, b, h = sf.Element(identity=1 / number), sf.Element(identity=0.0), sf.State()

        def combine(self, later):
            return Shrunk(a=number * later.a * self.a, b=number * later.a * self.b + later.b)

        def apply(self, h):
            return number * self.a * h + self.b

    return Shrunk


@torch.compiler.assume_constant_result
def constant() -> type[sf.Operator]:
    return declare(0.5)


class TestContent:
    def test_req44_declared_in_forward_twenty_times(self):
        """The same source is the same recurrence: nothing is traced into a new one, whatever the class."""
        from scanforge import pipeline

        x = drawn(2, 5, 3).requires_grad_()
        sf.scan(declare(0.5), a=x, b=x).sum().backward()
        before = pipeline.executable.cache_info().misses, pipeline.backward.cache_info().misses
        for _ in range(20):
            sf.scan(declare(0.5), a=x, b=x).sum().backward()
        assert (pipeline.executable.cache_info().misses, pipeline.backward.cache_info().misses) == before

    def test_req44_declared_in_a_compiled_forward(self):
        """Where the factory is marked constant it runs when the graph is made, and never again."""
        counter = CompileCounterWithBackend("aot_eager")
        compiled = full(lambda x: sf.scan(constant(), a=x, b=x), counter)
        for steps in range(5, 25):  # 2 and 3 would be taken for the other sizes
            x = drawn(2, steps, 3)
            assert torch.equal(compiled(x), sf.scan(declare(0.5), a=x, b=x))
        assert len(counter.graphs) == 1

    def test_another_class_is_another_graph(self):
        """A graph never runs another operator than the one it was made of."""
        chosen = {"operator": declare(0.5)}
        compiled = full(lambda x: sf.scan(chosen["operator"], a=x, b=x))
        x = drawn(2, 5, 3)
        first = compiled(x)
        chosen["operator"] = declare(0.25)
        assert torch.equal(compiled(x), sf.scan(declare(0.25), a=x, b=x))
        assert not torch.equal(compiled(x), first)

    def test_copies_of_a_layer(self):
        layer = Layer()
        x, twin = drawn(2, 5, 4), copy.deepcopy(layer)
        assert torch.equal(full(layer)(x), full(twin)(x))


class TestMistakes:
    """The error is the one of eager mode, within torch's own."""

    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (lambda x: sf.scan(AFFINE, a=x), "is called without b"),
            (lambda x: sf.scan(AFFINE, a=x, b=x[:, :3]), "do not broadcast in dimension 1"),
            (lambda x: sf.scan(Decay, x=x, w=x[0, 0, :2]), "the axis d has size"),
            (lambda x: sf.scan(AFFINE, x, x), "by position"),
            (lambda x: sf.scan(int, a=x, b=x), "got the class int"),
            (lambda x: sf.scan(AFFINE, a=x, b=x, backend="cuda"), "is no backend"),
            (lambda x: sf.scan(AFFINE, a=x, b=x, reset=x[:, :2, 0] > 0), "reset has shape"),
            (lambda x: sf.step(AFFINE, x[:, :3], a=x, b=x), "state of h has shape"),
        ],
    )
    def test_names_what_is_wrong(self, call, words):
        with pytest.raises(Exception, match=words):
            full(call)(drawn(2, 5, 4))


def test_a_graph_that_is_kept():
    """The page's switch is the one; without it torch says so."""
    a, b = drawn(2, 5, 3).sigmoid().requires_grad_(), drawn(2, 5, 3)

    def loss():
        return full(lambda a: sf.scan(AFFINE, a=a, b=b).cos().sum())(a)

    want = torch.autograd.grad(sf.scan(AFFINE, a=a, b=b).cos().sum(), a)
    with pytest.raises(RuntimeError, match="donated_buffer=False"):
        torch.autograd.grad(loss(), a, retain_graph=True)
    torch.compiler.reset()
    with torch._functorch.config.patch(donated_buffer=False):
        kept = loss()
        for retain in (True, False):
            assert torch.equal(torch.autograd.grad(kept, a, retain_graph=retain)[0], want[0])
        with pytest.raises(RuntimeError, match="double backward"):
            torch.autograd.grad(torch.autograd.grad(loss(), a, create_graph=True)[0].sum(), a)


@pytest.mark.parametrize("device", ["fake", "meta"])
@pytest.mark.parametrize("option", ["none", "lengths", "cu_seqlens"])
def test_tensors_without_numbers(device, option):
    """As tools have them that estimate memory: shapes come out, and gradients."""
    place = FakeTensorMode() if device == "fake" else torch.device("meta")
    given = {"lengths": [9], "cu_seqlens": [0, 4, 9]}.get(option)
    with place:
        x = torch.empty(1, 9, 3, requires_grad=True)
        options = {} if given is None else {option: torch.tensor(given)}
        y, h = sf.scan(AFFINE, a=x, b=x, return_final_state=True, **options)
        (y.sum() + h.sum()).backward()
    assert (y.shape, h.shape[1:], x.grad.shape) == (x.shape, (3,), x.shape)


def test_under_vmap_and_grad():
    """torch.func inside a compiled function."""
    a, b = drawn(4, 2, 5, 3).sigmoid(), drawn(4, 2, 5, 3)

    def each(a, b):
        return torch.vmap(torch.func.grad(lambda a, b: sf.scan(AFFINE, a=a, b=b).cos().sum()))(a, b)

    assert_close(full(each)(a, b), each(a, b), "gradient")


@pytest.mark.parametrize("call", [CALLS[0], CALLS[-1]], ids=lambda c: c.name)
def test_catalogue_is_whole(call: Called):
    assert len(CALLS) == len(catalogue.CASES) + len(recurrences.ENTRIES)
    assert weighed(call.scan(*call.floats)).isfinite()
