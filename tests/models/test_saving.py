"""Models and states come back from their files bit for bit, and what does not fit is refused."""

from __future__ import annotations

import json
import pickle
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import models
from models import RecurrentLM, TransformerLM, from_pretrained, load_state, save_pretrained, save_state
from models.encoding import decoded, encoded
from models.mixer import Mixer, tensors
from tests.catalogue import generator
from tests.models.average import Average
from tests.models.protocol import refused

F64, BF16 = torch.float64, torch.bfloat16
LM = {"vocab_size": 11, "d_model": 8, "n_layers": 2}
ATTENTION = SimpleNamespace(hidden_size=8, num_heads=2, dropout=0.0, use_bitnet=False, hgrn2_lower_bound=0.5)
MINMAX = models.MinMaxRNCConfig(8, 2, 5, version="0.1.0", train_init=True, use_postlayers_ffn=True)
LAYERS = {
    "MultiScaleSSM": lambda: models.MultiScaleSSM(8, num_scales=2, state_size=3, expand_factor=1),
    "SelectiveSSM": lambda: models.SelectiveSSM(8, d_state=3, dt_rank=2),
    "RGLRU": lambda: models.RGLRU(8, 3, 2, a_init_range=(0.5, 0.9), bias=True, dtype=torch.float32),
    "RecurrentBlock": lambda: models.RecurrentBlock(8, num_heads=2),
    "HGRN2": lambda: models.HGRN2(8, num_heads=2),
    "HGRN2 bounds": lambda: models.HGRN2(8, num_heads=2, lower_bound=torch.linspace(0, 0.7, 8)),
    "HGRN2Attention": lambda: models.HGRN2Attention(ATTENTION),
    "GatedConv": lambda: models.GatedConv(models.GatedConvConfig(8, 0.5)),
    "BasicConv": lambda: models.BasicConv(models.BasicConvConfig(8, "default")),
    "MinMaxNeuron": lambda: models.MinMaxNeuron(MINMAX.layer_cfg.neuron),
    "MinMaxLayer": lambda: models.MinMaxLayer(MINMAX.layer_cfg, first=True),
    "MinMaxRNC": lambda: models.MinMaxRNC(MINMAX),
}
LMS = {
    "TransformerLM": lambda: TransformerLM(11, 8, 2, num_heads=2, d_ff=12, max_seq_len=64),
    "MinMaxRNC_LM": lambda: models.MinMaxRNC_LM(11, models.MinMaxRNCLMConfig(MINMAX, conv_type="basic")),
    **{
        name: lambda name=name: RecurrentLM(**LM, mixer=name, **MORE.get(name, {}))
        for name in models.named.MIXERS
    },
}
MORE = {
    "ssm": {"mixer_args": {"d_state": 3}, "ffn": "gated", "norm": "layernorm"},
    "rglru": {"tie_weights": False, "mixer_args": {"a_init_range": (0.8, 0.9)}},
    "hgrn2": {"mixer_args": {"num_heads": 2}},
}


def made(build, dtype: torch.dtype) -> nn.Module:
    """Weights that no seed gives again."""
    torch.manual_seed(0)
    model = build().to(dtype).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator(p.numel())).to(p))
    return model


def drawn(model: nn.Module, dtype: torch.dtype) -> Tensor:
    if hasattr(model, "vocab_size"):
        return torch.randint(model.vocab_size, (2, 9), generator=generator(1))
    return torch.randn(2, 9, model.d_model, generator=generator(1)).to(dtype)


def assert_same(a: nn.Module, b: nn.Module) -> None:
    assert type(a) is type(b)
    assert a is not b
    mine, others = a.state_dict(), b.state_dict()
    assert mine.keys() == others.keys()
    assert all(torch.equal(x, others[n]) and x.dtype == others[n].dtype for n, x in mine.items())
    assert [n for n, _ in a.named_parameters()] == [n for n, _ in b.named_parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, F64, BF16], ids=str)
