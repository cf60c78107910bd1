"""(recurrence, sizes, options) -> Choice: whether products over chunks run, and why, or why not."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scanforge.chunked_form import MatrixForm, matrix_form
from scanforge.chunked_plan import SMALLEST
from scanforge.errors import ArgumentError
from scanforge.ir.scan import BATCH, TIME
from scanforge.launch import Options
from scanforge.plan import Plan

SHORT = 64  # steps that fill one chunk
WIDE = "Triton compiles its products of float64 for a GPU in some layouts only"
WIDEST = 512  # keys of which a program holds the state


@dataclass(frozen=True, slots=True)
class Choice:
    """The form, where products over chunks run; and why they do, or do not."""

    form: MatrixForm | None
    why: str


def choice(text: str, sizes: dict[str, int], options: Options, *, packed: bool) -> Choice:
    """What forward and backward pass find alike: of the text, K, V, T and the options alone."""
    form = matrix_form(text)
    if isinstance(form, str):
        return Choice(None, form)
    if options.lowering not in {"", "chunked"}:
        return Choice(None, f"lowering={options.lowering!r} is forced")
    reason = why_not(form, packed=packed)
    if not reason and not options.lowering:
        reason = not_worth(form, sizes, options.dtype)
    return Choice(None, reason) if reason else Choice(form, _why(form, sizes, options))


def form_of(text: str, sizes: dict[str, int], options: Options, *, packed: bool) -> MatrixForm | None:
    """The form, where the lowering is to run."""
    return choice(text, sizes, options, packed=packed).form


def _why(form: MatrixForm, sizes: dict[str, int], options: Options) -> str:
    if options.lowering:
        return "forced by lowering="
    k, v = form.key_axis, form.value_axis
    return (
        f"{form.state} of {k}={sizes[k]} and {v}={sizes[v]} is matrix products in chunks of time; the other "
        "lowerings go through all of it at each step"
    )


def why_not(form: MatrixForm, *, packed: bool) -> str:
    """What of a matrix form these kernels do not have; empty for nothing."""
    first = form.lanes[:1] == (BATCH,)
    return "" if first or not packed else "sequences are packed, and the batch is not its state's first axis"


def not_worth(form: MatrixForm, sizes: dict[str, int], computed: torch.dtype) -> str:
    """Why another lowering is the better one; empty for no reason."""
    sides = {a: sizes[a] for a in (form.key_axis, form.value_axis)}
    if computed == torch.float64:
        return "float64 is computed step by step"
    least = min(sides, key=lambda a: sides[a])
    if sides[least] < SMALLEST:
        return f"{least}={sides[least]} is less than the {SMALLEST} of a matrix product"
    whole = form.value_axis if form.decay_on == "value" else form.key_axis
    if sides[whole] > WIDEST:
        return f"{whole}={sides[whole]} is more than the {WIDEST} that a program holds"
    return f"{sizes[TIME]} steps are less than a chunk of {SHORT}" if sizes[TIME] < SHORT else ""


def check(name: str, text: str, *, packed: bool, wide: bool = False) -> None:
    """Raise ArgumentError where lowering="chunked" is asked for and does not apply; `wide`: fp64 on a GPU."""
    form = matrix_form(text)
    reason = form if isinstance(form, str) else why_not(form, packed=packed) or WIDE * wide
    if reason:
        raise ArgumentError(
            f"{name}: lowering='chunked' does not apply, since {reason}. Write lowering='ordered_tile' or "
            "'split', or leave lowering out."
        )


def plan_of(chosen: Choice) -> Plan:
    """What runs and why."""
    return Plan("triton", "chunked", chosen.why)
