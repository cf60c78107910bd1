"""Lanes passed on in groups, on 1 to 4 ranks, equal the run of one process."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import scanforge as sf
from scanforge import distributed
from scanforge.distributed import agreed, passing
from scanforge.distributed.forms import COMPOSE, FORMS, PASS, Cut, Form
from scanforge.distributed.lanes import Asked, cuttable
from scanforge.distributed.ranks import Message, Ranks
from scanforge.distributed.slopes import Slopes
from scanforge.distributed.wire import Pack, specs
from scanforge.launch import Options
from scanforge.prepared import prepare
from tests import recurrence_declarations as declared
from tests.distributed import test_groups as groups
from tests.distributed import test_values as values
from tests.distributed.groups import in_groups
from tests.distributed.layers import LAYERS, LayerRun, boundaries, check_layer
from tests.distributed.problems import Problem, check_rank
from tests.distributed.processes import TIMEOUT, on_ranks
from tests.tolerances import assert_close, assert_equal

UNEVEN = values.UNEVEN
NAMES = ("Affine", "MinMax", "Kalman", "RGLRUDocuments", "Mamba", "LinearAttention", "Counted")
BOUNDED = ("Affine", "RGLRUDocuments", "LinearAttention")


class Turns:
    """Each call of a rank in the next one of its cuts, so that all have their turn, alike on all ranks.

    Cuts are every axis in groups of one lane, then of two.
    """

    def __init__(self) -> None:
        self.taken = Counter[str]()

    def __call__(self, asked: Asked, steps: Sequence[int], forced: str) -> Form:
        sizes = [(axis, dict(asked.lanes)[axis]) for axis in cuttable(asked)[0]]
        cuts = [Cut(axis, (*range(0, n, width), n)) for width in (1, 2) for axis, n in sizes]
        cut = cuts[sum(self.taken.values()) % len(cuts)]
        self.taken[cut.axis] += 1
        return Form(PASS, "in turn", cut)


def in_turns() -> Turns:
    """In this process, calls pass on where they can, and take all cuts in turn."""
    agreed.not_worth = lambda *_: ""
    agreed.form_of = Turns()
    return agreed.form_of


def check(rank: int, count: int, file: str, shards: dict[int, list[int]]) -> None:
    sf.set_law_check(False)  # the one process has looked
    for ranks, lengths in shards.items():
        group, turns = dist.new_group(list(range(ranks))), in_turns()
        if rank >= ranks:
            continue
        for k, problem in enumerate(torch.load(file, weights_only=False)):
            resets = "reset" in problem.flags  # then every rank reads the states
            check_rank(problem, lengths, rank, group, reduces=resets or k % 2 == 0, form="pass")
        assert ranks == 1 or len(turns.taken) > 1, turns.taken


def applies(p: Problem) -> bool:
    call = prepare(p.operator, p.tensors, None, cu_seqlens=p.cu_seqlens)
    return bool(cuttable(Asked.of(call, Options(p.reverse, "", torch.float64)))[0])


def solve(problems: list[Problem], file: Path, shards: dict[int, list[int]]) -> None:
    torch.save([p.solved() for p in problems if applies(p)], file)
    on_ranks(max(shards), check, str(file), shards)


def some(problems: list[Problem]) -> list[Problem]:
    return [p for p in problems if p.name in NAMES]


def one_of_each(problems: list[Problem]) -> list[Problem]:
    """A problem for some operators and each kind of boundary, in one direction or the other."""
    kept = [p for p in problems if p.name in BOUNDED and p.reverse == ("mask" in p.flags)]
    return [*{(p.name, *p.flags, bool(p.entering)): p for p in kept}.values()]


def test_on_1_to_4_ranks(tmp_path: Path):
    solve(some(values.everything()), tmp_path / "problems.pt", values.SHARDS)


def test_boundaries_and_slow_decay(tmp_path: Path):
    """Padding, resets and packed sequences over ranks; gates of 0.9999 over shards of 100, 1, 0 and 411."""
    problems = one_of_each(values.bounded()) + one_of_each(values.packed())
    solve(problems, tmp_path / "bounded.pt", {4: [5, 0, 8, 7]})
    solve(values.slow_decay()[:2], tmp_path / "slow.pt", {4: UNEVEN})


@pytest.mark.slow
def test_every_operator_and_recurrence(tmp_path: Path):
    solve(values.everything(), tmp_path / "everything.pt", values.SHARDS)
    solve(values.slow_decay(), tmp_path / "slow.pt", {4: UNEVEN})
    solve(values.packed(), tmp_path / "packed.pt", {2: [9, 11], 4: [5, 0, 8, 7]})
    solve(values.bounded(), tmp_path / "bounded.pt", {1: [20], 4: [5, 0, 8, 7]})


def check_layers(rank: int, count: int, file: str, shards: list[int]) -> None:
    """Whatever the layers call is passed on where it can be."""
    sf.set_law_check(False)
    in_turns()
    for run in torch.load(file, weights_only=False):
        check_layer(run, shards, rank, dist.group.WORLD)


def solve_layers(names: Sequence[str], file: Path) -> None:
    runs = [LayerRun(n, 12, carried=True, flags=f) for n in names for f in boundaries(12)]
    torch.save([run.solved() for run in runs], file)
    on_ranks(4, check_layers, str(file), [5, 1, 0, 6])


def test_layers(tmp_path: Path):
    solve_layers(["RGLRU", "HGRN2"], tmp_path / "runs.pt")


@pytest.mark.slow
def test_every_layer(tmp_path: Path):
    solve_layers([n for n in LAYERS if n != "bidirectional"], tmp_path / "runs.pt")


def check_order(rank: int, count: int) -> None:
    """A receive is posted before the group in front of it runs; sends are waited for at the end."""
    agreed.form_of = lambda *_: Form(PASS, "", Cut("d", (0, 1, 2, 3)))
    happened: list[str] = []

    def noted(owner: Any, name: str, what: str) -> None:
        run = getattr(owner, name)

        def wrapped(*args: object, **options: object) -> object:
            happened.append(what)
            return run(*args, **options)

        setattr(owner, name, wrapped)

    noted(Ranks, "send", "send")
    noted(Ranks, "receive", "ask")
    noted(Message, "wait", "wait")
    noted(passing, "settle", "settle")
    noted(passing, "run_scan", "run")
    noted(passing, "gradients", "back")

    def expected(run: str, receives: bool, sends: bool) -> list[str]:
        if not receives:
            return [run, "send"] * 3 + ["settle"]
        given = [["ask", "ask", "wait", run], ["ask", "wait", run], ["wait", run]]
        return [what for group in given for what in [*group, *["send"] * sends]] + ["settle"]

    x = torch.ones(1, 6, 3, requires_grad=True)
    y = distributed.scan(sf.Affine, a=x, b=x, form="pass")
    assert happened == expected("run", rank > 0, rank < 2)
    happened.clear()
    y.sum().backward()
    assert happened == expected("back", rank < 2, rank > 0)


def check_mesh(rank: int, count: int) -> None:
    """The ranks of a group are others in the whole: two of data times two of time."""
    in_turns()
    groups.check_mesh(rank, count)
    assert distributed.last_form().name == PASS


def check_sums(rank: int, count: int) -> None:
    """Outputs without time are sums over ranks, each lane's own."""
    in_turns()
    groups.check_narrow_cotangent(rank, count)
    assert distributed.last_form().name == PASS


