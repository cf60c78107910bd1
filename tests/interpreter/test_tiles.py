"""Every choice of tile, and lengths around all its boundaries. Requirements 2, 13 and 32."""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from scanforge.plan import spacing_of
from scanforge.tile import tile_plan
from scanforge.trace import Signature, trace
from tests.catalogue import BY_NAME, CASES, chance, draw, generator
from tests.kernels import LOWERINGS, Tiles, both_ways, check, every_lowering, everything, guarded
from tests.reference.compare import Loss, expected, many
from tests.reference.test_requirements_order import integer_matrices
from tests.tolerances import assert_close, assert_equal

pytestmark = pytest.mark.interpreter
F32, F64 = torch.float32, torch.float64

# Every R that the plan may choose, forward and backward, and each number of lanes a program.
TILES = [
    Tiles(1, 1, 32, 2, 2),
    Tiles(2, 2, 32, 3, 4),
    Tiles(4, 2, 64, 2, 8),
    Tiles(8, 8, 32, 4, 8),
    Tiles(16, 4, 128, 3, 16),
    Tiles(32, 16, 32, 2, 64),
    Tiles(32, 32, 64, 2, 32),
    Tiles(64, 8, 64, 3, 64),
    Tiles(4, 2, 32, 2, 8, groups=2),
    Tiles(8, 8, 32, 3, 16, groups=4),
]
every_tile = pytest.mark.parametrize("tiles", TILES, ids=str)


def around(tiles: Tiles) -> list[int]:
    """One, both sides of each tile, of two, of a chunk and of two, and a prime."""
    edges = {n for size in (tiles.spacing, tiles.rows, tiles.chunk) for n in (size, 2 * size)}
    return sorted({1, 37, *(n + d for n in edges for d in (-1, 0, 1) if 0 < n + d <= 66)})


def test_the_plan_chooses_no_others():
    forward = {
        tile_plan(steps, inner, outer, items, backward=False).rows
        for steps in range(1, 200)
        for inner, outer in ((1, 1), (33, 2), (64, 1), (2048, 8))
        for items in ((2, 2), (4, 4), (8, 8), (2,) * 5)
    }
    count = {case.operator: len(draw(case, (1, 2))[0]) for case in CASES}
    scans = [trace(o, Signature(("t", "b"), (("b", "t"),) * n)).scan for o, n in count.items()]
    backward = {spacing_of(scan, steps) for scan in scans for steps in range(1, 200)}
    assert forward <= {tiles.rows for tiles in TILES}
    assert backward <= {tiles.spacing for tiles in TILES}


@every_lowering
@every_tile
def test_req02_order_at_every_boundary(tiles, lowering, monkeypatch):
    """Signed permutations do not commute, and their products are exact in float64."""
    tiles.force(monkeypatch)
    case = BY_NAME["Matrix2x2"]
    for i, length in enumerate(around(tiles)):
        leaves = {n: guarded(x[:, :length]) for n, x in integer_matrices(70).items()}
        initial = tuple(torch.randint(-3, 4, (2, 3), generator=generator(i)).double() for _ in range(2))
        reverse = bool(i % 2)
        got = sf.scan(
            case.operator, **leaves, initial_state=initial, reverse=reverse, return_final_state=True,
            backend="triton", lowering=lowering,
        )  # fmt: skip
        for outputs, truths in zip(got, case.loop(leaves, initial, reverse), strict=True):
            for x, truth in zip(outputs, truths, strict=True):
                assert_equal(x, truth, f"T={length}")


@every_lowering
@every_tile
def test_req02_gradients_at_every_boundary(tiles, lowering, monkeypatch):
    tiles.force(monkeypatch)
    case = BY_NAME["Matrix2x2"]
    for i, length in enumerate(around(tiles)[::2]):
        leaves, initial = draw(case, (1, length, 3), seed=length)
        check(case, leaves, initial, everything(case), reverse=bool(i % 2), lowering=lowering)


@every_lowering
@pytest.mark.usefixtures("own_tiles")
@pytest.mark.parametrize("length", [31, 33, 63, 64, 65, 127, 129, 255, 257, 1025])
def test_req02_order_with_the_plans_own_tiles(length, lowering):
    case = BY_NAME["Matrix2x2"]
    leaves, initial = draw(case, (1, length, 2), seed=length)
    got = sf.scan(case.operator, **leaves, initial_state=initial, backend="triton", lowering=lowering)
    for x, truth in zip(many(got), case.loop(leaves, initial)[0], strict=True):
        assert_close(x, truth, "forward", f"T={length}")


