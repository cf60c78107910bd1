"""Small recurrences around one contracted axis, each for one place where a kernel reads or writes a value.

Up to 32 entries lie in one thread, more in a block. The truth is the reference backend's.
"""

from __future__ import annotations

import pytest
import torch

import scanforge as sf
from scanforge import plan
from tests.catalogue import generator, normal
from tests.kernels import Tiles, every_lowering
from tests.recurrences import Part
from tests.reference.compare import cotangent, many
from tests.tolerances import assert_close

pytestmark = pytest.mark.interpreter
F64 = torch.float64


@pytest.fixture(autouse=True)
def short_tiles(monkeypatch):
    Tiles(4, 2, chunk=4).force(monkeypatch)


class Spread(sf.Recurrence):
    """Inputs that are summed as they are: their gradients are the same for all n."""

    x = sf.Input("b t d")
    C, P = sf.Input("b t n"), sf.Input("b t n")
    Q = sf.Input("d n")
    h = sf.State("b d n")

    def element(self):
        return sf.Affine(a=0.5, b=self.x * self.C)

    def readout(self):
        return sf.sum(self.C * self.h + self.P + self.Q, "n")


class Shared(sf.Recurrence):
    """All entries have the same input: its gradient is the sum of the adjoint's states as they are."""

    x = sf.Input("b t d")
    C = sf.Input("b t n")
    h = sf.State("b d n")

    def element(self):
        return sf.Affine(a=0.5, b=self.x)

    def readout(self):
        return sf.sum(self.C * sf.previous(self.h), "n")


class Unread(sf.Recurrence):
    """An input that nothing reads has the gradient 0, beside an output that is summed over time."""

    x = sf.Input("b t d")
    C = sf.Input("b t d n")
    h = sf.State("b d")
    y = sf.Output("b d")

    def element(self):
        return sf.Affine(a=0.5, b=self.x)

    def readout(self):
        return self.h * sf.previous(self.h)


class Beside(sf.Recurrence):
    """A state without the contracted axis, read before the step and after the sum."""

    x = sf.Input("b t d")
    C = sf.Input("b t n")
    h = sf.State("b d n")
    z = sf.State("b d")

    def element(self):
        return sf.Affine(a=0.5, b=self.x * self.C), sf.Affine(a=0.25, b=self.x)

    def readout(self):
        return sf.sum(self.C * self.h, "n") * sf.previous(self.z)


class Inside(Beside):
    """The same within the sum."""

    def readout(self):
        return sf.sum(self.C * self.h * sf.previous(self.z), "n")


class Dead(sf.Recurrence):
    """What is not 0 in lanes and entries that only fill a block: they must count in no sum."""

    x = sf.Input("b t d")
    C = sf.Input("b t n")
    h = sf.State("b d n")
    y, total, per_channel = sf.Output("b t"), sf.Output(""), sf.Output("t d")

    def element(self):
        return sf.Affine(a=0.5, b=self.x * self.C)

    def readout(self):
        shifted = sf.sum(sf.exp(self.h) + 1.0, "n")
        return shifted + 1.0, sf.exp(shifted * 0.01), shifted


class DeadLanes(sf.Recurrence):
    """The same in the lanes of an ordered tile, at every step and over all of them."""

    x = sf.Input("b t d")
    C = sf.Input("b t n")
    h = sf.State("b d n")
    y, total = sf.Output("b t"), sf.Output("b")

    def element(self):
        return sf.Affine(a=0.5, b=self.x * self.C)

    def readout(self):
        return sf.sum(sf.exp(self.h) + 1.0, "n"), sf.sum(self.C * self.h + 1.0, "n")


class Once(sf.Recurrence):
    """An output with n and one without: no thread holds n, and D x must count once beside a sum over it."""

    x = sf.Input("b t d")
    C = sf.Input("b t n")
    D = sf.Input("d")
    h = sf.State("b d n")

    def element(self):
        return sf.Affine(a=0.5, b=self.x * self.C)

    def readout(self):
        return sf.sum(self.C * self.h, "n") + self.D * self.x + 2.0, sf.sum(self.h + self.D, "d") + self.C


def results(recurrence, n, steps, options):
    """Outputs and gradients."""
    sizes, g = {"b": 2, "t": steps, "d": 3, "n": n}, generator(n)
    axes = {"x": "b t d", "C": "b t d n" if recurrence is Unread else "b t n"}
    axes |= {"P": "b t n", "Q": "d n"} if recurrence is Spread else {}
    axes |= {"D": "d"} if recurrence is Once else {}
    inputs = [normal(g, Part(a).shape(sizes), F64).requires_grad_() for a in axes.values()]
    outputs = many(sf.scan(recurrence, **dict(zip(axes, inputs, strict=True)), **options))
    return *outputs, *torch.autograd.grad(outputs, inputs, [cotangent(y, k) for k, y in enumerate(outputs)])


@every_lowering
@pytest.mark.parametrize("n", [1, 4, 40])
@pytest.mark.parametrize(
    "recurrence", [Spread, Shared, Unread, Beside, Inside, Dead, DeadLanes, Once], ids=lambda r: r.__name__
)
def test_values_and_gradients(recurrence, n, lowering):
    truth = results(recurrence, n, 5, {"backend": "reference"})
    found = results(recurrence, n, 5, {"backend": "triton", "lowering": lowering})
    for x, y in zip(found, truth, strict=True):
        assert_close(x, y, "long")


@pytest.mark.parametrize("memory", [None, "low"])
@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("steps", [8, 13, 16])
def test_many_segments(steps, n, memory, monkeypatch):
    """Expanded states are kept before segments of four steps here, and run again from each."""
    monkeypatch.setattr(plan, "BUDGET", {"": 0.0, "low": 0.0})
    truth = results(Beside, n, steps, {"backend": "reference"})
    found = results(Beside, n, steps, {"backend": "triton", "lowering": "ordered_tile", "memory": memory})
    for x, y in zip(found, truth, strict=True):
        assert_close(x, y, "long")


@pytest.mark.parametrize("n", [3, 40])
def test_req33_a_last_segment_that_ends_within_a_tile(n, monkeypatch):
    """Its rows beyond whole tiles have states of their own in scratch: nothing is written past its end."""
    wholes, plain = [], torch.Tensor.new_empty

    def new_empty(self, size, *, dtype=None, **rest):
        made = plain(self, size, dtype=dtype, **rest)
        whole = torch.full((made.numel() + 4096,), 77, dtype=made.dtype)
        wholes.append(whole)
        return whole[: made.numel()].view(made.shape)

    Tiles(4, 2, chunk=8).force(monkeypatch)
    monkeypatch.setattr(plan, "BUDGET", {"": 0.0})
    truth = results(Beside, n, 15, {"backend": "reference"})
    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    found = results(Beside, n, 15, {"backend": "triton", "lowering": "ordered_tile"})
    for x, y in zip(found, truth, strict=True):
        assert_close(x, y, "long")
    assert len(wholes) > 5
    assert all((whole[-4096:] == 77).all() for whole in wholes)
