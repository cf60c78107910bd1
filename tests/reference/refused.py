"""What the tests of bad input share: an operator to spoil, and what every error must be."""

from __future__ import annotations

import re

import pytest
import torch

import scanforge as sf

x = torch.ones(2, 5, 3)
SHIPPED = sf.operators


def operator(apply=None, combine=None, **fields):
    """The affine operator Decay, with parts exchanged; a field that is None is left out."""

    def right_combine(self, later):
        return type(self)(a=later.a * self.a, b=later.a * self.b + later.b)

    def right_apply(self, h):
        return self.a * h + self.b

    body = {"a": sf.Element(identity=1.0), "b": sf.Element(identity=0.0), "h": sf.State()}
    body |= {"combine": combine or right_combine, "apply": apply or right_apply} | fields
    return type("Decay", (sf.Operator,), {n: v for n, v in body.items() if v is not None})


def affine(**options):
    return lambda: sf.scan(SHIPPED.Affine, **({"a": x, "b": x} | options))


def applies(step, a=x, b=x, **fields):
    """The call of an operator with this apply."""
    return lambda: sf.scan(operator(step, **fields), a=a, b=b)


def composes(combine, **fields):
    return lambda: sf.scan(operator(combine=combine, **fields), a=x, b=x)


def check(call, error, *parts: str) -> str:
    """The call raises exactly this error, in a sentence with these parts, and nothing has run."""
    sf.scan(SHIPPED.MinMax, r=x, s=x)
    before = sf.last_run()
    with pytest.raises(sf.ScanforgeError) as caught:
        call()
    assert isinstance(caught.value, error)
    assert sf.last_run() is before
    message = str(caught.value)
    for part in parts:
        assert part in message, message
    assert message.endswith((".", ".`"))
    assert re.search(
        r"\b([Ww]rite|[Uu]se|[Gg]ive|[Mm]ove|[Dd]eclare|[Rr]eturn|[Pp]ass|[Cc]ompare|[Kk]eep)\b", message
    ), message
    assert "  " not in message
    return message


def table(cases):
    return pytest.mark.parametrize(("call", "error", "parts"), [v for _, v in cases.items()], ids=list(cases))
