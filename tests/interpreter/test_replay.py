"""Calls like those before are replayed: bit for bit what the first call gave, and never a stale plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import scanforge as sf
from scanforge import replay
from tests.kernels import LAYOUTS, guarded, inner_slice
from tests.recurrences import BY_NAME, Entry, draw
from tests.replays import CALLS, Given, assert_replays, only_replays
from tests.tolerances import assert_close

pytestmark = pytest.mark.interpreter
F32, F64 = torch.float32, torch.float64


def given_of(entry: Entry, seed: int, *, grad: bool = True, place=guarded, dtype=F32, **sizes: int) -> Given:
    tensors, _ = draw(entry, dtype=dtype, seed=seed, **sizes)
    return {n: place(x).requires_grad_(grad and x.is_floating_point()) for n, x in tensors.items()}


OPTIONS: dict[str, dict[str, Any]] = {
    "reverse": {"reverse": True},
    "split": {"lowering": "split"},
    "low memory": {"memory": "low"},
}


COSTLY = pytest.mark.slow
RECURRENCES = [
    "GatedMinMax", "Counted", pytest.param("Mamba", marks=COSTLY), pytest.param("HGRN2", marks=COSTLY),
    pytest.param("LogSumExp", marks=COSTLY),
]  # fmt: skip


@pytest.mark.parametrize("name", RECURRENCES)
def test_recurrences(monkeypatch, name):
    """GatedMinMax has a learnable number of no dimension, Counted flags and counts."""
    entry = BY_NAME[name]
    assert_replays(
        monkeypatch,
        lambda given: sf.scan(entry.recurrence, **given, backend="triton", return_final_state=True),
        lambda seed: given_of(entry, seed, t=6),
    )


@pytest.mark.parametrize("lowering", ["ordered_tile", "split", "chunked"])
def test_tensors_that_begin_elsewhere_in_their_memory(monkeypatch, lowering):
    """As slices of a larger tensor do, or gradients inside one: only what is theirs is read and written."""
    entry, sizes = BY_NAME["HGRN2"], {"b": 1, "h": 1, "t": 20, "k": 2, "v": 2}
    assert_replays(
        monkeypatch,
        lambda given: sf.scan(entry.recurrence, **given, backend="triton", lowering=lowering),
        lambda seed: given_of(entry, seed, place=lambda x: guarded(x, shift=4 * seed), **sizes),
    )


@pytest.mark.parametrize("option", OPTIONS)
def test_options(monkeypatch, option):
    """SelectiveSSM keeps few states, and runs forward again; RGLRU keeps one for every tile."""
    entry = BY_NAME["SelectiveSSM" if option == "low memory" else "RGLRU"]
    steps = 4 if option == "low memory" else 20
    assert_replays(
        monkeypatch,
        lambda given: sf.scan(entry.recurrence, **given, backend="triton", **OPTIONS[option]),
        lambda seed: given_of(entry, seed, b=1, t=steps),
    )


def test_matrix_products(monkeypatch):
    """Operands, repairs and walks are several kernels, with rooms between them."""
    entry = BY_NAME["Retention"]
    assert_replays(
        monkeypatch,
        lambda given: sf.scan(entry.recurrence, **given, backend="triton", lowering="chunked"),
        lambda seed: given_of(entry, seed, b=1, h=1, t=20),
    )


def test_values_alone(monkeypatch):
    entry = BY_NAME["Mamba"]
    assert_replays(
        monkeypatch,
        lambda given: sf.scan(entry.recurrence, **given, backend="triton", return_final_state=True),
        lambda seed: given_of(entry, seed, grad=False, b=1, t=4),
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(monkeypatch, layout):
    entry = BY_NAME["Decay"]
    assert_replays(
        monkeypatch,
        lambda given: sf.scan(entry.recurrence, **given, backend="triton"),
        lambda seed: given_of(entry, seed, place=LAYOUTS[layout], t=6),
    )


def test_layouts_in_turn(monkeypatch):
    """A call with other strides, or at another address, is another call."""
    entry = BY_NAME["Decay"]
    for place in (guarded, inner_slice, LAYOUTS["channels first"], lambda x: guarded(x, shift=1)) * 4:
        given = given_of(entry, 3, grad=False, place=place)
        got = sf.scan(entry.recurrence, **given, backend="triton")
        assert_close(got, sf.scan(entry.recurrence, **given, backend="reference"), "forward")


STATES = {
    "given": lambda h: h,
    "broadcast": lambda h: h[:1],
    "in half precision": lambda h: h.bfloat16(),
}


@pytest.mark.parametrize("state", STATES)
def test_initial_states(monkeypatch, state):
    """The state's gradient flows back through what was done to it before the kernel saw it."""

    def make(seed: int) -> Given:
        given = given_of(BY_NAME["Decay"], seed, t=6)
        g = torch.Generator().manual_seed(seed)
        h = STATES[state](torch.randn(2, 3, generator=g))
        return given | {"initial_state": h.requires_grad_()}

    assert_replays(
        monkeypatch,
        lambda given: sf.scan(
            BY_NAME["Decay"].recurrence, **given, backend="triton", return_final_state=True
        ),
        make,
    )


