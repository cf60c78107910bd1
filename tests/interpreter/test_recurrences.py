"""Every recurrence of the catalogue on generated kernels, against its loop in float64.

Options are combined in pairs, the recurrence being one of them: any two meet in some row, at tiny shapes.
Requirements 14, 17, 27, 28, 32, 38 and 39.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import pytest
import torch
from torch import Tensor

import scanforge as sf
from tests.catalogue import chance, generator
from tests.kernels import LAYOUTS, LOWERINGS, Place, Tiles, every_lowering, guarded
from tests.recurrence_kernels import Row, check, in_pairs
from tests.recurrences import BY_NAME, ENTRIES, Entry, Initial, draw
from tests.reference.compare import cotangent, many
from tests.reference.fused import LOSSES, Tensors, every_entry, expected, some
from tests.tolerances import assert_close

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]
F32, BF16 = torch.float32, torch.bfloat16

AXES = {
    "few": {"b": 2, "h": 1},
    "ones": dict.fromkeys("bdnhkv", 1),
    "primes": {"b": 3, "d": 5, "n": 3, "h": 1, "k": 3, "v": 5},
    "more lanes than a block": {"b": 1, "d": 33, "n": 3, "h": 1, "k": 2, "v": 37},
    "lone entries": {"b": 2, "d": 2, "n": 1, "h": 2, "k": 1, "v": 1},
}


@pytest.fixture(autouse=True)
def short_tiles(request, monkeypatch):
    """Chunks of 4 steps, of one tile forward and of two backward; a held axis has tiles of its own."""
    if "own_tiles" not in request.fixturenames:
        Tiles(4, 2, chunk=4).force(monkeypatch)


def any_rank(place: Place) -> Place:
    """Layouts need a dimension."""
    return lambda x: place(x) if x.ndim else guarded(x)


def as_they_are(x: Tensor) -> Tensor:
    return x if 0 in x.stride() else guarded(x)


def mixed(seed: int) -> Place:
    """Each tensor in another layout."""
    layouts = [any_rank(place) for place in LAYOUTS.values()]
    places = cycle([*layouts[seed % len(layouts) :], *layouts[: seed % len(layouts)]])
    return lambda x: next(places)(x)


PLACES: dict[str, Callable[[int], Place]] = {
    "between guards": lambda _: guarded,
    "each elsewhere": mixed,
    "channels first": lambda _: any_rank(LAYOUTS["channels first"]),
    "at an odd address": lambda _: LAYOUTS["at an odd address"],
    "expanded": lambda _: as_they_are,
    "size 1": lambda _: guarded,
}
FACTORS = {
    "entry": ENTRIES,
    "place": list(PLACES),
    "length": (1, 3, 4, 5, 9, 17),  # around a tile, a chunk, two of them, and the longest tile
    "axes": list(AXES),
    "flags": ("", "reset", "mask", "reset and mask"),
    "start": ("default", "given", "shared"),
    "loss": LOSSES,
    "reverse": (False, True),
    "lowering": LOWERINGS,
    "memory": (None, "low"),
}
ROWS = in_pairs(FACTORS)


def title(row: Row) -> str:
    words = [row["entry"].name, f"T{row['length']}", row["axes"], row["flags"] or "whole", row["start"]]
    return "-".join(
        [*words, row["place"], row["loss"], "reverse" * row["reverse"] or "forward", row["lowering"]]
    )


def expanded(tensors: Tensors, seed: int) -> Tensors:
    """One axis of each tensor has stride 0."""
    found = {}
    for k, (name, x) in enumerate(tensors.items(), seed):
        found[name] = x.narrow(k % x.ndim, 0, 1).expand(x.shape) if x.ndim else x
    return found


def thin(entry: Entry, tensors: Tensors, seed: int) -> Tensors:
    """One axis of one input has size 1, and another input has all of it."""
    axes = {n: part.axes.split() for n, part in entry.inputs.items()}
    found = [
        (n, i)
        for n, own in axes.items()
        for i, a in enumerate(own)
        if tensors[n].is_floating_point() and any(a in axes[other] for other in axes if other != n)
    ]
    if not found:
        return tensors
    name, axis = found[seed % len(found)]
    return tensors | {name: tensors[name].narrow(axis, 0, 1)}


def starting(kind: str, initial: Initial) -> Initial | None:
    return {"default": None, "given": initial, "shared": tuple(x[:1] for x in initial)}[kind]


def run(row: Row, seed: int) -> None:
    """One row of the table."""
    entry, length = row["entry"], row["length"]
    tensors, initial = draw(entry, seed=seed, t=length, **AXES[row["axes"]])
    if row["place"] == "expanded":
        tensors = expanded(tensors, seed)
    if row["place"] == "size 1":
        tensors = thin(entry, tensors, seed)
    g, batch = generator(seed), len(initial[0])
    options = {name: row[name] for name in ("reverse", "lowering", "memory")}
    if "reset" in row["flags"]:
        options["reset"] = chance(g, (batch, length), 0.4)
    if "mask" in row["flags"]:
        options["mask"] = chance(g, (batch, length), 0.7)
    check(
        entry, tensors, starting(row["start"], initial), [row["loss"]], place=PLACES[row["place"]](seed),
        place_cotangent=guarded, what=title(row), **options,
    )  # fmt: skip


@pytest.mark.parametrize("index", range(len(ROWS)), ids=[title(row) for row in ROWS])
def test_any_two_options(index):
    run(ROWS[index], index)


@pytest.mark.slow
@every_entry
def test_any_two_options_of_each(entry):
    for seed, row in enumerate(in_pairs(FACTORS | {"entry": [entry]})):
        run(row, seed)


# The interpreter cuts what it stores in bfloat16 instead of rounding it: twice the error of a rounding.
QUANTITIES = {F32: ("forward", "gradient"), BF16: ("gradient", "gradient")}


@every_entry
@pytest.mark.parametrize("turn", [0, 1])
def test_narrow_types(entry, turn):
    """Outputs in the inputs' type, states in float32, gradients in the types of their inputs."""
    seed = ENTRIES.index(entry) + turn
    if turn and entry.name not in {"RGLRU", "Mamba", "HGRN2", "LinearAttention", "LogSumExp"}:
        pytest.skip("in one narrow type is enough")
    dtype = (F32, BF16)[seed % 2]
    tensors, initial = draw(entry, dtype, seed=seed, t=5, h=1)
    got = check(
        entry, tensors, tuple(x.float() for x in initial), quantities=QUANTITIES[dtype],
        reverse=bool(seed & 2), lowering=LOWERINGS[seed % len(LOWERINGS)],
    )  # fmt: skip
    assert {x.dtype for x in got.outputs} == {dtype}
    assert {x.dtype for x in got.finals} == {F32}
    for name, x in got.gradients["both"].items():
        assert x.dtype == (F32 if name.startswith("initial") else dtype), name


