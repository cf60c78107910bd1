"""The operators that ship with the library, each a declaration that a user could have written.

In the equations a subscript t marks the element's leaves and the states after step t; in `e ∘ l`, e acts
first. Leaves are `(batch, time, ...)` and broadcast together; `scan` returns the states in declared order.
"""

from __future__ import annotations

from typing import Any

from scanforge.declare import Operator
from scanforge.fields import Element, State
from scanforge.maths import exp, maximum, minimum, where

__all__ = [
    "Affine",
    "ComplexAffine",
    "Kalman",
    "LastFlagged",
    "LogSumExp",
    "Matrix2x2",
    "MaxPlus",
    "MinMax",
    "RunningMax",
]

_INF = float("inf")


class Affine(Operator):
    """Gated sum: `h_t = a_t h_{t-1} + b_t`.

    `(a, b) ∘ (a', b') = (a'a, a'b + b')`, identity (1, 0).
    Source: Blelloch, Prefix Sums and Their Applications (1990), section 1.4.

    >>> import torch, scanforge as sf
    >>> a, b = torch.tensor([[2.0, 3.0, 5.0]]), torch.tensor([[1.0, 10.0, 100.0]])
    >>> sf.scan(sf.operators.Affine, a=a, b=b)
    tensor([[  1.,  13., 165.]])
    """

    a = Element(identity=1.0)
    b = Element(identity=0.0)
    h = State()

    def combine(self, later: Affine) -> Affine:
        return Affine(a=later.a * self.a, b=later.a * self.b + later.b)

    def apply(self, h: Any) -> Any:
        return self.a * h + self.b


class MinMax(Operator):
    """Clamp: `x_t = max(min(r_t, x_{t-1}), s_t)`, upper bound r first, then lower bound s.

    `(r, s) ∘ (r', s') = (min(r', r), max(min(r', s), s'))`, identity (+inf, -inf). It only selects, so it is
    exact; pairs with r < s are legal. Source: the MinMax recurrent network of the minmaxrnc package.

    >>> import torch, scanforge as sf
    >>> r, s = torch.tensor([[5.0, 2.0, 9.0, 1.0]]), torch.tensor([[1.0, 0.0, 3.0, 4.0]])
    >>> sf.scan(sf.operators.MinMax, r=r, s=s)
    tensor([[1., 1., 3., 4.]])
    """

    r = Element(identity=_INF)
    s = Element(identity=-_INF)
    x = State()

    def combine(self, later: MinMax) -> MinMax:
        return MinMax(r=minimum(later.r, self.r), s=maximum(minimum(later.r, self.s), later.s))

    def apply(self, x: Any) -> Any:
        return maximum(minimum(self.r, x), self.s)


class RunningMax(Operator):
    """Largest value so far and its index: `(top, at)_t = (value, index)_t` if `value_t > top_{t-1}`.

    Identity (-inf, -1). The earliest of equal values wins, a NaN wins for good, the winner takes all of
    the gradient. Source: `torch.cummax`, which keeps the latest of equal values instead.

    >>> import torch, scanforge as sf
    >>> value, index = torch.tensor([[1.0, 3.0, 3.0, 2.0]]), torch.arange(4).reshape(1, 4)
    >>> sf.scan(sf.operators.RunningMax, value=value, index=index)
    (tensor([[1., 3., 3., 3.]]), tensor([[0, 1, 1, 1]]))
    """

    value = Element(identity=-_INF)
    index = Element(identity=-1, kind="int")
    top = State(initial=-_INF)
    at = State(initial=-1, kind="int")

    def combine(self, later: RunningMax) -> RunningMax:
        value, index = later.apply(self.value, self.index)
        return RunningMax(value=value, index=index)

    def apply(self, top: Any, at: Any) -> tuple[Any, Any]:
        wins = ~(self.value <= top) & (top == top)  # a NaN is not less than anything, nor equal to itself
        return where(wins, self.value, top), where(wins, self.index, at)