# 13: a carry that decays hides its own faults


def unit_gates(name: str, shape, g):
    """Gates of modulus exactly 1 where that can be: +1 and -1, or the four unit phases; or 0.9999."""
    if name == "Affine":
        sign = torch.where(chance(g, shape, 0.5), 1.0, -1.0).double()
        return {"a": sign}
    quarter = torch.randint(4, shape, generator=g)
    re = torch.where(quarter == 0, 1.0, torch.where(quarter == 2, -1.0, 0.0)).double()
    im = torch.where(quarter == 1, 1.0, torch.where(quarter == 3, -1.0, 0.0)).double()
    return {"a_re": re, "a_im": im}


@every_lowering
@pytest.mark.parametrize("modulus", [1.0, 0.9999])
@pytest.mark.parametrize("name", ["Affine", "ComplexAffine"])
def test_req13_gates_that_forget_nothing(name, modulus, lowering):
    """A loss of the final state, and of a step in another chunk: T = 3 chunks and 5."""
    case, shape, g = BY_NAME[name], (2, 53, 3), generator(13)
    gates = {n: modulus * x for n, x in unit_gates(name, shape, g).items()}
    terms = {n: torch.randn(shape, generator=g, dtype=F64) for n in case.float_leaves if n not in gates}
    initial = tuple(torch.randn(2, 3, generator=g, dtype=F64) for _ in case.states)
    leaves = {n: (gates | terms)[n] for n in case.float_leaves}
    check(case, leaves, initial, Loss((), (0,)), lowering=lowering)
    for at in (17, 40):
        inputs = {n: guarded(x).requires_grad_() for n, x in leaves.items()}
        twins = {n: x.clone().requires_grad_() for n, x in leaves.items()}
        start = initial if len(initial) > 1 else initial[0]
        states = many(
            sf.scan(case.operator, **inputs, initial_state=start, backend="triton", lowering=lowering)
        )
        truth, _ = case.loop(twins, initial)
        slopes = (
            torch.autograd.grad(x[0][:, at].sum(), list(given.values()), materialize_grads=True)
            for x, given in ((states, inputs), (truth, twins))
        )
        for leaf, x, y in zip(leaves, *slopes, strict=True):
            assert_close(x, y, "gradient", f"{leaf} by the state at {at}")


@every_lowering
@pytest.mark.parametrize("dtype", [torch.bfloat16, F32, F64], ids=str)
def test_req13_the_gradient_of_a_sum_is_one(dtype, lowering):
    """a = 1: db[t] is exactly 1 for every t up to the index of the loss, and 0 after it."""
    for at in (0, 15, 33):
        a, b = (torch.ones(1, 53, 3, dtype=dtype).requires_grad_() for _ in range(2))
        h = sf.scan(sf.operators.Affine, a=a, b=b, backend="triton", lowering=lowering)
        (db,) = torch.autograd.grad(h[:, at].sum(), b)
        assert torch.equal(db, (torch.arange(53) <= at).to(dtype).reshape(1, -1, 1).expand(1, 53, 3))


# 32: a broadcast operand on both sides of every switch of algorithm


@every_lowering
@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 1, 1), (1, 1, 1), (1, 37, 1)], ids=str)
@pytest.mark.parametrize("length", [1, 3, 4, 5, 15, 16, 17])
def test_req32_a_broadcast_operand(length, shape, lowering):
    case = BY_NAME["Affine"]
    leaves, initial = draw(case, (2, length, 3), seed=length)
    g = generator(32)
    for thin in ("a", "b"):
        size = [min(n, length) if i == 1 else n for i, n in enumerate(shape)]
        some = leaves | {thin: torch.rand(size, generator=g, dtype=F64)}
        check(case, some, initial, Loss((0,), (0,)), lowering=lowering)


@both_ways
def test_both_lowerings_agree(reverse):
    """The switch between them changes roundings only."""
    case = BY_NAME["Kalman"]
    leaves, initial = draw(case, (1, 37, 3))
    truth = expected(case, leaves, initial, everything(case), reverse)
    for lowering in LOWERINGS:
        got = check(case, leaves, initial, everything(case), reverse, lowering=lowering)
        assert sf.last_run().plan.lowering == lowering
        assert_close(got.states[0], truth.states[0], "forward")
