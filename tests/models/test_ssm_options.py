"""Arguments, initial values and the original's names of the selective SSMs."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch.nn.functional import softplus

from models.mixer import set_backend
from models.ssm import MultiScaleSSM, SelectiveSSM
from models.training import create_optimizer_and_scheduler
from tests.models.protocol import refused


def test_original_arguments_and_shapes():
    """The names and shapes of cortexnet's `state_dict`, by position as well as by name."""
    layer = MultiScaleSSM(6, 2, 3, 2)
    shapes = {name: tuple(p.shape) for name, p in layer.state_dict().items()}
    assert shapes == {
        "in_proj.weight": (24, 6), "A_log": (12, 3), "B_proj.weight": (3, 12), "C_proj.weight": (3, 12),
        "dt_proj.weight": (12, 12), "dt_proj.bias": (12,), "D": (12,), "output_gate": (1,),
        "out_proj.weight": (6, 12),
    }  # fmt: skip
    assert MultiScaleSSM(8).A_log.shape == (16, 16)
    named = MultiScaleSSM(d_model=8, num_scales=2, state_size=4, expand_factor=3)
    assert (named.num_scales, named.d_state, named.d_inner) == (2, 4, 24)
    small = MultiScaleSSM(5, num_scales=1, expand_factor=1)
    assert small(torch.randn(2, 3, 5)).shape == (2, 3, 5)


def test_past_state_and_use_cache_return_what_the_original_did():
    layer, x = MultiScaleSSM(6, 2, 3), torch.randn(2, 5, 6)
    assert isinstance(layer(x), torch.Tensor)
    y, state = layer(x, use_cache=True)
    assert state.shape == (2, 12, 3)
    assert torch.equal(layer(x, past_state=None), y)
    tail = layer(x, past_state=state, use_cache=True)
    for same in (layer(x, state, True), layer(x, state=state, return_state=True)):
        assert all(torch.equal(a, b) for a, b in zip(tail, same, strict=True))
    assert torch.equal(layer(x, past_state=state), tail[0])
    refused(lambda: layer(x, state=state, past_state=state), "state", "past_state", "one")


def test_multiscale_starts_as_the_original():
    """Rates (n + 1) 2^i in blocks; log Δ as the bias; D one; the output gate half open."""
    torch.manual_seed(0)
    layer = MultiScaleSSM(64, num_scales=4, state_size=16)
    rates = layer.A_log.exp().unflatten(0, (4, 32))
    want = torch.arange(1, 17.0) * 2.0 ** torch.arange(4)[:, None, None]
    torch.testing.assert_close(rates, want.expand(4, 32, 16))
    dt = layer.dt_proj.bias.exp()
    assert 1e-3 * (1 - 1e-5) <= dt.min() < 2e-3
    assert 0.05 < dt.max() <= 0.1 * (1 + 1e-5)
    torch.testing.assert_close(softplus(layer.dt_proj.bias), torch.log1p(dt))
    assert torch.equal(layer.D, torch.ones(128))
    assert torch.sigmoid(layer.output_gate) == 0.5
    exact = softplus(MultiScaleSSM(64, dt_init="exact").dt_proj.bias)
    assert 1e-3 * (1 - 1e-5) <= exact.min() < 2e-3
    assert 0.05 < exact.max() <= 0.1 * (1 + 1e-5)


def test_selective_starts_as_mamba():
    torch.manual_seed(0)
    layer = SelectiveSSM(256, d_state=5)
    torch.testing.assert_close(layer.A_log.exp(), torch.arange(1, 6.0).expand(512, 5))
    assert torch.equal(layer.D, torch.ones(512))
    assert layer.dt_rank == 16
    assert layer.x_proj.weight.shape == (16 + 10, 512)
    dt = softplus(layer.dt_proj.bias.double())
    assert 1e-3 * (1 - 1e-5) <= dt.min() < 1.1e-3
    assert 0.09 < dt.max() <= 0.1 * (1 + 1e-5)
    assert dt.log().mean().item() == pytest.approx(math.log(1e-2), abs=0.2)  # uniform in the logarithm
    most = 16**-0.5
    assert 0.99 * most < layer.dt_proj.weight.abs().max() <= most
    assert layer.dt_proj.weight.mean().abs() < 0.05 * most


def test_every_dt_option():
    floored = SelectiveSSM(8, dt_min=1e-6, dt_max=1e-5, dt_init_floor=1e-2)
    torch.testing.assert_close(softplus(floored.dt_proj.bias), torch.full((16,), 1e-2))
    narrow = SelectiveSSM(8, dt_min=0.5, dt_max=0.5)
    torch.testing.assert_close(softplus(narrow.dt_proj.bias), torch.full((16,), 0.5))
    constant = SelectiveSSM(8, dt_rank=4, dt_init="constant", dt_scale=3.0)
    assert torch.equal(constant.dt_proj.weight, torch.full((16, 4), 1.5))
    scaled = SelectiveSSM(64, dt_rank=4, dt_scale=3.0).dt_proj.weight.abs().max()
    assert 1.4 < scaled <= 1.5


def test_bias_options():
    def biased(**options):
        return {n for n, _ in SelectiveSSM(4, **options).named_parameters() if n.endswith("bias")}

    assert biased() == {"conv1d.bias", "dt_proj.bias"}
    assert biased(conv_bias=False) == {"dt_proj.bias"}
    assert biased(bias=True) == {"conv1d.bias", "dt_proj.bias", "in_proj.bias", "out_proj.bias"}


