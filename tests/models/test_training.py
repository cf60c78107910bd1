"""Gradients watched and clipped, the optimiser's groups, the schedule, seeds."""

from __future__ import annotations

import math
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from models import training
from tests.models.golden import golden
from tests.models.protocol import refused


class Mixed(nn.Module):
    """Parameters of every kind that decides about decay; `once` has one entry, `idle` is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.input_norm = nn.Linear(3, 3, bias=False)
        self.mixer = nn.ParameterDict({"A_log": nn.Parameter(torch.ones(3, 2))})
        self.a_log = nn.Parameter(torch.ones(3, 1))
        self.marked = nn.Parameter(torch.ones(3, 3))
        self.marked._no_weight_decay = True
        self.once = nn.Parameter(torch.ones(1, 1))
        self.idle = nn.Parameter(torch.ones(2, 2))
        self.frozen = nn.Parameter(torch.ones(2, 2), requires_grad=False)

    def forward(self, x):
        y = self.input_norm(self.body(x)) @ self.marked * self.a_log.T
        return (y @ self.mixer["A_log"]).sum() * self.once.sum()


@pytest.fixture
def model() -> Mixed:
    torch.manual_seed(0)
    return Mixed()


X = torch.arange(6.0).reshape(2, 3)


def test_the_monitor_says_what_the_last_gradients_are(model: Mixed):
    monitor = training.GradientMonitor(model)
    assert monitor.get_stats() == {}
    assert monitor.get_summary() == {
        "grad_norm_mean": 0.0, "grad_norm_max": 0.0, "grad_norm_min": 0.0, "num_params_tracked": 0
    }  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (3 * model(X)).backward()
        model.zero_grad()
        model(X).backward()
    stats = monitor.get_stats()
    named = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert set(stats) == set(named) == set(dict(model.named_parameters())) - {"idle", "frozen"}
    for name, g in named.items():
        std = g.std().item() if g.numel() > 1 else 0.0
        want = {"mean": g.mean().item(), "std": std, "max": g.max().item(), "min": g.min().item()}
        assert stats[name] == pytest.approx(want | {"norm": g.norm().item()}), name
    assert stats["once"]["std"] == 0.0
    norms = [g.norm().item() for g in named.values()]
    assert monitor.get_summary() == pytest.approx(
        {"grad_norm_mean": sum(norms) / len(norms), "grad_norm_max": max(norms),
         "grad_norm_min": min(norms), "num_params_tracked": len(norms)}
    )  # fmt: skip


def test_a_removed_monitor_sees_nothing_new(model: Mixed):
    monitor = training.GradientMonitor(model)
    model(X).backward()
    before = monitor.get_stats()
    monitor.remove_hooks()
    (5 * model(X)).backward()
    assert monitor.get_stats() == before


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_finite_gradients(model: Mixed, bad: float):
    assert training.check_gradients_finite(model)
    model(X).backward()
    assert training.check_gradients_finite(model)
    model.body.weight.grad[1, 1] = bad
    assert not training.check_gradients_finite(model)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_clipping_leaves_gradients_out_that_are_not_finite(model: Mixed, bad: float):
    model(X).backward()
    model.body.weight.grad[0, 0] = bad
    rest = [p.grad.clone() for n, p in model.named_parameters() if p.grad is not None and n != "body.weight"]
    norm = torch.cat([g.reshape(-1) for g in rest]).norm()
    got = training.safe_clip_grad_norm_(model, max_norm=0.5)
    assert isinstance(got, float)
    assert got == pytest.approx(norm.item())
    assert not model.body.weight.grad.any()
    left = [p.grad for n, p in model.named_parameters() if p.grad is not None and n != "body.weight"]
    for g, want in zip(left, rest, strict=True):
        torch.testing.assert_close(g, want * 0.5 / norm, rtol=1e-5, atol=1e-8)


def test_clipping_by_another_norm_and_below_the_bound(model: Mixed):
    model(X).backward()
    largest = max(p.grad.abs().max().item() for p in model.parameters() if p.grad is not None)
    before = model.body.weight.grad.clone()
    assert training.safe_clip_grad_norm_(model, 2 * largest, math.inf) == pytest.approx(largest)
    assert torch.equal(model.body.weight.grad, before)
    assert training.safe_clip_grad_norm_(nn.Linear(2, 2)) == 0.0


def test_which_parameters_decay(model: Mixed):
    optimizer, _ = training.create_optimizer_and_scheduler(model, weight_decay=0.3, betas=(0.8, 0.9))
    assert isinstance(optimizer, torch.optim.AdamW)
    names = {p: n for n, p in model.named_parameters()}
    decayed, kept = ({names[p] for p in group["params"]} for group in optimizer.param_groups)
    assert decayed == {"body.weight", "once", "idle"}
    assert kept == {"body.bias", "input_norm.weight", "mixer.A_log", "a_log", "marked"}
    assert [g["weight_decay"] for g in optimizer.param_groups] == [0.3, 0.0]
    assert {g["betas"] for g in optimizer.param_groups} == {(0.8, 0.9)}


def test_the_schedule_is_the_original_s_and_then_stays_at_its_floor():
    want = golden("transformer_baseline")["lr_schedule_lr1e-3_w4_t20_min0.1"].tolist()
    optimizer, scheduler = training.create_optimizer_and_scheduler(
        nn.Linear(2, 2), lr=1e-3, warmup_steps=4, total_steps=20, min_lr_ratio=0.1
    )
    got = []
    for _ in range(40):
        got.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert got[:21] == pytest.approx(want[:21], rel=1e-12, abs=0)
    assert got[20:] == pytest.approx([1e-4] * 20, rel=1e-12, abs=0)


@pytest.mark.parametrize(("warmup", "total"), [(0, 5), (5, 5), (7, 5)])
def test_schedules_without_warm_up_or_without_descent(warmup: int, total: int):
    factors = [training.learning_rate_factor(s, warmup, total, 0.2) for s in range(12)]
    assert factors[:warmup] == [s / warmup for s in range(warmup)]
    assert factors[warmup] == 1.0
    assert factors[max(warmup + 1, total) :] == pytest.approx([0.2] * (12 - max(warmup + 1, total)))


def test_a_seed_sets_every_generator(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)

    def draw():
        return random.random(), np.random.rand(), torch.rand(()).item()

    drawn = []
    for seed in (3, 3, 4):
        training.set_seed(seed)
        drawn.append(draw())
    assert drawn[0] == drawn[1]
    assert all(a != b for a, b in zip(drawn[0], drawn[2], strict=True))
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize(
    ("cuda", "mps", "want"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu"), (True, False, "cuda")],
)
def test_the_best_device(cuda: bool, mps: bool, want: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert training.get_best_device() == torch.device(want)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lr": -1.0}, ("lr=-1.0", "[0, inf]")),
        ({"weight_decay": -0.1}, ("weight_decay=-0.1",)),
        ({"warmup_steps": -1}, ("warmup_steps=-1",)),
        ({"total_steps": 0}, ("total_steps=0", "at least 1")),
        ({"min_lr_ratio": 1.5}, ("min_lr_ratio=1.5", "[0, 1]")),
    ],
)
def test_what_is_refused(given, words):
    refused(lambda: training.create_optimizer_and_scheduler(nn.Linear(2, 2), **given), *words)
