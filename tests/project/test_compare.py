"""`benchmarks/compare.py`: made-up results that are equal, slower, incomplete, wrong, or miss an aim."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from benchmarks import aims
from benchmarks.compare import compare, main
from benchmarks.tables import BACKWARD, BOTH, FORWARD
from tests.subprocesses import ROOT, run_warm


def row(name: str = "scanforge", median: float = 1.0, **more) -> dict:
    made = {"section": "bare", "implementation": name, "operator": "Affine", "size": [8, 2048, 2048]}
    made |= {"layout": "btd", "dtype": "float32", "direction": FORWARD, "error": None, "clock": "cold"}
    made |= {"copy_tb_s": 4.0, "fraction": 0.95, "peak_bytes": 100, "host": {"median": 0.01}}
    return made | {"cold": {"min": 0.98 * median, "median": median, "max": 1.5 * median}} | more


def result(*rows: dict, **stamp) -> dict:
    return {"stamp": {"only": ""} | stamp, "copy": {"rate_tb_s": 4.0}, "rows": list(rows)}


OLD = result(row(), row("fla chunk_hgrn", 2.0), row(direction=BACKWARD))


def changed(at: int, **values) -> dict:
    new = copy.deepcopy(OLD)
    new["rows"][at] |= values
    return new


def without_times(at: int, **values) -> dict:
    new = changed(at, **values)
    for name in ("cold", "clock"):
        del new["rows"][at][name]
    return new


def cold(median: float) -> dict:
    return row(median=median)["cold"]


@pytest.mark.parametrize(
    "new",
    [
        OLD,
        changed(0, cold=cold(0.5)),
        changed(0, cold=cold(1.04)),
        changed(0, cold=cold(1.1) | {"min": 0.99}),  # within the spread
        changed(0, cold=cold(2.0), copy_tb_s=2.0),  # on a device of half the pace
        result(row(), only="forward"),  # the rest was not asked for
    ],
    ids=["equal", "faster", "a little", "spread", "another device", "a part"],
)
def test_nothing_is_worse(new: dict):
    assert compare(OLD, new, 0.05) == []


@pytest.mark.parametrize(
    ("new", "what", "after"),
    [
        (changed(0, cold=cold(1.1)), "10 % slower", "1100.0 µs"),
        (result(*OLD["rows"][:2]), "is missing", "–"),
        (without_times(0, failed="AssertionError: da error 0.1"), "fails", "AssertionError: da error 0.1"),
        (changed(0, fraction=0.93), "misses its aim, ≥ 0.94", "0.930"),
    ],
    ids=["slower", "missing", "gate", "aim"],
)
def test_what_is_worse(new: dict, what: str, after: str):
    (found,) = compare(OLD, new, 0.05)
    assert (found.what, found.after, found.ours) == (what, after, True)


def test_a_failure_before_any_direction_is_one():
    new = without_times(0, failed="ArgumentError: no such lowering", direction="all")
    (found,) = compare(result(row()), new, 0.05)
    assert found.what == "fails"


def test_a_slower_peer_is_shown_and_no_regression():
    (found,) = compare(OLD, changed(1, cold=cold(3.0)), 0.05)
    assert not found.ours
    assert "fla chunk_hgrn: Affine (8, 2048, 2048) btd fp32, forward" in found.line()


def test_the_command_tells_and_exits_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    for name, made in (("old", OLD), ("same", OLD), ("slow", changed(0, cold=cold(1.5)))):
        (tmp_path / f"{name}.json").write_text(json.dumps(made), encoding="utf-8")
    script = str(ROOT / "benchmarks" / "compare.py")
    assert "nothing is worse" in run_warm(script, "old.json", "same.json", cwd=tmp_path, path=None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["compare", "old.json", "slow.json"])
    assert main() == 1
    assert (
        "| scanforge: Affine (8, 2048, 2048) btd fp32, forward | 1000.0 µs | 1500.0 µs | 50 % slower |"
        in (capsys.readouterr().out)
    )
    monkeypatch.setattr("sys.argv", ["compare", "old.json", "slow.json", "--worse", "0.6"])
    assert main() == 0


def test_results_of_other_scripts_are_compared_too():
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        whole = json.loads(path.read_text(encoding="utf-8"))
        assert compare(whole, whole, 0.05) == []
        slow = copy.deepcopy(whole)
        clocks = ("cold", "replayed", "called")
        for one in slow["rows"]:
            for clock in clocks:
                if clock in one:
                    one[clock] = {name: 2 * x for name, x in one[clock].items()}
        found = compare(whole, slow, 0.05)
        assert sum(f.what == "100 % slower" for f in found) == len(
            [r for r in whole["rows"] if {*clocks} & {*r}]
        )


def matrix(name: str, median: float, direction: str, size=(8, 2048, 16, 128, 128), **more) -> dict:
    at = {
        "section": "matrix",
        "operator": "HGRN2",
        "size": list(size),
        "layout": "bthkv",
        "dtype": "bfloat16",
    }
    return row(name, median, direction=direction, **at, **more)


def found(*rows: dict) -> dict[str, aims.Aim]:
    return {aim.what: aim for aim in aims.aims(result(*rows))}


def test_aims_of_matrices_are_over_the_quickest_of_the_peers_layers():
    small, large = (8, 2048, 8, 64, 64), (8, 2048, 16, 128, 128)
    rows = [matrix("scanforge", 1.0, d, s) for d in (FORWARD, BOTH) for s in (small, large)]
    rows += [matrix("fla HGRN2 layer", 2.0, FORWARD, small), matrix("fla HGRN2 layer", 8.0, FORWARD, large)]
    rows += [matrix("fla HGRN2 layer, fp32 bound", 4.5, FORWARD, large, peak_bytes=50)]
    rows += [matrix("fla HGRN2 layer", 1.05, BOTH, large, peak_bytes=90)]
    got = found(*rows)
    assert got["HGRN2, forward: over the layer, mean of 2 shapes"].got == pytest.approx(3.0)
    assert got["HGRN2, forward: over the layer, mean of 2 shapes"].met
    at = "HGRN2 (8, 2048, 16, 128, 128) bthkv bf16, forward and backward: "
    assert not got[f"{at}over fla HGRN2 layer"].met
    assert got[f"{at}peak memory over the peer's"].got == pytest.approx(100 / 90)
    assert not got[f"{at}peak memory over the peer's"].met


def test_aims_of_bare_operators():
    got = found(row(), row("torch.add", 0.97, operator="add", fraction=0.97), row("fla chunk_hgrn", 1.2))
    at = "Affine (8, 2048, 2048) btd fp32, forward: "
    assert {what.removeprefix(at): (aim.got, aim.met) for what, aim in got.items()} == {
        "of the copy": (0.95, True),
        "of `torch.add`": (pytest.approx(0.979, abs=1e-3), True),
        "over fla chunk_hgrn": (1.2, True),
    }


def test_sixteen_times_as_long_is_compared():
    rows = [
        row(median=t, section="series", size=[1, steps, 1024]) for steps, t in ((1024, 1.0), (16384, 18.0))
    ]
    (aim,) = found(*rows).values()
    assert (aim.what, aim.got, aim.met) == ("Affine fp32, forward: 16384 steps over 1024", 18.0, False)
