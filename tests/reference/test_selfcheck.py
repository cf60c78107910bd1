"""`scanforge selfcheck`: its truth is the loop by hand, what is right passes, and what is wrong is found."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from models.hgrn2 import TiedKeys
from models.minmax.neuron import LinearGated
from models.ssm import GroupedEuler
from scanforge import selfcheck, truth
from scanforge.boundaries import bounded
from scanforge.prepared import prepare
from scanforge.sequential import sequential
from tests import spoilt
from tests.catalogue import CASES, chance, generator
from tests.catalogue import draw as draw_case
from tests.recurrences import draw
from tests.reference.fused import every_entry, expected, single
from tests.reference.test_shell import shell  # noqa: F401 - a fixture
from tests.tolerances import assert_close

CPU = torch.device("cpu")
AFFINE = "scanforge.operators:Affine"


@every_entry
@pytest.mark.parametrize("way", ["forward", "reverse", "cut"])
def test_the_truth_is_the_loop_by_hand(entry, way):
    tensors, initial = draw(entry)
    options = {"reverse": way == "reverse"}
    if way == "cut":
        g = generator(3)
        options |= {"mask": chance(g, (2, 5), 0.7), "reset": chance(g, (2, 5), 0.4)}
    call = bounded(prepare(entry.recurrence, tensors, single(initial)), **options)
    outputs, finals = sequential(call.text, call.inputs, call.initial, reverse=options["reverse"])
    truth = expected(entry, tensors, initial, losses=(), **options)
    got = [*call.outputs(outputs), *call.states(finals)]
    for x, y in zip(got, [*truth.outputs, *truth.finals], strict=True):
        assert_close(x, y, "forward", entry.name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_truth_of_operators_is_the_loop_by_hand(case):
    leaves, initial = draw_case(case, (2, 7, 3))
    call = prepare(case.operator, leaves, single(initial))
    states, finals = sequential(call.text, call.inputs, call.initial, reverse=True)
    truth = case.loop(leaves, initial, reverse=True)
    for x, y in zip([*call.outputs(states), *call.states(finals)], [*truth[0], *truth[1]], strict=True):
        assert_close(x.double(), y.double(), "forward", case.name)


def test_everything_that_ships_is_checked():
    found = selfcheck.shipped()
    assert {getattr(sf.operators, n) for n in sf.operators.__all__} <= set(found)
    assert {TiedKeys, LinearGated, GroupedEuler} <= set(found)
    names = [d.__name__ for d in found]  # so that a row names one
    assert len(names) == len(set(names)), [d for d in found if names.count(d.__name__) > 1]


def test_lowerings_are_checked_where_they_apply():
    by_lowering = {form.lowering: form for form in selfcheck.FORMS["triton"]}
    chunked, ring = (
        [d.__name__ for d in selfcheck.shipped() if selfcheck.applies(d, by_lowering[lowering])]
        for lowering in ("chunked", "ring")
    )
    assert chunked == ["FreeKeys", "TiedKeys", "ValueDecay"]
    assert {"Affine", "MinMax", "MaxPlus", "RGLRUScan"} <= {*ring}
    assert not {"RunningMax", "LastFlagged", "FreeKeys", "Euler"} & {*ring}


def test_what_ships_is_right(capsys):
    rows = selfcheck.run(selfcheck.shipped(), "reference", CPU)
    assert len(rows) == 3 * len(selfcheck.shipped())
    assert all(row.ok for row in rows)
    printed = capsys.readouterr().out
    assert "reference on cpu: ok" in printed
    assert "TiedKeys" in printed


def test_it_prints_versions_and_exits_0(shell):  # noqa: F811
    code, out, _ = shell("selfcheck", AFFINE, "--backend", "reference")
    assert code == 0
    assert f"torch {torch.__version__}" in out
    assert "Python 3." in out
    assert "reference on cpu: ok" in out


@pytest.mark.parametrize("name", ["Affine", "MinMax", "LogSumExp", "LastFlagged"])
def test_req25_a_broken_reference_exits_1(shell, name):  # noqa: F811
    def change(source: str) -> str:
        return spoilt.spoilt(source, "apply") if f'"""{name}, one step' in source else source

    with spoilt.code(change, "load_module"):
        code, out, _ = shell("selfcheck", f"scanforge.operators:{name}", AFFINE, "--backend", "reference")
    assert code == 1
    assert "WRONG" in out
    assert f"{name} (loop, float64, 131 steps) is WRONG" in out.replace("\n", " ")


def test_req25_wrong_gradients_behind_right_values_exit_1(shell):  # noqa: F811
    """The kind that a stalled loss shows, after weeks."""

    def change(source: str) -> str:
        return spoilt.spoilt(source, "readout") if ".adjoint" in source else source

    with spoilt.code(change, "load_module"):
        code, out, _ = shell("selfcheck", AFFINE, "--backend", "reference")
    assert code == 1
    assert "WRONG" in out


def test_the_kernels_of_a_cpu_need_the_interpreter(shell, monkeypatch):  # noqa: F811
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    code, _, err = shell("selfcheck", AFFINE, "--backend", "triton")
    assert code == 2
    assert "TRITON_INTERPRET=1" in err


def test_an_error_says_what_was_checked(monkeypatch):
    def stop(*_, **__):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(truth, "scan", stop)
    with pytest.raises(RuntimeError) as caught:
        selfcheck.run([sf.Affine], "reference", CPU)
    assert caught.value.__notes__ == ["This happened in the self-check of Affine (loop, float64, 131 steps)."]


def test_a_nan_is_wrong():
    one = torch.ones(3)
    assert truth.distance(one, one) == 0
    assert not selfcheck.Row("X", selfcheck.FORMS["reference"][0], float("nan"), 0.0).ok
    assert truth.distance(one * float("nan"), one) != truth.distance(one, one)
    assert truth.distance(one[:2], one) == float("inf")
    assert truth.distance(one * float("inf"), one * float("inf")) == 0


def test_variants_that_a_compiler_leaves_behind_do_not_count(monkeypatch):
    from models.rglru import mixer, recurrence

    before = selfcheck.shipped()
    variant = recurrence.declared(4.0, "tanh", False)
    monkeypatch.setattr(mixer, "___constant_0", variant, raising=False)
    assert selfcheck.shipped() == before
