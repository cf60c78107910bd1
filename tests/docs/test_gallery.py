"""Every recurrence of the gallery is short, keeps its laws, and is what its page says, gradients included."""

from __future__ import annotations

import ast
import inspect
import itertools
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

import scanforge as sf
from examples import gallery
from examples.gallery import automaton, gated_memory, kalman, not_associative, viterbi
from examples.gallery.not_associative import NOT_ASSOCIATIVE
from tests.tolerances import assert_close, assert_equal

ENTRIES = gallery.entries()
DECLARED = {d.__name__: d for module in ENTRIES.values() for d in module.DECLARED}
LAWS = ("associativity", "action", "identity", "two-sided identity")

each = pytest.mark.parametrize("declared", DECLARED.values(), ids=DECLARED)


@each
def test_laws_gradients_and_lowerings(declared):
    report = sf.check(declared, show=False)
    assert report.ok, str(report)
    said = {row.subject.removeprefix("law: ") for row in report.rows if row.subject.startswith("law")}
    assert said == set(LAWS)


@pytest.mark.parametrize("declared", [*DECLARED.values(), *NOT_ASSOCIATIVE], ids=lambda d: d.__name__)
def test_it_is_short(declared):
    (node,) = ast.parse(inspect.getsource(declared)).body
    doc = node.body[0]
    assert (node.end_lineno - node.lineno + 1) - (doc.end_lineno - doc.lineno + 1) <= 20


@pytest.mark.parametrize("declared", NOT_ASSOCIATIVE, ids=lambda d: d.__name__)
def test_what_does_not_compose_is_refused_with_a_counter_example(declared):
    rows = {row.subject: row for row in sf.check(declared, show=False).rows}
    assert not rows["law: action"].ok
    assert "broken for e.f = " in rows["law: action"].result
    with pytest.raises(sf.LawError, match=declared.__name__):
        sf.scan(
            declared, **{n: torch.zeros(1, 3) for n, x in vars(declared).items() if isinstance(x, sf.Element)}
        )


@pytest.mark.parametrize("name", ENTRIES)
def test_its_plot_shows_something(name):
    axes = Figure().subplots()
    ENTRIES[name].draw(axes)
    drawn = [line.get_ydata() for line in axes.lines if len(line.get_ydata()) > 2]
    assert drawn
    assert all(torch.as_tensor(y).double().isfinite().all() for y in drawn)
    assert axes.get_legend() is not None


def test_every_module_is_an_entry():
    modules = {path.stem for path in Path(inspect.getfile(gallery)).parent.glob("*.py")}
    assert modules == {*gallery.NAMES, "__init__", "not_associative"}
    assert inspect.getdoc(not_associative)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed + 31 * len(shape) + sum(shape))
    return torch.randn(shape, generator=draw, dtype=torch.float64)


def decayed(log_decay: torch.Tensor) -> torch.Tensor:
    """exp of the sum of log_decay over (s, t], where s <= t, else 0; time is axis 1: (b, t, s, ...)."""
    total = log_decay.cumsum(1)
    steps = torch.arange(log_decay.shape[1])
    mask = (steps[None] <= steps[:, None]).reshape(1, len(steps), len(steps), *[1] * (log_decay.dim() - 2))
    return torch.where(mask, (total[:, :, None] - total[:, None]).clamp(max=0).exp(), 0.0)


def ema(x, w):
    a, h, out = torch.sigmoid(w), torch.zeros_like(x[:, 0]), []
    for today in x.unbind(1):
        h = a * h + (1 - a) * today
        out.append(h)
    return torch.stack(out, 1)


def rotation(u, nu, theta):
    a = torch.polar(torch.exp(-nu.exp()), theta)
    h, out = torch.zeros_like(a), []
    for now in u.unbind(1):
        h = a * h + (1 - a.abs() ** 2).sqrt() * now
        out.append(h)
    h = torch.stack(out, 1)
    return h.real, h.imag


def lru(u, lam, B, C, D):
    h, out = torch.zeros(u.shape[0], len(lam), dtype=lam.dtype), []
    for now in u.unbind(1):
        h = lam * h + now.to(B.dtype) @ B.T
        out.append((h @ C.T).real + D * now)
    return torch.stack(out, 1)


def play(u, width):
    x, out = torch.zeros_like(u[:, 0]), []
    for now in u.unbind(1):
        x = x.clamp(now - width, now + width)
        out.append(x)
    return torch.stack(out, 1)


