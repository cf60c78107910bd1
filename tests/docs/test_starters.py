"""The short examples run from the shell, their tasks are what they say, and what they compute is right."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import scanforge as sf
from examples import decode_server, flip_flop, kalman, new_recurrence, selective_copy
from models import RecurrentLM, set_seed
from tests.subprocesses import ROOT, run_warm

SMALL = {
    "char_lm": (["--mixer", "minmax", "--steps", "2", "--width", "16", "--save", "lm"], "bits per byte"),
    "flip_flop": (["--mixer", "hgrn2", "--steps", "2"], " 400 letters: "),
    "selective_copy": (["--mixer", "rglru", "--steps", "2"], "% of letters right, by chance 25 %"),
    "new_recurrence": (["--steps", "2"], "GatedPeak: ok"),
    "kalman": (["--steps", "2", "--length", "50"], "true Q 0.500, R 0.100   found Q"),
    "decode_server": (["--requests", "3", "--slots", "2"], "tokens of 3 requests"),
}


@pytest.mark.parametrize("name", SMALL)
def test_it_runs_from_the_shell(name: str, tmp_path: Path):
    options, said = SMALL[name]
    assert said in run_warm(str(ROOT / "examples" / f"{name}.py"), *options, cwd=tmp_path)
    if "--save" in options:
        assert (tmp_path / "lm" / "model.safetensors").exists()


@pytest.mark.parametrize("mixer", flip_flop.MIXERS)
def test_any_mixer_goes(mixer: str):
    set_seed(0)
    model = RecurrentLM(4, 8, 1, mixer, tie_weights=False)
    flip_flop.train(model, 1)
    assert 0.2 < flip_flop.ask(model, 20) < 0.8


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_flip_flop_answers():
    text, answers = flip_flop.task(20, 30, draw())
    for row, right in zip(text.tolist(), answers.tolist(), strict=True):
        assert right == [[x for x in row[: t + 1] if x < 2][-1] for t in range(30)]


def test_selective_copy_answers():
    text, answers = selective_copy.task(50, draw())
    for row, right in zip(text.tolist(), answers.tolist(), strict=True):
        assert [x for x in row if x < selective_copy.LETTERS] == right
        assert row[-selective_copy.COUNT :] == [selective_copy.ASK] * selective_copy.COUNT


def test_peaks_since_the_mark():
    x, y = new_recurrence.task(20, 40, draw())
    for (values, marks), right in zip(x.transpose(1, 2), y[..., 0], strict=True):
        best = 0.0
        for value, mark, peak in zip(values.tolist(), marks.tolist(), right.tolist(), strict=True):
            best = value if mark else max(best, value)
            assert peak == best


def test_the_new_recurrence_is_lawful_and_wins_where_it_should():
    assert sf.check(new_recurrence.GatedPeak, show=False).ok
    assert new_recurrence.train("peak", 150) < new_recurrence.train("RG-LRU", 150)


def test_selective_copy_is_learned():
    set_seed(0)
    model = RecurrentLM(selective_copy.LETTERS + 2, 48, 2, "rglru", ffn="gated", tie_weights=False)
    assert selective_copy.train(model, 150) > 0.45


@pytest.mark.parametrize(("Q", "R"), [(0.01, 1.0), (0.5, 0.1)])
def test_likelihood_is_that_of_the_joint_normal(Q: float, R: float):
    y = kalman.simulate(8, Q, R)
    logs = torch.tensor([[Q], [R]], dtype=torch.float64).log().requires_grad_()
    got = sf.scan(kalman.LocalLevel, y=y, log_Q=logs[0], log_R=logs[1]).sum()
    (gradient,) = torch.autograd.grad(got, logs)
    # x_t = x_0 + steps, where x_0 is N(0, 1)
    steps = torch.arange(1, 9, dtype=torch.float64)
    variance = logs.exp()
    joint = 1 + variance[0] * torch.minimum(steps, steps[:, None]) + variance[1] * torch.eye(8)
    right = -torch.distributions.MultivariateNormal(torch.zeros(8, dtype=torch.float64), joint).log_prob(y[0])
    torch.testing.assert_close(got, right)
    torch.testing.assert_close(gradient, *torch.autograd.grad(right, logs))


def test_variances_are_found_again():
    Q, R = kalman.fit(kalman.simulate(1000, 0.1, 0.5), 40)
    assert pytest.approx(0.1, rel=0.25) == Q
    assert pytest.approx(0.5, rel=0.15) == R


def serve(mixer: str, slots: int, device: str = "cpu") -> None:
    """Every request gets what it would get alone."""
    set_seed(0)
    model = RecurrentLM(64, 16, 2, mixer, ffn="gated").to(device)
    lengths = [(1, 5), (9, 1), (4, 12), (2, 3), (7, 6)]
    requests = [decode_server.Request(torch.randint(64, (read,)), write) for read, write in lengths]
    before = copy.deepcopy(requests)
    steps = decode_server.Server(model, slots).serve(requests)
    assert max(write for _, write in lengths) <= steps < sum(write for _, write in lengths) + (slots == 1)
    for request, given in zip(requests, before, strict=True):
        alone = model.generate(given.prompt[None].to(device), given.wanted)[0, len(given.prompt) :]
        assert request.written == alone.tolist()


@pytest.mark.parametrize("mixer", ["minmax", "ssm", "rglru", "hgrn2"])
@pytest.mark.parametrize("slots", [1, 2, 8])
def test_the_server_answers_as_if_each_were_alone(mixer: str, slots: int):
    serve(mixer, slots)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_servers_graph_answers_the_same():
    serve("rglru", 2, "cuda")
