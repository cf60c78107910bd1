"""Recurrences that nobody wrote by hand, on generated kernels, against torch's own derivative of the loop."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import scanforge as sf
from tests.kernels import LOWERINGS, Tiles
from tests.random_recurrences import ORDER, options_of, recurrences, tensors_of
from tests.reference.compare import many
from tests.reference.fused import single
from tests.reference.test_random_recurrences import assert_same

pytestmark = pytest.mark.interpreter


@pytest.fixture(autouse=True)
def short_tiles(monkeypatch):
    Tiles(4, 2, chunk=4).force(monkeypatch)


def check(drawn, length, widths, seed, lowering) -> None:
    sizes = dict(zip(ORDER, widths, strict=True)) | {"t": length}
    tensors, initial = tensors_of(drawn, sizes, seed)
    options = options_of(sizes, seed)
    start = initial if seed & 8 else None
    outputs, finals = drawn.loop(tensors, start, sizes, options)
    got = sf.scan(
        drawn.recurrence(), **tensors, initial_state=single(start), return_final_state=True,
        backend="triton", lowering=lowering, **options,
    )  # fmt: skip
    read = [y for found in got for y in many(found)]
    assert_same(drawn, read, [*outputs, *finals], [*tensors.values(), *(start or ())])


def random(examples: int):
    """A drawn recurrence, its steps, the sizes of its other axes, a seed, a lowering."""
    widths = st.lists(st.integers(1, 3), min_size=4, max_size=4)
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    options = settings(
        deadline=None,
        max_examples=examples,
        derandomize=True,
        phases=[Phase.generate],  # a failure is small as it is, and a kernel takes long to shrink
        suppress_health_check=quiet,
    )
    drawn = given(recurrences(), st.integers(1, 6), widths, st.integers(0, 99), st.sampled_from(LOWERINGS))
    return lambda test: options(drawn(test))


@random(20)
def test_values_and_gradients(drawn, length, widths, seed, lowering):
    check(drawn, length, widths, seed, lowering)


@pytest.mark.slow
@random(400)
def test_many_more(drawn, length, widths, seed, lowering):
    check(drawn, length, widths, seed, lowering)