def test_resets_and_padding(monkeypatch):
    def make(seed: int) -> Given:
        given = given_of(BY_NAME["Decay"], seed, t=6)
        g = torch.Generator().manual_seed(seed)
        starts, real = torch.rand(2, 6, generator=g) < 0.4, torch.rand(2, 6, generator=g) < 0.7
        return given | {"reset": starts.long(), "mask": real}

    assert_replays(
        monkeypatch, lambda given: sf.scan(BY_NAME["Decay"].recurrence, **given, backend="triton"), make
    )


@pytest.mark.parametrize("inplace", [False, True])
def test_steps(monkeypatch, inplace):
    """Each step once: a record that ran twice would have moved the state twice."""
    entry = BY_NAME["Mamba"]
    given = given_of(entry, 1, grad=False, t=5)
    y = sf.scan(entry.recurrence, **given, backend="reference")
    h, shown = torch.zeros(2, 3, 2), []
    timed = [n for n, part in entry.inputs.items() if "t" in part.axes.split()]
    for t in range(5):
        now = {n: guarded(x[:, t]) if n in timed else x for n, x in given.items()}
        out, after = sf.step(entry.recurrence, h, **now, inplace=inplace, backend="triton")
        assert (after is h) == inplace
        h = after
        shown.append(out)
    assert_close(torch.stack(shown, 1), y, "forward")
    with only_replays(monkeypatch):
        sf.step(entry.recurrence, h, **now, inplace=inplace, backend="triton")


def test_one_tensor_twice():
    """A record is of places, not of objects: two fields may be one tensor, at first or later."""
    for same in [True] * CALLS + [False] * 2 + [True]:
        a = torch.rand(2, 6, 3, requires_grad=True)
        b = a if same else torch.randn(2, 6, 3, requires_grad=True)
        wanted = [a] if same else [a, b]
        y, z = (sf.scan(sf.Affine, a=a, b=b, backend=backend) for backend in ("triton", "reference"))
        assert_close(y, z, "forward")
        slopes = [torch.autograd.grad(x.cos().sum(), wanted) for x in (y, z)]
        for got, want in zip(*slopes, strict=True):
            assert_close(got, want, "gradient")


def test_who_wants_a_gradient():
    """Which tensors do, and which outputs were used, is part of what makes calls alike."""
    for turn in range(4 * CALLS):
        h = torch.randn(2, 3)
        given = {n: x.requires_grad_(bool(turn >> k & 1)) for k, (n, x) in enumerate(tensors(turn).items())}
        wanted = [x for x in given.values() if x.requires_grad]
        slopes = []
        for backend in ("triton", "reference"):
            y, final = sf.scan(sf.Affine, **given, initial_state=h, return_final_state=True, backend=backend)
            read = final if turn & 4 else y
            assert read.requires_grad == bool(wanted)
            slopes.append(torch.autograd.grad(read.sum(), wanted) if wanted else ())
        for got, want in zip(*slopes, strict=True):
            assert_close(got, want, "gradient")


