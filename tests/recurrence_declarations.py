"""The recurrences of `tests/recurrences.py`, as a person writes them."""

from __future__ import annotations

import scanforge as sf


class RGLRU(sf.Recurrence):
    """h_t = a_t h_{t-1} + sqrt(1-a_t²) σ(i_t) x_t,  a_t = exp(-8 softplus(Λ) σ(r_t))"""

    x, r, i = sf.Input("b t d"), sf.Input("b t d"), sf.Input("b t d")
    Lambda = sf.Input("d")
    h = sf.State("b d")

    def element(self):
        log_a = -8 * sf.softplus(self.Lambda) * sf.sigmoid(self.r)
        multiplier = sf.sqrt(-sf.expm1(2 * log_a), max_slope=1000)
        return sf.Affine(a=sf.exp(log_a), b=multiplier * sf.sigmoid(self.i) * self.x)

    def readout(self):
        return self.h


class RGLRUDocuments(sf.Recurrence):
    """RG-LRU with multiplier 1 where a document starts"""

    x, r, i = sf.Input("b t d"), sf.Input("b t d"), sf.Input("b t d")
    Lambda = sf.Input("d")
    h = sf.State("b d")

    def element(self):
        log_a = -8 * sf.softplus(self.Lambda) * sf.sigmoid(self.r)
        multiplier = sf.sqrt(-sf.expm1(2 * log_a), max_slope=1000)
        multiplier = sf.where(sf.segment_start(), 1.0, multiplier)
        return sf.Affine(a=sf.exp(log_a), b=multiplier * sf.sigmoid(self.i) * self.x)

    def readout(self):
        return self.h


class SelectiveSSM(sf.Recurrence):
    """h_t = exp(dt·A) h_{t-1} + dt·B_t·u_t,  y_t = C_t·h_t + D·u_t"""

    u = sf.Input("b t d")
    dt = sf.Input("b t d")
    A = sf.Input("d n")
    B = sf.Input("b t n")
    C = sf.Input("b t n")
    D = sf.Input("d")
    h = sf.State("b d n")

    def element(self):
        return sf.Affine(a=sf.exp(self.dt * self.A), b=self.dt * self.B * self.u)

    def readout(self):
        return sf.sum(self.C * self.h, "n") + self.D * self.u


class Mamba(sf.Recurrence):
    """The selective SSM with the gates that stand around it: softplus(dt + bias), A = -exp(A_log), silu(z)"""

    u, dt, z = sf.Input("b t d"), sf.Input("b t d"), sf.Input("b t d")
    bias, D = sf.Input("d"), sf.Input("d")
    A_log = sf.Input("d n")
    B, C = sf.Input("b t n"), sf.Input("b t n")
    h = sf.State("b d n")

    def element(self):
        dt = sf.softplus(self.dt + self.bias)
        return sf.Affine(a=sf.exp(-dt * sf.exp(self.A_log)), b=dt * self.u * self.B)

    def readout(self):
        return (sf.sum(self.C * self.h, "n") + self.D * self.u) * sf.silu(self.z)


class HGRN2(sf.Recurrence):
    """S_t = diag(g_t) S_{t-1} + (1-g_t) v_t^T,  o_t = S_t^T q_t,  g = lower + (1-lower)·sigmoid(f)"""

    q, f = sf.Input("b t h k"), sf.Input("b t h k")
    v = sf.Input("b t h v")
    lower = sf.Input("h k")
    S = sf.State("b h k v")

    def element(self):
        g = self.lower + (1 - self.lower) * sf.sigmoid(self.f)
        return sf.Affine(a=g, b=(1 - g) * self.v)

    def readout(self):
        return sf.sum(self.q * self.S, "k")


class GatedLinearAttention(sf.Recurrence):
    """S_t = diag(α_t) S_{t-1} + k_t v_t^T,  o_t = S_t^T q_t,  log α = -softplus(-g)/16"""

    q, k, g = sf.Input("b t h k"), sf.Input("b t h k"), sf.Input("b t h k")
    v = sf.Input("b t h v")
    S = sf.State("b h k v")

    def element(self):
        return sf.Affine(a=sf.exp(-sf.softplus(-self.g) / 16), b=self.k * self.v)

    def readout(self):
        return sf.sum(self.q * self.S, "k")


class Retention(sf.Recurrence):
    """S_t = γ S_{t-1} + k_t v_t^T,  o_t = S_t^T q_t"""

    q, k = sf.Input("b t h k"), sf.Input("b t h k")
    v = sf.Input("b t h v")
    gamma = sf.Input("h")
    S = sf.State("b h k v")

    def element(self):
        return sf.Affine(a=self.gamma, b=self.k * self.v)

    def readout(self):
        return sf.sum(self.q * self.S, "k")


class LinearAttention(sf.Recurrence):
    """S_t = S_{t-1} + k_t v_t^T,  z_t = z_{t-1} + k_t,  o_t = S_t^T q_t / max(|q_t·z_t|, 1)"""

    q, k = sf.Input("b t h k"), sf.Input("b t h k")
    v = sf.Input("b t h v")
    S = sf.State("b h k v")
    z = sf.State("b h k")

    def element(self):
        return sf.Affine(a=1.0, b=self.k * self.v), sf.Affine(a=1.0, b=self.k)

    def readout(self):
        weight = sf.maximum(sf.abs(sf.sum(self.q * self.z, "k")), 1.0)
        return sf.sum(self.q * self.S, "k") / weight


