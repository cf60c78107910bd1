"""Tuning in Triton's interpreter, with clocks that a test sets: what is tried, may win, and is kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import scanforge as sf
from scanforge import candidates as candidates_module
from scanforge import replay, tuned, work
from scanforge.candidates import candidates, ways
from scanforge.errors import BackendError
from scanforge.example import USUAL, example
from scanforge.plan import Choice
from scanforge.planned import planned
from scanforge.tile import Tile
from scanforge.trial import Trial
from scanforge.tuned import BACKWARD, FORWARD, KEEPING
from tests import spoilt
from tests.catalogue import BY_NAME, draw
from tests.recurrences import BY_NAME as RECURRENCES

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("own_tiles")]
MINMAX, SIZES = sf.operators.MinMax, {"b": 2, "t": 40, "d": 5}
SMALL = Tile(4, 32, 2)


class Total(sf.Operator):
    """A running sum of whole numbers: it has a forward pass alone."""

    x = sf.Element(identity=0, kind="int")
    n = sf.State(kind="int")

    def combine(self, later):
        return Total(x=self.x + later.x)

    def apply(self, n):
        return n + self.x


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Nothing is known at first, and nothing is left."""
    monkeypatch.setenv("SCANFORGE_CACHE", str(tmp_path / "kept"))
    _forget()
    yield tmp_path / "kept"
    _forget()


def _forget() -> None:
    tuned.record.cache_clear()
    replay.forget()


@pytest.fixture
def seen(monkeypatch) -> list[Tile]:
    """The tiles of launches."""
    found: list[Tile] = []
    call = work.call

    def noted(function, kernel, placed, tile, *rest):
        found.append(tile)
        return call(function, kernel, placed, tile, *rest)

    monkeypatch.setattr(work, "call", noted)
    return found


@pytest.fixture
def few(monkeypatch) -> None:
    """So few candidates that all are tried."""
    for name, some in {"ROWS": (4, 32), "LANES": (32,), "STAGES": (2, 3), "GROUPS": (1,)}.items():
        monkeypatch.setattr(candidates_module, name, some)
    monkeypatch.setattr(candidates_module, "AWAY", 99)


@pytest.fixture
def favours(seen, few) -> Callable[[Tile], Callable[[Any], float]]:
    """A timer by which launches of one tile are twice as fast as others."""

    def timer(favourite: Tile) -> Callable[[Any], float]:
        def seconds(run: Callable[[], Any]) -> float:
            run()
            like = (seen[-1].rows, seen[-1].lanes, seen[-1].stages)
            return 1.0 if like == (favourite.rows, favourite.lanes, favourite.stages) else 2.0

        return seconds

    return timer


def tune(timer, budget: float = 100.0, operator=Total, **options: Any):
    """With a clock that goes on by a second whenever it is looked at."""
    ticks = count()
    sizes = {k: options.pop(k, v) for k, v in SIZES.items()}
    return sf.tune(operator, timer=timer, clock=lambda: float(next(ticks)), budget=budget, **sizes, **options)


def total(steps: int = SIZES["t"], channels: int = SIZES["d"]) -> None:
    x = torch.randint(5, (2, steps, channels))
    assert torch.equal(sf.scan(Total, x=x, backend="triton"), x.cumsum(1))


def scan():
    leaves, _ = draw(BY_NAME["MinMax"], (2, SIZES["t"], SIZES["d"]), torch.float32)
    leaves = {n: x.requires_grad_() for n, x in leaves.items()}
    return sf.scan(MINMAX, **leaves, backend="triton"), list(leaves.values())


def test_the_fastest_is_kept_and_taken(favours, seen):
    """By calls of a similar length and width, also where a call is replayed."""
    for _ in range(3):
        total()
    (forward,) = tune(favours(SMALL)).passes
    assert forward.record.choice == Choice("ordered_tile", 0, SMALL)
    assert (forward.record.seconds, forward.record.shipped) == (1.0, 2.0)
    seen.clear()
    total()
    total(steps=37)
    assert seen == [SMALL, SMALL]
    total(steps=70)
    total(channels=90)
    assert SMALL not in seen[2:]


def test_a_replayed_call_looks_nothing_up(monkeypatch):
    looked: list[str] = []
    monkeypatch.setattr(tuned, "choice", lambda text, way, *_: looked.append(way))
    for _ in range(5):
        total()
    assert looked == [FORWARD, FORWARD]  # of the first call, and of the second, which is recorded


def test_every_pass_has_its_own(favours):
    """A pass for which no candidate is faster stays as it was; tuning may stand where nothing is recorded."""
    with torch.inference_mode():
        forward, keeping, backward = tune(favours(SMALL), operator=MINMAX).passes
    assert forward.record.choice == Choice("ordered_tile", 0, SMALL)
    assert keeping.record.choice is None  # states are kept before every 32 steps: tiles have as many rows
    assert backward.record.choice is None
    assert {t.choice.tile.rows for t in (*keeping.tried, *backward.tried)} == {32}


