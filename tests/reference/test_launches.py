"""What reaches Triton, without a GPU: a replay launches the same, and a new length compiles nothing new."""

from __future__ import annotations

import ast

import pytest
import torch
from torch import Tensor

import scanforge as sf
from scanforge import repeats, replay
from scanforge.replay_text import function_of
from tests.launches import Launches
from tests.recurrences import BY_NAME, draw
from tests.subprocesses import ROOT

BF16 = torch.bfloat16


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    found = Launches()
    found.install(monkeypatch)
    return found


def given(name: str, *, grad: bool = True, **sizes: int) -> dict[str, Tensor]:
    tensors, _ = draw(BY_NAME[name], dtype=BF16, **sizes)
    return {n: x.requires_grad_(grad and x.is_floating_point()) for n, x in tensors.items()}


def call(name: str, tensors: dict[str, Tensor], **options) -> None:
    y = sf.scan(BY_NAME[name].recurrence, **tensors, backend="triton", **options)
    if y.requires_grad:
        torch.autograd.grad(y, list(tensors.values()), torch.ones_like(y))


CASES = [
    ("RGLRU", {}), ("RGLRU", {"reverse": True}), ("RGLRU", {"lowering": "split"}), ("Mamba", {}),
    ("Mamba", {"memory": "low"}), ("HGRN2", {"reverse": True}),
    ("HGRN2", {"lowering": "chunked"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("grad", [True, False], ids=["gradients", "values"])
def test_a_replay_launches_the_same(launches, name, options, grad):
    """The same kernels in the same order, with the same numbers and the addresses of the given tensors."""
    tensors = given(name, grad=grad, b=2, t=200, d=48, n=4)
    call(name, tensors, **options)
    first = launches.taken()
    for _ in range(2):
        call(name, tensors, **options)
    launches.taken()
    call(name, tensors, **options)
    replayed = launches.taken()
    assert all(x.again for x in replayed)
    assert [x.kernel for x in replayed] == [x.kernel for x in first]
    own = {x.data_ptr() + 2 * k for x in tensors.values() for k in range(x.numel())}
    for mine, theirs in zip(replayed, first, strict=True):
        assert mine.grid == (*theirs.grid, 1, 1)[:3]
        assert mine.numbers() == theirs.numbers()
        for n, address in theirs.addresses().items():
            assert mine.args[n] == address or not {mine.args[n], address} & own, n


@pytest.mark.parametrize("name", ["Decay", "RGLRU", "Mamba"])
def test_req46_a_length_of_the_same_bucket_compiles_nothing(launches, name):
    """Mamba's kernels know lengths of whole tiles from others, and the segments that states are kept for."""
    seen = []
    for steps in (*range(1040, 2048, 60), *range(1045, 2048, 60)):
        call(name, given(name, b=2, t=steps, d=64, n=16), lowering="ordered_tile")
        seen.append({x.compiled_for for x in launches.taken()})
    several = set().union(*seen)
    assert len(several) == len(seen[0]) if name != "Mamba" else len(several) <= 3 * len(seen[0])


def test_req45_the_first_call_launches_each_kernel_once(launches):
    """Nothing is tuned on live tensors, nor run twice; recording runs a call with gradients once more."""
    tensors = given("RGLRU", b=2, t=40, d=48)
    counts = []
    for _ in range(4):
        call("RGLRU", tensors)
        counts.append(len(launches.taken()))
    assert counts == [2, 3, 2, 2]


def test_a_step_in_place_is_recorded_as_it_runs(launches):
    entry = BY_NAME["Mamba"]
    tensors = given("Mamba", grad=False, b=2, t=1, d=48, n=4)
    now = {n: x[:, 0] if "t" in entry.inputs[n].axes.split() else x for n, x in tensors.items()}
    h = torch.zeros(2, 48, 4)
    for again in (False, False, True):
        _, after = sf.step(entry.recurrence, h, inplace=True, backend="triton", **now)
        (one,) = launches.taken()
        assert (after is h, one.again) == (True, again)
        assert one.args["ptr_start_h"] == one.args["ptr_end_h"] == h.data_ptr()


def test_forget_is_a_first_call(launches):
    tensors = given("Decay", grad=False, b=2, t=40, d=48)
    for _ in range(3):
        call("Decay", tensors)
    replay.forget()
    launches.taken()
    call("Decay", tensors)
    assert [x.again for x in launches.taken()] == [False]


def test_memory_that_is_to_be_filled_is_another_call(launches):
    """Where algorithms are to be deterministic, torch fills what is empty, and a replay lets it."""
    tensors = given("Decay", grad=False, b=2, t=40, d=48)
    for fills, again in ((False, [False, False, True]), (True, [False, False, True]), (False, [True] * 3)):
        torch.use_deterministic_algorithms(fills)
        made = [sf.scan(BY_NAME["Decay"].recurrence, **tensors, backend="triton") for _ in range(3)]
        assert [x.again for x in launches.taken()] == again
        assert not fills or made[-1].isnan().all()  # which no kernel has written


def test_products_over_chunks_keep_no_state(launches):
    """The backward pass begins with the initial state, which is saved anyway."""
    tensors = given("HGRN2", b=1, t=70, h=1, k=16, v=16)
    for _ in range(4):
        y = sf.scan(BY_NAME["HGRN2"].recurrence, **tensors, backend="triton", lowering="chunked")
        *saved, initial, output = y.grad_fn.saved_tensors
        assert [x.data_ptr() for x in saved] == [tensors[n].data_ptr() for n in ("q", "f", "v", "lower")]
        assert output is y or output.data_ptr() == y.data_ptr()
        assert set(initial.stride()) == {0}  # one number
    assert launches.taken()[-1].again


def test_segments_are_summed_once(launches, monkeypatch):
    """What segments leave of sums over time is added up; other sums are left where they belong."""
    texts: list[str] = []

    def noted(recorded):
        texts.append(function_of(recorded).__doc__ or "")
        return function_of(recorded)

    monkeypatch.setattr(repeats, "function_of", noted)
    tensors = given("Mamba", b=2, t=256, d=256, n=16)
    for _ in range(4):  # a replay is the third, and its backward pass has been recorded with the fourth
        call("Mamba", tensors, lowering="ordered_tile")
    backward = max(texts, key=len)
    segments = backward.count(" run_") // 2  # forward again, then back
    over_time, over_lanes = ("bias", "D", "A_log"), ("B", "C")
    assert segments > 2
    assert backward.count(".sum(") == len(over_time)
    assert backward.count(".add_(") == len(over_time) * (segments - 1)
    assert backward.count("out=") == len(over_lanes) * segments
    assert "copy_" not in backward


def test_nothing_is_launched_past_the_recorder():
    """A launch that is not noted would be missing from a replay."""
    found = {
        path.name
        for path in (ROOT / "scanforge").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Subscript)
        and any(k.arg in {None, "num_warps"} for k in node.keywords)
    }
    assert found == {"tape.py"}
