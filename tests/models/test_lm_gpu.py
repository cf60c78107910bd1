"""Language models on a GPU: as near to float64 as the reference, steps as one pass, no wait for a token."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from models import MinMaxRNC_LM, MinMaxRNCConfig, MinMaxRNCLMConfig, RecurrentLM, TransformerLM, generate
from models.mixer import set_backend
from models.named import MIXERS
from tests.catalogue import generator
from tests.models.protocol import in_pieces
from tests.tolerances import TOLERANCES, err

pytestmark = pytest.mark.gpu
DEVICE, VOCABULARY = "cuda", 37
BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64
ARGS = {"hgrn2": {"num_heads": 2}, "ssm": {"d_state": 4}, "multiscale": {"state_size": 4}}
BACKBONE = MinMaxRNCConfig(32, 2, 24, ffn_dropout=0.0)
RECURRENT = {
    "MinMaxRNC_LM": lambda: MinMaxRNC_LM(VOCABULARY, MinMaxRNCLMConfig(BACKBONE)),
    **{
        name: lambda name=name: RecurrentLM(
            VOCABULARY, 32, 2, name, mixer_args=ARGS.get(name), ffn="gated", init_std=0.3
        )
        for name in MIXERS
    },
}
EVERY = {"TransformerLM": lambda: TransformerLM(VOCABULARY, 32, 2, 2, 64), **RECURRENT}


def built(build, dtype: torch.dtype, device: str = DEVICE) -> nn.Module:
    torch.manual_seed(0)
    return build().to(BF16).to(device, dtype).eval()


def drawn(batch: int, steps: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch, steps), generator=generator(1)).to(DEVICE)


def logits_and_gradients(build, dtype: torch.dtype, backend: str) -> list[torch.Tensor]:
    """Logits, then the gradients of all parameters in one vector."""
    model = built(build, dtype)
    set_backend(model, backend)
    logits = model(drawn(2, 300))
    logits.double().logsumexp(-1).sum().backward()
    slopes = [p.grad.double().flatten() for p in model.parameters() if p.grad is not None]
    return [logits.detach().double(), torch.cat(slopes)]


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("build", RECURRENT.values(), ids=RECURRENT)
def test_kernels_are_as_near_to_the_truth_as_the_reference(build, dtype):
    truth = logits_and_gradients(build, F64, "reference")
    reference, kernels = (logits_and_gradients(build, dtype, b) for b in ("reference", "triton"))
    for quantity, want, other, got in zip(("forward", "gradient"), truth, reference, kernels, strict=True):
        allowed = 1.25 * err(other, want) + TOLERANCES[dtype, quantity].value
        assert err(got, want) <= allowed, (quantity, err(other, want))


@pytest.mark.parametrize("build", RECURRENT.values(), ids=RECURRENT)
def test_req37_steps_are_one_pass(build):
    model, tokens = built(build, F32), drawn(2, 40)
    whole = model(tokens)
    for cuts in ([1] * 40, [7, 1, 32], [39, 1]):
        pieces = [in_pieces(model, tokens, cuts)[0] for _ in range(2)]
        assert torch.equal(*pieces)
        assert err(pieces[0], whole) <= 1e-5


@pytest.mark.parametrize("build", EVERY.values(), ids=EVERY)
def test_greedy_tokens_are_those_of_the_cpu(build):
    prompt = drawn(3, 9)
    with torch.no_grad():
        got = generate(built(build, F64), prompt, 24)
        want = generate(built(build, F64, "cpu"), prompt.cpu(), 24)
    assert torch.equal(got.cpu(), want)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_k": 5}], ids=str)
@pytest.mark.parametrize("build", EVERY.values(), ids=EVERY)
def test_no_token_waits_for_the_device(build, options):
    model, prompt = built(build, F32), drawn(2, 5)
    generate(model, prompt, 3, **options)
    waits = []
    for n in (4, 24):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                generate(model, prompt, n, **options)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("called a synchronizing" in str(w.message) for w in seen))
    assert waits[0] == waits[1], waits
    assert waits[0] >= 1, "the check of the prompt waits; nothing was counted"
