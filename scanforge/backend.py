"""Which backend runs: chosen by device before anything runs, and never changed in silence."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util

import torch

from scanforge.errors import ArgumentError, BackendError

BACKENDS = ("reference", "triton")
LOWERINGS = {"reference": ("loop", "parallel"), "triton": ("ordered_tile", "split", "ring", "chunked")}
OLDEST_TRITON = (3, 6)
OLDEST_GPU = (8, 0)  # NVIDIA's compute capability that Triton compiles for
NEW_INTERPRETER, NEW_NUMPY = (
    (3, 7),
    (2, 4),
)  # an older interpreter turns arrays into numbers as NumPy no longer does


@dataclass(frozen=True, slots=True)
class Range:
    """Versions from `first` to before `end`, and what is wrong with them."""

    first: tuple[int, ...]
    end: tuple[int, ...]
    why: str


# Versions of Triton known to compute wrong numbers, as a self-check finds them.
BROKEN_TRITON: tuple[Range, ...] = ()


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
    reason = _why_not(device)
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


def _why_not(device: torch.device) -> str:
    """Why Triton cannot run on such a device, empty if it can."""
    missing = _unusable_triton()
    if missing:
        return missing
    if device.type == "cuda":
        return _unusable_gpu(torch.cuda.current_device() if device.index is None else device.index)
    if device.type != "cpu":
        return f"there are no kernels for tensors on {device.type}"
    if os.environ.get("TRITON_INTERPRET") != "1":
        return "the tensors are on the CPU, where kernels need Triton's interpreter (TRITON_INTERPRET=1)"
    if _version("triton") < NEW_INTERPRETER and _version("numpy") >= NEW_NUMPY:
        return f"the interpreter of Triton {metadata.version('triton')} needs NumPy below {_dots(NEW_NUMPY)}"
    return ""


@cache
def _unusable_triton() -> str:
    if not _found("triton"):
        return "Triton is not installed"
    version, known = metadata.version("triton"), _version("triton")
    if known < OLDEST_TRITON:
        return f"Triton {version} is installed, and it takes {_dots(OLDEST_TRITON)} or later"
    broken = next((r for r in BROKEN_TRITON if r.first <= known < r.end), None)
    return "" if broken is None else f"Triton {version} is installed, and {broken.why}"


@cache
def _unusable_gpu(index: int) -> str:
    seen = torch.cuda.device_count()
    if not seen or torch.version.cuda is None:  # tensors without memory are traced where there is no GPU
        return ""
    if index >= seen:
        return f"the tensors are on cuda:{index}, and torch sees {seen} GPU(s), cuda:{seen - 1} the last"
    found = torch.cuda.get_device_capability(index)
    if found >= OLDEST_GPU:
        return ""
    name = torch.cuda.get_device_name(index)
    return f"{name} has compute capability {_dots(found)}, and kernels need {_dots(OLDEST_GPU)}"


@cache
def _version(package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in metadata.version(package).split(".")[:2] if part.isdigit())


def _dots(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _found(module: str) -> bool:
    """Whether a module could be imported; None in sys.modules says that it could not."""
    try:
        return util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@cache
def _warn(operator: str, reason: str) -> None:
    warnings.warn(f"{operator} runs on the reference backend, since {reason}.", RuntimeWarning, stacklevel=5)