def known(folder: Path) -> None:
    """What another process has found."""
    found = tuned.Record(Choice("ordered_tile", 0, SMALL), "2026-11-30", "a device", 1.0, 2.0)
    tuned.store(_key(FORWARD), found)
    assert len(list(folder.glob("tuned_*.json"))) == 1
    _forget()


def test_other_processes_and_devices(folder, seen, monkeypatch):
    known(folder)
    monkeypatch.setattr(tuned, "device_name", lambda _: "another device")
    total()
    assert SMALL not in seen
    monkeypatch.undo()
    monkeypatch.setenv("SCANFORGE_CACHE", str(folder))
    assert tuned.record(_key(FORWARD)).choice.tile == SMALL


def _key(way: str, **sizes: int) -> tuned.Key:
    found = example(Total, None, SIZES | sizes, USUAL)
    device = tuned.device_name(torch.device("cpu"))
    return tuned.key(found.traced.text, way, found.sizes, [torch.int64], device)


def test_keys():
    """Lengths, and lanes, of one power of two are one; passes, dtypes and the sizes of inner axes are not."""
    one = _key(FORWARD)
    assert one == _key(FORWARD, t=32) == _key(FORWARD, t=45) == _key(FORWARD, d=4)
    others = [_key(FORWARD, t=46), _key(FORWARD, d=12), _key(KEEPING), _key(BACKWARD)]
    assert len({one, *others}) == 5
    assert _key(FORWARD, t=1000) == _key(FORWARD, t=1001) == _key(FORWARD, t=1008) == _key(FORWARD, t=1040)


def test_dtypes_of_parameters_do_not_matter():
    """A layer's inputs are 16 bits wide, its parameters are not."""
    call = example(RECURRENCES["RGLRU"].recurrence, None, {}, USUAL)
    names = [i.name for i in call.traced.scan.inputs]

    def of(**others: torch.dtype) -> tuned.Key:
        dtypes = [others.get(n, torch.bfloat16) for n in names]
        return tuned.key(call.traced.text, FORWARD, call.sizes, dtypes, "a device")

    assert of() == of(Lambda=torch.float32)
    assert len({of(), of(x=torch.float32), of(Lambda=torch.float64)}) == 3


def test_tuned_once(favours):
    other = Tile(4, 32, 3)
    (first,) = tune(favours(SMALL)).passes
    (second,) = tune(favours(other), t=37).passes
    assert second.record == first.record
    assert not second.tried
    assert "not tuned again" in str(second)
    assert tune(favours(other), again=True).passes[0].record.choice.tile == other


@pytest.mark.parametrize(("budget", "tried"), [(0.5, 0), (2.5, 2), (4, 3), (99, 4)])
def test_the_budget(favours, budget, tried):
    """Each timing takes a second, and the shipped tile's is the first."""
    passed, favourite = [0.0], favours(SMALL)

    def timer(run):
        passed[0] += 1
        return favourite(run)

    (found,) = sf.tune(Total, timer=timer, clock=lambda: passed[0], budget=budget, **SIZES).passes
    assert len(found.tried) == tried
    assert passed[0] == 1 + tried


def test_passes_share_the_budget(favours):
    passed, favourite = [0.0], favours(SMALL)

    def timer(run):
        passed[0] += 1
        return favourite(run)

    found = sf.tune(MINMAX, timer=timer, clock=lambda: passed[0], budget=4, **SIZES)
    assert [len(p.tried) for p in found.passes] == [1, 0, 0]
    assert all(p.record for p in found.passes)


def test_the_nearest_come_first(favours, monkeypatch):
    """From the best one so far, not from the shipped one."""
    monkeypatch.setattr(candidates_module, "ROWS", (4, 8))
    monkeypatch.setattr(candidates_module, "STAGES", (2, 3, 4))
    found = tune(favours(Tile(4, 32, 4))).passes[0]
    assert found.shipped.tile == Tile(8, 32, 8)
    tiles = [(t.choice.tile.rows, t.choice.tile.stages) for t in found.tried]
    assert tiles == [(8, 4), (8, 3), (4, 4), (4, 3), (4, 2), (8, 2)]


def test_a_wrong_kernel_never_wins(favours):
    """Kernels of four rows have one operation exchanged: they are fast, and rejected."""

    def change(source: str) -> str:
        return spoilt.spoilt(source, "step") if "row = tl.arange(0, 4)" in source else source

    with spoilt.code(change):
        found = tune(favours(SMALL)).passes[0]
    wrong = [t for t in found.tried if t.choice.tile.rows == 4]
    assert wrong
    assert all(t.seconds is None and "apart from the loop's in float64" in t.why for t in wrong)
    assert all(t.seconds for t in found.tried if t.choice.tile.rows != 4)
    assert found.record.choice is None


