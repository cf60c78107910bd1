"""Which dtype goes in, which is computed in, which comes out."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
INTS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
ACCEPTED = {"float": (*FLOATS, *COMPLEX), "int": INTS, "bool": (torch.bool,)}


def promoted(dtypes: Iterable[torch.dtype], empty: torch.dtype) -> torch.dtype:
    """torch's promotion of them all; `empty` where there are none."""
    found = list(dtypes)
    return reduce(torch.promote_types, found) if found else empty


def computed(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """Floats are computed and carried in fp32, in fp64 if any float input is fp64."""
    return torch.float64 if torch.float64 in set(dtypes) else torch.float32


def computed_int(dtype: torch.dtype) -> torch.dtype:
    """Ints below 32 bits are computed in int32."""
    return dtype if dtype == torch.int64 else torch.int32


def name(dtype: torch.dtype) -> str:
    """float32 for torch.float32."""
    return str(dtype).removeprefix("torch.")


def named(text: str) -> torch.dtype:
    """torch.float32 for float32 and for its short forms bf16, fp16, fp32, fp64."""
    short = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
    found = getattr(torch, short.get(text, text), None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"There is no dtype {text!r}: write bf16, fp16, fp32 or fp64.")
    return found