def check_narrow_types(rank: int, count: int) -> None:
    """States that are passed on are not rounded; inputs that groups share have all of their sums."""
    agreed.form_of = lambda *_: Form(PASS, "", Cut("d", (0, 3, 6, 8)))
    g = torch.Generator().manual_seed(0)
    timed = {
        n: torch.randn(1, 12, size, generator=g).bfloat16()
        for n, size in zip("udBC", (8, 8, 2, 2), strict=True)
    }
    names = {"u": timed["u"], "dt": timed["d"].sigmoid(), "B": timed["B"], "C": timed["C"]}
    others = {"A": -torch.rand(8, 2, generator=g), "D": torch.rand(8, generator=g)}
    whole = {n: x.clone().requires_grad_() for n, x in (names | others).items()}
    y, h = sf.scan(declared.SelectiveSSM, **whole, return_final_state=True)
    y.sum().backward()
    own = slice(0, 5) if rank == 0 else slice(5, 12)
    mine = {n: (x[:, own] if n in names else x).clone().requires_grad_() for n, x in (names | others).items()}
    z, k = distributed.scan(
        declared.SelectiveSSM, **mine, return_final_state=True, form="pass", reduce_gradients=True
    )
    assert (z.dtype, k.dtype, z.is_contiguous()) == (torch.bfloat16, torch.float32, True)
    assert_equal(z, y[:, own])
    if rank == 1:
        assert_close(k, h, "forward")
    z.sum().backward()
    for n, x in mine.items():
        grad = whole[n].grad[:, own] if n in names else whole[n].grad
        assert x.grad.dtype == x.dtype
        assert_close(x.grad, grad, "gradient", n)