def test_parameters_in_a_wider_type():
    """A bf16 layer with fp32 parameters: bf16 out, each gradient in the type of its own."""
    entry = BY_NAME["Mamba"]
    tensors, initial = draw(entry, BF16, t=9)
    wide = {n: x.float() for n, x in tensors.items() if n in {"A_log", "D", "bias"}}
    got = check(entry, tensors | wide, tuple(x.float() for x in initial), quantities=QUANTITIES[BF16])
    assert got.outputs[0].dtype == BF16
    for name, x in got.gradients["both"].items():
        assert x.dtype == (F32 if name in wide or name.startswith("initial") else BF16), name


@every_entry
@every_lowering
def test_req27_no_steps(entry, lowering):
    """The state passes through, sums are 0, and the final state's gradient is the initial one's."""
    tensors, initial = draw(entry, t=0)
    got = check(entry, tensors, initial, lowering=lowering)
    for x, y in zip(got.finals, initial, strict=True):
        assert torch.equal(x, y)


@every_entry
@pytest.mark.parametrize("empty", ["b", "d", "n", "h", "k", "v"])
def test_an_axis_of_size_0(entry, empty):
    if any(empty in part.axes.split() for part in entry.inputs.values()):
        check(entry, *draw(entry, t=3, **{empty: 0}))


@every_entry
def test_one_input_wants_a_gradient(entry):
    """Its kernel computes that one alone, as beside all others; what is constant may be anywhere."""
    tensors, _ = draw(entry, t=5)
    names = [n for n, x in tensors.items() if x.is_floating_point()]
    name = names[ENTRIES.index(entry) % len(names)]
    truth = expected(entry, tensors, None, ["outputs"]).gradients["outputs"][name]
    placed = {n: guarded(x) for n, x in tensors.items()}
    alone = placed[name].requires_grad_()
    outputs = many(sf.scan(entry.recurrence, **placed, backend="triton"))
    slots = [(y, cotangent(y, i)) for i, y in enumerate(outputs) if y.requires_grad]
    (slope,) = torch.autograd.grad([y for y, _ in slots], alone, [c for _, c in slots])
    assert_close(slope, truth, "long", name)


SSM_STATES = (1, 3, 5, 12, 24, 33, 40)


@pytest.mark.parametrize("n", SSM_STATES)
@pytest.mark.parametrize("way", ["forward", "reverse"])
@some("SelectiveSSM")
def test_req28_sizes_of_an_expanded_state(entry, n, way):
    """One thread holds up to 32 entries; more lie in a block."""
    lowering = LOWERINGS[(n + (way == "reverse")) % 2]
    check(entry, *draw(entry, b=1, t=5, d=3, n=n), reverse=way == "reverse", lowering=lowering)


MATRICES = ((3, 16), (16, 24), (24, 3))


@pytest.mark.parametrize(("k", "v"), MATRICES, ids=str)
@some("HGRN2")
def test_req28_sizes_of_a_matrix(entry, k, v):
    check(entry, *draw(entry, b=1, t=5, h=1, k=k, v=v), lowering=LOWERINGS[k % 3 % 2])


@every_lowering
@pytest.mark.usefixtures("own_tiles")
@some("RGLRU", "SelectiveSSM")
def test_req32_the_plans_own_tiles(entry, lowering):
    """More than two chunks of 64 steps, and a rest; a start that the batch shares."""
    tensors, initial = draw(entry, b=1, t=131, d=2)
    check(entry, tensors, tuple(x[:1] for x in initial), lowering=lowering)


@pytest.mark.usefixtures("own_tiles")
@some("Mamba")
def test_both_passes_keep_the_same_states(entry):
    """Where a few bytes more of inputs would lengthen the segments: B and C are converted by the forward."""
    tensors, initial = draw(entry, BF16, b=1, t=150, d=4, n=16)
    check(entry, tensors, tuple(x.float() for x in initial), quantities=QUANTITIES[BF16])
