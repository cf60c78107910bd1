"""A MambaForCausalLM turned into ours: transformers' own pure-torch code is the truth."""

from __future__ import annotations

import pytest
import torch

from models.lm import RecurrentLM
from models.saving import from_pretrained, save_pretrained
from models.ssm import SelectiveSSM, from_mamba, mamba_name
from tests.models.protocol import refused

SIZES = {"vocab_size": 29, "hidden_size": 24, "state_size": 5, "num_hidden_layers": 3}
VARIANTS = {
    "plain": {},
    "biased, untied": {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False},
    "other sizes": {"conv_kernel": 3, "expand": 1, "time_step_rank": 7, "layer_norm_epsilon": 1e-3},
}


def ours(**config) -> RecurrentLM:
    """A model as the configuration asks for, built without the converter."""
    torch.manual_seed(0)
    c = {"use_bias": False, "use_conv_bias": True, "tie_word_embeddings": True} | SIZES | config
    options = {"bias": c["use_bias"], "conv_bias": c["use_conv_bias"]}
    args = (c["hidden_size"], c["state_size"], c.get("conv_kernel", 4), c.get("expand", 2))
    rank = c.get("time_step_rank", "auto")
    return RecurrentLM(
        c["vocab_size"],
        c["hidden_size"],
        c["num_hidden_layers"],
        lambda i: SelectiveSSM(*args, rank, **options),
        norm_eps=c.get("layer_norm_epsilon", 1e-5),
        tie_weights=c["tie_word_embeddings"],
    )


def named(model: RecurrentLM) -> dict[str, torch.Tensor]:
    return {mamba_name(name): p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_without_transformers(config):
    """A dict and a state_dict are enough; weights are copies."""
    model, tokens = ours(**config), torch.randint(29, (2, 9))
    weights = named(model)
    made = from_mamba(SIZES | config, weights)
    assert torch.equal(made(tokens), model(tokens))
    assert all(p.data_ptr() != weights[mamba_name(n)].data_ptr() for n, p in made.named_parameters())
    assert (made.head.weight is made.embed.weight) == config.get("tie_word_embeddings", True)


def test_what_was_made_is_saved(tmp_path):
    made, tokens = from_mamba(SIZES, named(ours())), torch.randint(29, (2, 9))
    save_pretrained(made, tmp_path)
    assert torch.equal(from_pretrained(tmp_path)(tokens), made.eval()(tokens))


def test_the_names_of_the_first_checkpoints():
    """state-spaces' files say `embedding`, and hold the tied head a second time."""
    weights = named(ours())
    table = weights.pop("backbone.embeddings.weight")
    made = from_mamba(SIZES, weights | {"backbone.embedding.weight": table, "lm_head.weight": table})
    assert torch.equal(made.head.weight, table)


def test_dtypes_and_flags_of_parameters_stay():
    weights = {n: w if n.endswith(("A_log", "D")) else w.bfloat16() for n, w in named(ours()).items()}
    made = from_mamba(SIZES, weights)
    for name, p in made.named_parameters():
        assert p.dtype == (torch.float32 if name.endswith(("A_log", "D")) else torch.bfloat16)
        assert getattr(p, "_no_weight_decay", False) == name.endswith(("A_log", "D"))
    assert made(torch.randint(29, (2, 9))).dtype == torch.bfloat16


def changed(**config) -> dict:
    return SIZES | config


def without(name: str) -> dict[str, torch.Tensor]:
    return {n: w for n, w in named(ours()).items() if n != name}


NORM = "backbone.layers.0.norm.weight"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: from_mamba("state-spaces/mamba-130m"), ("from_mamba", "str", "MambaForCausalLM")),
        (lambda: from_mamba("mamba", {}), ("configuration", "str", "config.json")),
        (lambda: from_mamba({"vocab_size": 3, "hidden_size": 4}, {}), ("'num_hidden_layers'",)),
        (lambda: from_mamba(changed(model_type="mamba2"), {}), ("model_type='mamba2'", "'mamba'")),
        (lambda: from_mamba(changed(hidden_act="gelu"), {}), ("hidden_act='gelu'", "'silu'")),
        (lambda: from_mamba(SIZES, without(NORM)), ("lacks", NORM)),
        (lambda: from_mamba(SIZES, without(NORM) | {"more": torch.ones(1)}), ("belong nowhere", "more")),
        (lambda: from_mamba(changed(vocab_size=30), named(ours())), ("(29, 24)", "(30, 24)", "embeddings")),
    ],
)
def test_what_is_refused(call, words):
    refused(call, *words)


@pytest.fixture
def theirs():
    """Builds transformers' model with every weight moved off its special value."""
    transformers = pytest.importorskip("transformers")

    def build(**config):
        torch.manual_seed(0)
        made = transformers.MambaForCausalLM(transformers.MambaConfig(**SIZES, eos_token_id=None, **config))
        with torch.no_grad():
            for p in made.parameters():
                p.add_(0.1 * torch.randn_like(p))
        return made.eval()

    return build


@pytest.mark.slow
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_logits_are_transformers(theirs, config):
    """Whole sequences, padding on the left, and every weight's gradient in training.

    The truth of a padded row is the row alone: with `use_bias`, transformers' padding enters its convolution.
    """
    model, tokens = theirs(**config), torch.randint(29, (2, 33))
    made, close = from_mamba(model), {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(made(tokens), model(tokens).logits, **close)
    mask = torch.arange(33) >= torch.tensor([0, 7])[:, None]
    padded = made(tokens, mask=mask)
    torch.testing.assert_close(padded[:1], model(tokens[:1]).logits, **close)
    torch.testing.assert_close(padded[1:, 7:], model(tokens[1:, 7:]).logits, **close)
    weight = torch.randn(2, 33, 29)
    for each in (model.train(), made.train()):
        y = each(tokens)
        (weight * getattr(y, "logits", y)).mean().backward()
    gradients = {n: p.grad for n, p in model.named_parameters()}
    for name, p in made.named_parameters():
        torch.testing.assert_close(p.grad, gradients[mamba_name(name)], **close)


@pytest.mark.slow
def test_configuration_and_weights_apart(theirs):
    model, tokens = theirs(), torch.randint(29, (2, 9))
    want = from_mamba(model)(tokens)
    for config in (model.config, model.config.to_dict()):
        assert torch.equal(from_mamba(config, model.state_dict())(tokens), want)


@pytest.mark.slow
def test_generation_is_transformers(theirs):
    """Prefill and steps, through its cache and through ours."""
    model, tokens = theirs(), torch.randint(1, 29, (2, 6))
    with torch.no_grad():
        want = model.generate(tokens, max_new_tokens=12, do_sample=False)
        torch.testing.assert_close(from_mamba(model).generate(tokens, 12), want)


@pytest.mark.slow
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_logits_in_float64(theirs, monkeypatch, config):
    """With transformers' casts to fp32 switched off, its formulas in float64."""
    model = theirs(residual_in_fp32=False, **config).double()
    tokens = torch.randint(29, (2, 33))
    made = from_mamba(model)

    def norm(layer, x):
        return layer.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + layer.variance_epsilon)

    monkeypatch.setattr(type(model.backbone.norm_f), "forward", norm)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    want = model(tokens).logits
    assert want.dtype == torch.float64
    torch.testing.assert_close(made(tokens), want, rtol=1e-12, atol=1e-12)
