"""A language model of any mixer: embedding, a pre-norm residual stack, a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from . import arguments
from .generation import Generates
from .mixer import Mixer, State
from .named import MIXERS, feed_forward
from .norms import norm as norm_named
from .segments import Segments

Tensor = torch.Tensor


class ResidualLayer(nn.Module):
    """x + mixer(norm(x)), then x + ffn(ffn_norm(x)) where there is an FFN; dropout on what is added."""

    def __init__(self, mixer: Mixer, norms: list[nn.Module], ffn: nn.Module | None, dropout: float) -> None:
        super().__init__()
        self.norm, self.mixer = norms[0], mixer
        self.ffn_norm: nn.Module | None = None if ffn is None else norms[1]
        self.ffn: nn.Module | None = ffn
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, state: State, flags: Mapping[str, Any]) -> tuple[Tensor, State]:
        """x (B, T, d_model) -> (y, the mixer's state after it); `flags` are the call's boundaries."""
        mixed, after = self.mixer(self.norm(x), state=state, return_state=True, **flags)
        return self._add(x, mixed), after

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """x_t (B, d_model) -> (y_t, the mixer's state after it)."""
        mixed, after = self.mixer.step(self.norm(x_t), state)
        return self._add(x_t, mixed), after

    def _add(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + self.dropout(mixed)
        if self.ffn is not None and self.ffn_norm is not None:
            x = x + self.dropout(self.ffn(self.ffn_norm(x)))
        return x


class ResidualStack(Mixer):
    """Residual layers, one after another: a mixer itself, whose state is the list of its mixers' states.

    Raises ValueError for a state that is no list of as many states as there are layers.
    """

    def __init__(self, d_model: int, layers: list[ResidualLayer]) -> None:
        super().__init__()
        self.d_model, self.layers = d_model, nn.ModuleList(layers)

    def forward(
        self,
        x: Tensor,
        state: State = None,
        return_state: bool = False,
        reset: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
        sequence_group: Any = None,
    ) -> Any:
        """x (B, T, d_model) -> y, or (y, state); see `Mixer`."""
        arguments.sequence("ResidualStack", x, self.d_model)
        segments = Segments.of("ResidualStack", x, reset, cu_seqlens, mask, sequence_group)
        x, after = segments.real(x), []
        for layer, before in zip(self._layers(), self._states(state), strict=True):
            x, new = layer(x, before, segments.flags)
            after.append(new)
        y = segments.real(x)
        return (y, after) if return_state else y

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """x_t (B, d_model) -> (y_t, the state after it)."""
        arguments.token("ResidualStack", x_t, self.d_model)
        after = []
        for layer, before in zip(self._layers(), self._states(state), strict=True):
            x_t, new = layer.step(x_t, before)
            after.append(new)
        return x_t, after

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> State:
        """The list of the mixers' initial states."""
        return [layer.mixer.initial_state(batch, dtype, device) for layer in self._layers()]

    def _layers(self) -> list[ResidualLayer]:
        return [layer for layer in self.layers if isinstance(layer, ResidualLayer)]

    def _states(self, state: State) -> list[State]:
        if state is None:
            return [None] * len(self.layers)
        if not isinstance(state, list | tuple) or len(state) != len(self.layers):
            raise ValueError(
                f"ResidualStack: state is a {type(state).__name__}, expected a list of {len(self.layers)} "
                "states, one for each layer: pass what forward, step or initial_state returned."
            )
        return list(state)


class RecurrentLM(Generates, Mixer):
    """logits = W_head norm(stack(W_embed tokens)): any mixer as a language model.

    vocab_size    how many tokens there are, V
    mixer         a name (`models.named.MIXERS`), or a function of the layer's index that builds its `Mixer`
    mixer_args    keywords for a named mixer
    norm          "rmsnorm", "layernorm" or "none", before each mixer and FFN and before the head
    norm_eps      None is torch's default
    ffn           None, "gated" or "basic", of ffn_factor · d_model hidden units and activation `ffn_act`
    dropout       of what a mixer or an FFN adds to the residual stream
    tie_weights   the head is the embedding's matrix; else it is one of its own

    The protocol is the mixers' own, over tokens (B, T) instead of vectors; a state is the list of the
    layers' states. The embedding and an untied head start as N(0, init_std²). `step` costs the same
    however much has been read.

    Raises ValueError for sizes and options that are none, a mixer of another width, and wrong states.

    Example:
        >>> import torch
        >>> from models import RecurrentLM
        >>> model = RecurrentLM(50, 16, 2, "rglru", ffn="gated")
        >>> tokens = torch.randint(50, (2, 9))
        >>> logits, state = model(tokens[:, :8], return_state=True)
        >>> last, state = model.step(tokens[:, 8], state)
        >>> torch.allclose(last, model(tokens)[:, 8], atol=1e-5), tuple(last.shape)
        (True, (2, 50))
        >>> tuple(model.generate(tokens, 5, temperature=0.8, top_k=10).shape)
        (2, 14)
    """

    def __init__(  # noqa: PLR0913 - one option of the model each
        self, vocab_size: int, d_model: int, n_layers: int, mixer: str | Callable[[int], Mixer], *,
        mixer_args: Mapping[str, Any] | None = None, norm: str = "rmsnorm", norm_eps: float | None = None,
        ffn: str | None = None, ffn_factor: float = 2.0, ffn_act: str = "swish", dropout: float = 0.0,
        tie_weights: bool = True, init_std: float = 0.02,
    ) -> None:  # fmt: skip
        super().__init__()
        where = "RecurrentLM"
        arguments.positive(where, vocab_size=vocab_size, d_model=d_model, n_layers=n_layers)
        arguments.one_of(where, "ffn", ffn, (None, "gated", "basic"))
        arguments.between(where, "dropout", dropout, 0, 1)
        if isinstance(mixer, str):
            arguments.one_of(where, "mixer", mixer, MIXERS)
            mixers = MIXERS[mixer](d_model, n_layers, mixer_args or {})
        else:
            self._cannot_be_rebuilt(
                f"{where}: layers that a function built cannot be built again from a file: give the mixer by "
                "name, or save the state_dict."
            )
            mixers = [mixer(i) for i in range(n_layers)]
            check_mixers(where, mixers, d_model, mixer_args)
        layers = []
        for made in mixers:
            norms = [norm_named(where, norm, d_model, norm_eps) for _ in range(1 if ffn is None else 2)]
            between = None if ffn is None else feed_forward(ffn, d_model, n_layers, ffn_factor, ffn_act)
            layers.append(ResidualLayer(made, norms, between, dropout))
        self.vocab_size, self.d_model, self.n_layers = vocab_size, d_model, n_layers
        self.embed = nn.Embedding(vocab_size, d_model)
        self.stack = ResidualStack(d_model, layers)
        self.norm = norm_named(where, norm, d_model, norm_eps)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        nn.init.normal_(self.embed.weight, std=init_std)
        nn.init.normal_(self.head.weight, std=init_std)
        if tie_weights:
            self.head.weight = self.embed.weight

    def forward(
        self,
        x: Tensor,
        state: State = None,
        return_state: bool = False,
        reset: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
        sequence_group: Any = None,
    ) -> Any:
        """Tokens x (B, T) -> logits (B, T, V), or (logits, state); see `Mixer`. Padding may hold anything."""
        arguments.tokens("RecurrentLM", x)
        segments = Segments.of("RecurrentLM", x, reset, cu_seqlens, mask, sequence_group)
        hidden, after = self.stack(self.embed(segments.real(x)), state, True, **segments.flags)
        logits = segments.real(self.head(self.norm(hidden)))
        return (logits, after) if return_state else logits

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """Token x_t (B,) -> (logits (B, V), the state after it)."""
        if x_t.ndim != 1:
            raise ValueError(f"RecurrentLM: a step's tokens have shape {tuple(x_t.shape)}, expected (B,).")
        hidden, state = self.stack.step(self.embed(x_t), state)
        return self.head(self.norm(hidden)), state

    def initial_state(
        self, batch: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> State:
        """The list of the layers' initial states."""
        return self.stack.initial_state(batch, dtype, device)


def check_mixers(where: str, mixers: list[Mixer], d_model: int, mixer_args: object) -> None:
    """What a caller's function built are mixers of this width."""
    if mixer_args is not None:
        raise ValueError(f"{where}: mixer_args={mixer_args!r} is for a mixer by name: build yours with it.")
    for i, made in enumerate(mixers):
        if not isinstance(made, Mixer) or made.d_model != d_model:
            raise ValueError(
                f"{where}: layer {i} is a {type(made).__name__} with d_model="
                f"{getattr(made, 'd_model', None)}, expected a Mixer with d_model={d_model}."
            )
