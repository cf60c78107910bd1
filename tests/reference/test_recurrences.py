"""Every recurrence of the catalogue against its loop: values, final states, every gradient."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import scanforge as sf
from tests.recurrences import BY_NAME, ENTRIES, draw
from tests.reference.compare import cotangent, many
from tests.reference.fused import (
    actual,
    assert_same,
    both_ways,
    check,
    every_entry,
    every_lowering,
    expected,
    scan,
    some,
)
from tests.tolerances import assert_close, assert_equal

LENGTHS = (0, 1, 2, 5, 17)


def test_the_design_page_s_names():
    assert sf.Affine is sf.operators.Affine
    assert len(ENTRIES) == len(BY_NAME) == 18


@every_entry
@both_ways
@pytest.mark.parametrize("given", [False, True], ids=["default start", "given start"])
@pytest.mark.parametrize("length", LENGTHS)
def test_values_and_gradients(entry, reverse, given, length):
    tensors, initial = draw(entry, seed=length, t=length)
    check(entry, tensors, initial if given else None, reverse=reverse)


@every_entry
def test_longer_than_a_level_of_the_tree(entry):
    tensors, initial = draw(entry, seed=67, t=67, b=1)
    check(entry, tensors, initial)


@every_entry
@pytest.mark.parametrize("empty", ["b", "d", "n", "h", "k", "v"])
def test_an_axis_of_size_0(entry, empty):
    if any(empty in part.axes.split() for part in entry.inputs.values()):
        check(entry, *draw(entry, t=3, **{empty: 0}))


@every_entry
def test_every_axis_of_size_1(entry):
    check(entry, *draw(entry, t=1, **dict.fromkeys("bdnhkv", 1)))


@every_entry
def test_one_input_wants_a_gradient(entry):
    """The others are constants: nothing may depend on who else asks."""
    tensors, initial = draw(entry)
    truth = expected(entry, tensors, initial, ["both"]).gradients["both"]
    for name, x in tensors.items():
        if not x.is_floating_point():
            continue
        alone = x.clone().requires_grad_()
        outputs, finals = scan(entry, tensors | {name: alone}, initial)
        read = [*outputs, *finals]
        slots = [(y, cotangent(y, i)) for i, y in enumerate(read) if y.requires_grad]
        (slope,) = torch.autograd.grad([y for y, _ in slots], alone, [c for _, c in slots])
        assert_close(slope, truth[name], "long", name)


@every_entry
def test_inputs_of_size_1_broadcast_and_get_the_summed_gradient(entry):
    full, initial = draw(entry)
    for name, part in entry.inputs.items():
        for index, axis in enumerate(part.axes.split()):
            if sum(axis in other.axes.split() for other in entry.inputs.values()) > 1:
                check(entry, full | {name: full[name].narrow(index, 0, 1)}, initial, ["both"])


@some("SelectiveSSM", "HGRN2", "GatedMinMax", "LinearAttention")
def test_initial_states_broadcast(entry):
    """A learnable start that the batch shares, as (1, ...)."""
    tensors, initial = draw(entry)
    check(entry, tensors, tuple(x[:1] for x in initial))


@every_entry
def test_leading_batch_axes(entry):
    """(2, 3) in front, b included: the same as one axis of 6; sums over b go over the declared axis alone."""
    tensors, initial = draw(entry, b=6, t=4)
    if "b" not in " ".join(entry.outputs) or any("b" not in axes for axes in entry.outputs):
        return
    with_b = [n for n, part in entry.inputs.items() if "b" in part.axes.split()]
    truth = expected(entry, tensors, initial)
    split = {n: x.unflatten(0, (2, 3)) if n in with_b else x for n, x in tensors.items()}
    got = actual(entry, split, tuple(x.unflatten(0, (2, 3)) for x in initial))
    flat = {
        loss: {n: x.flatten(0, 1) if n in with_b or "initial" in n else x for n, x in slopes.items()}
        for loss, slopes in got.gradients.items()
    }
    outputs = (tuple(x.flatten(0, 1) for x in xs) for xs in (got.outputs, got.finals))
    assert_same(type(got)(*outputs, flat), truth)


@every_entry
def test_any_strides(entry):
    """Axes laid out backwards in memory, slices of something larger, expanded inputs."""
    tensors, initial = draw(entry)
    truth = expected(entry, tensors, initial)

    def strange(x):
        order = tuple(reversed(range(x.ndim)))
        big = torch.full([2 * n + 1 for n in x.shape], float("nan") if x.is_floating_point() else 7)
        big = big.to(x.dtype).permute(order).contiguous().permute(order)
        return big[(slice(1, None, 2),) * x.ndim].copy_(x) if x.ndim else x

    moved = {n: strange(x) for n, x in tensors.items()}
    assert_same(actual(entry, moved, tuple(strange(x) for x in initial)), truth)


@every_entry
@both_ways
def test_reverse_is_the_flipped_scan(entry, reverse):
    tensors, initial = draw(entry, t=6)
    axes = {n: part.axes.split() for n, part in entry.inputs.items()}
    flipped = {n: x.flip(axes[n].index("t")) if "t" in axes[n] else x for n, x in tensors.items()}
    outputs, finals = scan(entry, tensors, initial, reverse=reverse)
    twins, ends = scan(entry, flipped, initial, reverse=not reverse)
    for x, y, names in zip(outputs, twins, entry.outputs, strict=True):
        if "t" in names.split():
            assert_equal(x, y.flip(names.split().index("t")))
        else:
            assert_close(x, y, "forward")
    for x, y in zip(finals, ends, strict=True):
        assert_equal(x, y)


TINY = {"b": 1, "t": 3, "d": 2, "n": 2, "h": 1, "k": 2, "v": 1}


@some("RGLRU", "Mamba", "HGRN2", "LinearAttention", "GatedMinMax", "Innovation", "Summing", "LRU")
@every_lowering
@both_ways
def test_gradcheck(entry, lowering, reverse):
    """First and second derivatives against finite differences."""
    tensors, initial = draw(entry, **TINY)
    names = list(tensors)

    def function(*inputs):
        outputs, finals = scan(
            entry,
            dict(zip(names, inputs, strict=False)),
            inputs[len(names) :],
            lowering=lowering,
            reverse=reverse,
        )
        return (*outputs, *finals)

    inputs = tuple(x.clone().requires_grad_() for x in (*tensors.values(), *initial))
    assert gradcheck(function, inputs)
    if not reverse:
        assert gradgradcheck(function, inputs)


@every_entry
def test_second_derivative_through_the_loop(entry):
    """The gradient of a norm of the gradient, as a loss of its own."""
    tensors, initial = draw(entry, t=4)

    def penalty(run):
        inputs = {n: x.clone().requires_grad_(x.is_floating_point()) for n, x in tensors.items()}
        wanted = [x for x in inputs.values() if x.requires_grad]
        outputs, _ = run(inputs)
        loss = sum((y * y).sum() for y in outputs)
        slopes = torch.autograd.grad(loss, wanted, create_graph=True, materialize_grads=True)
        size = sum((g * g).sum() for g in slopes)
        return torch.autograd.grad(size, wanted, allow_unused=True, materialize_grads=True)

    truth = penalty(lambda inputs: entry.loop(inputs, initial))
    for x, y in zip(penalty(lambda inputs: scan(entry, inputs, initial)), truth, strict=True):
        assert_close(x, y, "long", "second derivative")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@some("RGLRU", "Mamba", "HGRN2", "GatedMinMax", "Summing")
def test_types(entry, dtype):
    """Outputs in the inputs' type, states in float32, each gradient in the type of its input."""
    tensors, initial = draw(entry, dtype, seed=4, t=12)
    got = actual(entry, tensors, tuple(x.float() for x in initial))
    assert {x.dtype for x in got.outputs} == {dtype}
    assert {x.dtype for x in got.finals} == {torch.float32}
    for slopes in got.gradients.values():
        for name, x in slopes.items():
            assert x.dtype == (torch.float32 if name.startswith("initial") else dtype), name
    truth = expected(entry, tensors, initial)
    for xs, ys in ((got.outputs, truth.outputs), (got.finals, truth.finals)):
        for x, y in zip(xs, ys, strict=True):
            assert_close(x, y, "forward", entry.name)
    for loss, slopes in got.gradients.items():
        for name, x in slopes.items():
            assert_close(x, truth.gradients[loss][name], "gradient", f"{loss} by {name}")