def linoss(u, A, h):
    x = z = torch.zeros_like(u[:, 0])
    out = []
    for now in u.unbind(1):
        # z' = z + h (u - A x') and x' = x + h z', solved for both as a linear system.
        x = (x + h * z + h * h * now) / (1 + h * h * A)
        z = z + h * (now - A * x)
        out.append(x)
    return torch.stack(out, 1)


def retention(q, k, v, gamma):
    weights = decayed(gamma.log().expand(*q.shape[:3])) * torch.einsum("bthk,bshk->btsh", q, k)
    return torch.einsum("btsh,bshv->bthv", weights, v)


def gla(q, k, gate, v):
    decay = decayed(torch.nn.functional.logsigmoid(gate) / 16)
    return torch.einsum("bthk,btshk,bshk,bshv->bthv", q, decay, k, v)


def mamba2(x, raw, A_log, bias, D, B, C):
    dt = torch.nn.functional.softplus(raw + bias)
    weights = decayed(-dt * A_log.exp()) * torch.einsum("btn,bsn->bts", C, B)[..., None]
    return torch.einsum("btsh,bsh,bshv->bthv", weights, dt, x) + D[:, None] * x


def rwkv(r, k, decay, v, bonus):
    log_w = -decay.exp()
    before = decayed(log_w) / log_w.exp()[:, :, None]  # up to the step before t
    steps = torch.arange(r.shape[1])
    strict = (steps[None] < steps[:, None])[None, :, :, None, None]
    past = torch.einsum("bthk,btshk,bshk,bshv->bthv", r, torch.where(strict, before, 0.0), k, v)
    return past + (r * bonus * k).sum(-1, keepdim=True) * v


def gated_sum(value, forget, write):
    """Nothing is stabilised: the plain sums, which float64 holds for small gates."""
    weights = decayed(torch.nn.functional.logsigmoid(forget)) * write.exp()[:, None]
    c, n = (weights * value[:, None]).sum(2), weights.sum(2)
    return c / n.abs().clamp(min=1.0)