class LogSumExp(Operator):
    """Streaming log-sum-exp: `top' = max(m, top)`, `total' = s e^(m - top') + total e^(top - top')`.

    The sum so far is `top + log(total)`; a plain sequence x is `m = x, s = 1`. Identity (-inf, 0); an m of
    -inf adds nothing. Source: Milakov & Gimelshein, Online normalizer calculation for softmax, algorithm 3.

    >>> import torch, scanforge as sf
    >>> m = torch.tensor([[0.0, 0.0, float("-inf")]])
    >>> sf.scan(sf.operators.LogSumExp, m=m, s=torch.ones(1, 1))
    (tensor([[0., 0., 0.]]), tensor([[1., 2., 2.]]))
    """

    m = Element(identity=-_INF)
    s = Element(identity=0.0, domain="nonnegative")
    top = State(initial=-_INF)
    total = State(initial=0.0)

    def combine(self, later: LogSumExp) -> LogSumExp:
        m, s = later.apply(self.m, self.s)
        return LogSumExp(m=m, s=s)

    def apply(self, top: Any, total: Any) -> tuple[Any, Any]:
        m = maximum(self.m, top)
        shift = where(m > -_INF, m, 0.0)
        return m, self.s * exp(self.m - shift) + total * exp(top - shift)


class LastFlagged(Operator):
    """The last flagged value: `last_t = value_t if flag_t else last_{t-1}`; any flag but 0 counts.

    `(f, v) ∘ (f', v') = (f', v') if f' else (f, v)`, identity (0, 0).
    Source: the copy, or forward-fill, scan; Blelloch (1990), section 1.5.

    >>> import torch, scanforge as sf
    >>> flag, value = torch.tensor([[0, 1, 0, 1]]), torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> sf.scan(sf.operators.LastFlagged, flag=flag, value=value)
    tensor([[0., 2., 2., 4.]])
    """

    flag = Element(identity=0, kind="int")
    value = Element(identity=0.0)
    last = State()

    def combine(self, later: LastFlagged) -> LastFlagged:
        return LastFlagged(flag=where(later.flag != 0, later.flag, self.flag), value=later.apply(self.value))

    def apply(self, last: Any) -> Any:
        return where(self.flag != 0, self.value, last)


class ComplexAffine(Operator):
    """`Affine` on complex numbers held as real pairs: `h_t = (a_re + i a_im)_t h_{t-1} + (b_re + i b_im)_t`.

    Identity (1, 0, 0, 0). On complex tensors `Affine` computes the same.
    Source: Orvieto et al., Resurrecting Recurrent Neural Networks for Long Sequences (2023), section 3.

    >>> import torch, scanforge as sf
    >>> zero, one = torch.zeros(1, 1), torch.ones(1, 3)
    >>> sf.scan(sf.operators.ComplexAffine, a_re=zero, a_im=one, b_re=one, b_im=zero)
    (tensor([[1., 1., 0.]]), tensor([[0., 1., 1.]]))
    """

    a_re, a_im = Element(identity=1.0), Element(identity=0.0)
    b_re, b_im = Element(identity=0.0), Element(identity=0.0)
    h_re, h_im = State(), State()

    def combine(self, later: ComplexAffine) -> ComplexAffine:
        b_re, b_im = later.apply(self.b_re, self.b_im)
        a_re = later.a_re * self.a_re - later.a_im * self.a_im
        a_im = later.a_re * self.a_im + later.a_im * self.a_re
        return ComplexAffine(a_re=a_re, a_im=a_im, b_re=b_re, b_im=b_im)

    def apply(self, h_re: Any, h_im: Any) -> tuple[Any, Any]:
        re = self.a_re * h_re - self.a_im * h_im + self.b_re
        return re, self.a_re * h_im + self.a_im * h_re + self.b_im


