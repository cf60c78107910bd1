"""The package imports without Triton, and every layer runs through the reference."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import models
from tests.project.test_import import BLOCK_TRITON, HIDE_TRITON
from tests.subprocesses import run_python

MODULES = ["models", *(m.name for m in pkgutil.walk_packages(models.__path__, "models."))]

EVERY_LAYER = """
import torch
torch.cuda.is_available = lambda: False
import models
from models import *
from models.mixer import Mixer
torch.manual_seed(0)
neuron = MinMaxNeuronConfig(1, 8, 4)
parts = [
    MinMaxNeuron(neuron), GatedConv(GatedConvConfig(8)), BasicConv(BasicConvConfig(8)),
    MinMaxLayer(MinMaxLayerConfig(neuron, GatedConvConfig(8), 8, feedforward=FeedForwardConfig(1, 8)), True),
    MinMaxRNC(MinMaxRNCConfig(8, 2, 4)), MultiScaleSSM(8, 2, 3), SelectiveSSM(8, 3), RGLRU(8),
    RecurrentBlock(8), HGRN2(8, num_heads=2), HGRN2Attention(hidden_size=8, num_heads=2),
]
lms = [RecurrentLM(11, 8, 1, name) for name in models.named.MIXERS]
lms += [MinMaxRNC_LM(11, MinMaxRNCLMConfig(MinMaxRNCConfig(8, 1, 4))), TransformerLM(11, 8, 1, 2, 12)]
tokens, x = torch.randint(11, (2, 6)), torch.randn(2, 6, 8)
for layer in parts + lms:
    out, state = layer.eval()(tokens if layer in lms else x, state=None, return_state=True)
    y = out["logits"] if isinstance(out, dict) else out
    y.square().sum().backward()
    y_t, _ = layer.step((tokens if layer in lms else x)[:, 0], state)
    assert all(v.isfinite().all() for v in (y, y_t))
    assert any(p.grad is not None for p in layer.parameters())
for lm in lms:
    assert generate(lm, tokens, 3).shape == (2, 9)
tried = {type(layer).__name__ for layer in parts + lms}
kinds = {n: getattr(models, n) for n in models.__all__}
layers = {n for n, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Mixer)}
assert layers - {"Mixer", "ResidualStack"} <= tried, layers - tried
print(len(tried))
"""

NEW_MODULES = """
import sys, torch, numpy, safetensors.torch
before = set(sys.modules)
import models
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}), torch.cuda.is_initialized())
"""


@pytest.mark.parametrize("missing", [BLOCK_TRITON, HIDE_TRITON], ids=["not installed", "None in sys.modules"])
def test_req50_every_layer_runs_without_triton(missing: str, tmp_path: Path):
    # torch's optimizers ask for Triton themselves; that is torch's business, so torch comes first.
    program = tmp_path / "program.py"
    program.write_text(missing + EVERY_LAYER, encoding="utf-8")
    assert int(run_python(str(program), cwd=tmp_path)) >= 13


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What `import models` imports in a fresh process, then whether CUDA was touched."""
    return run_python("-c", NEW_MODULES, cwd=tmp_path_factory.mktemp("imported")).split()


def test_import_loads_nothing_heavy(imported: list[str]):
    new = {*imported[:-1]}
    assert {"models", "scanforge"} <= new
    assert not new & {"triton", "transformers", "sympy", "matplotlib", "rich", "typer", "tqdm"}


def test_req50_import_makes_no_cuda_call(imported: list[str]):
    assert imported[-1] == "False"


def test_every_export_is_there_and_sorted_out():
    assert len(set(models.__all__)) == len(models.__all__)
    for name in models.__all__:
        assert getattr(models, name).__doc__, name


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