# The formula of each page, written without a scan, and inputs by name.
FORMULAS = {
    "EMA": (ema, {"x": normal(2, 9, 3), "w": normal(3)}),
    "Rotation": (rotation, {"u": normal(2, 9, 3), "nu": normal(3), "theta": normal(3, seed=1)}),
    "LRU": (
        lru,
        {"u": normal(2, 9, 3), "lam": torch.polar(normal(4).sigmoid(), normal(4, seed=1)), "D": normal(3)}
        | {"B": torch.complex(normal(4, 3), normal(4, 3, seed=1))}
        | {"C": torch.complex(normal(3, 4), normal(3, 4, seed=1))},
    ),
    "Play": (play, {"u": normal(2, 9, 3), "width": normal(3).abs()}),
    "LinOSS": (linoss, {"u": normal(2, 9, 3), "A": normal(3).abs(), "h": normal(3, seed=1).sigmoid()}),
    "RunningLogSumExp": (lambda x: x.logcumsumexp(1), {"x": normal(2, 9, 3)}),
    "Retention": (
        retention,
        {n: normal(2, 9, 2, 3, seed=i) for i, n in enumerate("qkv")} | {"gamma": normal(2).sigmoid()},
    ),
    "GLA": (gla, {n: normal(2, 9, 2, 3, seed=i) for i, n in enumerate(("q", "k", "gate", "v"))}),
    "Mamba2": (
        mamba2,
        {"x": normal(2, 9, 2, 3), "raw": normal(2, 9, 2), "B": normal(2, 9, 4), "C": normal(2, 9, 4, seed=1)}
        | {n: normal(2, seed=i) for i, n in enumerate(("A_log", "bias", "D"))},
    ),
    "RWKV": (
        rwkv,
        {n: normal(2, 9, 2, 3, seed=i) for i, n in enumerate(("r", "k", "decay", "v"))}
        | {"bonus": normal(2, 3)},
    ),
    "GatedMemory": (
        gated_sum,
        {n: normal(2, 9, 3, seed=i) for i, n in enumerate(("value", "forget", "write"))},
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_values_and_gradients_are_the_formulas(name):
    formula, tensors = FORMULAS[name]
    tensors = {n: x.clone().requires_grad_() for n, x in tensors.items()}
    found = []
    for outputs in (sf.scan(DECLARED[name], **tensors), formula(**tensors)):
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        weighed = sum((y * normal(*y.shape)).sum() for y in outputs)
        found.append((outputs, torch.autograd.grad(weighed, list(tensors.values()))))
    for got, right in zip(*(y for y, _ in found), strict=True):
        assert_close(got.detach(), right.detach(), "forward")
    for got, right in zip(*(g for _, g in found), strict=True):
        assert_close(got, right, "gradient")


def test_a_write_beyond_the_range_of_exp_is_kept():
    tensors = {"value": normal(1, 4, 1).float(), "forget": torch.full((1, 4, 1), 50.0)}
    write = torch.tensor([0.0, 800.0, 0.0, -800.0]).reshape(1, 4, 1).requires_grad_()
    y = sf.scan(gated_memory.GatedMemory, **tensors, write=write)
    torch.testing.assert_close(y[0, 1:, 0].detach(), tensors["value"][0, 1].expand(3))
    y.sum().backward()
    assert write.grad.isfinite().all()


def test_welford_is_mean_and_variance_of_what_was_seen():
    x = 1e6 + normal(2, 9, 3)
    one = torch.ones_like(x)
    count, mean, dev = sf.scan(DECLARED["Welford"], n=one, x=x, D=0 * one)
    for t in range(9):
        assert_equal(count[:, t], torch.full((2, 3), t + 1.0, dtype=torch.float64))
        torch.testing.assert_close(mean[:, t], x[:, : t + 1].mean(1), rtol=1e-15, atol=0)
        torch.testing.assert_close(
            dev[:, t] / count[:, t], x[:, : t + 1].var(1, correction=0), rtol=1e-8, atol=1e-9
        )


def test_welford_merges_batches():
    x = normal(1, 12)
    parts = x.reshape(3, 4)
    n = torch.full((1, 3), 4.0, dtype=torch.float64)
    count, mean, dev = sf.scan(
        DECLARED["Welford"], n=n, x=parts.mean(1)[None], D=4 * parts.var(1, correction=0)[None]
    )
    assert count[0, -1] == 12
    torch.testing.assert_close(mean[0, -1], x.mean())
    torch.testing.assert_close(dev[0, -1] / 12, x.var(correction=0))


def test_the_gradient_of_the_best_score_is_the_best_path():
    steps, switch = 7, 0.8
    scores = normal(5, steps, 2)
    best, path = viterbi.best_path(scores, switch)
    for row, score, found in zip(scores, best, path, strict=True):
        # The first step may come from either state, which costs nothing or a switch: nothing is best.
        totals = {
            states: sum(row[t, s] for t, s in enumerate(states))
            - switch * sum(a != b for a, b in itertools.pairwise(states))
            for states in itertools.product(range(2), repeat=steps)
        }
        right = max(totals, key=totals.get)
        assert tuple(found.tolist()) == right
        torch.testing.assert_close(score, totals[right])


def test_filter_and_smoother_are_the_joint_gaussians():
    """The means and variances of x_t given y_1..t, and given all, from the covariance of everything."""
    steps, (F, H, Q, R) = 6, (0.9, 1.3, 0.4, 0.7)
    y = normal(2, steps, 1)
    times = [torch.tensor([v], dtype=torch.float64) for v in (F, H, Q, R)]
    (m, p), (s, v) = kalman.smooth(y, *times)
    # x = lower (w_0, ..., w_t), where w_0 = x_0 has variance 1 and the others Q.
    at = torch.arange(steps + 1, dtype=torch.float64)
    lower = torch.tril(F ** (at[:, None] - at[None]).clamp(min=0))[1:]
    noise = torch.tensor([1.0] + [Q] * steps, dtype=torch.float64)
    joint = lower * noise @ lower.T
    for t in range(steps):
        for seen, mean, var in ((t + 1, m, p), (steps, s, v)):
            gain = torch.linalg.solve(
                H * H * joint[:seen, :seen] + R * torch.eye(seen, dtype=torch.float64), H * joint[:seen, t]
            )
            torch.testing.assert_close(mean[:, t, 0], y[:, :seen, 0] @ gain)
            right = joint[t, t] - H * joint[t, :seen] @ gain
            torch.testing.assert_close(var[:, t, 0], right.expand(2))


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_the_automaton_accepts_what_the_expression_does(length):
    for letters in itertools.product("ab", repeat=length):
        word = "".join(letters)
        right = []
        for end in range(1, length + 1):
            alternates = all(letter == "ab"[i % 2] for i, letter in enumerate(word[:end]))
            right.append(end % 2 if alternates else 2)
        assert automaton.run(word).tolist() == right


def test_segments_by_hand_are_resets():
    start = torch.rand(2, 9, 3, generator=torch.Generator().manual_seed(0)) < 0.3
    start = start[..., :1].expand(2, 9, 3)
    a, b = normal(2, 9, 3), normal(2, 9, 3, seed=1)
    got = sf.scan(DECLARED["SegmentedAffine"], start=start, a=a, b=b)
    assert_close(got, sf.scan(sf.Affine, a=a, b=b, reset=start[..., 0]), "forward")
