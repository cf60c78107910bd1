"""Some calls of `make fuzz` on generated kernels."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.cases import calls
from tests.fuzz.judge import faults, short_tiles

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]


@pytest.mark.parametrize("count", [4, pytest.param(150, marks=pytest.mark.slow)])
def test_random_calls(count):
    @settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(calls())
    def judged(call):
        assert not faults(call, every=1), call

    with short_tiles():
        judged()
