"""The lowering `chunked` on generated kernels, against the reference's loop in float64.

Requirements 18, 19, 20 and 28: strong decays, gates of exactly 0 and 1, sizes that are no powers of two.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from triton.runtime import interpreter

import scanforge as sf
from scanforge import chunked_plan, chunked_work
from tests.catalogue import chance, generator
from tests.kernels import LAYOUTS, guarded
from tests.matrix_recurrences import EVERY, KEYS, READS, Matrix
from tests.recurrence_declarations import HGRN2
from tests.tolerances import assert_close, err

pytestmark = [
    pytest.mark.interpreter,
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter"),
]
F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
slow = pytest.mark.slow
ALL = [*dict.fromkeys(EVERY), *(Matrix(decay="on values", read=r) for r in ("before", "bonus", "gated"))]
LARGE = {"b": 1, "h": 1, "t": 70, "k": 16, "v": 17}
# The interpreter cuts what it stores in bfloat16 instead of rounding it: operands of products, then outputs.
CUT = 1.3e-2


def results(recurrence, tensors, initial, **options):
    """{what: outputs, final states, gradients of all of both}."""
    given = {n: x.detach().requires_grad_(x.is_floating_point()) for n, x in tensors.items()}
    start = None if initial is None else initial.detach().requires_grad_()
    y, final = sf.scan(recurrence, **given, initial_state=start, return_final_state=True, **options)
    wanted = given | ({} if start is None else {"initial": start})
    grads = [cotangent(x, seed) for seed, x in enumerate((y, final))]
    found = torch.autograd.grad((y, final), list(wanted.values()), grads)
    return {"outputs": y, "finals": final} | dict(zip(wanted, found, strict=True))


def cotangent(x, seed: int):
    """The same numbers for either type, which bfloat16 holds."""
    return torch.randn(x.shape, generator=generator(seed), dtype=F64).to(BF16).to(x.dtype)


def run(matrix, tensors, initial=None, place=guarded, **options):
    """The results of the kernels and of the loop."""
    recurrence = matrix.recurrence() if isinstance(matrix, Matrix) else matrix
    wide = {n: x.to(F64) for n, x in tensors.items()}
    placed = {n: place(x) for n, x in tensors.items()}
    got = results(recurrence, placed, initial, backend="triton", lowering="chunked", **options)
    start = None if initial is None else initial.to(F64)
    return got, results(recurrence, wide, start, backend="reference", lowering="loop", **options)


def check(matrix, tensors, initial=None, quantity="long", **options) -> None:
    got, truth = run(matrix, tensors, initial, **options)
    for what, x in got.items():
        y = truth[what]
        if tensors["q"].dtype == BF16:
            assert (x.double() - y).norm() <= CUT * y.norm(), what
        elif what in {"outputs", "finals"} or quantity == "long":
            assert_close(x, y, quantity, what)
        else:
            assert_close(x, y, "gradient", what)


LONG = {"g h", ""}  # heads of forms that others have too


@pytest.mark.parametrize(
    "matrix", [pytest.param(m, marks=slow if m.heads in LONG else ()) for m in ALL], ids=str
)
def test_every_form(matrix):
    """In float64 to rounding, over a chunk and a rest."""
    heads = {"h": 2 if matrix.keys == "shared by heads" else 1, "g": 2}
    initial = torch.randn(
        [1, *(heads[a] for a in matrix.heads.split()), 3, 4], dtype=F64, generator=generator(1)
    )
    check(matrix, matrix.draw(F64, t=34, b=1, **heads), initial)


SIZES = [
    pytest.param(dtype, k, v, marks=slow if k in often else ())
    for dtype, often in ((F32, {16, 33, 100}), (BF16, {1, 16, 33}))
    for k, v in ((1, 1), (3, 17), (16, 16), (33, 20), (100, 130))
]


@pytest.mark.parametrize(("dtype", "k", "v"), SIZES, ids=str)
def test_req28_sizes(dtype, k, v):
    matrix = Matrix(decay="log", keys="tied")
    check(matrix, matrix.draw(dtype, b=1, h=1, t=67, k=k, v=v), quantity="forward")


@pytest.mark.parametrize(("dtype", "k", "v"), [(F32, 20, 33), (BF16, 33, 20)], ids=str)
def test_sizes_of_a_decay_on_values(dtype, k, v):
    matrix = Matrix(decay="on values, log")
    check(matrix, matrix.draw(dtype, b=1, h=1, t=67, k=k, v=v), quantity="forward")


def matrices(examples: int):
    """A matrix recurrence, its sizes, direction, padding and seed."""
    drawn = st.builds(
        Matrix,
        st.sampled_from([m.decay for m in EVERY]),
        st.sampled_from(KEYS),
        st.sampled_from(READS),
        st.sampled_from(("", "h", "g h")),
    ).filter(lambda m: m.on != "value" or m.keys != "tied")
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    options = settings(
        deadline=None, max_examples=examples, derandomize=True, phases=[Phase.generate],
        suppress_health_check=quiet,
    )  # fmt: skip
    sizes = st.tuples(st.integers(1, 60), st.integers(1, 12), st.integers(1, 12))
    return lambda test: options(given(drawn, sizes, st.booleans(), st.booleans(), st.integers(0, 99))(test))


def any_two(matrix, sizes, reverse, padded, seed) -> None:
    t, k, v = sizes
    tensors = matrix.draw(F64, seed, b=1, t=t, k=k, v=v, h=1)
    options = {"mask": chance(generator(seed), (1, t), 0.7)} if padded else {}
    check(matrix, tensors, reverse=reverse, **options)


@matrices(5)
def test_drawn(matrix, sizes, reverse, padded, seed):
    any_two(matrix, sizes, reverse, padded, seed)


@slow
@matrices(300)
def test_many_more_drawn(matrix, sizes, reverse, padded, seed):
    any_two(matrix, sizes, reverse, padded, seed)


@pytest.mark.parametrize(
    ("decay", "reverse"), [("bounded", False), ("bounded", True), ("on values", False)], ids=str
)
def test_groups_of_chunks_walk_at_one_time(monkeypatch, decay, reverse):
    """Three groups of seven chunks, the last one shorter, over two blocks of values."""
    seen = []
    walk = chunked_work.prefix_source

    def noted(chunk):
        seen.append(chunk)
        return walk(chunk)

    monkeypatch.setattr(chunked_work, "prefix_source", noted)
    monkeypatch.setattr(chunked_plan, "LEAST", 2)
    matrix = Matrix(read="before", decay=decay)
    k, v = (35, 5) if decay == "on values" else (5, 35)
    tensors = matrix.draw(F64, b=1, h=1, t=200, k=k, v=v)
    check(matrix, tensors, torch.randn(1, 1, k, v, dtype=F64, generator=generator(1)), reverse=reverse)
    assert len(seen) == 3  # a walk, and two of the backward pass


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize(
    "matrix",
    [
        Matrix(read="gated"),
        Matrix(read="gated", decay="on values"),
        pytest.param(Matrix(read="bonus"), marks=slow),
    ],
    ids=str,
)
def test_packed_sequences(matrix, reverse):
    """Some empty, some shorter than a chunk, one of two chunks and a rest; each with a state of its own."""
    ends = torch.tensor([0, 0, 5, 6, 75, 80, 80])
    tensors = matrix.draw(F64, b=1, h=1, t=80)
    if matrix.read == "gated":
        tensors["f"][:, 30:40] = -1e4  # chunks that are flagged
        tensors.get("lower", torch.empty(0)).zero_()
    initial = torch.randn(6, 1, 3, 4, dtype=F64, generator=generator(1))
    check(matrix, tensors, initial, reverse=reverse, cu_seqlens=ends)


def test_packed_sequences_of_one_row():
    """What has a batch axis and no time is the same for all sequences, and its gradient a sum over them."""

    class Rows(sf.Recurrence):
        q, k, v = sf.Input("b t k"), sf.Input("b t k"), sf.Input("b t v")
        g = sf.Input("b k")
        S = sf.State("b k v")

        def element(self):
            return sf.Affine(a=self.g, b=self.k * self.v)

        def readout(self):
            return sf.sum(self.q * self.S, "k")

    sizes = {"q": (1, 40, 2), "k": (1, 40, 2), "v": (1, 40, 3), "g": (1, 2)}
    x = {n: torch.rand(size, dtype=F64, generator=generator(4)) for n, size in sizes.items()}
    check(Rows, x, cu_seqlens=torch.tensor([0, 1, 4, 40]))


CUTS = torch.zeros(1, 80, dtype=torch.bool).index_fill(1, torch.tensor([0, 5, 6, 31, 32, 63]), True)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("decay", ["bounded", "log", pytest.param("head's", marks=slow), "on values"])
@pytest.mark.parametrize(
    "read", ["after", pytest.param("before", marks=slow), pytest.param("bonus", marks=slow)]
)
def test_resets(read, decay, reverse):
    """To the recurrence's own state of 0, at borders of chunks too, beside padding; one chunk is flagged."""
    matrix = Matrix(read=read, decay=decay)
    tensors = matrix.draw(F64, b=1, h=1, t=80)
    if decay == "bounded":
        tensors["f"][:, 40:50] = -1e4
        tensors["lower"].zero_()
    check(matrix, tensors, reset=CUTS, reverse=reverse, mask=torch.arange(80)[None] % 11 != 6)