class Matrix2x2(Operator):
    """Products of 2×2 matrices: `x_t = M_t x_{t-1}`; `prefixes` gives `M_t ··· M_1`.

    `M ∘ M' = M'M`, identity the unit matrix. The states start at (1, 0): the first column of the product.
    Source: Blelloch (1990), section 1.4, on recurrences as matrix products.

    >>> import torch, scanforge as sf
    >>> one, zero = torch.ones(1, 5), torch.zeros(1, 1)
    >>> sf.scan(sf.operators.Matrix2x2, m00=one, m01=one, m10=one, m11=zero)[0]
    tensor([[1., 2., 3., 5., 8.]])
    """

    m00, m01 = Element(identity=1.0), Element(identity=0.0)
    m10, m11 = Element(identity=0.0), Element(identity=1.0)
    x0, x1 = State(initial=1.0), State(initial=0.0)

    def combine(self, later: Matrix2x2) -> Matrix2x2:
        m00, m10 = later.apply(self.m00, self.m10)
        m01, m11 = later.apply(self.m01, self.m11)
        return Matrix2x2(m00=m00, m01=m01, m10=m10, m11=m11)

    def apply(self, x0: Any, x1: Any) -> tuple[Any, Any]:
        return self.m00 * x0 + self.m01 * x1, self.m10 * x0 + self.m11 * x1


class MaxPlus(Operator):
    """Affine in the max-plus algebra: `x_t = max(a_t + x_{t-1}, b_t)`.

    `(a, b) ∘ (a', b') = (a' + a, max(a' + b, b'))`, identity (0, -inf).
    Source: Baccelli et al., Synchronization and Linearity (1992), chapter 1.

    >>> import torch, scanforge as sf
    >>> a, b = torch.tensor([[1.0, -3.0, 2.0]]), torch.tensor([[0.0, 0.0, 0.0]])
    >>> sf.scan(sf.operators.MaxPlus, a=a, b=b)
    tensor([[1., 0., 2.]])
    """

    a = Element(identity=0.0)
    b = Element(identity=-_INF)
    x = State()

    def combine(self, later: MaxPlus) -> MaxPlus:
        return MaxPlus(a=later.a + self.a, b=maximum(later.a + self.b, later.b))

    def apply(self, x: Any) -> Any:
        return maximum(self.a + x, self.b)


class Kalman(Operator):
    """Scalar Kalman filter: `mean' = g (mean + var eta) + offset`, `var' = g gain var + noise`.

    Here `g = gain / (1 + var info)`. The model `x_t = F x_{t-1} + N(0, Q)`, `y_t = H x_t + N(0, R)` gives
    `gain = (1-KH)F, offset = Ky, noise = (1-KH)Q, eta = FHy/S, info = (FH)²/S`, `S = H²Q + R`, `K = QH/S`.
    Identity (1, 0, 0, 0, 0), prior N(0, 1). Source: Särkkä & García-Fernández, Temporal Parallelization of
    Bayesian Smoothers (2021), section IV, where the leaves are A, b, C, eta, J.

    >>> import torch, scanforge as sf
    >>> one, y = torch.ones(1, 1), torch.tensor([[2.0, 5.0]])  # F = 1, Q = 0, H = R = 1
    >>> sf.scan(sf.operators.Kalman, gain=one, offset=0 * one, noise=0 * one, eta=y, info=one)[0]
    tensor([[1.0000, 2.3333]])
    """

    gain, offset = Element(identity=1.0), Element(identity=0.0)
    noise = Element(identity=0.0, domain="nonnegative")
    eta, info = Element(identity=0.0), Element(identity=0.0, domain="nonnegative")
    mean, var = State(), State(initial=1.0)

    def combine(self, later: Kalman) -> Kalman:
        offset, noise = later.apply(self.offset, self.noise)
        share = self.gain / (1.0 + self.noise * later.info)
        eta = share * (later.eta - later.info * self.offset) + self.eta
        info = self.gain * share * later.info + self.info
        return Kalman(gain=later.gain * share, offset=offset, noise=noise, eta=eta, info=info)

    def apply(self, mean: Any, var: Any) -> tuple[Any, Any]:
        share = self.gain / (1.0 + var * self.info)
        return share * (mean + var * self.eta) + self.offset, self.gain * share * var + self.noise