def test_groups_share_B_and_C():
    """Equal groups are one group: the parameters of one group, repeated, give the ungrouped numbers."""
    one, two = SelectiveSSM(4, 3, dt_rank=2).double(), SelectiveSSM(4, 3, dt_rank=2, n_groups=2).double()
    weights = one.state_dict()
    dt, B, C = weights["x_proj.weight"].split([2, 3, 3])
    two.load_state_dict(weights | {"x_proj.weight": torch.cat([dt, B, B, C, C])})
    x = torch.randn(2, 7, 4, dtype=torch.float64)
    torch.testing.assert_close(two(x), one(x), rtol=1e-13, atol=1e-13)
    with torch.no_grad():
        two.x_proj.weight[5:8] = 0  # B of the second group
    _, state = two(x, return_state=True)
    assert state["ssm"][:, :4].all()
    assert not state["ssm"][:, 4:].any()


@pytest.mark.parametrize("layer", [MultiScaleSSM(4), SelectiveSSM(4)], ids=["multiscale", "selective"])
def test_rates_are_not_decayed(layer, tmp_path):
    optimizer, _ = create_optimizer_and_scheduler(layer, weight_decay=0.1)
    [free] = (g["params"] for g in optimizer.param_groups if g["weight_decay"] == 0)
    assert any(p is layer.A_log for p in free)
    assert any(p is layer.D for p in free)
    assert not any(p is layer.in_proj.weight for p in free)
    torch.save(layer, tmp_path / "layer.pt")
    for other in (copy.deepcopy(layer), torch.load(tmp_path / "layer.pt", weights_only=False)):
        assert other.A_log._no_weight_decay


@pytest.mark.parametrize("build", [MultiScaleSSM, SelectiveSSM])
def test_device_and_dtype(build):
    layer = build(4, dtype=torch.bfloat16, device="cpu")
    assert layer.in_proj.weight.dtype == torch.bfloat16
    assert layer.A_log.dtype == layer.D.dtype == torch.float32
    assert layer(torch.randn(2, 3, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert build(4, dtype=torch.float64).A_log.dtype == torch.float64
    assert next(build(4, device="meta").parameters()).is_meta


def test_the_backend_is_the_layer_s():
    layer, x = MultiScaleSSM(4), torch.randn(1, 3, 4)
    set_backend(layer, "reference")
    layer(x)
    set_backend(layer, "no such backend")
    with pytest.raises(Exception, match="no such backend"):
        layer(x)
    with pytest.raises(Exception, match="no such backend"):
        layer.step(x[:, 0], layer.initial_state(1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MultiScaleSSM(0), ("MultiScaleSSM", "d_model=0", "at least 1")),
        (lambda: MultiScaleSSM(4, state_size=-1), ("state_size=-1", "at least 1")),
        (lambda: MultiScaleSSM(4, expand_factor=0.5), ("expand_factor=0.5", "int")),
        (lambda: MultiScaleSSM(6, num_scales=5), ("num_scales=5", "12", "divisor")),
        (lambda: MultiScaleSSM(4, discretisation="tustin"), ("discretisation='tustin'", "'euler'", "'zoh'")),
        (lambda: MultiScaleSSM(4, dt_init="exp"), ("dt_init='exp'", "'log'", "'exact'")),
        (lambda: MultiScaleSSM(4).step(torch.zeros(2, 1, 4), None), ("x_t", "(2, 1, 4)", "(B, 4)")),
        (lambda: SelectiveSSM(4, d_state=0), ("SelectiveSSM", "d_state=0", "at least 1")),
        (lambda: SelectiveSSM(4, d_conv=0), ("d_conv=0", "at least 1")),
        (lambda: SelectiveSSM(4, expand=0.3), ("expand=0.3", "d_model=4", "int")),
        (lambda: SelectiveSSM(4, expand="2"), ("expand='2'", "number")),
        (lambda: SelectiveSSM(4, dt_rank="full"), ("dt_rank='full'", "'auto'")),
        (lambda: SelectiveSSM(4, dt_rank=0), ("dt_rank=0", "at least 1")),
        (lambda: SelectiveSSM(4, n_groups=3), ("n_groups=3", "8", "divisor")),
        (lambda: SelectiveSSM(4, discretisation="foh"), ("discretisation='foh'", "'euler'", "'zoh'")),
        (lambda: SelectiveSSM(4, dt_init="zero"), ("dt_init='zero'", "'random'", "'constant'")),
        (lambda: SelectiveSSM(4, dt_min=0.2), ("dt_min=0.2", "dt_max=0.1")),
        (lambda: SelectiveSSM(4, dt_min=0.0), ("dt_min=0.0", "0 < dt_min")),
        (lambda: SelectiveSSM(4, dt_scale=-1.0), ("dt_scale=-1.0", "negative")),
        (lambda: SelectiveSSM(4, dt_init_floor=-1.0), ("dt_init_floor=-1.0", "negative")),
        (lambda: SelectiveSSM(4).step(torch.zeros(2, 3), None), ("x_t", "(2, 3)", "(B, 4)")),
        (lambda: SelectiveSSM(4)(torch.zeros(2, 3, 4), {"ssm": torch.zeros(2, 8, 16)}), ("['conv', 'ssm']",)),
    ],
)  # fmt: skip
def test_what_is_refused(make, words):
    refused(make, *words)
