"""Which backend runs: chosen by device before anything runs, and never changed in silence."""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib import metadata, util

import torch

from scanforge.errors import ArgumentError, BackendError

BACKENDS = ("reference", "triton")
LOWERINGS = {"reference": ("loop", "parallel"), "triton": ("ordered_tile", "split", "chunked")}
OLDEST_TRITON = (3, 6)


def choose(backend: str | None, device: torch.device, operator: str) -> str:
    """The backend for tensors on a device: Triton for GPUs, the reference elsewhere, or what is asked for.

    Raises BackendError when the chosen one cannot run here. With SCANFORGE_FALLBACK=warn an unusable Triton
    becomes the reference, with one warning per operator and reason.
    """
    if backend is not None and backend not in BACKENDS:
        raise ArgumentError(
            f"{operator}: backend={backend!r} is no backend: write 'reference', 'triton' or None (by device)."
        )
    wanted = backend or ("triton" if device.type == "cuda" else "reference")
    if wanted == "reference":
        return wanted
    reason = _why_not(device.type)
    if not reason:
        return wanted
    if os.environ.get("SCANFORGE_FALLBACK") == "warn":
        _warn(operator, reason)
        return "reference"
    raise BackendError(
        f"{operator}: the Triton backend cannot run here: {reason}. Write backend='reference'."
    )


def lowering_of(lowering: str | None, backend: str, operator: str) -> str:
    """The name of a lowering of the backend, empty for none."""
    if lowering is not None and lowering not in LOWERINGS[backend]:
        names = " or ".join(repr(n) for n in LOWERINGS[backend])
        raise ArgumentError(
            f"{operator}: lowering={lowering!r} is not a lowering of the {backend} backend: write {names}."
        )
    return lowering or ""


def _why_not(device: str) -> str:
    """Why Triton cannot run on such a device, empty if it can."""
    missing = _unusable_triton()
    if missing:
        return missing
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "the tensors are on the CPU, where kernels need Triton's interpreter (TRITON_INTERPRET=1)"
    return "" if device in {"cpu", "cuda"} else f"there are no kernels for tensors on {device}"


@cache
def _unusable_triton() -> str:
    if not _found("triton"):
        return "Triton is not installed"
    version = metadata.version("triton")
    known = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    oldest = ".".join(map(str, OLDEST_TRITON))
    return "" if known >= OLDEST_TRITON else f"Triton {version} is installed, and it takes {oldest} or later"


def _found(module: str) -> bool:
    """Whether a module could be imported; None in sys.modules says that it could not."""
    try:
        return util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@cache
def _warn(operator: str, reason: str) -> None:
    warnings.warn(f"{operator} runs on the reference backend, since {reason}.", RuntimeWarning, stacklevel=5)
