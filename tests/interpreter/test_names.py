"""A field may bear any name, also those of a kernel's own variables, or made of other fields'."""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from functools import cache

import pytest
import torch

import scanforge as sf
from scanforge.emit.triton_maths import HELPERS
from scanforge.fields import OPTIONS
from tests.catalogue import generator
from tests.kernels import guarded
from tests.reference.test_names import REFUSED, affine

pytestmark = pytest.mark.interpreter


def used_by_kernels() -> set[str]:
    """Every identifier in an operator's kernels, but for those that count rows beyond the first."""
    found = set(HELPERS)
    for which in ("forward", "backward"):
        text = io.StringIO(sf.source(sf.operators.Affine, which, backend="triton"))
        found |= {x.string for x in tokenize.generate_tokens(text.readline) if x.type == tokenize.NAME}
    counted = re.compile(r"(row|before)[1-9]|half\d_[1-9]|half[1-9]")
    return {n for n in found if not counted.match(n) and not keyword.iskeyword(n) and n[0] != "_"}


TAKEN = {*REFUSED, *OPTIONS}
NAMES = sorted(n for n in used_by_kernels() - TAKEN if not n.startswith("previous_"))
# Three at a time, as the two elements and the state, in both orders.
GROUPS = [tuple((NAMES + NAMES)[i : i + 3]) for i in range(0, len(NAMES), 3)]
GROUPS += [
    ("b", "in_b", "x_b"),
    ("in_b", "b", "x_b"),
    ("a_b0", "a", "h"),
    ("a", "a_b0", "a_0"),
    ("h_0", "h_1", "h"),
]
GROUPS += [("tl", "triton", "FLOAT"), ("T", "BD", "NS"), ("row", "lane", "outer"), ("step", "rerun", "power")]


def results(operator, names) -> list[torch.Tensor]:
    a, b, _ = names
    g = generator(4)
    tensors = [guarded(torch.rand(s, generator=g)).requires_grad_() for s in ((1, 9, 2), (1, 9, 2), (1, 2))]
    states, final = sf.scan(
        operator, **{a: tensors[0], b: tensors[1]}, initial_state=tensors[2], return_final_state=True,
        backend="triton",
    )  # fmt: skip
    return [states, final, *torch.autograd.grad(states.square().sum() + final.sum(), tensors)]


@cache
def truth() -> list[torch.Tensor]:
    return results(sf.operators.Affine, ("a", "b", "h"))


# A third of them at every run, all in `make test-all`.
EVERY = [g if i % 3 == 0 else pytest.param(g, marks=pytest.mark.slow) for i, g in enumerate(reversed(GROUPS))]


@pytest.mark.parametrize("names", EVERY, ids=" ".join)
def test_any_name(names):
    for x, y in zip(results(affine(*names), names), truth(), strict=True):
        assert torch.equal(x, y)


def test_the_names_are_many():
    assert len(NAMES) > 50
    assert {"lane", "blocks", "outer", "row", "tiles"} <= set(NAMES)
