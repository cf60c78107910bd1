"""What has no combine: LSTM and sLSTM

A gate that looks at the state before it makes a step a squashed function of that state. Two such steps are a
squashed function of a squashed function, which no single step is, whatever its gates: there is no element
that `combine` could return. Below is one try each, with gates composed as if they did not look.
Source: Hochreiter & Schmidhuber, Long short-term memory (1997); Beck et al., xLSTM (2024), section 2.1.
"""

from __future__ import annotations

import scanforge as sf


class LSTM(sf.Operator):
    """c' = σ(f + h) c + σ(i + h) tanh(z + h),  h' = σ(o + h) tanh(c')"""

    f, i = sf.Element(identity=float("inf")), sf.Element(identity=float("-inf"))
    z, o = sf.Element(identity=0.0), sf.Element(identity=float("inf"))
    c, h = sf.State(), sf.State()

    def combine(self, later):
        return LSTM(f=sf.minimum(self.f, later.f), i=later.i, z=self.z + later.z, o=later.o)

    def apply(self, c, h):
        c = sf.sigmoid(self.f + h) * c + sf.sigmoid(self.i + h) * sf.tanh(self.z + h)
        return c, sf.sigmoid(self.o + h) * sf.tanh(c)


class SLSTM(sf.Operator):
    """c' = e^f c + e^i tanh(z + h),  n' = e^f n + e^i,  h' = c' / max(n', 1)"""

    f, i = sf.Element(identity=0.0), sf.Element(identity=float("-inf"))
    z = sf.Element(identity=0.0)
    c, n, h = sf.State(), sf.State(domain="positive"), sf.State()

    def combine(self, later):
        i = sf.log(sf.exp(later.f + self.i) + sf.exp(later.i))
        return SLSTM(f=self.f + later.f, i=i, z=self.z + later.z)

    def apply(self, c, n, h):
        keep, add = sf.exp(self.f), sf.exp(self.i)
        c, n = keep * c + add * sf.tanh(self.z + h), keep * n + add
        return c, n, c / sf.maximum(n, 1.0)


NOT_ASSOCIATIVE = (LSTM, SLSTM)
