"""What the protocol asks of every mixer, each as one check that takes a way to make the layer.

`make()` returns a fresh layer with the same weights every time. Numbers are compared in float64 at 1e-12.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from models.mixer import Mixer, State, tensors
from tests.catalogue import chance, generator

Make = Callable[[], Mixer]
F64 = torch.float64
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def refused(make: Callable[[], Any], *words: str) -> None:
    """A ValueError with these words in it."""
    with pytest.raises(ValueError, match=r".") as refusal:
        make()
    assert all(w in str(refusal.value) for w in words), refusal.value


def seeded(build: Callable[[], Mixer], dtype: torch.dtype = F64) -> Make:
    """`make` for a constructor: the same weights every time, none of them at a special value."""

    def make() -> Mixer:
        torch.manual_seed(0)
        layer = build().to(dtype).eval()
        with torch.no_grad():
            for p in layer.parameters():
                p.add_(0.1 * torch.randn(p.shape, generator=generator(p.numel()), dtype=torch.float32).to(p))
        return layer

    return make


def drawn(layer: Mixer, batch: int, steps: int, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(batch, steps, layer.d_model, dtype=torch.float64, generator=generator(7)).to(dtype)


def rows(state: State, f: Callable[[Tensor], Tensor]) -> State:
    """The state with f on each of its tensors."""
    if isinstance(state, Tensor):
        return f(state)
    if isinstance(state, dict):
        return {k: rows(v, f) for k, v in state.items()}
    return type(state)(rows(v, f) for v in state)


def assert_states(got: State, want: State, **bounds: float) -> None:
    for x, y in zip(tensors(got), tensors(want), strict=True):
        torch.testing.assert_close(x, y, **(bounds or TIGHT))


def in_pieces(layer: Mixer, x: Tensor, cuts: Sequence[int], state: State = None) -> tuple[Tensor, State]:
    """Chunks of these lengths, one after another; a chunk of one step through `step`."""
    parts, at = [], 0
    for n in cuts:
        if n == 1:
            if state is None:
                state = layer.initial_state(x.shape[0])
            y_t, state = layer.step(x[:, at], state)
            parts.append(y_t[:, None])
        else:
            y, state = layer(x[:, at : at + n], state=state, return_state=True)
            parts.append(y)
        at += n
    assert at == x.shape[1]
    return torch.cat(parts, 1), state


def check_token_pieces(lm: Any, tokens: Tensor, cuts: Sequence[int], whole: Tensor, after: State) -> None:
    """The logits and the state of one run from pieces of these lengths; no piece changes a given state."""
    parts, state, at = [], lm.initial_state(tokens.shape[0]), 0
    for n in cuts:
        kept, before = rows(state, torch.clone), state
        if n == 1:
            logits, state = lm.step(tokens[:, at], state)
            parts.append(logits[:, None])
        else:
            logits, state = lm(tokens[:, at : at + n], state=state, return_state=True)
            parts.append(logits)
        assert_states(before, kept, rtol=0, atol=0)
        at += n
    torch.testing.assert_close(torch.cat(parts, 1), whole, **TIGHT)
    assert_states(state, after)


def check_chunks_and_steps(make: Make) -> None:
    """Requirement 37: any mix of prefill, steps and chunks is one run; a given state does not change."""
    layer = make()
    x = drawn(layer, 2, 40)
    whole, after = layer(x, return_state=True)
    torch.testing.assert_close(layer(x), whole, rtol=0, atol=0)
    for cuts in ([1] * 40, [7, 1, 32], [39, 1], [0, 20, 20], [5, 1, 1, 1, 30, 2]):
        y, state = in_pieces(layer, x, cuts)
        torch.testing.assert_close(y, whole, **TIGHT)
        assert_states(state, after)
    kept = rows(after, torch.clone)
    twice = [in_pieces(layer, x, [1] * 40, after) for _ in range(2)]
    assert torch.equal(twice[0][0], twice[1][0])
    assert_states(after, kept, rtol=0, atol=0)


def check_gradients_through_chunks(make: Make) -> None:
    """Gradients of parameters, input and state through chunks are those of one run."""
    layer = make()
    x = drawn(layer, 2, 9).requires_grad_()
    start = rows(layer(drawn(layer, 2, 3), return_state=True)[1], lambda s: s.detach().requires_grad_())
    leaves = [x, *tensors(start), *(p for p in layer.parameters() if p.requires_grad)]
    made = [in_pieces(layer, x, cuts, start) for cuts in ([9], [4, 5], [1] * 9, [4, 1, 4])]
    weight = drawn(layer, 2, 9).cos()
    losses = [(weight * y).sum() + sum((s * s).sum() for s in tensors(state)) for y, state in made]
    want, *others = (torch.autograd.grad(loss, leaves, allow_unused=True) for loss in losses)
    for got in others:
        for a, b in zip(got, want, strict=True):
            a, b = (torch.zeros(()) if g is None else g for g in (a, b))
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11, check_dtype=False)


def check_resets_are_separate_runs(make: Make) -> None:
    """A reset at t: everything from t on is a run of its own, whatever state the call was given."""
    layer = make()
    x = drawn(layer, 2, 12)
    _, start = layer(drawn(layer, 2, 3), return_state=True)
    reset = chance(generator(3), (2, 12), 0.25)
    reset[0, 5:7] = True
    y, after = layer(x, state=start, return_state=True, reset=reset)
    for b in range(2):
        bounds = sorted({0, 12, *(t for t in range(12) if reset[b, t])})
        for first, end in pairwise(bounds):
            carried = first == 0 and not reset[b, 0]
            state = rows(start, lambda s, b=b: s[b : b + 1]) if carried else None
            alone, last = layer(x[b : b + 1, first:end], state=state, return_state=True)
            torch.testing.assert_close(y[b : b + 1, first:end], alone, **TIGHT)
        assert_states(rows(after, lambda s, b=b: s[b : b + 1]), last)


def check_packed_are_separate_runs(make: Make) -> None:
    """Packed sequences, one of them empty, each from its own state."""
    layer, bounds = make(), [0, 1, 1, 5, 12]
    x, cu = drawn(layer, 1, 12), torch.tensor(bounds)
    _, start = layer(drawn(layer, 4, 3), return_state=True)
    for given in (start, None):
        y, after = layer(x, state=given, return_state=True, cu_seqlens=cu)
        for n, (first, end) in enumerate(pairwise(bounds)):
            state = None if given is None else rows(given, lambda s, n=n: s[n : n + 1])
            alone, last = layer(x[:, first:end], state=state, return_state=True)
            torch.testing.assert_close(y[:, first:end], alone, **TIGHT)
            assert_states(rows(after, lambda s, n=n: s[n : n + 1]), last)


def check_padding(make: Make) -> None:
    """Requirement 38: padding on any side, NaN in it, batches of 3 and 1; nothing comes of padding."""
    layer, steps = make(), 14
    left = torch.arange(steps) >= torch.tensor([0, 3, 10])[:, None]
    middle = chance(generator(5), (3, steps), 0.6)
    for mask in (left, left.flip(1), middle, left[1:2], left[2:].flip(1)):
        x = drawn(layer, mask.shape[0], steps)
        x = x.masked_fill(~mask[..., None], float("nan")).requires_grad_()
        y, after = layer(x, return_state=True, mask=mask)
        (y.sum() + sum(s.sum() for s in tensors(after))).backward()
        assert x.grad is not None
        assert not x.grad[~mask].any()
        assert not y[~mask].any()
        assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
        for b in range(mask.shape[0]):
            alone, last = layer(x.detach()[b : b + 1, mask[b]], return_state=True)
            torch.testing.assert_close(y[b : b + 1, mask[b]], alone, **TIGHT)
            assert_states(rows(after, lambda s, b=b: s[b : b + 1]), last)


def check_short_sequences(make: Make) -> None:
    """Requirement 27: 0 to 17 steps, one sequence, forward and backward; none leaves the state as it was."""
    layer = make()
    long = drawn(layer, 1, 17)
    whole = layer(long)
    for steps in range(18):
        x = long[:, :steps].clone().requires_grad_()
        y, state = layer(x, return_state=True)
        torch.testing.assert_close(y, whole[:, :steps], **TIGHT)
        (y.sum() + sum(s.sum() for s in tensors(state))).backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()
    _, start = layer(long, return_state=True)
    y, after = layer(long[:, :0], state=start, return_state=True)
    assert tuple(y.shape) == (1, 0, layer.d_model)
    assert_states(after, start, rtol=0, atol=0)


def check_state_types(make: Make, build: Callable[[], Mixer]) -> None:
    """Requirements 24, 37, 40: a bf16 layer's state is fp32; steps are one run; `state_size` is the truth."""
    layer = build().to(torch.bfloat16).eval()
    x = drawn(layer, 2, 40, torch.bfloat16)
    whole, state = layer(x, return_state=True)
    assert whole.dtype == torch.bfloat16
    assert {s.dtype for s in tensors(state)} == {torch.float32}
    assert {s.dtype for s in tensors(layer.initial_state(2))} == {torch.float32}
    for cuts in ([30, *[1] * 10], [7, 1, 32]):
        y, _ = in_pieces(layer, x, cuts)
        error = (y.double() - whole.double()).norm() / whole.double().norm()
        assert error <= 1e-2, error
    wide = make()
    _, state = wide(drawn(wide, 1, 3), return_state=True)
    assert {s.dtype for s in tensors(state)} == {F64}
    assert wide.state_size == sum(s.numel() for s in tensors(state))
    assert all(s.shape[0] == 5 for s in tensors(wide.initial_state(5)))