def test_resets_to_a_given_state_run_elsewhere():
    matrix = Matrix()
    x, given = matrix.draw(F32, **LARGE), {"initial_state": torch.ones(1, 1, 16, 17), "backend": "triton"}
    with pytest.raises(sf.ArgumentError, match="as resets to a given state do"):
        sf.scan(matrix.recurrence(), **x, reset=CUTS[:, :70], lowering="chunked", **given)
    sf.scan(matrix.recurrence(), **x, reset=CUTS[:, :70], **given)
    assert sf.last_run().plan.lowering == "ordered_tile"
    sf.scan(matrix.recurrence(), **x, reset=CUTS[:, :70], backend="triton")
    assert sf.last_run().plan.lowering == "chunked"


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    matrix = Matrix()
    check(matrix, matrix.draw(F64, b=1, t=35, k=5, v=6), place=LAYOUTS[name])


def loop(q, f, v, lower, S):
    """HGRN2 written by hand: outputs and the last state."""
    shown = []
    for qt, ft, vt in zip(q.unbind(1), f.unbind(1), v.unbind(1), strict=True):
        g = lower + (1 - lower) * torch.sigmoid(ft)
        S = g[..., None] * S + (1 - g)[..., None] * vt[..., None, :]
        shown.append((qt[..., None] * S).sum(-2))
    return torch.stack(shown, 1), S


