"""`benchmarks/grid.py` without a GPU: truths against loops, contests run small, peers that are made up."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import triton
from triton.runtime.autotuner import Autotuner

from benchmarks import (
    ahead,
    bare,
    contest,
    decoding,
    gated,
    grid,
    grid_cases,
    matrix,
    peers,
    steps,
    truths,
    wall,
)
from benchmarks.aims import OURS
from benchmarks.cases import Row
from benchmarks.layers import MAMBA, RG_LRU
from benchmarks.peers import cited, fla, torch_scan
from benchmarks.peers.peer import BOUNDS, Peer, calls
from benchmarks.problems import OUTPUT, Problem
from benchmarks.record import Results, environment
from benchmarks.session import Session
from benchmarks.tables import BACKWARD, BOTH, FORWARD
from tests import catalogue, loops
from tests.recurrences import BY_NAME, draw
from tests.subprocesses import ROOT, run_warm
from tests.tolerances import assert_close

BARE = ("Affine", "MinMax", "MaxPlus")
SIZE = (2, 130, 3, 4, 5)


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize("steps", [1, 2, 37])
def test_doubling_is_the_loop(name: str, steps: int):
    case = catalogue.BY_NAME[name]
    leaves, (x0,) = catalogue.draw(case, (2, steps, 3))
    if case.exact_on_grid or name == "MinMax":  # with ties
        leaves = catalogue.on_grid(leaves)
        (x0,) = catalogue.on_grid({"x0": x0}).values()
    g = catalogue.normal(catalogue.generator(1), (2, steps, 3), torch.float64)
    leaves = {n: x.requires_grad_() for n, x in leaves.items()}
    (want,), _ = loops.loop(name, leaves, (x0,))
    expected = torch.autograd.grad(want, list(leaves.values()), g)
    turned = {n: x.detach().movedim(1, -1) for n, x in leaves.items()}
    got, found = truths.bare(name, turned, x0, g.movedim(1, -1))
    assert_close(got.movedim(-1, 1), want.detach(), "forward")
    for x, y in zip(found.values(), expected, strict=True):
        assert_close(x.movedim(-1, 1), y, "gradient")


def test_a_walk_over_chunks_is_the_loop():
    b, t, h, k, v = SIZE
    entry = BY_NAME["HGRN2"]
    tensors, _ = draw(entry, b=b, t=t, h=h, k=k, v=v)
    tensors = {n: x.requires_grad_() for n, x in tensors.items()}
    (want,), _ = entry.loop(tensors)
    decay = tensors["lower"] + (1 - tensors["lower"]) * torch.sigmoid(tensors["f"])
    got = truths.matrix(tensors["q"], 1 - decay, tensors["v"], decay.log())
    assert_close(got, want.detach(), "forward")
    for x, y in zip(*(torch.autograd.grad(o.square().sum(), list(tensors.values()), retain_graph=True)
                      for o in (got, want)), strict=True):  # fmt: skip
        assert_close(x, y, "long")


def small() -> Problem:
    return matrix.hgrn2((1, 9, 2, 3, 4), "cpu", None)


@pytest.mark.parametrize("entry", [RG_LRU, MAMBA], ids=lambda e: e.name)
def test_truths_of_layers_are_loops(entry, monkeypatch: pytest.MonkeyPatch):
    """All channels, and one at a time where they are summed over."""
    monkeypatch.setattr(gated, "BLOCK", 1)
    problem = gated.prepare(entry, (2, 9, 5, 3)[: 4 if entry is MAMBA else 3], "cpu")
    leaves = {n: x.double().requires_grad_() for n, x in problem.inputs.items()}
    (y,), _ = entry.loop(leaves)
    want = dict(
        zip(leaves, torch.autograd.grad(y, list(leaves.values()), problem.cotangent.double()), strict=True)
    )
    assert set(problem.truth.values) == {OUTPUT, *leaves}
    for name, x in (want | {OUTPUT: y.detach()}).items():
        assert_close(problem.truth.values[name], problem.truth.cut(name, x), "long")


def test_a_peers_step_is_the_recurrences(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    made = decoding.prepare(decoding.TINY, "cpu", RG_LRU)
    before = [x.clone() for x in made.states]
    row, call = steps.compiled(made, {"implementation": "torch.compile"})
    assert row["error"]["forward"] < 1e-2
    assert all(torch.equal(x, y) for x, y in zip(before, made.states, strict=True))
    call()
    want = [x.clone() for x in before]
    replace(made, states=want).step()
    for x, y in zip(made.states, want, strict=True):
        assert_close(x, y.double(), "forward")


def test_a_case_that_breaks_is_recorded(tmp_path: Path):
    def broken(*_):
        raise OSError("no room")

    run = session(tmp_path)
    grid.run(run, [grid_cases.ProblemCase("a case", broken, 1)], float("inf"))
    (row,) = run.results.rows
    assert (row["operator"], row["failed"]) == ("a case", "OSError: no room")


def test_times_of_another_run_are_scaled_by_the_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    peer = cited.Cited("elsewhere", {("HGRN2", small().size): {FORWARD: 2.0}})
    monkeypatch.setattr(contest, "CITED", (peer,))
    run = session(tmp_path, peers="none")
    contest.Contest(run, small()).run()
    (row,) = [r for r in run.results.rows if r["implementation"] == "elsewhere"]
    assert row["cited"]
    assert row["scaled"]["median"] == pytest.approx(2.0 * cited.COPY_TB_S / row["copy_tb_s"])
    assert peer.scaled(small(), BOTH, 4.0) is None


def test_compiled_processes_skip_what_another_makes(tmp_path: Path):
    made = []
    makers = [ahead.Whole(partial(lambda n: lambda: made.append(n), n)) for n in range(5)]
    for share in range(2):
        ahead.compile_share(makers, share, 2, (RuntimeError,))
    assert made == [0, 2, 4, 1, 3]


def session(folder: Path, **options) -> Session:
    return Session(Results(folder / "r.json", environment("cpu", "abc", "")), "cpu", wall, **options)


def by_hand(problem: Problem, change=lambda y: y, run: str = "HGRN2"):
    """A peer that is the loop of the tests."""
    given = {n: x.float() for n, x in problem.inputs.items()}
    return calls(lambda **x: change(BY_NAME[run].loop(x)[0][0]), given, problem.cotangent.float())


def made_up(name: str, prepare=by_hand, **options) -> Peer:
    return Peer(name, "torch", "torch", ("HGRN2",), prepare, **options)


def raises(problem: Problem):
    raise DeprecationWarning("not since version 2")


def test_every_peer_has_a_row_or_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    unlucky = [
        Peer("absent", "no_such_module", "no-such-package", ("HGRN2",), by_hand),
        made_up("choosy", refuses=lambda problem: f"not at {problem.size[1]} steps"),
        made_up("broken", raises),
        made_up("wrong", partial(by_hand, change=lambda y: 1.1 * y)),
        made_up("wrong backward", partial(by_hand, change=lambda y: y.detach() + 1.1 * (y - y.detach()))),
        made_up("elsewhere"),
    ]
    monkeypatch.setattr(peers, "PEERS", (made_up("good"), *unlucky))
    monkeypatch.setattr(contest, "SLOW", float("inf"))  # a busy machine may take any time for a call
    run = session(tmp_path, peers="[!e]*")
    contest.Contest(run, small()).run()
    rows = {(r["implementation"], r["direction"]): r for r in json.loads(run.results.out.read_text())["rows"]}
    for name, directions in ((OURS, (FORWARD, BACKWARD, BOTH)), ("good", (FORWARD, BOTH))):
        for direction in directions:
            row = rows.pop((name, direction))
            assert row["replayed"]["median"] > 0
            assert 0 < row["of_floor"] < 1
            assert set(row["error"]) == ({OUTPUT} if direction == FORWARD else set(small().inputs))
    said = {key: row.get("unavailable", row.get("failed")) for key, row in rows.items() if "cold" not in row}
    assert said == {
        ("absent", "all"): "no-such-package is not installed",
        ("choosy", "all"): "not at 9 steps",
        ("broken", FORWARD): "DeprecationWarning: not since version 2",
        ("broken", BACKWARD): "DeprecationWarning: not since version 2",
        ("broken", BOTH): "DeprecationWarning: not since version 2",
        ("wrong", FORWARD): "AssertionError: output error 0.1, allowed 2e-02",
        ("wrong", BOTH): "AssertionError: df error 0.1, allowed 6e-02",
        ("wrong backward", BOTH): "AssertionError: df error 0.1, allowed 6e-02",
        ("elsewhere", "all"): "left out of this run",
    }


def test_fractions_and_bounds_are_of_the_least_work(tmp_path: Path):
    problem = small()
    b, t, h, k, v = problem.size
    tokens = 2 * b * t * h * (k + k + v) + 4 * h * k
    output = 2 * b * t * h * v
    sizes = [tokens + output, 2 * tokens + output, 3 * tokens + 2 * output]
    assert [problem.nbytes(d) for d in (FORWARD, BACKWARD, BOTH)] == sizes
    assert problem.flops(FORWARD) == 4 * b * t * h * k * v
    assert problem.flops(BOTH) == 14 * b * t * h * k * v
    run = session(tmp_path)
    one = contest.Contest(run, problem)
    run.products_tflop_s = 1e-3
    times = {"cold": {"median": 4.0}, "replayed": {"median": 2.0}}
    row = one.measured("x", FORWARD, times, 1e-6)
    assert row["fraction"] == pytest.approx(sizes[0] / 2e-3 / 1e6)
    assert row["tflop_s"] == pytest.approx(problem.flops(FORWARD) / 2e-3 / 1e12)
    assert row["bound"] == "bytes"
    assert row["of_floor"] == pytest.approx(row["fraction"])
    run.products_tflop_s = 1e-9
    assert one.measured("x", FORWARD, times, 1e-6)["bound"] == "products"


def test_times_are_taken_in_turns():
    order = []

    class Clock:
        def __init__(self, name):
            self.name = name

        def sample(self, count):
            order.append(self.name)
            return [float(len(order))] * count

    class Late:
        def sample(self, count):
            raise RuntimeError("the host was late")

    clocks = {"x": {"cold": Clock("x")}, "y": {"cold": Clock("y"), "replayed": Clock("z")}}
    found, failed = contest.in_turns(clocks | {"late": {"cold": Late()}})
    assert order == ["x", "y", "z"] * contest.ROUNDS
    assert found["x"]["cold"] == {"min": 1.0, "median": 7.0, "max": 13.0}
    assert failed == {"late": "RuntimeError: the host was late"}
    assert set(found) == {"x", "y"}


def test_a_run_takes_what_was_asked_for_and_stops_in_time(tmp_path: Path):
    script = (str(ROOT / "benchmarks" / "grid.py"), "--tiny", "--out", "r.json", "--commit", "abc")
    run_warm(*script, "--only", "HGRN2*x64x64", cwd=tmp_path, path=None)
    result = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert {r["operator"] for r in result["rows"]} == {"HGRN2"}
    assert result["stamp"]["not_run"] == []
    assert result["copy"]["again_tb_s"] > 0
    printed = run_warm(*script, "--only", "HGRN2*x64x64", "--budget", "0", cwd=tmp_path, path=None)
    assert "The time was up before: HGRN2 8x2048x8x64x64" in printed


def test_every_case_is_right_when_small(tmp_path: Path):
    run, kinds = session(tmp_path, peers="none"), {}
    problems = [c for c in grid_cases.cases() if isinstance(c, grid_cases.ProblemCase)]
    for case in problems:
        at = case.make("cpu", True).at()
        kinds.setdefault(str({n: x for n, x in at.items() if n != "size"}), case)
    steps = [c for c in grid_cases.cases() if isinstance(c, grid_cases.StepCase)]
    grid.run(run, [*kinds.values(), *steps], float("inf"))
    rows = [r for r in run.results.rows if r["implementation"] == OURS]
    assert not [r for r in run.results.rows if "failed" in r]
    assert len(rows) == 3 * len(kinds) + len(steps)
    names = [case.name for case in grid_cases.cases()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize("layout", ["btd", "bdt"])
def test_peers_that_run_here_are_right(name: str, layout: str):
    """PyTorch's own, and JAX where it is installed."""
    problem = bare.prepare(Row(name, bare.TINY, torch.float32, layout), "cpu")
    for peer in peers.of(problem):
        if not peer.available() and not peer.refuses(problem):
            made = peer.prepare(problem)
            for direction in made.calls:
                problem.errors(direction, made.found(direction), BOUNDS[problem.dtype])


