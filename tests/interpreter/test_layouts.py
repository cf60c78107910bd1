"""Where tensors lie: strides, slices, guard values, other types beside floats. Requirements 30, 31 and 33."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import scanforge as sf
from tests.catalogue import BY_NAME, draw, generator
from tests.kernels import (
    LAYOUTS,
    Tiles,
    check,
    every_lowering,
    every_operator,
    everything,
    guarded,
    outcome,
)
from tests.reference.compare import Loss, Outcome, cotangent, expected, many
from tests.reference.test_types import Gated, Seen, complex_leaves
from tests.tolerances import assert_close, assert_equal

pytestmark = pytest.mark.interpreter
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.fixture(autouse=True)
def short_tiles(monkeypatch):
    """Tiles and chunks of 2: five steps are two of them and one more."""
    Tiles(2, 2, chunk=2).force(monkeypatch)


def assert_identical(got: Outcome, other: Outcome, what: str) -> None:
    """The same kernel on the same numbers: bit for bit."""
    for x, y in zip((*got.states, *got.finals), (*other.states, *other.finals), strict=True):
        assert_equal(x, y, what)
    for name, x in got.gradients.items():
        assert_equal(x, other.gradients[name], f"{what} {name}")


@every_operator
@every_lowering
class TestStrides:
    def test_req31_inputs_and_cotangents_of_any_strides(self, case, lowering):
        """Every tensor in every layout, contiguous ones first: bit for bit the same."""
        leaves, initial = draw(case, (2, 5, 3), F32)
        plain = check(case, leaves, initial, everything(case), lowering=lowering)
        for layout, place in LAYOUTS.items():
            got = outcome(case, leaves, initial, everything(case), place=place, lowering=lowering)
            assert_identical(got, plain, layout)

    def test_req31_each_tensor_in_a_layout_of_its_own(self, case, lowering):
        leaves, initial = draw(case, (2, 5, 3), F32)
        plain = check(case, leaves, initial, everything(case), reverse=True, lowering=lowering)
        places = iter([*LAYOUTS.values(), guarded] * 4)
        got = outcome(
            case, leaves, initial, everything(case), reverse=True, place=lambda x: next(places)(x),
            lowering=lowering,
        )  # fmt: skip
        assert_identical(got, plain, "mixed")

    def test_req31_expanded_inputs(self, case, lowering):
        """Stride 0 is a stride: an `expand` reads as the full tensor, and torch reduces its gradient."""
        leaves, initial = draw(case, (2, 5, 3))
        thin = {n: x.narrow((i + 1) % 3, 0, 1) for i, (n, x) in enumerate(leaves.items())}
        full = {n: x.expand(2, 5, 3) for n, x in thin.items()}
        plain = check(case, full, initial, Loss((0,), ()), lowering=lowering)

        def place(x):
            return x.expand(2, 5, 3) if x.ndim == 3 and 1 in x.shape else x.clone()

        got = outcome(
            case, thin, initial, Loss((0,), ()), place=place, place_cotangent=guarded, lowering=lowering
        )
        assert_identical(got, plain, "expanded")

    def test_req31_expanded_cotangents(self, case, lowering):
        """What `sum().backward()` sends: one number with strides of 0."""
        leaves, initial = draw(case, (2, 5, 3), F32)

        def sent(place_cotangent):
            loss = everything(case)
            return outcome(case, leaves, initial, loss, place_cotangent=place_cotangent, lowering=lowering)

        assert_identical(sent(lambda c: c.new_ones(()).expand(c.shape)), sent(torch.ones_like), "expanded")

    def test_req33_nothing_is_read_past_the_end(self, case, lowering):
        """NaN behind every tensor, or 1e30: the same result, and the right one."""
        for length in (1, 4, 7):
            leaves, initial = draw(case, (1, length, 5), F32)
            results = []
            for guard in (float("nan"), 1e30):
                place = partial(guarded, guard=guard)
                results.append(
                    outcome(case, leaves, initial, everything(case), place=place, lowering=lowering)
                )
            assert_identical(*results, "guard")
            truth = expected(case, leaves, initial, everything(case))
            for name, x in results[0].gradients.items():
                assert_close(x, truth.gradients[name], "gradient", name)

    def test_req33_nothing_is_written_past_the_end(self, case, lowering, monkeypatch):
        """Every tensor that scanforge allocates lies between guard values, which are whole afterwards."""
        wholes = []
        plain = torch.Tensor.new_empty

        def new_empty(self, size, *, dtype=None, **rest):
            made = plain(self, size, dtype=dtype, **rest)
            margin = 4096
            whole = torch.full((made.numel() + 2 * margin,), 77, dtype=made.dtype)
            if made.numel():
                wholes.append((whole, margin))
            return whole[margin : margin + made.numel()].view(made.shape)

        def empty_like(x, **_):
            return new_empty(x, x.shape)

        monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
        monkeypatch.setattr(torch, "empty_like", empty_like)
        leaves, initial = draw(case, (2, 5, 3), F32)
        check(case, leaves, initial, everything(case), lowering=lowering)
        assert len(wholes) > 2 * len(case.states)  # outputs, final states, what is kept, gradients
        for whole, margin in wholes:
            assert (whole[:margin] == 77).all()
            assert (whole[-margin:] == 77).all()


@every_lowering
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_req30_strides_beyond_32_bits(axis, lowering, tmp_path):
    """A few numbers very far apart in a sparse file: the offset of the last one passes 2^31 elements."""
    case, shape = BY_NAME["Affine"], (2, 5, 3)
    far = 2**31 // (shape[axis] - 1) + 5
    strides = [far if i == axis else (1, 3, 64)[i] for i in range(3)]
    leaves, initial = draw(case, shape, BF16)
    plain = outcome(case, leaves, initial, everything(case), lowering=lowering)
    files = iter(range(9))

    def place(x):
        if x.ndim != 3:
            return x.clone()
        span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        whole = torch.from_file(str(tmp_path / f"{next(files)}"), shared=True, size=span, dtype=x.dtype)
        return whole.as_strided(shape, strides).copy_(x)

    got = outcome(case, leaves, initial, everything(case), place=place, lowering=lowering)
    assert_identical(got, plain, f"axis {axis}")


@every_lowering
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
class TestIntegers:
    def test_flags_of_every_width(self, kind, lowering):
        case = BY_NAME["LastFlagged"]
        leaves, initial = draw(case, (2, 5, 3), F32)
        check(case, leaves | {"flag": leaves["flag"].to(kind)}, initial, everything(case), lowering=lowering)

    def test_integer_states_keep_the_tensors_type(self, kind, lowering):
        case = BY_NAME["RunningMax"]
        leaves, (top, at) = draw(case, (2, 5, 3), F32)
        leaves["index"] = leaves["index"].to(kind)
        initial = top, at.abs().to(kind)
        got = check(case, leaves, initial, everything(case), lowering=lowering)
        assert got.states[1].dtype == kind
        assert got.finals[1].dtype == (torch.int64 if kind == torch.int64 else torch.int32)


@every_lowering
class TestOtherKinds:
    def test_bools_and_counts(self, lowering):
        """No float at all."""
        now = torch.rand((3, 40), generator=generator(0)) < 0.1
        (seen, count), (last, total) = sf.scan(
            Seen, now=guarded(now), many=guarded(now.to(torch.int32)), return_final_state=True,
            backend="triton", lowering=lowering,
        )  # fmt: skip
        assert (seen.dtype, count.dtype) == (torch.bool, torch.int32)
        assert torch.equal(seen, now.cumsum(1) > 0)
        assert torch.equal(count, now.cumsum(1).int())
        assert torch.equal(last, now.any(1))
        assert torch.equal(total.long(), now.sum(1))

    def test_gradient_beside_a_bool(self, lowering):
        g = generator(1)
        clear = torch.rand((2, 30, 3), generator=g) < 0.2
        b = torch.randn(2, 30, 3, generator=g, dtype=F64, requires_grad=True)
        h0 = torch.randn(2, 3, generator=g, dtype=F64, requires_grad=True)
        got = sf.scan(Gated, clear=clear, b=b, initial_state=h0, backend="triton", lowering=lowering)
        truth = BY_NAME["Affine"].loop({"a": (~clear).to(F64), "b": b}, (h0,))[0][0]
        assert_close(got, truth, "forward")
        c = cotangent(truth, 0)
        for x, y in zip(*(torch.autograd.grad(z, (b, h0), c) for z in (got, truth)), strict=True):
            assert_close(x, y, "gradient")

    @pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
    def test_complex_tensors(self, dtype, lowering):
        """Real and imaginary parts are read in place, with a stride of 2."""
        leaves, initial = complex_leaves(dtype, 5)
        check(BY_NAME["Affine"], leaves, initial, Loss((0,), (0,)), lowering=lowering)

    @pytest.mark.parametrize(
        ("gate", "term"), [(F32, BF16), (BF16, F32), (F16, BF16), (F64, F16), (F32, F64)], ids=str
    )
    def test_mixed_dtypes(self, gate, term, lowering):
        """Each gradient in its input's dtype. (The interpreter casts float64 to bfloat16 wrongly.)"""
        case = BY_NAME["Affine"]
        leaves, _ = draw(case, (2, 5, 3))
        _, initial = draw(case, (2, 5, 3), F32)
        leaves = {"a": leaves["a"].to(gate), "b": leaves["b"].to(term)}
        got = check(case, leaves, initial, Loss((0,), (0,)), lowering=lowering)
        assert got.states[0].dtype == torch.promote_types(gate, term)
        assert {n: x.dtype for n, x in got.gradients.items()} == {"a": gate, "b": term, "initial h": F32}

    def test_a_state_is_kept_in_float32(self, lowering):
        """Rounded to the bfloat16 output, 3.0001 would tie with 3 in the backward pass."""
        r = torch.tensor([[9.0, 3.0, 9.0]], dtype=BF16, requires_grad=True)
        s = torch.full((1, 3), -3.0, dtype=BF16)
        h0 = torch.tensor([3.0001], requires_grad=True)
        states = sf.scan(sf.operators.MinMax, r=r, s=s, initial_state=h0, backend="triton", lowering=lowering)
        assert many(states)[0].tolist() == [[3, 3, 3]]
        dr, dh0 = torch.autograd.grad(states[0, 2], (r, h0))
        assert (dr.tolist(), dh0.tolist()) == ([[0, 1, 0]], [0])
