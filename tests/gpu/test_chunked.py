"""Matrix products over chunks on a GPU at real sizes, forward and backward.

The truth is a loop over chunks in float64, on some heads of the call: lanes have nothing to do with each
other. The loop divides by products of decays, so its gates are mild; strong ones are the reference's.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

import scanforge as sf
from tests.matrix_recurrences import Matrix
from tests.recurrence_declarations import HGRN2
from tests.tolerances import assert_close, err

pytestmark = pytest.mark.gpu


BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
SHAPES = [
    (8, 2048, 16, 128, 128),
    (1, 32768, 16, 128, 128),  # groups of chunks
    (8, 2048, 4, 256, 512),
    (8, 2048, 8, 64, 64),
    (2, 1000, 3, 100, 72),
]


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Inputs and first states; cotangents of outputs and last states."""
    b, t, h, k, v = shape
    g = torch.Generator("cuda").manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, device="cuda", generator=g)

    x = {"q": normal(b, t, h, k), "f": normal(b, t, h, k), "v": normal(b, t, h, v)}
    x = {n: y.to(dtype) for n, y in x.items()}
    x |= {"lower": 0.3 * torch.rand(h, k, device="cuda", generator=g), "S": normal(b, h, k, v)}
    return {n: y.requires_grad_() for n, y in x.items()}, [normal(b, t, h, v).to(dtype), normal(b, h, k, v)]


def ours(x: dict[str, Tensor], cotangents: list[Tensor], **options: object) -> dict[str, Tensor]:
    """Outputs, last states and gradients of a call."""
    given = {n: y for n, y in x.items() if n != "S"}
    shown = sf.scan(HGRN2, **given, initial_state=x["S"], return_final_state=True, **options)
    found = torch.autograd.grad(shown, list(x.values()), cotangents)
    return dict(zip(("y", "final"), shown, strict=True)) | dict(zip(x, found, strict=True))


def truth(q: Tensor, f: Tensor, v: Tensor, lower: Tensor, S: Tensor, C: int = 64) -> tuple[Tensor, Tensor]:
    """HGRN2 chunk by chunk, in float64."""
    shown = []
    gates = lower + (1 - lower) * torch.sigmoid(f)
    for qc, g, vc in zip(q.split(C, 1), gates.split(C, 1), v.split(C, 1), strict=True):
        G = g.cumprod(1)
        Q, K = qc * G, (1 - g) / G
        A = torch.einsum("bihk,bjhk->bhij", Q, K).tril()
        shown.append(torch.einsum("bhij,bjhv->bihv", A, vc) + torch.einsum("bihk,bhkv->bihv", Q, S))
        S = G[:, -1, ..., None] * (S + torch.einsum("bjhk,bjhv->bhkv", K, vc))
    return torch.cat(shown, 1), S


def heads(name: str, x: Tensor, which: list[int]) -> Tensor:
    """Some heads of a tensor, wide."""
    at = {"lower": 0, "S": 1, "final": 1}.get(name, 2)
    return x.detach().index_select(at, torch.tensor(which, device="cuda")).double()


@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_real_sizes(shape, dtype):
    x, cotangents = drawn(shape, dtype)
    got, which = ours(x, cotangents, lowering="chunked"), [0, shape[2] - 1]
    wide = {n: heads(n, y, which).requires_grad_() for n, y in x.items()}
    shown = truth(**wide)
    grads = [heads(n, c, which) for n, c in zip(("y", "final"), cotangents, strict=True)]
    found = torch.autograd.grad(shown, list(wide.values()), grads)
    expected = dict(zip(("y", "final"), shown, strict=True)) | dict(zip(wide, found, strict=True))
    for name, y in expected.items():
        quantity = "forward" if name in {"y", "final"} else "gradient"
        assert_close(heads(name, got[name], which), y, quantity, name, dtype=dtype)
    again = ours(x, cotangents, lowering="chunked")
    assert all(torch.equal(y, again[n]) for n, y in got.items())


@pytest.mark.parametrize("scale", [30.0, 1e4], ids=str)
def test_gates_of_0_and_1(scale):
    """Chunks that are flagged: the sigmoid is 0 or 1 of most that is drawn."""
    x, cotangents = drawn((1, 300, 2, 40, 56), F32)
    with torch.no_grad():
        x["f"].mul_(scale)
        x["lower"].zero_()
    got = ours(x, cotangents, lowering="chunked")
    wide = {n: y.detach().double().requires_grad_() for n, y in x.items()}
    expected = ours(wide, [c.double() for c in cotangents], backend="reference", lowering="loop")
    for name, y in expected.items():
        assert_close(got[name], y, "forward" if name in {"y", "final"} else "gradient", name)


def test_packed_is_each_sequence_alone():
    x, _ = drawn((1, 1000, 2, 64, 64), BF16)
    ends = [0, 0, 300, 301, 1000]
    tensors = {n: y.detach() for n, y in x.items() if n != "S"}
    cu = torch.tensor(ends, device="cuda")
    y, final = sf.scan(HGRN2, **tensors, cu_seqlens=cu, return_final_state=True, lowering="chunked")
    for k, (first, last) in enumerate(pairwise(ends)):
        if first < last:
            part = {n: t[:, first:last] if n != "lower" else t for n, t in tensors.items()}
            alone = sf.scan(HGRN2, **part, return_final_state=True, lowering="chunked")
            assert torch.equal(y[:, first:last], alone[0])
            assert torch.equal(final[k : k + 1], alone[1])
    assert err(final[0], torch.zeros_like(final[0])) == 0


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "reset"])
@pytest.mark.parametrize("decay", ["bounded", "on values", "log", "head's", "none"])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=["bf16", "fp32"])
def test_forms_and_resets(dtype, decay, cut):
    """As the plan chooses; sides and time that fill no block, and the axis that decays on either side."""
    matrix = Matrix(decay=decay, read="gated")
    x = {n: t.cuda() for n, t in matrix.draw(dtype, b=2, h=2, t=300, k=72, v=100).items()}
    seed = torch.randn(2, 300, 2, 100, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).to(
        BF16
    )
    starts = torch.zeros(2, 300, dtype=torch.bool, device="cuda")
    starts[0, [0, 5, 64, 200]] = starts[1, 127] = cut

    def run(x: dict[str, Tensor], **options: object) -> dict[str, Tensor]:
        given = {n: t.detach().requires_grad_() for n, t in x.items()}
        y = sf.scan(matrix.recurrence(), **given, reset=starts if cut else None, **options)
        found = torch.autograd.grad(y, list(given.values()), seed.to(y.dtype))
        return {"y": y} | dict(zip(given, found, strict=True))

    got = run(x)
    assert sf.last_run().plan.lowering == "chunked"
    expected = run({n: t.double() for n, t in x.items()}, backend="reference", lowering="loop")
    for name, y in expected.items():
        assert_close(got[name], y, "forward" if name == "y" else "gradient", name, dtype=dtype)
