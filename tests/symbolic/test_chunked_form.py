"""Recurrences of matrix form are found, their parts named, and what is close to one is told apart."""

from __future__ import annotations

import pytest

import scanforge as sf
from scanforge.chunked_form import MatrixForm, matrix_form
from scanforge.chunked_swap import kernel_form, seed_of
from scanforge.chunked_vjp import way_back
from scanforge.example import SMALL, example
from scanforge.segments import padded, resetting
from tests import recurrence_declarations as declared
from tests.matrix_recurrences import DECAYS, EVERY, Matrix


def text_of(recurrence: type[sf.Recurrence]) -> str:
    return example(recurrence, None, {}, SMALL).traced.text


def found(recurrence: type[sf.Recurrence]) -> MatrixForm:
    form = matrix_form(text_of(recurrence))
    assert isinstance(form, MatrixForm), form
    return form


@pytest.mark.parametrize("matrix", EVERY, ids=str)
def test_every_form_is_found(matrix):
    form = found(matrix.recurrence())
    assert (form.key_axis, form.value_axis, form.state) == ("k", "v", "S")
    assert form.lanes == ("b", *matrix.heads.split())
    assert form.decay_on == matrix.on
    assert form.reads_before == (matrix.read in {"before", "bonus"})
    assert form.log_decay == (matrix.decay in {"log", "power", "head's", "number", "none", "on values, log"})
    sigmoids = {"sigmoid", "a channel's", "head's constant", "on values"}
    assert form.log_slope == (form.log_decay or matrix.decay in sigmoids)
    assert form.plain_readout == (matrix.read not in {"bonus", "skip", "gated"})


def test_the_parts():
    """What is written for people is what is meant: HGRN2, of which nothing but q and f is in the gates."""
    form = found(declared.HGRN2)
    assert {n for n, _ in form.gates.outputs} == {"query", "key", "decay"}
    assert {v.name for v in form.gates.inputs} == {"q", "f", "lower"}
    assert (form.plain("query"), form.plain("key"), form.plain("value")) == ("q", "", "v")
    assert "contracted over k" in form.sentence()
    assert "decay on k" in form.sentence()


@pytest.mark.parametrize("read", ["scaled", "activated"])
def test_scales_are_the_querys(read):
    form = found(Matrix(read=read).recurrence())
    assert form.plain_readout
    assert form.plain("query") == ""


def test_a_head_is_what_both_sides_of_the_product_have():
    class Grouped(sf.Recurrence):
        """Keys and queries shared by the heads of a group; the state's axes in another order"""

        q, k, a = sf.Input("b t g k"), sf.Input("b t g k"), sf.Input("b t g h")
        v = sf.Input("b t h g v")
        S = sf.State("b v g k h")

        def element(self):
            return sf.Affine(a=sf.exp(self.a), b=self.k * self.v)

        def readout(self):
            return sf.sum(self.S * self.q, "k")

    form = found(Grouped)
    assert (form.key_axis, form.value_axis, set(form.lanes)) == ("k", "v", {"b", "g", "h"})
    assert form.decay_on == "lanes"


def test_padding_keeps_the_form():
    """Padded steps have decay 1 and key 0 by selection, and a query of 0, whatever stands there."""
    form = matrix_form(padded(text_of(declared.HGRN2), ("b", "t")).text)
    assert isinstance(form, MatrixForm)
    assert form.decay_on == "key"
    lines = {x.var.name: x for x in form.gates.lines}
    assert all(lines[v].op == "where" for _, v in form.gates.outputs)


def test_the_way_back_leaves_sums_to_the_end():
    """Of gates nothing is summed within; a readout that sums over keys sums over values on the way back."""
    form = found(Matrix(read="bonus").recurrence())
    axes = {"gates": form.key_axis, "readout": form.value_axis}
    back = {}
    for part, axis in axes.items():
        program = getattr(form, part)
        seeds = {o: ("t", *form.lanes, axis) for o, _ in program.outputs}
        back[part] = way_back(program, {v.name for v in program.inputs}, seeds, ("k", "v"))
    assert set(back["gates"].found) == {"q", "k", "f", "lower"} & {v.name for v in form.gates.inputs}
    assert not [x for x in back["gates"].program.lines if x.op == "sum"]
    assert [x.over for x in back["readout"].program.lines if x.op == "sum"] == [("k",), ("v",)]
    assert back["gates"].reads("decay")


def near(
    decay=lambda s: sf.sigmoid(s.f),
    written=lambda s: s.k * s.v,
    read=lambda s: sf.sum(s.q * s.S, "k"),
):
    """HGRN2's inputs under another element map or readout."""
    fields = {"q": sf.Input("b t h k"), "f": sf.Input("b t h k"), "k": sf.Input("b t h k")}
    fields |= {"v": sf.Input("b t h v"), "S": sf.State("b h k v"), "readout": read}
    fields["element"] = lambda s: sf.Affine(a=decay(s), b=written(s))
    return type("Near", (sf.Recurrence,), fields)


