"""Finite automaton

An element is where each state goes, a map of three states to three; maps compose. All of it is int, exact,
and has no gradient. Any automaton of k states can be run in parallel so, with k leaves.
Source: Hillis & Steele, Data parallel algorithms (1986), which parses a regular language this way.
"""

from __future__ import annotations

import torch
from matplotlib.axes import Axes
from torch import Tensor

import scanforge as sf


class Automaton(sf.Operator):
    """q_t = to_{q_{t-1}}, of three states"""

    to0 = sf.Element(identity=0, kind="int")
    to1 = sf.Element(identity=1, kind="int")
    to2 = sf.Element(identity=2, kind="int")
    q = sf.State(initial=0, kind="int")

    def combine(self, later):
        return Automaton(to0=later.apply(self.to0), to1=later.apply(self.to1), to2=later.apply(self.to2))

    def apply(self, q):
        two_or_none = sf.where(q == 2, self.to2, q)  # the laws hold for every int, so others stay
        return sf.where(q == 0, self.to0, sf.where(q == 1, self.to1, two_or_none))


DECLARED = (Automaton,)

# Of (ab)*: a letter's row says where states 0 (in the language), 1 (after an a) and 2 (lost) go.
MOVES = torch.tensor([[1, 2, 2], [2, 0, 2]])


def run(text: str) -> Tensor:
    """The states (t,) after each letter of a text of a and b."""
    to = MOVES[torch.tensor([[letter == "b" for letter in text]]).int()]
    return sf.scan(Automaton, to0=to[..., 0], to1=to[..., 1], to2=to[..., 2])[0]


def draw(axes: Axes) -> None:
    """The states along one word of (ab)* and one that is none."""
    for text, style in (("abababababab", "o-"), ("ababaabababa", "s--")):
        axes.plot(run(text), style, ms=4, label=text)
    axes.set_yticks([0, 1, 2], ["in (ab)*", "after an a", "lost"])
    axes.legend(frameon=False)