def tensors(seed: int, t: int = 6) -> Given:
    g = torch.Generator().manual_seed(seed)
    return {"a": torch.rand(2, t, 3, generator=g), "b": torch.randn(2, t, 3, generator=g)}


def test_second_derivatives_of_a_replay():
    for turn in range(CALLS + 1):
        given = {n: x.requires_grad_() for n, x in tensors(turn, t=3).items()}
        found = []
        for backend in ("triton", "reference"):
            y = sf.scan(sf.Affine, **given, backend=backend)
            (slope,) = torch.autograd.grad(y.sin().sum(), [given["a"]], create_graph=True)
            found.append(torch.autograd.grad(slope.cos().sum(), list(given.values())))
        for got, want in zip(*found, strict=True):
            assert_close(got, want, "gradient")


def test_backward_twice_and_hooks_on_what_is_saved():
    """What was saved may come back from a hook with other strides."""

    def turned(x: Tensor) -> Tensor:
        return x.flip(0).flip(0).transpose(0, -1).contiguous().transpose(0, -1)

    for turn in range(CALLS + 2):
        given = {n: x.requires_grad_() for n, x in tensors(turn).items()}
        with torch.autograd.graph.saved_tensors_hooks(turned if turn % 2 else lambda x: x, lambda x: x):
            y = sf.scan(sf.Affine, **given, backend="triton")
        z = sf.scan(sf.Affine, **given, backend="reference")
        for _ in range(2):
            got, want = (
                torch.autograd.grad(x.sin().sum(), list(given.values()), retain_graph=True) for x in (y, z)
            )
            for x, w in zip(got, want, strict=True):
                assert_close(x, w, "gradient")


factor = 0.5


class Scaled(sf.Operator):
    b = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return Scaled(b=self.b + later.b)

    def apply(self, h):
        return h + self.b * factor


def test_a_changed_number_is_seen(monkeypatch):
    b = torch.ones(1, 4, 2)
    for value in (0.5, 0.25, 0.5):
        monkeypatch.setitem(globals(), "factor", value)
        for _ in range(CALLS + 1):
            y = sf.scan(Scaled, b=b, backend="triton")
            assert y[0, -1, 0] == 4 * value


def test_errors_are_those_of_a_first_call():
    """True and 1 are equal, and 1 is refused."""
    given = tensors(0)
    for _ in range(CALLS + 1):
        sf.scan(sf.Affine, **given, reverse=True, backend="triton")
    with pytest.raises(sf.ArgumentError, match="reverse=1 is an int"):
        sf.scan(sf.Affine, **given, reverse=1, backend="triton")
    with pytest.raises(sf.ArgumentError, match="without b"):
        sf.scan(sf.Affine, a=given["a"], reverse=True, backend="triton")
    with pytest.raises(sf.ShapeError, match="do not broadcast"):
        sf.scan(sf.Affine, a=given["a"], b=given["b"][:, :5], reverse=True, backend="triton")
    with pytest.raises(sf.ArgumentError, match="by position"):
        sf.scan(sf.Affine, given["a"], b=given["b"], backend="triton")


