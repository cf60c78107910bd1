"""Tables and figures of `benchmarks/grid.py` from a made-up result, and what the page shows now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import grid_figures, grid_tables
from benchmarks.figures import GRID, newest
from benchmarks.record import RESULTS, default_out
from benchmarks.tables import BACKWARD, BOTH, FORWARD, filled
from tests.project.test_benchmarks import FIGURES, made_up, pages_in
from tests.project.test_compare import matrix, row
from tests.subprocesses import ROOT, run_warm

STAMP = {"device": "Imaginary 9000", "driver": "1.2", "torch": "3.4", "triton": "5.6", "commit": "abc"}
STAMP |= {"date": "2001-02-03T04:05:06+00:00", "dry_run": False, "only": "", "peers": {"fla-core": "0.7"}}
FLOOR = {"of_floor": 0.5, "bound": "products", "tflop_s": 123.4, "gb_s": 567.8}


def invented() -> dict:
    """A result as `grid.py` writes it, with numbers that nobody measured."""
    rows = []
    for way, ms in ((FORWARD, 0.25), (BACKWARD, 0.75), (BOTH, 1.0)):
        rows += [matrix("scanforge", ms, way, **FLOOR, peak_bytes=2**30)]
        rows += [matrix("fla HGRN2 layer", 3 * ms, way, **FLOOR, peak_bytes=2**31)] if way != BACKWARD else []
        for dtype, layout in (("float32", "btd"), ("bfloat16", "bdt")):
            rows.append(row(median=ms, direction=way, dtype=dtype, layout=layout, **FLOOR))
        for steps in (1024, 16384):
            at = {"section": "series", "size": [1, steps, 8], "direction": way}
            rows.append(row(median=ms * steps, **at, **FLOOR))
    rows.append(row("torch.add", 0.24, operator="add", fraction=0.97))
    rows.append(row("fla chunk_hgrn", 0.5, fraction=0.4))
    layer = {"section": "gated", "operator": "Mamba", "size": [8, 2048, 2048, 16], "dtype": "bfloat16"}
    rows += [row(median=0.3, **layer, **FLOOR), row("elsewhere", 0.6, cited=True, **layer, **FLOOR)]
    step = {"section": "step", "operator": "RG-LRU step", "size": [64, 2048], "direction": "step"}
    rows += [row(median=0.002, **step), row("copy", 0.0019, **step)]
    refused = row("jax.lax.associative_scan", unavailable="jax is not installed", direction="all")
    del refused["clock"], refused["cold"]
    return {"stamp": STAMP, "copy": {"rate_tb_s": 4.2}, "rows": [*rows, refused, refused]}


def write(folder: Path, name: str, result: dict) -> Path:
    path = folder / name
    path.write_text(json.dumps(result), encoding="utf-8")
    return path


def test_the_section_and_the_figures_come_from_the_result(tmp_path: Path):
    pages_in(tmp_path)
    write(tmp_path, "r.json", made_up())
    write(tmp_path, "g.json", invented())
    options = ("--grid", "g.json", "--out", "drawn", "--pages", ".")
    run_warm(FIGURES, "r.json", *options, cwd=tmp_path, path=None)
    for name in ("matrix", "bare", "series"):
        assert (tmp_path / "drawn" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / grid_tables.PAGE).read_text(encoding="utf-8")
    assert "stale" not in page
    for line in (
        "| HGRN2 | 8, 2048, 16, 128, 128 | scanforge | 250 µs | 750 µs | 1 ms | 123 / 123 | 568 / 568 "
        "| 50 % of products / 50 % of products | 1.00 / 1.00 | 10 / 10 | – |",
        "| Affine | 8, 2048, 2048 | btd | fp32 | 250 µs, 95 % | 750 µs, 95 % | 1 ms, 95 % | 240 µs, 97 % "
        "| 500 µs, 40 %: fla chunk_hgrn | – | – |",
        "| Mamba | 8, 2048, 2048, 16 | elsewhere | 600 µs, 95 % | – | – |",
        "| RG-LRU step | 64, 2048 | copy | 1.90 µs | – |",
        "| Affine | fp32 | 16384 | 4.1e+03 ms, 95 % |",
        "| jax.lax.associative_scan | jax is not installed | Affine (8, 2048, 2048) fp32, all |",
        "| Mamba (8, 2048, 2048, 16) btd bf16, forward: over elsewhere | ≥ 2 | 2 |",
    ):
        assert (line in page) == ("over elsewhere" not in line), line
    assert "Imaginary 9000, driver 1.2, torch 3.4, Triton 5.6, fla-core 0.7; 2001-02-03, commit abc" in page


def test_of_a_row_in_several_runs_the_newest_counts(tmp_path: Path):
    old, new = invented(), invented()
    old["rows"] = [row(median=9.0), row("fla chunk_hgrn", 7.0, layout="bdt")]
    new["rows"], new["stamp"] = [row(median=1.0)], STAMP | {"commit": "def"}
    paths = [write(tmp_path, f"2001-02-0{day}-grid-x.json", r) for day, r in ((5, new), (4, old))]
    merged = grid_tables.merged(paths)
    assert [r["cold"]["median"] for r in merged["rows"]] == [1.0, 7.0]
    said = grid_tables.captions(merged["rows"], merged["stamps"])
    assert ["commit def" in line for line in said] == [True, False]


def test_a_dry_run_is_refused(tmp_path: Path):
    result = invented()
    result["stamp"] = STAMP | {"dry_run": True}
    with pytest.raises(SystemExit, match="measures nothing"):
        grid_tables.merged([write(tmp_path, "a-grid-b.json", result)])


def test_without_a_result_there_is_no_section(tmp_path: Path):
    assert grid_tables.section(grid_tables.merged([])) == ""
    assert grid_figures.draw({"rows": []}, tmp_path) == []


def test_the_page_shows_what_is_in_results():
    text = grid_tables.section(grid_tables.merged(RESULTS.glob(GRID)))
    page = (ROOT / grid_tables.PAGE).read_text(encoding="utf-8")
    filled_in = filled(page, text, grid_tables.BEGIN, grid_tables.END)
    assert filled_in == page, "run benchmarks/figures.py"


def test_results_beside_peers_are_no_other_kind(tmp_path: Path):
    for name in ("2001-02-03-a.json", "2001-02-04-grid-a.json", "2001-02-03-fused-a.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    assert newest(tmp_path) == tmp_path / "2001-02-03-a.json"
    assert newest(tmp_path, fused=True) == tmp_path / "2001-02-03-fused-a.json"
    assert default_out(STAMP, "grid-").match(GRID)
    assert default_out(STAMP | {"only": "HGRN2"}, "grid-").parent.name == "bench"