class GatedMinMax(sf.Recurrence):
    """x_t = max(min(r_t, x_{t-1}), s_t),  y_t = σ(gate_t) x_t; one number for all heats the upper bound"""

    u, gate = sf.Input("b t d"), sf.Input("b t d")
    w_r, b_r, w_s = sf.Input("d"), sf.Input("d"), sf.Input("d")
    temperature = sf.Input("")
    x = sf.State("b d")

    def element(self):
        upper = self.w_r * self.u + self.b_r + sf.exp(-self.temperature * sf.softplus(self.u))
        return sf.operators.MinMax(r=upper, s=-sf.sigmoid(self.w_s * self.u))

    def readout(self):
        return self.x * sf.sigmoid(self.gate)


class Decay(sf.Recurrence):
    """h_t = σ(w) h_{t-1} + x_t"""

    x = sf.Input("b t d")
    w = sf.Input("d")
    h = sf.State("b d")

    def element(self):
        return sf.Affine(a=sf.sigmoid(self.w), b=self.x)

    def readout(self):
        return self.h


class LogSumExp(sf.Recurrence):
    """y_t = log Σ_{s≤t} w_s exp(τ score_s)"""

    score, weight = sf.Input("b t d"), sf.Input("b t d")
    temperature = sf.Input("d")
    top = sf.State("b d", initial=float("-inf"))
    total = sf.State("b d")

    def element(self):
        return sf.operators.LogSumExp(m=self.score * self.temperature, s=sf.softplus(self.weight))

    def readout(self):
        return self.top + sf.log(self.total)


class Counted(sf.Recurrence):
    """A flag forgets, a count chooses the input and scales the output: neither carries a gradient"""

    x, f = sf.Input("b t d"), sf.Input("b t d")
    keep = sf.Input("b t", kind="bool")
    count = sf.Input("b t", kind="int")
    h = sf.State("b d")

    def element(self):
        return sf.Affine(
            a=sf.where(self.keep, sf.sigmoid(self.f), 0.0),
            b=sf.where(self.count > 2, self.x, -0.5 * self.x),
        )

    def readout(self):
        return self.h * self.count


class Innovation(sf.Recurrence):
    """level_t = (1-α) level_{t-1} + α x_t,  y_t = (x_t - level_{t-1}) level_t"""

    x = sf.Input("b t d")
    w = sf.Input("d")
    level = sf.State("b d")

    def element(self):
        rate = sf.sigmoid(self.w)
        return sf.Affine(a=1 - rate, b=rate * self.x)

    def readout(self):
        return (self.x - sf.previous(self.level)) * self.level


class TwoOutputs(sf.Recurrence):
    """One state, read along either of its axes"""

    x = sf.Input("b t d")
    B, C = sf.Input("b t n"), sf.Input("b t n")
    h = sf.State("b d n")

    def element(self):
        return sf.Affine(a=0.75, b=self.x * self.B)

    def readout(self):
        return sf.sum(self.C * self.h, "n"), sf.sum(self.x * self.h, "d")


class Summing(sf.Recurrence):
    """Outputs sum over the axes that they lack: channels; batch and time; none"""

    x = sf.Input("b t d")
    w = sf.Input("d")
    h = sf.State("b d")
    work = sf.Output("b t")
    energy = sf.Output("d")
    y = sf.Output("b t d")

    def element(self):
        return sf.Affine(a=self.w, b=self.x)

    def readout(self):
        return self.h * self.x, self.h * self.h, self.h


class Heads(sf.Recurrence):
    """A gate for each head, a weight for each head and channel, and an output in another order of axes"""

    x = sf.Input("b t h d")
    gate = sf.Input("b t h")
    w = sf.Input("h d")
    s = sf.State("b h d")
    y = sf.Output("b t d h")

    def element(self):
        a = sf.sigmoid(self.gate)
        return sf.Affine(a=a, b=(1 - a) * sf.tanh(self.w * self.x))

    def readout(self):
        return 2 * self.s


class Positional(sf.Recurrence):
    """One input is the same for the whole batch, one for the whole sequence"""

    x = sf.Input("b t d")
    p = sf.Input("t d")
    w = sf.Input("b d")
    h = sf.State("b d")

    def element(self):
        return sf.Affine(a=sf.sigmoid(self.w + self.p), b=self.x * self.p)

    def readout(self):
        return self.h


class LRU(sf.Recurrence):
    """h_t = λ h_{t-1} + γ B x_t,  y_t = Re(C h_t) + D x_t,  λ = exp(-exp(ν) + iθ),  γ = sqrt(1-|λ|²)"""

    x = sf.Input("b t d")
    nu, theta = sf.Input("n"), sf.Input("n")
    B_re, B_im, C_re, C_im = sf.Input("d n"), sf.Input("d n"), sf.Input("d n"), sf.Input("d n")
    D = sf.Input("d")
    h_re, h_im = sf.State("b n"), sf.State("b n")

    def element(self):
        size = sf.exp(-sf.exp(self.nu))
        scale = sf.sqrt(1 - size * size)
        return sf.operators.ComplexAffine(
            a_re=size * sf.cos(self.theta),
            a_im=size * sf.sin(self.theta),
            b_re=scale * sf.sum(self.B_re * self.x, "d"),
            b_im=scale * sf.sum(self.B_im * self.x, "d"),
        )

    def readout(self):
        return sf.sum(self.C_re * self.h_re - self.C_im * self.h_im, "n") + self.D * self.x
