"""A random call: an operator or a recurrence that nobody wrote, its tensors in some memory, its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import scanforge as sf
from tests.catalogue import chance, generator
from tests.fuzz.semidirect import products
from tests.kernels import LAYOUTS, guarded
from tests.random_recurrences import ORDER, Drawn, matrices, recurrences, tensors_of
from tests.reference.test_random_operators import Made, operators, product, segmented

DTYPES = (torch.float64, torch.float64, torch.float32, torch.bfloat16, torch.float16)
CUTS = ("none", "none", "reset", "mask", "reset mask", "lengths", "packed", "packed reset", "packed mask")
PLACES = {"contiguous": torch.clone, "guarded": guarded, **LAYOUTS}


@dataclass(frozen=True)
class Call:
    """All that decides a call, as data; `seed` decides numbers, and the layout of each tensor."""

    made: Made | Drawn
    steps: int
    widths: tuple[int, ...]  # of b d n k; an operator has b and d
    dtype: torch.dtype
    reverse: bool
    initial: bool
    cut: str
    strided: bool
    memory: str | None
    seed: int

    def declared(self) -> type[sf.Operator] | type[sf.Recurrence]:
        return self.made.operator() if isinstance(self.made, Made) else self.made.recurrence()

    @property
    def sequences(self) -> int:
        """How many are packed, where any are: the batch's width."""
        return self.widths[0] if "packed" in self.cut else 0

    @property
    def batch(self) -> int:
        return 1 if self.sequences else self.widths[0]

    def tensors(self) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        """The tensors in their dtype and memory, and the initial states."""
        sizes = dict(zip(ORDER, self.widths, strict=True)) | {"t": self.steps}
        if isinstance(self.made, Made):
            g, shape = generator(self.seed), (self.batch, sizes["t"], sizes["d"])
            found = {n: p.draw(g, shape) for n, p in self.made.leaves.items()}
            initial = tuple(p.draw(g, (sizes["b"], shape[2])) for p in self.made.states.values())
        else:
            found, initial = tensors_of(self.made, sizes, self.seed, self.sequences)
        places = list(PLACES.values())
        chosen = torch.randint(len(places), (len(found),), generator=generator(self.seed + 1)).tolist()

        def put(x: Tensor, k: int) -> Tensor:
            x = x.detach().to(self.dtype) if x.is_floating_point() else x
            return places[k](x) if self.strided and x.ndim else x

        tensors = {n: put(x, k) for (n, x), k in zip(found.items(), chosen, strict=True)}
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        return tensors, tuple(x.detach().to(wide) for x in initial) if self.initial else ()

    def options(self) -> dict[str, Any]:
        g, shape = generator(self.seed + 2), (self.batch, self.steps)
        options: dict[str, Any] = {"reverse": self.reverse}
        if "reset" in self.cut:
            options["reset"] = chance(g, shape, 0.3)
        if "mask" in self.cut:
            options["mask"] = chance(g, shape, 0.7)
        if "packed" in self.cut:
            inside = torch.randint(0, self.steps + 1, (self.sequences - 1,), generator=g).sort().values
            options["cu_seqlens"] = torch.cat([torch.tensor([0]), inside, torch.tensor([self.steps])])
        if self.cut == "lengths":
            options["lengths"] = torch.randint(0, self.steps + 1, shape[:1], generator=g)
        return options | ({"memory": self.memory} if self.memory else {})


@st.composite
def lawful(draw) -> Made:
    """Products, conjugates and segments of known operators, and semidirect products."""
    made = draw(st.one_of(operators(), products()))
    if made.name.startswith(("Scale", "Decay", "Shift", "Rotate")):
        if draw(st.booleans()):
            made = segmented(made)
        if draw(st.integers(0, 3)) == 0:
            made = product(made, draw(products()))
    return made


SHORT = st.integers(1, 12)
CHUNKED = st.sampled_from((3, 63, 64, 65, 130))  # around one chunk, and two


def calls(made: st.SearchStrategy[Made | Drawn] | None = None) -> st.SearchStrategy[Call]:
    """Any call, or any of these operators and recurrences."""
    if made is not None:
        return built(made, SHORT)
    usual = built(st.one_of(lawful(), recurrences()), SHORT)
    return st.one_of(usual, usual, usual, usual, built(matrices(), CHUNKED))


def built(made: st.SearchStrategy[Made | Drawn], steps: st.SearchStrategy[int]) -> st.SearchStrategy[Call]:
    return st.builds(
        Call,
        made=made,
        steps=steps,
        widths=st.tuples(*[st.integers(1, 3)] * 4),
        dtype=st.sampled_from(DTYPES),
        reverse=st.booleans(),
        initial=st.booleans(),
        cut=st.sampled_from(CUTS),
        strided=st.booleans(),
        memory=st.sampled_from((None, None, None, "low")),
        seed=st.integers(0, 999),
    )
