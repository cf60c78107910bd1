"""Random recurrences in the reference: values, gradients, second derivatives, packing and single steps."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import scanforge as sf
from tests.catalogue import generator
from tests.random_recurrences import ORDER, Drawn, options_of, recurrences, tensors_of
from tests.reference.compare import LOWERINGS, cotangent, many
from tests.reference.fused import single
from tests.tolerances import assert_close

widths = st.lists(st.integers(1, 3), min_size=4, max_size=4)


def random(examples: int, shortest: int = 0):
    """A test of a drawn recurrence, its number of steps, the sizes of its other axes, and a seed."""

    def decorate(test):
        options = settings(deadline=None, max_examples=examples, derandomize=True, report_multiple_bugs=False)
        return options(given(recurrences(), st.integers(shortest, 6), widths, st.integers(0, 99))(test))

    return decorate


def gradients(outputs, inputs, missing: bool):
    pairs = [(y, cotangent(y, i)) for i, y in enumerate(outputs) if y.requires_grad]
    if not pairs:
        return tuple(torch.zeros_like(x) for x in inputs)
    unused = {"allow_unused": missing, "materialize_grads": missing}
    read, cotangents = zip(*pairs, strict=True)
    return torch.autograd.grad(read, inputs, cotangents, retain_graph=True, **unused)


def scan(drawn: Drawn, tensors, initial, lowering: str, **options) -> list[Tensor]:
    """Outputs, then final states."""
    outputs, finals = sf.scan(
        drawn.recurrence(),
        **tensors,
        initial_state=single(initial),
        return_final_state=True,
        lowering=lowering,
        **options,
    )
    return [*many(outputs), *many(finals)]


def assert_same(drawn: Drawn, got, truth, inputs, missing: bool = False) -> None:
    """Values, and gradients by all inputs."""
    for x, y in zip(got, truth, strict=True):
        assert_close(x, y, "long", f"{drawn}")
    slopes = gradients(got, inputs, missing), gradients(truth, inputs, missing=True)
    for x, y in zip(*slopes, strict=True):
        if max(x.norm(), y.norm()) > 1e-13:  # else terms cancel, and the sum is what rounding left
            assert_close(x, y, "long", f"gradient of {drawn}")


@random(60)
def test_values_and_gradients(drawn, length, widths, seed):
    sizes = dict(zip(ORDER, widths, strict=True)) | {"t": length}
    tensors, initial = tensors_of(drawn, sizes, seed)
    options = options_of(sizes, seed)
    start = initial if seed & 8 else None
    outputs, finals = drawn.loop(tensors, start, sizes, options)
    for lowering in LOWERINGS:
        got = scan(drawn, tensors, start, lowering, **options)
        assert_same(drawn, got, [*outputs, *finals], [*tensors.values(), *(start or ())])


@random(25)
def test_packed_sequences(drawn, length, widths, seed):
    """Three sequences, some empty, and each by itself."""
    sizes = dict(zip(ORDER, widths, strict=True)) | {"t": length, "b": 1}
    tensors, _ = tensors_of(drawn, sizes, seed)
    _, initial = tensors_of(drawn, sizes | {"b": 3}, seed + 1)
    cuts = torch.randint(0, length + 1, (2,), generator=generator(seed))
    cu, options = [0, *sorted(cuts.tolist()), length], {"reverse": bool(seed & 1)}
    start, axes = (initial if seed & 8 else None), list(drawn.states().values())
    pieces = []
    for k, (begin, end) in enumerate(pairwise(cu)):
        part = {
            n: x.narrow(drawn.inputs[n].index("t"), begin, end - begin) if "t" in drawn.inputs[n] else x
            for n, x in tensors.items()
        }
        row = start and tuple(x.narrow(a.index("b"), k, 1) for x, a in zip(start, axes, strict=True))
        pieces.append(drawn.loop(part, row, sizes | {"t": end - begin}, options))
    columns = zip(drawn.outputs, zip(*(outputs for outputs, _ in pieces), strict=True), strict=True)
    truth = [torch.cat(ys, a.index("t")) if "t" in a else sum(ys) for a, ys in columns]
    columns = zip(axes, zip(*(finals for _, finals in pieces), strict=True), strict=True)
    truth += [torch.cat(xs, a.index("b")) for a, xs in columns]
    for lowering in LOWERINGS:
        got = scan(drawn, tensors, start, lowering, cu_seqlens=torch.tensor(cu), **options)
        assert_same(drawn, got, truth, [*tensors.values(), *(start or ())])


@random(20, shortest=1)
def test_steps(drawn, length, widths, seed):
    sizes = dict(zip(ORDER, widths, strict=True)) | {"t": length}
    tensors, initial = tensors_of(drawn, sizes, seed)
    outputs, finals = drawn.loop(tensors, initial, sizes, {})
    state, history = single(initial), []
    for t in range(length):
        row = {
            n: x.select(drawn.inputs[n].index("t"), t) if "t" in drawn.inputs[n] else x
            for n, x in tensors.items()
        }
        y, state = sf.step(drawn.recurrence(), state, **row)
        history.append(many(y))
    columns = zip(drawn.outputs, zip(*history, strict=True), strict=True)
    got = [torch.stack(ys, a.index("t")) if "t" in a else sum(ys) for a, ys in columns]
    inputs = [*tensors.values(), *initial]
    assert_same(drawn, [*got, *many(state)], [*outputs, *finals], inputs, missing=True)


@random(40)
def test_second_derivatives(drawn, length, widths, seed):
    """The gradient of the norm of the gradient of a sum of squares."""
    sizes = dict(zip(ORDER, widths, strict=True)) | {"t": length}
    tensors, initial = tensors_of(drawn, sizes, seed)
    inputs, options = [*tensors.values(), *initial], {"reverse": bool(seed & 1)}
    unused = {"allow_unused": True, "materialize_grads": True}

    def penalty(outputs):
        loss = sum(y.square().sum() for y in outputs)
        slopes = torch.autograd.grad(loss, inputs, create_graph=True, **unused)
        size = sum(g.square().sum() for g in slopes)
        if not size.requires_grad:
            return [torch.zeros_like(x) for x in inputs]
        return torch.autograd.grad(size, inputs, **unused)

    outputs, finals = drawn.loop(tensors, initial, sizes, options)
    truth = penalty([*outputs, *finals])
    for lowering in LOWERINGS:
        got = penalty(scan(drawn, tensors, initial, lowering, **options))
        for x, y in zip(got, truth, strict=True):
            assert_close(x, y, "long", f"second derivative of {drawn}")