def test_what_does_not_compile_is_rejected(favours, monkeypatch):
    from triton.runtime.errors import OutOfResources

    call = work.call

    def full(function, kernel, placed, tile, *rest):
        if tile == SMALL:
            raise OutOfResources(300_000, 232_448, "shared memory")
        return call(function, kernel, placed, tile, *rest)

    monkeypatch.setattr(work, "call", full)
    found = tune(favours(SMALL)).passes[0]
    (rejected,) = [t for t in found.tried if t.choice.tile == SMALL]
    assert rejected.seconds is None
    assert "shared memory" in rejected.why
    assert found.record.choice is None


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"0" * 64 + b'\n{"text": ""}'])
def test_a_spoilt_file_is_ignored_with_a_sentence(folder, seen, content):
    known(folder)
    for file in folder.glob("tuned_*.json"):
        file.write_bytes(content)
    with pytest.warns(RuntimeWarning, match=r"does not hold what scanforge wrote there"):
        total()
    assert SMALL not in seen


def test_a_folder_that_others_can_write_to(favours, folder):
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(BackendError, match="not a folder private to this user"):
        tune(favours(SMALL))


def test_nowhere_to_keep_it(favours, monkeypatch):
    monkeypatch.setattr(tuned.files, "keep", lambda *_: None)
    with pytest.raises(BackendError, match="Total: what tuning found could not be written to"):
        tune(favours(SMALL), budget=5)


def test_found_between_a_forward_and_its_backward_pass(favours, seen):
    """No choice changes what is kept: the backward pass may have one that its forward pass did not."""
    states, given = scan()
    (truth,) = torch.autograd.grad(states.sum(), given[:1], retain_graph=True)
    favourite = Tile(32, 32, 2)
    assert tune(favours(favourite), operator=MINMAX).passes[2].record.choice.tile == favourite
    seen.clear()
    assert torch.equal(torch.autograd.grad(states.sum(), given[:1])[0], truth)
    assert seen == [favourite]


DECLARED = {
    "MinMax": (MINMAX, {"b": 1, "t": 140, "d": 3}),
    "Complex": (BY_NAME["ComplexAffine"].operator, {"b": 1, "t": 130, "d": 2}),
    "Kalman": (BY_NAME["Kalman"].operator, {"b": 1, "t": 150, "d": 2}),
    "RunningMax": (BY_NAME["RunningMax"].operator, {"b": 1, "t": 140, "d": 2}),
    "RGLRU": (RECURRENCES["RGLRU"].recurrence, {"b": 2, "t": 130, "d": 3}),
    "Mamba": (RECURRENCES["Mamba"].recurrence, {"b": 1, "t": 30, "d": 3, "n": 2}),
    "HGRN2": (RECURRENCES["HGRN2"].recurrence, {"b": 1, "t": 9, "h": 1, "k": 33, "v": 2}),
}
QUICK = {"MinMax", "Mamba", "HGRN2"}


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in DECLARED]
)
def test_candidates_are_right(name):
    """A few of each pass, drawn at random: their results are the shipped kernels', and the loop's."""
    operator, sizes = DECLARED[name]
    call = example(operator, None, sizes, USUAL)
    plan, drawn = planned(call.traced.text, call.sizes, torch.float32), random.Random(name)
    trial = Trial(operator, call, torch.float32, "cpu")
    for way in ways(call.traced.text):
        found = candidates(call.traced.text, way, plan)
        few = [c for c in found if c.tile.rows <= max(16, plan.spacing)]
        by_kind = {(c.lowering, c.tile.groups > 1, c.tile.relay): c for c in drawn.sample(few, len(few))}
        assert by_kind
        for choice in list(by_kind.values())[: 2 if name in QUICK else None]:
            assert not trial.wrong(way, choice), (way, choice)


def test_what_is_forced_is_what_runs(seen):
    call = example(MINMAX, None, {"b": 1, "t": 200, "d": 3}, USUAL)
    trial = Trial(MINMAX, call, torch.float32, "cpu")
    for way, choice in (
        (FORWARD, Choice("split", 64, Tile(16, 64, 3))),
        (KEEPING, Choice("ordered_tile", 0, Tile(32, 64, 2, 2))),
        (BACKWARD, Choice("ordered_tile", 0, Tile(32, 64, 2, 4))),
        (BACKWARD, Choice("ordered_tile", 0, Tile(32, 32, 2, 2, relay=True))),
    ):
        _ = trial.kept
        seen.clear()
        trial.run(way, choice)
        assert choice.tile in seen, (way, seen)
        assert sf.last_run().plan.lowering == choice.lowering
        assert sf.last_run().plan.why == "tuned"