def test_gradients_of_a_loop_by_hand():
    g = generator(7)
    sizes = {"q": (2, 50, 1, 5), "f": (2, 50, 1, 5), "v": (2, 50, 1, 7), "lower": (1, 5), "S": (2, 1, 5, 7)}
    x = {n: torch.rand(size, generator=g, dtype=F64).requires_grad_() for n, size in sizes.items()}
    first = x["S"]
    read = {n: t for n, t in x.items() if n != "S"}
    got = sf.scan(
        HGRN2, **read, initial_state=first, return_final_state=True, backend="triton", lowering="chunked"
    )
    grads = [cotangent(t, k) for k, t in enumerate(got)]
    ours = torch.autograd.grad(got, list(x.values()), grads)
    theirs = torch.autograd.grad(loop(**x), list(x.values()), grads)
    assert all(e < 1e-13 for e in map(err, ours, theirs))


@pytest.mark.parametrize("matrix", [Matrix(), Matrix(read="gated"), Matrix(decay="on values")], ids=str)
def test_padding_has_no_gradient_whatever_stands_there(matrix):
    """Neither what is read at padded steps, nor the cotangents of outputs there, reaches anything."""
    real = torch.arange(40) < 36
    tensors = matrix.draw(F64, b=1, h=1, t=40)
    dirty = {n: torch.where(real[:, None, None], x, torch.nan) for n, x in tensors.items() if n != "lower"}
    dirty |= {n: x for n, x in tensors.items() if n == "lower"}

    def grads(given, put, **options):
        x = {n: t.requires_grad_() for n, t in given.items()}
        y = sf.scan(matrix.recurrence(), **x, mask=real[None], **options)
        put = torch.where(real[:, None, None], cotangent(y, 0), put)
        return [y, *torch.autograd.grad(y, [x[n] for n in tensors], put)]

    clean = grads(tensors, 0.0, backend="reference")
    got = grads(dirty, torch.nan, backend="triton", lowering="chunked")
    assert all(e < 1e-13 for e in map(err, got, clean))


def test_second_derivatives():
    matrix = Matrix()
    x = {n: t.requires_grad_() for n, t in matrix.draw(F64, b=1, h=1, t=3).items()}

    def twice(**options):
        y = sf.scan(matrix.recurrence(), **x, **options)
        (first,) = torch.autograd.grad(y.square().sum(), x["f"], create_graph=True)
        return torch.autograd.grad(first.square().sum(), list(x.values()))

    ours = twice(backend="triton", lowering="chunked")
    assert all(e < 1e-13 for e in map(err, ours, twice(backend="reference")))


def test_an_output_that_sums_over_heads():
    class Summed(HGRN2):
        y = sf.Output("b t v")

    x = Matrix(keys="tied").draw(F64, b=1, t=34)
    check(Summed, x)


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


SHAPE = (1, 80, 1, 9)
STRONG = {
    "levels": LEVELS[torch.randint(0, 6, SHAPE, generator=generator(3))],
    "steps at -80": torch.full(SHAPE, -80.0, dtype=F64).index_fill(1, torch.arange(40, 70), -1e-3),
    "slow": -1e-4 * torch.rand(SHAPE, generator=generator(4), dtype=F64),
}  # fmt: skip


STRONGLY = [
    pytest.param(
        name, dtype, kind, marks=() if (name, dtype) in {("levels", BF16), ("levels", F64)} else slow
    )
    for name in STRONG
    for dtype in (F64, F32, BF16)
    for kind in (LOG, RAW)
]