def test_every_peer_says_why_it_is_not_here():
    row = Row("Affine", bare.TINY, torch.float32)
    said = {p.name: p.available() or p.refuses(bare.prepare(row, "cpu")) for p in peers.PEERS}
    if not torch.cuda.is_available():
        assert said["fla chunk_hgrn"] in {"fla-core is not installed", "it needs a GPU"}
        assert said["torch.compile associative_scan"] == "its scan of several tensors needs a GPU"


def test_a_wrong_gradient_is_found_on_a_few_steps(monkeypatch: pytest.MonkeyPatch):
    assert torch_scan.wrong_gradient("Affine", "cpu") == ""
    torch_scan.wrong_gradient.cache_clear()

    def half_blind(e, l):
        return l[0] * e[0], (l[0] + l[0].detach()) / 2 * e[1] + l[1]

    monkeypatch.setitem(torch_scan.COMBINES, "Affine", half_blind)
    said = "its gradient of a is wrong on 8 steps: relative error 0.5"
    assert torch_scan.wrong_gradient("Affine", "cpu") == said
    torch_scan.wrong_gradient.cache_clear()


def test_layer_gates_of_a_peer_are_those_of_the_recurrence():
    problem = small()
    f, lower = problem.inputs["f"].double(), problem.inputs["lower"].double()
    k, g = fla.layer_gates(f, lower, torch.float64)
    decay = lower + (1 - lower) * torch.sigmoid(f)
    assert_close(g.exp(), decay, "forward")
    assert_close(k, 1 - decay, "forward")


@triton.autotune([triton.Config({"N": n}, num_warps=w) for n in (8, 16) for w in (1, 2)], key=["N"])
@triton.jit
def tuned_kernel(pointer, N: triton.language.constexpr):
    pass


def test_processes_compile_every_configuration_and_time_none(monkeypatch: pytest.MonkeyPatch):
    compiled = []
    monkeypatch.setattr(ahead, "_RUN", lambda self, *args, **k: compiled.append((k["N"], k["num_warps"])))
    before = Autotuner._bench
    shares = []
    for share in range(3):
        tuned_kernel.cache.clear()
        make = partial(lambda: lambda: tuned_kernel[(1,)](pointer=torch.empty(4)))
        shares.append(ahead.compile_share([make], share, 3, (RuntimeError,)))
    assert set(compiled) == {(n, w) for n in (8, 16) for w in (1, 2)}
    assert shares == [2, 1, 1]
    assert Autotuner._bench is before