def check_said(rank: int, count: int) -> None:
    """What is chosen, and why; what is refused is refused before anything is sent."""
    x = torch.ones(2, 3, 2, requires_grad=True)
    distributed.scan(sf.Affine, a=x, b=x)
    form = distributed.last_form()
    assert form.name == COMPOSE
    assert "the reference takes its time step by step" in str(form)
    distributed.scan(sf.Affine, a=x, b=x, form="compose")
    assert str(distributed.last_form()) == "compose: forced by form="
    y = distributed.scan(sf.Affine, a=x, b=x, form="pass")
    assert str(distributed.last_form()) == "pass: forced by form=, in 2 groups of b=1"
    with pytest.raises(sf.ArgumentError, match="no second derivative: leave create_graph out"):
        torch.autograd.grad(y.sum(), [x], create_graph=True)
    with pytest.raises(
        sf.ArgumentError, match=r"form='ring' is no choice: write form='compose' or form='pass'"
    ):
        distributed.scan(sf.Affine, a=x, b=x, form="ring")
    total = {"x": torch.ones(2, 3, 2), "w": torch.ones(2)}
    with pytest.raises(sf.ArgumentError, match=r"form='pass' does not apply, since energy sums over b; "):
        distributed.scan(declared.Summing, **total, form="pass")
    distributed.scan(sf.Affine, a=x[:1, :, :1], b=x[:1, :, :1], form="pass")
    assert "in 1 group of b=1" in str(distributed.last_form())
    alone = dist.new_group([0])
    if rank == 0:
        distributed.scan(sf.Affine, a=x, b=x, form="pass", group=alone)
        assert distributed.last_form() is None


def check_constant_gate(rank: int, count: int) -> None:
    """A gate of one entry for all time; on a rank of one step it looks like one over time."""
    g = torch.Generator().manual_seed(0)
    a, b = (torch.rand(2, n, 3, generator=g, dtype=torch.float64).requires_grad_() for n in (1, 9))
    whole = sf.scan(sf.Affine, a=a, b=b)
    expected = torch.autograd.grad(whole.square().sum(), [a, b])
    own = slice(*[(0, 4), (4, 5), (5, 9)][rank])
    for form in FORMS:
        mine = b[:, own].detach().requires_grad_()
        y = distributed.scan(sf.Affine, a=a, b=mine, form=form)
        assert_close(y, whole[:, own], "forward")
        gate, grad = torch.autograd.grad(y.square().sum(), [a, mine])
        dist.all_reduce(gate)
        assert_close(gate, expected[0], "gradient")
        assert_close(grad, expected[1][:, own], "gradient")
    assert "as the rank with the most steps finds" in str(distributed.last_form())


def check_different_calls(rank: int, count: int) -> None:
    """All ranks find it, before a state is sent."""
    x = torch.ones(2, 3, 2)
    operator, first, second = (sf.Affine, "a", "b") if rank else (sf.operators.MinMax, "r", "s")
    with pytest.raises(sf.GroupError, match=r"rank \d and rank \d make different calls"):
        distributed.scan(operator, **{first: x, second: x}, form="pass")


