"""MatrixForm -> MatrixForm: a decay on the value axis, with keys and values in each other's place.

Let O be the cotangent of what is contracted, and sum it all: with P(i, j) the decays of steps j+1..i,

    L = Σ_{j≤i} Σ_kv O_i[v] P_v(i,j) value_j[v] key_j[k] query_i[k]

Read from the other side these are the products of a decay on keys, where O is the query, `value` the key,
`key` the value, and `query` the cotangent of what is contracted. So what such a recurrence contracts is the
gradient of that one's queries, and its gradients are that one's outputs and gradients.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from scanforge.chunked_form import MatrixForm, matrix_form
from scanforge.ir.builder import Builder
from scanforge.ir.check import check_program
from scanforge.ir.program import Program, fresh
from scanforge.ir.scan import TIME
from scanforge.prune import drop_dead


@lru_cache(maxsize=1024)
def kernel_form(text: str) -> MatrixForm:
    """The form as kernels have it: a decay is never on the value axis."""
    form = matrix_form(text)
    assert isinstance(form, MatrixForm)
    return swapped(form) if form.decay_on == "value" else form


def swapped(form: MatrixForm) -> MatrixForm:
    """The form with a decay on keys. The query of its gates is an input, `seed_of`."""
    return replace(
        form,
        key_axis=form.value_axis,
        value_axis=form.key_axis,
        decay_on="key",
        gates=_with_seed(form, form.values),
        slopes=_with_seed(form, form.slopes),
        values=_only(form.gates, "key", "value"),
        reader=_only(form.gates, "query", "read"),
    )


def seed_of(form: MatrixForm) -> str:
    """The input that stands for the cotangent of what is contracted."""
    return form.plain("query")


def _with_seed(form: MatrixForm, program: Program) -> Program:
    """What has the decay, its `value` called key, beside a query that is an input."""
    builder = Builder(f"{form.gates.name}", program.axes, where="")
    given = {v.name: builder.input(v.name, v.kind, v.axes) for v in program.inputs}
    own = {TIME, *form.lanes, form.value_axis}
    taken = [v.name for part in form.parts for v in part.inputs]
    axes = tuple(a for a in form.readout.axes if a in own)
    seed = builder.input(fresh("seed", taken), "float", axes)
    made = builder.inline(program, given)
    outputs = {"query": seed, "key": made.pop("value")} | made
    return check_program(builder.finish(outputs))


def _only(program: Program, output: str, name: str) -> Program:
    """One output of a program, of inputs that it reads."""
    kept = replace(program, outputs=((name, dict(program.outputs)[output]),))
    kept = drop_dead(kept)
    read = {a for x in kept.lines for a in x.args} | {v for _, v in kept.outputs}
    return check_program(replace(kept, inputs=tuple(v for v in kept.inputs if v.name in read)))
