"""`scanforge tune` without a GPU: a sentence, or the list of what would be tried; and what `explain` says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import scanforge as sf
from scanforge import cli, planned, tuned
from scanforge.plan import Choice
from scanforge.tile import Tile
from tests.recurrences import BY_NAME as RECURRENCES
from tests.reference.test_shell import shell  # noqa: F401 - a fixture

MODULE = "scanforge.operators:MinMax"
CALL = {"b": 8, "t": 2048, "d": 2048}

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@without_gpu
def test_without_a_gpu(shell):  # noqa: F811
    sentence = "MinMax: tuning times kernels on a GPU, and torch sees none here"
    with pytest.raises(sf.BackendError, match=sentence):
        sf.tune(sf.operators.MinMax, **CALL)
    code, out, err = shell("tune", MODULE, "b=8", "t=2048", "d=2048")
    assert (code, out) == (2, "")
    assert sentence in err
    assert "--dry-run" in err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"budget": 0}, "budget=0 is no time"),
        ({"budget": float("nan")}, "budget=nan is no time"),
        ({"dtype": "int8"}, "is no dtype of float tensors"),
        ({"t": -1}, "no size of an axis"),
        ({"b": 0}, "of these sizes launches nothing: write sizes above 0"),
    ],
)
def test_bad_calls(options, sentence):
    with pytest.raises(sf.ArgumentError, match=sentence):
        sf.tune(sf.operators.MinMax, **(CALL | options))


def test_matrix_products_are_not_tuned():
    recurrence = RECURRENCES["HGRN2"].recurrence
    with pytest.raises(sf.ArgumentError, match="runs as matrix products over chunks"):
        sf.tune(recurrence, b=2, t=512, h=2, k=64, v=64, dry_run=True)


def test_a_dry_run(shell):  # noqa: F811
    words = ["tune", MODULE, "b=8", "t=2048", "d=2048", "b=1", "t=65536", "--dtype", "bf16", "--dry-run"]
    code, out, _ = shell(*words)
    assert code == 0
    assert out.count("MinMax, b=") == 2
    assert "MinMax, b=1, t=65536, d=64" in out
    for line in (
        "  forward: 2", "  forward, keeping states: ", "  backward: ", "    ordered_tile R=32 BD=128 NS=3",
        "    split chunks of 256 R=64 BD=128 NS=3",
    ):  # fmt: skip
        assert f"\n{line}" in out


def test_calls_of_a_command_line():
    assert cli._calls([]) == [[]]
    assert cli._calls(["b=8", "t=9", "b=1", "d=2", "d=3"]) == [["b=8", "t=9"], ["b=1", "d=2"], ["d=3"]]


def test_explain_tells_what_was_tuned(monkeypatch):
    shown = sf.explain(sf.operators.MinMax, dtype="bf16", **CALL)
    assert "; shipped default\n" in shown
    assert "tuned on" not in shown
    choice = Choice("split", 128, Tile(16, 64, 5, 2))
    found = tuned.Record(choice, "2026-11-30", "NVIDIA H200 (9.0)", 57e-6, 61.5e-6)
    ways = {tuned.FORWARD: found, tuned.BACKWARD: replace(found, choice=None)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(planned, "device_name", lambda _: "NVIDIA H200 (9.0)")
    monkeypatch.setattr(planned, "record", lambda key: ways.get(key.way))
    shown = sf.explain(sf.operators.MinMax, dtype="bf16", **CALL)
    where = "tuned on 2026-11-30 on NVIDIA H200 (9.0)"
    tile = "split chunks of 128 R=16 BD=64 NS=5 G=2, 0.057 ms; shipped default 0.0615 ms"
    assert f"  forward: {where}: {tile}\n" in shown
    assert f"  backward: {where}: the shipped default is best; shipped default 0.0615 ms\n" in shown
    assert "keeping states" not in shown
