"""Tuning on the GPU: within its time, and what it finds gives the same numbers."""

from __future__ import annotations

import time

import pytest
import torch

import scanforge as sf
from scanforge import replay, tuned
from scanforge.tuned import BACKWARD, FORWARD, KEEPING
from tests.catalogue import BY_NAME, draw
from tests.kernels import everything, outcome
from tests.recurrences import BY_NAME as RECURRENCES
from tests.reference.compare import expected
from tests.tolerances import assert_close

pytestmark = pytest.mark.gpu
BUDGET, LAST = 10.0, 10.0  # seconds, and those of one candidate, which is not cut short


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch, tmp_path):
    monkeypatch.setenv("SCANFORGE_CACHE", str(tmp_path / "kept"))
    tuned.record.cache_clear()
    replay.forget()
    yield
    tuned.record.cache_clear()
    replay.forget()


@pytest.mark.parametrize(("steps", "channels"), [(512, 256), (4096, 64)])
def test_tuning_and_its_result(steps, channels):
    case = BY_NAME["MinMax"]
    start = time.monotonic()
    found = sf.tune(case.operator, b=4, t=steps, d=channels, budget=BUDGET)
    assert time.monotonic() - start < BUDGET + 3 * LAST
    assert [p.way for p in found.passes] == [FORWARD, KEEPING, BACKWARD]
    for p in found.passes:
        assert any(t.seconds for t in p.tried), str(p)
        assert not [t.why for t in p.tried if "apart from" in t.why]
        assert 0 < p.record.seconds <= p.record.shipped
    leaves, initial = draw(case, (4, steps + 5, channels), torch.float32)
    truth = expected(case, leaves, initial, everything(case))
    for _ in range(3):
        got = outcome(case, leaves, initial, everything(case), place=torch.Tensor.cuda)
        for x, y in zip((*got.states, *got.finals), (*truth.states, *truth.finals), strict=True):
            assert_close(x, y, "forward", str(found))
        for name, x in got.gradients.items():
            assert_close(x, truth.gradients[name], "gradient", name)
    shown = sf.explain(case.operator, b=4, t=steps, d=channels)
    assert f"tuned on {found.passes[0].record.date} on {torch.cuda.get_device_name()}" in shown


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("RGLRU", {"b": 4, "t": 512, "d": 512}),
        ("Mamba", {"b": 2, "t": 256, "d": 128, "n": 16}),
        ("HGRN2", {"b": 2, "t": 128, "h": 2, "k": 64, "v": 8}),
    ],
)
def test_recurrences(name, sizes):
    """What is rejected takes more than there is; no candidate gives other numbers."""
    found = sf.tune(RECURRENCES[name].recurrence, dtype="bf16", budget=BUDGET, **sizes)
    for p in found.passes:
        assert not [t.why for t in p.tried if "apart from" in t.why]
        assert p.record.seconds > 0


def test_a_record_of_a_bucket_is_found():
    first = sf.tune(sf.operators.Affine, b=2, t=1000, d=128, budget=6.0)
    again = sf.tune(sf.operators.Affine, b=2, t=1040, d=128, budget=6.0)
    assert all(p.before for p in again.passes)
    assert [p.record for p in again.passes] == [p.record for p in first.passes]


@pytest.mark.parametrize("dim", [1, 2], ids=["b t d", "b d t"])
def test_a_new_length_compiles_nothing(dim, monkeypatch):
    """But multiples of 16 and other lengths have kernels of their own."""
    from triton.runtime.jit import JITFunction

    compiled: list[str] = []
    compile_one = JITFunction._do_compile

    def noted(self, *args, **options):
        compiled.append(self.__module__)
        return compile_one(self, *args, **options)

    monkeypatch.setattr(JITFunction, "_do_compile", noted)
    for t in (1040, 1008, 1000, 1001, 1007, 992):
        shape = (8, t, 1024) if dim == 1 else (8, 1024, t)
        given = {n: torch.rand(shape, device="cuda").requires_grad_() for n in ("a", "b")}
        y = sf.scan(sf.Affine, **given, dim=dim)
        torch.autograd.grad(y.sum(), list(given.values()))
        if t == 1001:
            assert len(compiled) <= 4
            first = len(compiled)
    assert len(compiled) == first
