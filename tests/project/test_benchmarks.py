"""The benchmarks without a GPU: rows and gates run small on the CPU, figures come from a made-up result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import scanforge as sf
from benchmarks import baselines, cases, fused_tables, gate, grid_tables, scan, tables, timing
from benchmarks.baselines import min_max_rounds
from benchmarks.figures import newest
from benchmarks.record import RESULTS, Results, finish
from tests import catalogue, loops
from tests.subprocesses import ROOT, run_warm
from tests.tolerances import assert_close, assert_equal

SCAN, FIGURES = str(ROOT / "benchmarks" / "scan.py"), str(ROOT / "benchmarks" / "figures.py")
SMALL = cases.tiny(cases.Row("Affine", (8, 2048, 2048), torch.float32))
EXACT = replace(SMALL, operator="MinMax")


def test_dry_run_gates_every_row(tmp_path: Path):
    printed = run_warm(SCAN, "--dry-run", "--out", "dry.json", cwd=tmp_path, path=None)
    result = json.loads((tmp_path / "dry.json").read_text(encoding="utf-8"))
    assert len(result["rows"]) == len(cases.DIRECTIONS) * len(cases.rows())
    assert " 0 failed" in printed
    for row in result["rows"]:
        assert row["error"]["gradient"] > 0, "a gradient that was compared is rounded"
        assert not {"cold", "replayed", "called"} & set(row), "nothing was timed"


def test_rows_are_all_that_was_asked_for():
    found = {(row.operator, row.size, row.dtype, row.layout) for row in cases.rows()}
    assert {name for name, *_ in found} == set(catalogue.BY_NAME)
    for operator in cases.ELEMENTWISE:
        for dtype in cases.FLOATS:
            assert {(operator, size, dtype, "btd") for size in (*cases.SIZES, cases.LONG)} <= found
            assert (operator, cases.SIZES[0], dtype, "bdt") in found


def test_least_bytes_are_three_tensors_forward_and_five_backward():
    work = cases.prepare(SMALL, "cpu")
    tensor = work.leaves["a"].nbytes
    assert [work.nbytes(d) for d in cases.DIRECTIONS] == [3 * tensor, 3 * tensor, 5 * tensor]


def test_least_bytes_count_ints_once_and_no_gradient_of_them():
    work = cases.prepare(replace(SMALL, operator="RunningMax"), "cpu")
    value, index = work.leaves["value"].nbytes, work.leaves["index"].nbytes
    assert index == 2 * value
    assert work.nbytes(cases.FORWARD) == 2 * (value + index)
    assert work.nbytes(cases.BACKWARD) == value + index + 2 * value


def test_time_contiguous_rows_are_so():
    work = cases.prepare(replace(SMALL, layout="bdt"), "cpu")
    b, t, d = SMALL.size
    assert work.leaves["a"].shape == (b, d, t)
    assert work.leaves["a"].is_contiguous()
    assert work.row.dim == 2


class Spoilt:
    """`sf.scan` with its states and final states changed."""

    def __init__(self, change):
        self.change, self.true = change, sf.scan

    def __call__(self, *args, **kwargs):
        states, finals = self.true(*args, **kwargs)
        return self.change(states), self.change(finals)


def unwritten(states: torch.Tensor) -> torch.Tensor:
    """Fresh memory with all but one element filled."""
    room = torch.empty_like(states)
    room.view(-1)[1:] = states.detach().reshape(-1)[1:]
    return room + 0 * states


def wrong_gradient(states: torch.Tensor) -> torch.Tensor:
    """The same values, gradients a thousandth larger."""
    return states.detach() + 1.001 * (states - states.detach())


@pytest.mark.parametrize(
    ("row", "change", "said"),
    [
        (SMALL, lambda x: x * (1 + 1e-4), "forward error"),
        (EXACT, lambda x: x * (1 + 2**-23), "forward error"),
        (SMALL, wrong_gradient, "gradient error"),
        (SMALL, unwritten, "not every element was written"),
        (SMALL, lambda x: x + 1e-6 * x.requires_grad, "differ when a gradient is wanted"),
    ],
)
def test_gate_refuses(row: cases.Row, change, said: str, monkeypatch: pytest.MonkeyPatch):
    work = cases.prepare(row, "cpu")
    gate.check(work)
    monkeypatch.setattr(sf, "scan", Spoilt(change))
    with pytest.raises(AssertionError, match=said):
        gate.check(work)


def test_gate_leaves_torch_as_it_was():
    gate.check(cases.prepare(SMALL, "cpu"))
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("steps", [1, 2, 37, 64])
def test_min_max_in_rounds_is_the_loop(steps: int):
    leaves, (x0,) = catalogue.draw(catalogue.BY_NAME["MinMax"], (2, steps, 5))
    leaves = {name: x.requires_grad_() for name, x in leaves.items()}
    got = min_max_rounds(**leaves, x0=x0)
    (want,), _ = loops.loop("MinMax", leaves, (x0,))
    assert_equal(got, want.detach())
    for x, y in zip(*(torch.autograd.grad(s.sum(), list(leaves.values())) for s in (got, want)), strict=True):
        assert_close(x, y, "gradient")


def made_up() -> dict:
    """A result as `scan.py` writes it, with numbers that nobody measured."""
    stamp = {"device": "Imaginary 9000", "driver": "1.2", "torch": "3.4", "triton": "5.6"}
    stamp |= {"date": "2001-02-03T04:05:06+00:00", "dry_run": False, "only": "", "l2_bytes": 1}
    rows = []
    for row in cases.rows():
        at = {"operator": row.operator, "size": list(row.size), "layout": row.layout}
        at["dtype"] = cases.dtype_name(row.dtype)
        if row.operator == "Kalman":
            rows.append({"implementation": "scanforge", **at, "direction": "all", "failed": "E: no | luck"})
            continue
        for i, direction in enumerate(cases.DIRECTIONS):
            times = {name: {"min": 0.1, "median": 0.1 * (i + 1), "max": 0.9} for name in ("cold", "called")}
            error = {"forward": 1e-7, "gradient": 2e-7}
            one = {"implementation": "scanforge", **at, "direction": direction, "error": error}
            rows.append(one | times | {"fraction": 0.9 - 0.1 * i})
        if row.operator == "MinMax" and row.layout == "btd":
            added = {"implementation": "torch.add", **at, "operator": "add", "direction": "forward"}
            rows.append(
                added | {"error": None, "cold": {"median": 0.1}, "called": {"median": 0.2}, "fraction": 0.96}
            )
            for direction, median in (("forward", 8.0), ("forward and backward", 49.0)):
                one = {"implementation": tables.IN_ROUNDS, **at, "direction": direction, "error": None}
                rows.append(one | {"called": {"median": median}, "fraction": 0.0123})
    seconds = dict.fromkeys(("first forward", "first backward"), 1.25)
    return {
        "stamp": stamp,
        "copy": {"rate_tb_s": 4.2},
        "first_call": {"cold": seconds, "warm": seconds},
        "rows": rows,
    }


def pages_in(folder: Path) -> None:
    for name in tables.PAGES:
        page = folder / name
        page.parent.mkdir(exist_ok=True)
        blocks = [(tables.BEGIN, tables.END), (fused_tables.BEGIN, fused_tables.END)]
        blocks += [(grid_tables.BEGIN, grid_tables.END)] if name == grid_tables.PAGE else []
        text = "".join(f"{begin}\nstale\n{end}\n\n" for begin, end in blocks)
        page.write_text(f"before\n\n{text}after\n", encoding="utf-8")


def test_figures_and_tables_come_from_the_result(tmp_path: Path):
    pages_in(tmp_path)
    (tmp_path / "r.json").write_text(json.dumps(made_up()), encoding="utf-8")
    run_warm(FIGURES, "r.json", "--out", "drawn", "--pages", ".", cwd=tmp_path, path=None)
    for name in ("fractions", "operators"):
        assert (tmp_path / "drawn" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    short, full = ((tmp_path / name).read_text(encoding="utf-8") for name in tables.PAGES)
    for page in (short, full):
        assert page.startswith("before\n")
        assert page.endswith("after\n")
        assert "stale" not in page
        assert "Imaginary 9000, driver 1.2" in page
    # 0.1 ms forward; 0.2 and 0.3 ms of training and backward at 0.8 and 0.7 of the copy.
    assert "| MinMax, fp32 | 100 µs, 90 % | 500 µs, 74 % |" in short
    assert "| MinMax in PyTorch, fp32 | 8 ms, 1 % | 49 ms, 1 % |" in short
    assert "| Affine | 8, 2048, 2048 | btd | fp32 | 100 µs, 90 % | 200 µs, 80 % | 300 µs, 70 % |" in full
    assert "| Kalman | 8, 2048, 2048 | btd | fp32 | – | – | – | – | failed: E: no / luck |" in full
    assert "| (8, 2048, 2048) fp32 | 0.1 ms / 0.5 ms | 8 ms / 49 ms |" in full
    assert "| cold caches on disk | 1.25 | 1.25 |" in full


def test_what_scan_records_is_what_figures_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    times = timing.Times(0.1, 0.2, 0.3)
    few = baselines.addends((2, 3, 4), torch.float32, "cpu")
    for name in ("cold", "replayed"):
        monkeypatch.setattr(timing, name, lambda call: (call(), times)[1])
    monkeypatch.setattr(timing, "called", lambda call, repeats=1: (call(), (times, times))[1])
    monkeypatch.setattr(timing, "copy_times", lambda: times)
    monkeypatch.setattr(scan, "prepare", lambda row, _: cases.prepare(cases.tiny(row), "cpu"))
    monkeypatch.setattr(baselines, "addends", lambda *_: few)
    results = Results(tmp_path / "r.json", made_up()["stamp"], first_call=made_up()["first_call"])
    scan.measure_all(cases.rows(), results)
    finish(results, 0.0)
    kept = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert not [row for row in kept["rows"] if "failed" in row]
    short, full = tables.tables(kept).values()
    assert "–" not in short
    assert full.count("200 µs") >= len(cases.rows())
    for row in kept["rows"]:
        assert row["fraction"] > 0
        assert row["called"] == {"min": 0.1, "median": 0.2, "max": 0.3}


@pytest.mark.parametrize(
    ("changed", "said"), [({"dry_run": True}, "dry run"), ({"only": "Affine"}, "'Affine'")]
)
def test_figures_refuse_what_is_no_whole_run(changed: dict, said: str, tmp_path: Path):
    result = made_up()
    result["stamp"] |= changed
    (tmp_path / "r.json").write_text(json.dumps(result), encoding="utf-8")
    pages_in(tmp_path)
    with pytest.raises(AssertionError, match=said):
        run_warm(FIGURES, "r.json", "--out", "drawn", "--pages", ".", cwd=tmp_path, path=None)
    assert not (tmp_path / "drawn").exists()


@pytest.mark.parametrize("name", tables.PAGES)
def test_pages_show_the_newest_result_or_none(name: str):
    path = newest(RESULTS)
    text = tables.tables(json.loads(path.read_text(encoding="utf-8")) if path else None)[name]
    page = (ROOT / name).read_text(encoding="utf-8")
    assert tables.filled(page, text) == page, "run benchmarks/figures.py"


@pytest.mark.parametrize("name", tables.PAGES)
def test_pages_show_the_newest_fused_result_or_no_such_section(name: str):
    path = newest(RESULTS, fused=True)
    text = fused_tables.sections(json.loads(path.read_text(encoding="utf-8")) if path else None)[name]
    page = (ROOT / name).read_text(encoding="utf-8")
    markers = fused_tables.BEGIN, fused_tables.END
    assert tables.filled(page, text, *markers) == page, "run benchmarks/figures.py"


def test_newest_is_of_one_kind(tmp_path: Path):
    names = ["2001-02-03-a.json", "2001-02-04-a.json", "2001-02-03-fused-a.json", "2001-02-05-fused-a.json"]
    for name in names:
        (tmp_path / name).write_text("{}", encoding="utf-8")
    assert newest(tmp_path) == tmp_path / names[1]
    assert newest(tmp_path, fused=True) == tmp_path / names[3]
    (tmp_path / names[1]).rename(tmp_path / "x.txt")
    (tmp_path / names[0]).unlink()
    assert newest(tmp_path) is None
