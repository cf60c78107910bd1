"""check, explain, report, source: what users call to look at an operator or a recurrence."""

from __future__ import annotations

from typing import Any

import torch

from scanforge import chunked_choice, dtypes, kernel_choice, listing
from scanforge.adjoint import full_adjoint
from scanforge.backend import LOWERINGS, lowering_of
from scanforge.declare import Operator
from scanforge.emit.reference import module
from scanforge.errors import ArgumentError
from scanforge.example import SMALL, USUAL, Shapes, example
from scanforge.recurrence import Recurrence, declared_of
from scanforge.report import show_report
from scanforge.show.explanation import Explanation, explanation
from scanforge.validate import Report, validate

Declared = type[Operator] | type[Recurrence]


def check(operator: Declared, shapes: Shapes | None = None, *, show: bool = True, **sizes: int) -> Report:
    """Laws, gradients and the parity of all lowerings, on small random inputs in float64.

    Values and gradients are those of the sequential loop under torch's autograd, from left to right and from
    right to left, also with resets and padding. Returns a report with `ok` and `rows`, and prints it as a
    table unless `show` is False. `shapes` maps tensors to shapes, or `sizes` gives those of the axes (b, t,
    d, ...), small ones by default. Nothing is raised for a broken law: the report names it.

    Example:
        >>> import scanforge as sf
        >>> sf.check(sf.operators.MinMax, show=False).ok
        True
    """
    report = validate(operator, example(operator, shapes, sizes, SMALL))
    if show:
        show_report(report)
    return report


def explain(
    operator: Declared,
    shapes: Shapes | None = None,
    *,
    dtype: torch.dtype | str = torch.float32,
    **sizes: int,
) -> Explanation:
    """What scanforge knows of an operator or a recurrence: text that also draws itself.

    That is: the declaration, element map, step and readout, laws, facts, the derived backward pass, the plan,
    the bytes moved and what is kept. `shapes` maps tensors to shapes, or `sizes` gives the axes' (b=8,
    t=2048, d=2048); small ones by default. `dtype` is that of the tensors, as torch.bfloat16 or "bf16".

    The text is a string. It is a table for rich and drawings in a notebook; `.svg("dataflow")`, "tiles" and
    "bytes" are files, and `.html()` is one page of all that.

    Example:
        >>> import scanforge as sf
        >>> print(sf.explain(sf.operators.MinMax, b=8, t=512, d=64).splitlines()[1])
          element r: float, identity inf
    """
    found = example(operator, shapes, sizes, USUAL)
    return explanation(found, operator.__doc__ or "", dtype_of(operator, dtype))


def report(
    operator: Declared,
    shapes: Shapes | None = None,
    *,
    dtype: torch.dtype | str = torch.float32,
    **sizes: int,
) -> tuple[str, bool]:
    """Everything on one page of HTML, which loads nothing; and whether laws and gradients hold.

    That is what `explain` knows with its drawings, what `check` finds, the generated code, and times if there
    is a GPU and all is right. Arguments are those of `explain`; what is timed has these sizes too.
    """
    from scanforge.show.page import Source, fragment, page
    from scanforge.timing import measured

    shown, checked = explain(operator, shapes, dtype=dtype, **sizes), check(operator, show=False)
    found, typed = example(operator, shapes, sizes, USUAL), dtype_of(operator, dtype)
    timing = measured(operator, found, typed, "cuda") if checked.ok and torch.cuda.is_available() else None
    options: dict[str, Any] = {"dtype": dtype, **sizes}
    texts = [
        Source(f"{backend}, {which}", source(operator, which, shapes, backend=backend, **options))
        for backend in LOWERINGS
        for which in ("forward", "backward")
    ]
    return page(shown.scan.name, fragment(shown, checked, texts, timing)), checked.ok


def source(
    operator: Declared,
    which: str = "forward",
    shapes: Shapes | None = None,
    *,
    backend: str | None = None,
    lowering: str | None = None,
    dtype: torch.dtype | str = torch.float32,
    **sizes: int,
) -> str:
    """The generated code, "forward" or "backward": a module that runs on its own.

    `backend` is "reference" (PyTorch, the default here) or "triton". Kernels are those that a call launches
    for contiguous tensors of `dtype`, of these shapes or sizes of axes: "forward" without gradients,
    "backward" with all of them; several are numbered in the order of launch. They need no GPU to be shown.

    Example:
        >>> import scanforge as sf
        >>> "torch.maximum" in sf.source(sf.operators.MinMax, "forward")
        True
    """
    name = declared_of(operator).name
    if which not in {"forward", "backward"}:
        raise ArgumentError(f"{name}: source of {which!r} is not generated: write 'forward' or 'backward'.")
    chosen = backend or "reference"
    if chosen not in LOWERINGS:
        raise ArgumentError(f"{name}: backend={backend!r} is no backend: write 'reference' or 'triton'.")
    typed = dtype_of(operator, dtype)
    form = lowering_of(lowering, chosen, name)
    found = example(operator, shapes, sizes, USUAL)
    if chosen == "triton":
        text = found.traced.text
        if form == "chunked":
            chunked_choice.check(name, text, packed=False)
        if form == "ring":
            kernel_choice.check_ring(name, text, dtypes.computed([typed]), listing.like(), packed=False)
        return listing.source(text, which, found.sizes, typed, form)
    scan = found.traced.scan
    return module(full_adjoint(scan).scan if which == "backward" else scan, form or "loop")


def dtype_of(operator: Declared, dtype: torch.dtype | str) -> torch.dtype:
    """The dtype of float tensors, also by name."""
    try:
        found = dtypes.named(dtype) if isinstance(dtype, str) else dtype
    except TypeError:
        found = None
    if found not in dtypes.FLOATS:
        raise ArgumentError(
            f"{operator.__name__}: dtype={dtype!r} is no dtype of float tensors: write 'bf16', 'fp16', "
            "'fp32', 'fp64' or one of torch's."
        )
    return found
