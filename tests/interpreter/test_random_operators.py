"""Operators that nobody wrote by hand, on generated kernels."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scanforge as sf
from tests.kernels import LOWERINGS
from tests.loops import run
from tests.reference.compare import many
from tests.reference.test_random_operators import TORCH, drawn, gradients, operators
from tests.tolerances import assert_close

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]


@given(operators(), st.integers(1, 40), st.booleans(), st.integers(0, 99), st.sampled_from(LOWERINGS))
@settings(
    deadline=None,
    max_examples=20,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_values_and_gradients(made, length, reverse, seed, lowering):
    leaves, initial = drawn(made, length, seed)
    inputs = (*leaves.values(), *initial)
    truth = run(lambda *x, **e: made.apply(TORCH, e, x), leaves, initial, reverse)
    slopes = gradients(*truth, inputs, missing=True)
    states, finals = sf.scan(
        made.operator(),
        **leaves,
        initial_state=initial if len(initial) > 1 else initial[0],
        reverse=reverse,
        return_final_state=True,
        backend="triton",
        lowering=lowering,
    )
    got = many(states), many(finals)
    for x, y in zip((*got[0], *got[1]), (*truth[0], *truth[1]), strict=True):
        assert_close(x, y, "long", made.name)
    for x, y in zip(gradients(*got, inputs, missing=False), slopes, strict=True):
        assert_close(x, y, "long", f"{made.name} gradient")