def test_numbers_in_tensors_are_looked_at_every_time():
    """On a CPU, lengths and the bounds of packed sequences are checked by their values."""
    given = {n: x[:1] for n, x in tensors(0).items()}
    for _ in range(CALLS + 1):
        sf.scan(sf.Affine, **given, lengths=torch.tensor([4]), backend="triton")
        y = sf.scan(sf.Affine, **given, cu_seqlens=torch.tensor([0, 2, 6]), backend="triton")
    z = sf.scan(sf.Affine, **given, cu_seqlens=torch.tensor([0, 5, 6]), backend="triton")
    assert torch.equal(z[:, 5], given["b"][:, 5])
    assert torch.equal(y[:, 2], given["b"][:, 2])
    with pytest.raises(sf.ArgumentError, match="numbers from 0"):
        sf.scan(sf.Affine, **given, lengths=torch.tensor([9]), backend="triton")
    with pytest.raises(sf.ArgumentError, match="numbers that rise"):
        sf.scan(sf.Affine, **given, cu_seqlens=torch.tensor([0, 5, 3]), backend="triton")


def test_transforms_and_modes_go_the_full_way():
    given = tensors(0)
    call = lambda a, b: sf.scan(sf.Affine, a=a, b=b, backend="triton")  # noqa: E731
    for _ in range(CALLS + 1):
        want = call(**given)
    several = torch.func.vmap(call)(*(x.expand(3, *x.shape) for x in given.values()))
    assert torch.equal(several[1], want)
    _, moved = torch.func.jvp(call, tuple(given.values()), (torch.zeros(2, 6, 3), torch.ones(2, 6, 3)))
    assert_close(moved, call(given["a"], torch.ones(2, 6, 3)), "forward")
    with torch.inference_mode():
        for _ in range(CALLS + 1):
            assert torch.equal(call(**given), want)
    assert not call(**given).is_inference()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(call(**given), want)


def test_compiled_graphs_replay_the_ops(monkeypatch):
    call = torch.compile(lambda a, b: sf.scan(sf.Affine, a=a, b=b, backend="triton"), backend="aot_eager")

    def slopes(given: Given) -> tuple[Tensor, ...]:
        wanting = [x.detach().requires_grad_() for x in given.values()]
        y = call(*wanting)
        return (y.detach(), *torch.autograd.grad(y.sin().sum(), wanting))

    for seed in range(CALLS):
        slopes(tensors(seed))
    with only_replays(monkeypatch):
        got = slopes(tensors(7))
    replay.forget()
    assert all(torch.equal(x, y) for x, y in zip(got, slopes(tensors(7)), strict=True))


def test_the_last_run_is_told():
    given = tensors(0)
    for _ in range(CALLS + 1):
        sf.scan(sf.operators.MinMax, r=given["a"], s=given["b"], backend="triton")
        assert sf.last_run().recurrence == "MinMax"
        a = given["a"].clone().requires_grad_()
        y = sf.scan(sf.Affine, a=a, b=given["b"], backend="triton", lowering="split")
        assert (sf.last_run().recurrence, sf.last_run().plan.lowering) == ("Affine", "split")
        y.sum().backward()
        assert sf.last_run().recurrence == "Affine.adjoint"


def test_what_was_not_used_of_late_is_forgotten():
    kept = replay.Recent[int](4)
    for k in range(6):
        kept.put((k,), k)
        assert kept.get((0,)) == 0
    assert [k for k in range(6) if kept.get((k,)) is None] == [1, 2, 3]
    assert len(kept.new) + len(kept.old) <= 4


def test_packed_sequences_with_resets_have_second_derivatives():
    """Each sequence has a gradient of its own initial state, also where the adjoint is a scan of its own."""
    torch.manual_seed(0)
    a, b, h = torch.rand(1, 9, 3), torch.randn(1, 9, 3), torch.randn(3, 3, requires_grad=True)
    starts, cu = torch.rand(1, 9) < 0.3, torch.tensor([0, 4, 4, 9])
    found = []
    for backend in ("triton", "reference"):
        y = sf.scan(sf.Affine, a=a, b=b, initial_state=h, reset=starts, cu_seqlens=cu, backend=backend)
        (slope,) = torch.autograd.grad(y.cos().sum(), h, create_graph=True)
        assert slope.shape == (3, 3)
        found += [(slope, *torch.autograd.grad(slope.sin().sum(), h))]
    for got, want in zip(*found, strict=True):
        assert_close(got, want, "gradient")
