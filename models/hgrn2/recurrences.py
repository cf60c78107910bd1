"""The recurrences of HGRN2 and of its relatives: which axis decays, where k comes from, how q reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import scanforge as sf

from .. import arguments

DECAYS = ("key", "value")
KEYS = ("tied", "free")
ACTIVATIONS = ("none", "silu", "sigmoid")


def gates(f: Any, lower: Any) -> tuple[Any, Any]:
    """Within a method: (g, 1 - g) for g = lower + (1-lower) σ(f), both exact to rounding, slopes too.

    1 - σ(f) as written loses every digit where σ(f) is near 1, where a layer remembers for long, and so does
    σ's slope (1-σ)σ. The smaller of σ(f) and σ(-f) loses none, and the other one is its complement.
    """
    smaller = sf.sigmoid(sf.where(f > 0, -f, f))
    keep = sf.where(f > 0, 1 - smaller, smaller)
    write = sf.where(f > 0, smaller, 1 - smaller)
    return keep + lower * write, (1 - lower) * write


def _activated(q: Any, activation: str) -> Any:
    """q after the activation of this name."""
    if activation == "silu":
        return sf.silu(q)
    return sf.sigmoid(q) if activation == "sigmoid" else q


class TiedKeys(sf.Recurrence):
    """S_t = diag(g_t) S_{t-1} + (1-g_t) v_tᵀ,  o_t = scale · S_tᵀ act(q_t),  g = lower + (1-lower) σ(f)

    f is the forget gate before its sigmoid; `lower` (h, k), and an axis of size 1 broadcasts.

    Source: Qin et al., HGRN2: Gated Linear RNNs with State Expansion (arXiv 2404.07904), section 3.

    Example:
        >>> import torch, scanforge as sf
        >>> from models.hgrn2 import TiedKeys
        >>> q, f, v = torch.randn(2, 9, 4, 8), torch.randn(2, 9, 4, 8), torch.randn(2, 9, 4, 5)
        >>> o, S = sf.scan(TiedKeys, q=q, f=f, v=v, lower=torch.zeros(1, 1), return_final_state=True)
        >>> o.shape, S.shape
        (torch.Size([2, 9, 4, 5]), torch.Size([2, 4, 8, 5]))
    """

    q, f = sf.Input("b t h k"), sf.Input("b t h k")
    v = sf.Input("b t h v")
    lower = sf.Input("h k")
    S = sf.State("b h k v")
    activation, scale = "silu", 1.0

    def element(self) -> Any:
        """Decays and writes along k."""
        keep, write = gates(self.f, self.lower)
        return sf.Affine(a=keep, b=write * self.v)

    def readout(self) -> Any:
        """q reads along k."""
        return self.scale * sf.sum(_activated(self.q, self.activation) * self.S, "k")


class FreeKeys(sf.Recurrence):
    """S_t = diag(g_t) S_{t-1} + k_t v_tᵀ,  o_t = scale · S_tᵀ act(q_t),  g = lower + (1-lower) σ(f)

    The decay is on the key axis, as in `TiedKeys`; k is a projection of its own.
    """

    q, k, f = sf.Input("b t h k"), sf.Input("b t h k"), sf.Input("b t h k")
    v = sf.Input("b t h v")
    lower = sf.Input("h k")
    S = sf.State("b h k v")
    activation, scale = "none", 1.0

    def element(self) -> Any:
        """Decays along k."""
        return sf.Affine(a=gates(self.f, self.lower)[0], b=self.k * self.v)

    def readout(self) -> Any:
        """q reads along k."""
        return self.scale * sf.sum(_activated(self.q, self.activation) * self.S, "k")


class ValueDecay(sf.Recurrence):
    """S_t = diag(g_t) S_{t-1} + v_t k_tᵀ,  o_t = scale · S_t act(q_t),  g = lower + (1-lower) σ(f)

    The decay is on the value axis, which q does not read: f and `lower` have the axis v, S is (v, k).
    """

    q, k = sf.Input("b t h k"), sf.Input("b t h k")
    v, f = sf.Input("b t h v"), sf.Input("b t h v")
    lower = sf.Input("h v")
    S = sf.State("b h v k")
    activation, scale = "none", 1.0

    def element(self) -> Any:
        """Decays along v."""
        return sf.Affine(a=gates(self.f, self.lower)[0], b=self.v * self.k)

    def readout(self) -> Any:
        """q reads along k."""
        return self.scale * sf.sum(self.S * _activated(self.q, self.activation), "k")


@cache
def _variant(base: type[sf.Recurrence], activation: str, scale: float) -> type[sf.Recurrence]:
    """The recurrence with another activation of q and another scale."""
    own = {"activation": activation, "scale": scale, "__doc__": base.__doc__, "__module__": base.__module__}
    return type(base.__name__, (base,), own)


@dataclass(frozen=True, slots=True)
class Form:
    """A layer's heads: how many, of which sizes, and the recurrence that they run.

    `scale` None is k^-1/2. Tied keys of a decay on the value axis are 1 - g too, so k and v are then equal.
    """

    heads: int
    k: int
    v: int
    decay: str = "key"
    keys: str = "tied"
    activation: str = "silu"
    scale: float | None = 1.0

    def checked(self, where: str) -> Form:
        """Itself, if its options are known and fit each other."""
        arguments.one_of(where, "decay", self.decay, DECAYS)
        arguments.one_of(where, "keys", self.keys, KEYS)
        arguments.one_of(where, "q_activation", self.activation, ACTIVATIONS)
        if self.keys == "tied" and self.decay == "value" and self.k != self.v:
            raise ValueError(
                f"{where}: keys='tied' with decay='value' makes k of the forget gate, and a head's "
                f"k={self.k} is not its v={self.v}: make expand_k and expand_v equal, or choose keys='free'."
            )
        return self

    @property
    def recurrence(self) -> type[sf.Recurrence]:
        """The declaration; never held by a layer, so that layers can be pickled."""
        return recurrence(self.options)

    @property
    def options(self) -> str:
        """What the recurrence depends on."""
        scale = self.k**-0.5 if self.scale is None else float(self.scale)
        return f"{self.keys} {self.decay} {self.activation} {scale!r}"

    @property
    def state(self) -> tuple[int, int, int]:
        """The shape of one sequence's state."""
        return (self.heads, self.k, self.v) if self.decay == "key" else (self.heads, self.v, self.k)

    @property
    def decaying(self) -> tuple[int, int]:
        """(heads, the size of the axis that decays): the shape of lower bounds."""
        return self.state[:2]


def head_size(where: str, expand: tuple[str, float], width: int) -> int:
    """expand · width, which must be a whole number of at least 1."""
    name, factor = expand
    size = round(factor * width)
    if size < 1 or abs(size - factor * width) > 1e-6:
        raise ValueError(
            f"{where}: {name}={factor!r} times the head's width of {width} is no whole number of at least 1: "
            f"choose a multiple of 1/{width}."
        )
    return size


def recurrence(options: str) -> type[sf.Recurrence]:
    """The declaration of a form: in a graph a text is a constant, and a number may be a symbol."""
    keys, decay, activation, scale = options.split()
    tied = TiedKeys if keys == "tied" else FreeKeys
    return _variant(tied if decay == "key" else ValueDecay, activation, float(scale))


# No graph can make a class. What torch.compiler.assume_constant_result writes, which imports the compiler.
recurrence._dynamo_marked_constant = True  # type: ignore[attr-defined]
