"""Text from a language model, one token at a time through its state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from . import arguments

Tensor = torch.Tensor


class Generates:
    """Gives a language model `generate`; see the function."""

    def generate(
        self,
        prompt: Tensor,
        n: int,
        temperature: float = 0.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """prompt (B, T) -> (B, T + n): the prompt and n more tokens; see `models.generate`."""
        assert isinstance(self, nn.Module)
        return generate(self, prompt, n, temperature, top_k, generator)


@torch.no_grad()
def generate(
    model: Any,
    prompt: Tensor,
    n: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """prompt (B, T) int64 -> (B, T + n): the prompt and n more tokens.

    The prompt is read in one `forward`, every further token by one `step`. `temperature` 0 takes the
    likeliest token; above, tokens are drawn from softmax(logits / temperature), over the `top_k` likeliest
    ones if given. `model` has `forward(tokens, state=, return_state=)` and `step(token, state)`. It runs in
    evaluation mode and is left in the mode it was in. Nothing is copied from the device between tokens.

    Raises ValueError: an empty prompt, tokens outside of the vocabulary, a negative `n` or `temperature`, a
    `top_k` below 1, or more positions than the model's `max_seq_len`, if it has one.

    Example:
        >>> import torch
        >>> from models.generation import generate
        >>> from models.transformer import TransformerLM
        >>> model = TransformerLM(5, d_model=4, num_layers=1, num_heads=1, d_ff=4)
        >>> tuple(generate(model, torch.zeros(2, 3, dtype=torch.long), 4, temperature=0.8, top_k=2).shape)
        (2, 7)
    """
    _check(model, prompt, n, temperature, top_k)
    tokens = torch.cat([prompt, prompt.new_zeros(prompt.shape[0], n)], 1)
    training = model.training
    model.eval()
    try:
        at, state = prompt.shape[1], None
        for i in range(at, at + n):
            if i == at:
                out, state = model(prompt, state=None, return_state=True)
                logits = (out["logits"] if isinstance(out, dict) else out)[:, -1]
            else:
                logits, state = model.step(tokens[:, i - 1], state)
            tokens[:, i] = choose(logits, temperature, top_k, generator)
    finally:
        model.train(training)
    return tokens


def choose(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> Tensor:
    """logits (B, V) -> one token for each row."""
    if temperature == 0:
        return logits.argmax(-1)
    scaled = logits.float() / temperature
    if top_k is not None and top_k < scaled.shape[-1]:
        best, index = scaled.topk(top_k)
        return index.gather(-1, torch.multinomial(best.softmax(-1), 1, generator=generator))[:, 0]
    return torch.multinomial(scaled.softmax(-1), 1, generator=generator)[:, 0]


def _check(model: Any, prompt: Tensor, n: int, temperature: float, top_k: int | None) -> None:
    where = "generate"
    arguments.tokens(where, prompt, name="prompt")
    if not prompt.shape[1]:
        raise ValueError(f"{where}: prompt has shape {tuple(prompt.shape)}, and needs at least one token.")
    vocabulary, largest = model.vocab_size, int(prompt.max()) if prompt.numel() else 0
    if prompt.numel() and not 0 <= int(prompt.min()) <= largest < vocabulary:
        raise ValueError(
            f"{where}: prompt holds tokens outside of [0, {vocabulary}), vocab_size={vocabulary}."
        )
    if not isinstance(n, int) or n < 0:
        raise ValueError(f"{where}: n={n!r} is no number of tokens: write an int of at least 0.")
    arguments.between(where, "temperature", temperature, 0, float("inf"))
    if top_k is not None:
        arguments.positive(where, top_k=top_k)
    longest = getattr(model, "max_seq_len", None)
    if longest is not None and prompt.shape[1] + n - 1 > longest:
        raise ValueError(
            f"{where}: a prompt of {prompt.shape[1]} tokens and n={n} more pass max_seq_len={longest}."
        )