def check_death(rank: int, count: int) -> None:
    """The rank in the middle dies when it has sent one of three groups on."""
    agreed.form_of = lambda *_: Form(PASS, "", Cut("d", (0, 1, 2, 3)))
    x, began = torch.ones(1, 3, 3), time.monotonic()
    if rank == 1:
        run, groups = passing.run_scan, iter(range(3))
        passing.run_scan = lambda *given: run(*given) if next(groups) < 1 else os._exit(0)
    told = (
        pytest.raises(sf.GroupError, match="waited for the other ranks") if rank else suppress(sf.GroupError)
    )
    with told:  # what the first rank has sent may have gone before
        distributed.scan(sf.Affine, a=x, b=x, form="pass")
    assert time.monotonic() - began < TIMEOUT.total_seconds()
    os._exit(0)


@pytest.mark.parametrize(
    ("check", "count"),
    [
        (check_order, 3),
        (check_mesh, 4),
        (check_sums, 3),
        (check_narrow_types, 2),
        (check_said, 2),
        (check_constant_gate, 3),
        (check_different_calls, 3),
        (check_death, 3),
    ],
    ids=lambda x: x.__name__.removeprefix("check_") if callable(x) else str(x),
)
def test_on_ranks(check, count):
    on_ranks(count, check)


def test_groups_are_views(monkeypatch: pytest.MonkeyPatch):
    """No group copies its inputs, or has outputs of its own."""
    run, seen = passing.run_scan, []

    def noted(*given: Any) -> list[torch.Tensor]:
        seen.append([x.untyped_storage().data_ptr() for x in (*given[1], *given[-1])])
        return run(*given)

    monkeypatch.setattr(passing, "run_scan", noted)
    tensors = {n: torch.rand(2, 7, 6).transpose(0, 1).contiguous().transpose(0, 1) for n in "ab"}
    (y,), _ = in_groups(sf.Affine, "d", 2, backend="reference", **tensors)
    assert seen == [[x.untyped_storage().data_ptr() for x in (*tensors.values(), y)]] * 3


def test_shares_are_added_up_before_they_are_rounded():
    """1/2 is lost beside 256 in 16 bits, and four of them are not; lanes' own gradients lie side by side."""
    shapes = {"u": (1, 1, 5), "dt": (1, 1, 5), "A": (5, 1), "B": (1, 1, 1), "C": (1, 1, 1), "D": (5,)}
    tensors = {n: torch.zeros(shape, dtype=torch.bfloat16) for n, shape in shapes.items()}
    call = prepare(declared.SelectiveSSM, tensors, None)
    names = [i.name for i in call.scan.inputs]
    slopes = Slopes(call.scan, "d", call.inputs, [n in "uB" for n in names], torch.float32)
    for k, share in enumerate([256.0, 0.5, 0.5, 0.5, 0.5]):
        places = slopes.places(k, 1)
        places["B"].fill_(share)
        places["u"].fill_(k)
        slopes.add([places.get(n) for n in names], places)
    found = {n: g for n, g in zip(names, slopes.found(), strict=True) if g is not None}
    assert {n: g.flatten().tolist() for n, g in found.items()} == {"u": [0, 1, 2, 3, 4], "B": [258]}
    assert {g.dtype for g in found.values()} == {torch.bfloat16}


def test_states_in_one_message():
    """Each where its dtype, and a kernel's loads, want it; one alone is sent as it lies."""
    states = [torch.tensor([True, False, True]), torch.randn(2, 3, dtype=torch.float64), torch.arange(5)]
    pack = Pack(specs(states))
    message = pack.message(states)
    assert (message.dtype, message.numel()) == (torch.uint8, pack.size)
    read = pack.read(message)
    assert all(torch.equal(x, y) and x.dtype == y.dtype for x, y in zip(states, read, strict=True))
    assert not any((x.data_ptr() - message.data_ptr()) % 16 for x in read)
    alone = Pack(specs(states[1:2])).message(states[1:2])
    assert alone.data_ptr() == states[1].data_ptr()
