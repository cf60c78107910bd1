"""How RG-LRU layers start, and the options that they refuse."""

from __future__ import annotations

import copy

import pytest
import torch

from models.rglru import RGLRU, BlockDiagonalLinear, RecurrentBlock
from tests.models.protocol import refused

LOW, HIGH = 0.9, 0.999


def uniform(u: torch.Tensor) -> float:
    """The largest distance between the distribution of u and the uniform one on [0, 1]."""
    even = (torch.arange(len(u), dtype=u.dtype) + 0.5) / len(u)
    return (u.sort().values - even).abs().max().item()


@pytest.mark.parametrize("a_init", ["base", "power", "ring"])
@pytest.mark.parametrize("c", [8.0, 3.0])
def test_a_starts_in_its_range(a_init, c):
    torch.manual_seed(0)
    layer = RGLRU(4000, d_conv=1, c=c, a_init=a_init, gates="block", num_blocks=4000, dtype=torch.float64)
    a = layer.decay.detach()
    drawn = {"base": a, "power": a**c, "ring": a**2}[a_init]
    low, high = (LOW**2, HIGH**2) if a_init == "ring" else (LOW, HIGH)
    assert uniform((drawn - low) / (high - low)) < 0.03
    assert low <= drawn.min() <= drawn.max() <= high


@pytest.mark.parametrize(("make", "low", "high"), [(RGLRU, 0.9, 0.999), (RecurrentBlock, 0.9, 0.999)])
def test_the_default_range_in_single_precision(make, low, high):
    a = make(256).decay
    assert low - 1e-6 <= a.min() <= a.max() <= high + 1e-6
    assert a.max() - a.min() > 0.08


def test_the_paper_s_range_remembers():
    """a^c in [0.9, 0.999]: at r = 1/2 a state keeps 97 % on average; the original's start keeps 6 %."""
    torch.manual_seed(0)
    a = RGLRU(512, d_conv=1, a_init="power").decay
    assert (a ** (8 * 0.5)).mean().item() == pytest.approx(0.974, abs=0.003)


def test_a_given_range():
    layer = RGLRU(64, a_init_range=(0.25, 0.25))
    torch.testing.assert_close(layer.decay, torch.full((64,), 0.25))


def test_the_decay_is_exempt_from_weight_decay_and_nothing_else_is():
    for layer in (RGLRU(4), RecurrentBlock(4)):
        exempt = [n for n, p in layer.named_parameters() if getattr(p, "_no_weight_decay", False)]
        assert exempt == ["a_log"]


def test_griffin_s_block_starts_as_recurrentgemma():
    torch.manual_seed(0)
    block = RecurrentBlock(256, width=512, num_heads=4, out_variance=0.5)
    variances = {
        "gate_proj": 1 / 256, "in_proj": 1 / 256, "out_proj": 0.5 / 512, "conv1d": 0.01 / 4,
        "recurrent_gate_proj": 1 / 128, "input_gate_proj": 1 / 128,
    }  # fmt: skip
    for name, variance in variances.items():
        module = block.get_submodule(name)
        assert module.weight.var().item() == pytest.approx(variance, rel=0.15), name
        assert not module.bias.any()


def test_block_diagonal_gates_are_dense_ones_with_zeros():
    torch.manual_seed(0)
    blocks = BlockDiagonalLinear(12, 3, dtype=torch.float64)
    x = torch.randn(5, 12, dtype=torch.float64)
    dense = torch.block_diag(*blocks.weight)
    torch.testing.assert_close(blocks(x), x @ dense + blocks.bias.flatten())
    refused(lambda: BlockDiagonalLinear(12, 5), "BlockDiagonalLinear", "num_blocks=5", "width=12")


@pytest.mark.parametrize("make", [lambda: RGLRU(4, unit_start=True), lambda: RecurrentBlock(4, num_heads=2)])
def test_layers_are_copied_saved_and_made_without_memory(make, tmp_path):
    layer, x = make(), torch.randn(2, 5, 4)
    torch.save(layer, tmp_path / "layer.pt")
    for other in (copy.deepcopy(layer), torch.load(tmp_path / "layer.pt", weights_only=False)):
        assert torch.equal(other(x), layer(x))
        assert other.a_log._no_weight_decay
    with torch.device("meta"):
        assert {p.device.type for p in make().parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RGLRU(0), ("RGLRU", "d_model=0", "at least 1")),
        (lambda: RGLRU(-4, expand=-1), ("RGLRU", "d_model=-4", "at least 1")),
        (lambda: RGLRU(4, d_conv=0), ("RGLRU", "d_conv=0", "at least 1")),
        (lambda: RGLRU(3, expand=0.5), ("RGLRU", "expand=0.5", "d_model=3", "1.5")),
        (lambda: RGLRU(3, expand=-1), ("RGLRU", "expand=-1", "at least 1")),
        (lambda: RGLRU(4, c=0.0), ("RGLRU", "c=0.0", "above 0")),
        (lambda: RGLRU(4, a_init_range=(0.9, 1.0)), ("RGLRU", "a_init_range=(0.9, 1.0)", "< 1")),
        (lambda: RGLRU(4, a_init_range=(0.9, 0.8)), ("RGLRU", "a_init_range=(0.9, 0.8)", "low <= high")),
        (lambda: RGLRU(4, a_init="log"), ("RGLRU", "a_init='log'", "'base', 'power', 'ring'")),
        (lambda: RGLRU(4, gates="sparse"), ("RGLRU", "gates='sparse'", "'dense', 'block'")),
        (lambda: RGLRU(4, gelu="erf"), ("RGLRU", "gelu='erf'", "'exact', 'tanh'")),
        (lambda: RGLRU(4, gates="block"), ("RGLRU", "num_blocks=None", "gates='block'")),
        (lambda: RGLRU(4, gates="block", num_blocks=3), ("RGLRU", "num_blocks=3", "width=4")),
        (lambda: RGLRU(4, num_blocks=2), ("RGLRU", "num_blocks=2", "gates='block'")),
        (lambda: RecurrentBlock(4, num_heads=3), ("RecurrentBlock", "num_heads=3", "width=4")),
        (lambda: RecurrentBlock(4, width=0), ("RecurrentBlock", "width=0", "at least 1")),
        (lambda: RecurrentBlock(4, a_init="flat"), ("RecurrentBlock", "a_init='flat'", "'ring'")),
        (lambda: RecurrentBlock(4, out_variance=-1.0), ("RecurrentBlock", "out_variance=-1.0", "at least 0")),
    ],
)
def test_what_is_refused(make, words):
    refused(make, *words)