def check_mixed_precision(build: Callable[[], Mixer]) -> None:
    """Requirement 48: fp32 parameters under autocast; gradients keep the dtypes of what they belong to."""
    for dtype in (torch.bfloat16, torch.float16):
        layer = build()
        x = drawn(layer, 2, 9, torch.float32).requires_grad_()
        with torch.autocast("cpu", dtype):
            y = layer(x)
        assert y.dtype == dtype
        y.float().sum().backward()
        assert x.grad is not None
        assert x.grad.dtype == torch.float32
        used = [p for p in layer.parameters() if p.grad is not None]
        assert used
        assert all(p.grad is not None and p.grad.dtype == p.dtype for p in used)
        with torch.autocast("cpu", dtype):
            layer(x).float().sum().backward()


def check_gradcheck(make: Make, batch: int = 2, steps: int = 4) -> None:
    """Numerical derivatives by the input, the state and every parameter."""
    layer = make()
    x = drawn(layer, batch, steps).requires_grad_()
    start = layer(drawn(layer, batch, 2), return_state=True)[1]
    given = [s.detach().requires_grad_() for s in tensors(start)]
    named = {n: p.detach().clone().requires_grad_() for n, p in layer.named_parameters() if p.requires_grad}

    def run(*leaves: Tensor) -> tuple[Tensor, ...]:
        rest = iter(leaves[1 + len(named) :])
        weights = dict(zip(named, leaves[1 : 1 + len(named)], strict=True))
        state = rows(start, lambda _: next(rest))
        options = {"state": state, "return_state": True}
        y, after = torch.func.functional_call(layer, weights, (leaves[0],), options)
        return (y, *tensors(after))

    assert torch.autograd.gradcheck(run, (x, *named.values(), *given), fast_mode=False)


def check_state_errors(make: Make) -> None:
    """A state that does not belong here is refused by name."""
    layer = make()
    x = drawn(layer, 2, 4)
    refused(lambda: layer(x, state=layer.initial_state(3)), "state", "expected")
    refused(lambda: layer(x, state="nothing"), "state", "expected")
    refused(lambda: layer(x[..., :-1]), "x", "expected")
    refused(lambda: layer(x, mask=torch.ones(2, 3)), "mask", "(2, 3)", "(2, 4)")
    refused(lambda: layer(x, cu_seqlens=torch.tensor([0, 4])), "cu_seqlens", "batch of one")
