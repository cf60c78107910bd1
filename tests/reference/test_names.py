"""A field may bear any name, also those of generated code, of Python's builtins, or made of other fields'."""

from __future__ import annotations

import io
import keyword
import tokenize
from functools import cache

import pytest
import torch

import scanforge as sf
from tests.reference.compare import LOWERINGS

F64 = torch.float64
REFUSED = {"dim", "reverse", "apply", "combine", "element", "readout"}
# Names of scan's locals, of derived inputs and outputs, of the parts of complex numbers.
DERIVED = [
    "a_t",
    "b_t",
    "h_t",
    "after_h",
    "final_h",
    "initial_h",
    "mu_h",
    "grad_h",
    "grad_a",
    "e_a",
    "a_re",
    "h_im",
]
DERIVED += ["earlier_a", "later_b", "a_prefix", "v0", "k0", "t", "d", "float", "len", "print", "self_"]
LOCALS = {"a_t", "b_t", "elements", "initial_h", "list", "outputs", "reversed", "rows", "steps", "zip"}


def used_by_generated_code() -> set[str]:
    """Every identifier in the modules of some operators."""
    found = set()
    for operator in (sf.operators.Affine, sf.operators.Kalman, sf.operators.RunningMax):
        for which in ("forward", "backward"):
            for lowering in LOWERINGS:
                text = io.StringIO(sf.source(operator, which, lowering=lowering))
                found |= {
                    x.string for x in tokenize.generate_tokens(text.readline) if x.type == tokenize.NAME
                }
    return found


NAMES = sorted({*DERIVED, *LOCALS, *used_by_generated_code()} - REFUSED)
NAMES = [n for n in NAMES if not keyword.iskeyword(n) and not n.startswith(("_", "previous_"))]


def affine(a: str, b: str, h: str):
    """The affine operator with fields of these names."""

    def combine(self, later):
        factor = getattr(later, a)
        return type(self)(**{a: factor * getattr(self, a), b: factor * getattr(self, b) + getattr(later, b)})

    def apply(self, state):
        return getattr(self, a) * state + getattr(self, b)

    fields = {a: sf.Element(identity=1.0), b: sf.Element(identity=0.0), h: sf.State()}
    return type("Named", (sf.Operator,), fields | {"combine": combine, "apply": apply})


def results(operator, a: str, b: str, lowering: str) -> list[torch.Tensor]:
    """States, final state, gradients and their gradients."""
    random = torch.Generator().manual_seed(4)
    tensors = [
        torch.rand(s, generator=random, dtype=F64).requires_grad_() for s in ((2, 5, 3), (2, 5, 3), (2, 3))
    ]
    states, final = sf.scan(operator, **{a: tensors[0], b: tensors[1]}, initial_state=tensors[2],
                            return_final_state=True, lowering=lowering)  # fmt: skip
    first = torch.autograd.grad(states.square().sum() + final.sum(), tensors, create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), tensors)
    return [x.detach() for x in (states, final, *first, *second)]


@cache
def truth(lowering: str) -> list[torch.Tensor]:
    return results(sf.operators.Affine, "a", "b", lowering)


def check(a: str, b: str, h: str) -> None:
    operator = affine(a, b, h)
    for lowering in LOWERINGS:
        for x, y in zip(results(operator, a, b, lowering), truth(lowering), strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("index", range(len(NAMES)), ids=NAMES)
def test_any_name(index):
    """Three at once: each is an element, the other element and the state in turn."""
    third = len(NAMES) // 3
    check(*(NAMES[(index + k * third) % len(NAMES)] for k in range(3)))


@pytest.mark.parametrize(
    "names",
    [
        ("initial_h", "b", "h"),
        ("list", "list_", "list__"),
        ("list_", "list", "rows"),
        ("steps", "steps_", "reverse_"),
        ("rows", "rows_", "h"),
        ("leaf", "elements", "initial_leaf"),
        ("a", "a_t_", "a_t"),
        ("self", "operator", "unnamed"),
        ("class", "class_", "lambda"),
        ("after_h", "b", "h"),
        ("final_h", "b", "h"),
        ("h_t", "b", "h"),
        ("a", "a_t", "h"),
        ("mu_h", "grad_h", "h"),
        ("grad_a", "a", "h"),
        ("e_a", "a", "h"),
        ("earlier_a", "a", "later_a"),
    ],
)
def test_names_made_of_other_names(names):
    check(*names)


def test_the_names_are_many():
    """The list is read off the generated code, and must not shrink unnoticed."""
    assert len(NAMES) > 100
    assert not LOCALS - set(NAMES)