def squeezed():
    """Another operator than the affine one."""
    made = near()
    made.element = lambda s: sf.operators.MinMax(r=s.f * s.v, s=s.k * s.v)
    return made


NEAR = {
    "a decay for every entry": (near(decay=lambda s: sf.sigmoid(s.f * s.v)), "its decay has both k and v"),
    "a sum of products": (near(written=lambda s: s.k + s.v), "no outer product over k and v: k + v"),
    "a function of the product": (near(written=lambda s: sf.tanh(s.k * s.v)), "over k and v: tanh(v"),
    "no contraction": (near(read=lambda s: s.S * s.q), "contract the state in no sums"),
    "two contractions": (
        near(read=lambda s: sf.sum(s.q * s.S, "k") * sf.sum(s.k * s.S, "k")), "state in 2 sums",
    ),
    "both axes": (near(read=lambda s: sf.sum(s.q * s.S, "k v")), "sums over k and v"),
    "a square of the state": (near(read=lambda s: sf.sum(s.S * s.S, "k")), "is not linear in the state"),
    "before and after": (
        near(read=lambda s: sf.sum(s.S - sf.previous(s.S), "k")), "before and after the step",
    ),
    "the state beside it": (
        near(read=lambda s: (sf.sum(s.q * s.S, "k"), s.S)), "reads the state beside",
    ),
    "a key that sums": (near(written=lambda s: s.k / sf.sum(s.k * s.k, "k") * s.v), "its gates"),
    "a query along values": (
        near(read=lambda s: sf.sum(sf.sigmoid(s.q * s.v) * s.S, "k")), "is also the query's",
    ),
    "no affine step": (squeezed(), "is not linear in the state"),
    "two states": (declared.LinearAttention, "2 states"),
    "an expanded state": (declared.SelectiveSSM, "its decay has both"),
    "channels": (declared.RGLRU, "contract the state in no sums"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEAR)
def test_near_misses(name):
    recurrence, reason = NEAR[name]
    form = matrix_form(text_of(recurrence))
    assert isinstance(form, str)
    assert reason in form


def test_resets_to_a_given_state_are_no_decay():
    form = matrix_form(resetting(text_of(declared.HGRN2), ("b", "t")).text)
    assert isinstance(form, str)
    assert "resets" in form


@pytest.mark.parametrize("decay", ["bounded", "log", "none"])
def test_resets_to_0_stand_beside_the_decay(decay):
    plain, text = Matrix(decay=decay).recurrence(), text_of(Matrix(decay=decay).recurrence())
    form = matrix_form(resetting(text, ("b", "t"), own=True).text)
    assert isinstance(form, MatrixForm)
    assert (form.resets, found(plain).resets) == (True, False)
    assert (form.decay_on, form.log_decay) == (found(plain).decay_on, found(plain).log_decay)
    assert form.plain("reset") == "reset"
    assert "reset" not in {v.name for v in form.slopes.inputs}


def test_a_condition_of_keys_is_a_decay():
    """What clears some keys alone is no reset: its logarithm is that of 0."""

    class Cleared(sf.Recurrence):
        q, k, f = sf.Input("b t h k"), sf.Input("b t h k"), sf.Input("b t h k")
        v = sf.Input("b t h v")
        S = sf.State("b h k v")

        def element(self):
            return sf.Affine(a=sf.where(self.f > 0, 0.0, sf.exp(self.f)), b=self.k * self.v)

        def readout(self):
            return sf.sum(self.q * self.S, "k")

    form = found(Cleared)
    assert (form.resets, form.decay_on, form.log_decay) == (False, "key", True)


@pytest.mark.parametrize("decay", ["on values", "on values, log"])
def test_a_decay_on_values_is_one_on_keys_from_the_other_side(decay):
    text = text_of(Matrix(decay=decay, keys="weighted").recurrence())
    form = kernel_form(text)
    assert (form.key_axis, form.value_axis, form.shown_axis, form.decay_on) == ("v", "k", "v", "key")
    assert {v.name for v in form.gates.inputs} == {"v", "f", seed_of(form)}
    assert (form.plain("key"), form.plain("read"), form.plain("value")) == ("v", "q", "")
    assert {v.name for v in form.values.inputs} == {"dt", "k"}
    assert form.log_slope
    assert kernel_form(text_of(declared.HGRN2)) == found(declared.HGRN2)


def test_the_catalogue_of_decays_covers_each_place():
    assert {Matrix(decay=d).on for d in DECAYS} == {"key", "value", "lanes", "none"}