def test_parameters_do_not_promote_the_output():
    """A bf16 layer with an fp32 A gives bf16; a float64 input computes in float64."""
    entry = BY_NAME["SelectiveSSM"]
    tensors, _ = draw(entry, torch.bfloat16)
    y, (h,) = scan(entry, tensors | {"A": tensors["A"].float(), "D": tensors["D"].float()})
    assert (y[0].dtype, h.dtype) == (torch.bfloat16, torch.float32)
    y, (h,) = scan(entry, tensors | {"A": tensors["A"].double()})
    assert (y[0].dtype, h.dtype) == (torch.bfloat16, torch.float64)
    y, _ = scan(entry, tensors | {"u": tensors["u"].float()})
    assert y[0].dtype == torch.float32


@every_entry
def test_what_scan_returns(entry):
    """A tensor where there is one, a tuple where there are several, in declared order."""
    tensors, _ = draw(entry)
    outputs = sf.scan(entry.recurrence, **tensors)
    assert isinstance(outputs, tuple) == (len(entry.outputs) > 1)
    _, finals = sf.scan(entry.recurrence, **tensors, return_final_state=True)
    assert isinstance(finals, tuple) == (len(entry.states) > 1)
    sizes = entry.sizes(tensors)
    for y, axes in zip(many(outputs), entry.outputs, strict=True):
        assert y.shape == tuple(sizes[a] for a in axes.split())
        assert y.is_contiguous()