@pytest.mark.parametrize(("name", "dtype", "kind"), STRONGLY, ids=str)
def test_req18_strong_decays(name, dtype, kind):
    check(with_logs(kind), strong(STRONG[name], kind, dtype), quantity="forward")


def test_req18_a_sigmoid_that_is_small_now_and_then():
    """Not flagged: the gradient is not divided by it."""
    matrix = Matrix(decay="sigmoid")
    tensors = matrix.draw(F32, b=1, h=1, t=64)
    tensors["f"].fill_(3.0)
    tensors["f"][:, ::32] = -12.0
    check(matrix, tensors, quantity="forward")


@pytest.mark.parametrize("factor", [-1.0, 1.01])
def test_req19_any_sign_and_growth(factor):
    """Decays that no logarithm holds are multiplied."""
    check(with_logs(RAW), strong(STRONG["levels"], RAW, F64, factor))
    check(with_logs(RAW), strong(STRONG["slow"], RAW, F64, factor))


def test_req19_growth_over_many_steps_in_16_bits():
    """Errors of logarithms in float16 would add up, where nothing decays."""
    logs = 0.1 + 0.1 * torch.rand((1, 300, 1, 9), generator=generator(6), dtype=F64)
    check(with_logs(RAW), strong(logs, RAW, BF16))


def test_req19_zeros_and_a_product_that_underflows():
    ten = {"q": 1.0, "k": 1.0, "v": 1.0, "f": -10.0}
    tensors = {n: torch.full((1, 64, 1, 1), x) for n, x in ten.items()}
    y = run(with_logs(LOG), tensors)[0]["outputs"]
    assert torch.equal(y[0, :1].flatten(), torch.ones(1))
    assert torch.allclose(y[0, 1:].flatten(), torch.tensor(1.0000454), rtol=1e-6)


def test_req20_a_gate_of_one_is_exact():
    """Whole numbers are summed without rounding."""
    g = generator(2)
    tensors = {n: torch.randint(-3, 4, (1, 100, 1, 4), generator=g).float() for n in "qkv"}
    for kind, one in ((LOG, 0.0), (RAW, 1.0)):
        got, truth = run(with_logs(kind), tensors | {"f": torch.full((1, 100, 1, 4), one)})
        assert all(torch.equal(got[n].double(), truth[n]) for n in ("outputs", "finals", "q", "k", "v"))


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


@pytest.mark.parametrize("options", [{}, {"mask": torch.arange(70)[None] % 7 > 0, "memory": "low"}], ids=str)
def test_the_plan_chooses_it_both_ways(options):
    """By itself, where sides fill a product and time a chunk; what it kept is what the way back looks for."""
    matrix = Matrix()
    x = {n: t.requires_grad_() for n, t in matrix.draw(F32, **LARGE).items()}
    wide = {n: t.detach().double().requires_grad_() for n, t in x.items()}
    y = sf.scan(matrix.recurrence(), **x, backend="triton", **options)
    assert (sf.last_run().plan.lowering, "k=16 and v=17" in sf.last_run().plan.why) == ("chunked", True)
    found = torch.autograd.grad(y, list(x.values()), cotangent(y, 0))
    assert (sf.last_run().recurrence[-8:], sf.last_run().plan.lowering) == (".adjoint", "chunked")
    truth = sf.scan(matrix.recurrence(), **wide, backend="reference", **options)
    assert_close(y, truth, "forward")
    for n, g, t in zip(
        x, found, torch.autograd.grad(truth, list(wide.values()), cotangent(truth, 0)), strict=True
    ):
        assert_close(g, t, "gradient", n)


def in_any_order(monkeypatch) -> None:
    """Programs of a launch run from the last one to the first."""
    builder = type(interpreter.interpreter_builder)
    place = builder.set_grid_idx

    def backwards(self, x, y, z):
        place(self, self.grid_dim[0] - 1 - x, y, z)

    monkeypatch.setattr(builder, "set_grid_idx", backwards)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_programs_of_a_launch_do_not_wait_for_each_other(monkeypatch, dtype):
    """Whatever memory held before: sides and time that fill no block, groups of chunks; the same bits."""
    monkeypatch.setattr(chunked_plan, "LEAST", 1)
    matrix = Matrix(keys="tied")
    x = matrix.draw(dtype, b=1, h=2, t=140, k=36, v=20)
    initial = torch.randn(1, 2, 36, 20, generator=generator(1))
    once = results(matrix.recurrence(), x, initial, backend="triton", lowering="chunked")
    in_any_order(monkeypatch)
    again = results(matrix.recurrence(), x, initial, backend="triton", lowering="chunked")
    for what, y in once.items():
        assert torch.equal(y, again[what]), what
        assert y.isfinite().all(), what
