"""The lowering `chunked` on generated kernels, against the reference's loop in float64.

Requirements 18, 19, 20 and 28: strong decays, gates of exactly 0 and 1, sizes that are no powers of two.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import scanforge as sf
from tests.catalogue import chance, generator
from tests.kernels import LAYOUTS, guarded
from tests.matrix_recurrences import EVERY, KEYS, READS, Matrix
from tests.tolerances import assert_close

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]
F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
KEYED = [m for m in EVERY if m.on != "value"]
# The interpreter cuts what it stores in bfloat16 instead of rounding it: operands of products, then outputs.
CUT = 1.3e-2


def run(matrix, tensors, initial=None, place=guarded, **options):
    """(outputs, final states) of the kernels and of the loop."""
    recurrence = matrix.recurrence() if isinstance(matrix, Matrix) else matrix
    wide = {n: x.to(F64) for n, x in tensors.items()}
    got = sf.scan(
        recurrence, **{n: place(x) for n, x in tensors.items()}, backend="triton", lowering="chunked",
        initial_state=initial, return_final_state=True, **options,
    )  # fmt: skip
    start = None if initial is None else initial.to(F64)
    truth = sf.scan(
        recurrence, **wide, backend="reference", lowering="loop", initial_state=start,
        return_final_state=True, **options,
    )  # fmt: skip
    return got, truth


def check(matrix, tensors, initial=None, quantity="long", **options) -> None:
    got, truth = run(matrix, tensors, initial, **options)
    for what, x, y in zip(("outputs", "finals"), got, truth, strict=True):
        if tensors["q"].dtype == BF16:
            assert (x.double() - y).norm() <= CUT * y.norm(), what
        else:
            assert_close(x, y, quantity, what)


@pytest.mark.parametrize("matrix", KEYED, ids=str)
def test_every_form(matrix):
    """In float64 to rounding, over two chunks and a rest."""
    tensors = matrix.draw(F64, t=70, b=1, g=1)
    sizes = [1, *(1 for _ in matrix.heads.split()), 3, 4]
    for axis, name in enumerate(matrix.heads.split(), 1):
        sizes[axis] = {"h": 2, "g": 1}[name]
    check(matrix, tensors, torch.randn(sizes, dtype=F64, generator=generator(1)))


SIZES = ((1, 1), (3, 17), (16, 16), (33, 20), (100, 130))


@pytest.mark.parametrize(("k", "v"), SIZES, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=["fp32", "bf16"])
def test_req28_sizes(k, v, dtype):
    matrix = Matrix(decay="log", keys="tied")
    check(matrix, matrix.draw(dtype, b=1, h=1, t=67, k=k, v=v), quantity="forward")


def matrices(examples: int):
    """A matrix recurrence, its sizes, direction, padding and seed."""
    drawn = st.builds(
        Matrix,
        st.sampled_from([m.decay for m in KEYED]),
        st.sampled_from(KEYS),
        st.sampled_from(READS),
        st.sampled_from(("", "h", "g h")),
    )
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    options = settings(
        deadline=None, max_examples=examples, derandomize=True, phases=[Phase.generate],
        suppress_health_check=quiet,
    )  # fmt: skip
    sizes = st.tuples(st.integers(1, 80), st.integers(1, 20), st.integers(1, 20))
    return lambda test: options(given(drawn, sizes, st.booleans(), st.booleans(), st.integers(0, 99))(test))


def any_two(matrix, sizes, reverse, padded, seed) -> None:
    t, k, v = sizes
    tensors = matrix.draw(F64, seed, b=1, t=t, k=k, v=v, h=1)
    options = {"mask": chance(generator(seed), (1, t), 0.7)} if padded else {}
    check(matrix, tensors, reverse=reverse, **options)


@matrices(20)
def test_drawn(matrix, sizes, reverse, padded, seed):
    any_two(matrix, sizes, reverse, padded, seed)


@pytest.mark.slow
@matrices(300)
def test_many_more_drawn(matrix, sizes, reverse, padded, seed):
    any_two(matrix, sizes, reverse, padded, seed)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    matrix = Matrix()
    check(matrix, matrix.draw(F64, t=35, k=5, v=6), place=LAYOUTS[name])


LEVELS = torch.tensor([0, -1e-3, -1, -20, -80, -1e4], dtype=F64)
LOG, RAW = "exp", "raw"


def with_logs(kind: str):
    """Decays are exp(f), or f itself."""

    class Strong(sf.Recurrence):
        q, k, f = sf.Input("b t h k"), sf.Input("b t h k"), sf.Input("b t h k")
        v = sf.Input("b t h v")
        S = sf.State("b h k v")

        def element(self):
            return sf.Affine(a=sf.exp(self.f) if kind == LOG else self.f, b=self.k * self.v)

        def readout(self):
            return sf.sum(self.q * self.S, "k")

    return Strong


def strong(logs, kind: str, dtype, sign: float = 1.0):
    g = generator(5)
    shape = logs.shape
    tensors = {n: torch.randn(shape, generator=g, dtype=F64).to(dtype) for n in "qkv"}
    return tensors | {"f": (logs if kind == LOG else sign * logs.exp()).to(dtype)}


SHAPE = (1, 140, 1, 18)
STRONG = {
    "levels": LEVELS[torch.randint(0, 6, SHAPE, generator=generator(3))],
    "64 steps at -80": torch.full(SHAPE, -80.0, dtype=F64).index_fill(1, torch.arange(64, 100), -1e-3),
    "slow": -1e-4 * torch.rand(SHAPE, generator=generator(4), dtype=F64),
}  # fmt: skip


@pytest.mark.parametrize("kind", [LOG, RAW])
@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("name", STRONG)
def test_req18_strong_decays(name, dtype, kind):
    check(with_logs(kind), strong(STRONG[name], kind, dtype), quantity="forward")


@pytest.mark.parametrize("factor", [-1.0, 1.01])
def test_req19_any_sign_and_growth(factor):
    """Decays that no logarithm holds are multiplied."""
    check(with_logs(RAW), strong(STRONG["levels"], RAW, F64, factor))
    check(with_logs(RAW), strong(STRONG["slow"], RAW, F64, factor))


def test_req19_zeros_and_a_product_that_underflows():
    ten = {"q": 1.0, "k": 1.0, "v": 1.0, "f": -10.0}
    tensors = {n: torch.full((1, 64, 1, 1), x) for n, x in ten.items()}
    (y, _), _ = run(with_logs(LOG), tensors)
    assert torch.equal(y[0, :1].flatten(), torch.ones(1))
    assert torch.allclose(y[0, 1:].flatten(), torch.tensor(1.0000454), rtol=1e-6)


def test_req20_a_gate_of_one_is_exact():
    """Whole numbers are summed without rounding."""
    g = generator(2)
    tensors = {n: torch.randint(-3, 4, (1, 100, 1, 4), generator=g).float() for n in "qkv"}
    for kind, one in ((LOG, 0.0), (RAW, 1.0)):
        got, truth = run(with_logs(kind), tensors | {"f": torch.full((1, 100, 1, 4), one)})
        assert torch.equal(got[0].double(), truth[0])
        assert torch.equal(got[1].double(), truth[1])


def test_a_forced_lowering_that_does_not_apply():
    x = torch.randn(1, 5, 3)
    with pytest.raises(
        sf.ArgumentError, match=r"Affine: lowering='chunked' does not apply, since its outputs"
    ):
        sf.scan(sf.Affine, a=x, b=x, backend="triton", lowering="chunked")


def test_what_ran_says_so():
    matrix = Matrix()
    sf.scan(matrix.recurrence(), **matrix.draw(F32), backend="triton", lowering="chunked")
    assert (sf.last_run().plan.lowering, sf.last_run().plan.why) == ("chunked", "forced by lowering=")
    sf.scan(matrix.recurrence(), **matrix.draw(F32), backend="triton")
    assert sf.last_run().plan.lowering == "ordered_tile"