@pytest.mark.parametrize("build", [*LAYERS.values(), *LMS.values()], ids=[*LAYERS, *LMS])
def test_req24_a_model_and_its_state_come_back_bit_for_bit(build, dtype, tmp_path: Path):
    model = made(build, dtype)
    save_pretrained(model, tmp_path / "some" / "folder")
    again = from_pretrained(tmp_path / "some" / "folder")
    assert_same(model, again)
    assert not again.training
    x = drawn(model, dtype)
    _, state = model(x[:, :6], state=None, return_state=True)
    save_state(state, tmp_path / "state")
    back = load_state(tmp_path / "state")
    assert type(back) is type(state)
    for a, b in zip(tensors(state), tensors(back), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    y_t, _ = model.step(x[:, 6], state)
    assert torch.equal(y_t, again.step(x[:, 6], back)[0])


def test_no_public_model_is_left_out():
    kinds = {n for n in models.__all__ if isinstance(getattr(models, n), type)}
    mixers = {n for n in kinds if issubclass(getattr(models, n), Mixer)} - {"Mixer", "ResidualStack"}
    assert mixers <= {type(build()).__name__ for build in [*LAYERS.values(), *LMS.values()]}


def test_tied_weights_are_written_once_and_tied_again(tmp_path: Path):
    model = made(LMS["TransformerLM"], torch.float32)
    save_pretrained(model, tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "embed.weight" in names
    assert "lm_head.weight" not in names
    again = from_pretrained(tmp_path)
    assert again.lm_head.weight is again.embed.weight
    free = RecurrentLM(**LM, mixer="rglru", tie_weights=False)
    save_pretrained(free, tmp_path)
    assert {"embed.weight", "head.weight"} <= load_file(tmp_path / "model.safetensors").keys()
    assert from_pretrained(tmp_path).head.weight is not from_pretrained(tmp_path).embed.weight


def test_marks_on_parameters_stay(tmp_path: Path):
    save_pretrained(made(LAYERS["RGLRU"], F64), tmp_path)
    again = from_pretrained(tmp_path)
    assert again.a_log._no_weight_decay
    assert again.a_log.dtype == F64
    assert again.a_log.requires_grad


def test_the_config_is_short_and_readable(tmp_path: Path):
    save_pretrained(RecurrentLM(11, 8, 2, "ssm", mixer_args={"d_state": 3}), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "format": "scanforge.models", "version": 1, "class": "RecurrentLM",
        "arguments": {
            "vocab_size": 11, "d_model": 8, "n_layers": 2, "mixer": "ssm",
            "mixer_args": {"type": "dict", "of": {"d_state": 3}},
        },
    }  # fmt: skip


def test_copies_and_pickles_can_be_saved(tmp_path: Path):
    model = made(LMS["ssm"], torch.float32)
    for copy in (deepcopy(model), pickle.loads(pickle.dumps(model))):
        save_pretrained(copy, tmp_path)
        assert_same(model, from_pretrained(tmp_path))
    free = RecurrentLM(11, 4, 1, lambda _: Average(4))
    assert_same(free, pickle.loads(pickle.dumps(free)))


def test_parameters_that_are_views_of_one_memory(tmp_path: Path):
    model, whole = TransformerLM(11, 8, 1, 2, 12), torch.randn(3, 8)
    model.final_norm.weight.data, model.blocks[0].norm1.weight.data = whole[0], whole[1]
    save_pretrained(model, tmp_path)
    assert_same(model.eval(), from_pretrained(tmp_path))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 2.5, float("inf"), "x", [1, [2.5]], (1, ("a",)), {"type": "tuple", "of": (1,)}, {},
        torch.float64, torch.tensor([[0.1, -2.0]]), torch.tensor(3, dtype=torch.int64),
        torch.tensor([0.1], dtype=BF16), SimpleNamespace(a=(1, None)),
    ],
    ids=str,
)  # fmt: skip
def test_arguments_come_back_as_they_were(value):
    back = decoded(json.loads(json.dumps(encoded("x", value))), lambda _: None)
    assert type(back) is type(value)
    if isinstance(value, Tensor):
        assert back.dtype == value.dtype
        assert torch.equal(back, value)
    else:
        assert back == value
        assert repr(back) == repr(value)


def test_states_of_any_nest(tmp_path: Path):
    state = [{"a": torch.ones(2, 0), "n": 3}, (torch.zeros(2, dtype=BF16), None), torch.randn(4, 3).T]
    save_state(state, tmp_path / "state")
    back = load_state(tmp_path / "state")
    assert isinstance(back[1], tuple)
    assert (back[0]["n"], back[1][1], tuple(back[0]["a"].shape)) == (3, None, (2, 0))
    assert torch.equal(back[2], state[2])
    assert back[1][0].dtype == BF16


class Mine(Average):
    """A mixer that is no part of `models`"""


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: Mine(4), ("Mine", "models", "state_dict")),
        (lambda: nn.Linear(2, 2), ("Linear", "models")),
        (lambda: RecurrentLM(11, 4, 1, lambda _: Average(4)), ("RecurrentLM", "function", "by name")),
        (
            lambda: models.HGRN2(8, num_heads=2, lower_bound=models.LowerBounds(2, 8)),
            ("HGRN2: lower_bound", "LowerBounds", "tensors"),
        ),
    ],
)
def test_models_that_cannot_be_saved(model, words, tmp_path: Path):
    built = model()
    refused(lambda: save_pretrained(built, tmp_path / "new"), *words)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c, _: c.update({"class": "Unknown"}), ("Unknown", "does not export")),
        (lambda c, _: c.update({"class": "generate"}), ("generate", "does not export")),
        (lambda c, _: c.update({"class": "saving"}), ("saving", "does not export")),
        (lambda c, _: c.update({"format": "other"}), ("config", "save_pretrained")),
        (lambda c, _: c.update({"version": 2}), ("config", "save_pretrained")),
        (lambda c, _: c["arguments"].update({"d_model": 4}), ("embed.weight", "(11, 8)", "(11, 4)")),
        (lambda c, _: c["arguments"].update({"d_model": {"type": "dtype", "of": "load"}}), ("dtype 'load'",)),
        (
            lambda c, _: c["arguments"].update({"d_model": {"type": "dataclass", "name": "X", "of": {}}}),
            ("'X'",),
        ),
        (lambda _, w: w.pop("final_norm.weight"), ("lacks", "final_norm.weight")),
        (lambda _, w: w.update({"more": torch.ones(1)}), ("has no", "'more'")),
    ],
)
def test_files_that_do_not_fit(change, words, tmp_path: Path):
    save_pretrained(LMS["TransformerLM"](), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    weights = load_file(tmp_path / "model.safetensors")
    change(config, weights)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(weights, tmp_path / "model.safetensors")
    refused(lambda: from_pretrained(tmp_path), *words)


def test_a_file_that_is_no_state(tmp_path: Path):
    save_pretrained(LMS["TransformerLM"](), tmp_path)
    refused(lambda: load_state(tmp_path / "model.safetensors"), "model.safetensors", "save_state")
    refused(lambda: save_state({"a": object()}, tmp_path / "x"), "state", "object")
    with pytest.raises(FileNotFoundError):
        from_pretrained(tmp_path / "nowhere")


def test_other_programs_can_read_the_weights(tmp_path: Path):
    model = made(LMS["TransformerLM"], torch.float32)
    save_pretrained(model, tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="np") as file:
        assert torch.equal(torch.from_numpy(file.get_tensor("embed.weight")), model.embed.weight)
