"""check, explain, source: what users call to look at an operator."""

from __future__ import annotations

from math import prod

import torch

from scanforge import dtypes
from scanforge.adjoint import full_adjoint
from scanforge.backend import LOWERINGS, lowering_of
from scanforge.call import Bound, bind
from scanforge.declare import Declaration, Operator, declaration
from scanforge.emit.reference import module
from scanforge.errors import ArgumentError
from scanforge.pipeline import kernel_source
from scanforge.report import explain_text, show_report
from scanforge.trace import Signature, trace
from scanforge.validate import Report, validate


def check(operator: type[Operator], *, show: bool = True, **sizes: int) -> Report:
    """Laws, gradients and the parity of all lowerings of an operator, on small random inputs in float64.

    Returns a report with `ok` and `rows`, and prints it as a table unless `show` is False. `sizes` are
    those of the axes (b, t, d), small by default. Nothing is raised for a broken law: the report names it.

    Example:
        >>> import scanforge as sf
        >>> sf.check(sf.operators.MinMax, show=False).ok
        True
    """
    declaration(operator)
    report = validate(operator, _sizes(operator, {"b": 2, "t": 33, "d": 3} | sizes))
    if show:
        show_report(report)
    return report


def explain(
    operator: type[Operator],
    shapes: dict[str, tuple[int, ...]] | None = None,
    *,
    dtype: torch.dtype | str = torch.float32,
    **sizes: int,
) -> str:
    """What scanforge knows of an operator: laws, facts, the derived backward pass, plan, bytes, what is kept.

    `shapes` maps leaves to shapes, or `sizes` gives the axes' (b=8, t=2048, d=2048); small ones by default.
    `dtype` is that of the tensors, as torch.bfloat16 or "bf16".

    Example:
        >>> import scanforge as sf
        >>> print(sf.explain(sf.operators.MinMax, b=8, t=512, d=64).splitlines()[1])
          element r: float, identity inf
    """
    declared = declaration(operator)
    bound = _example(operator, declared, shapes, sizes)
    traced = trace(operator, Signature(bound.axes, bound.dims))
    by_axis = {axis: size for dims in (bound.natural,) for axis, size in zip(dims, bound.shape, strict=True)}
    return explain_text(declared, operator.__doc__ or "", traced, by_axis, _dtype(operator, dtype))


def source(
    operator: type[Operator],
    which: str = "forward",
    shapes: dict[str, tuple[int, ...]] | None = None,
    *,
    backend: str | None = None,
    lowering: str | None = None,
    dtype: torch.dtype | str = torch.float32,
    **sizes: int,
) -> str:
    """The generated code of an operator, "forward" or "backward": a module that runs on its own.

    `backend` is "reference" (PyTorch, the default here) or "triton"; the kernel is that for tensors of
    `dtype` and of these sizes.

    Example:
        >>> import scanforge as sf
        >>> "torch.maximum" in sf.source(sf.operators.MinMax, "forward")
        True
    """
    declared = declaration(operator)
    if which not in {"forward", "backward"}:
        raise ArgumentError(
            f"{declared.name}: source of {which!r} is not generated: write 'forward' or 'backward'."
        )
    chosen = backend or "reference"
    if chosen not in LOWERINGS:
        raise ArgumentError(
            f"{declared.name}: backend={backend!r} is no backend: write 'reference' or 'triton'."
        )
    typed = _dtype(operator, dtype)
    form = lowering_of(lowering, chosen, operator.__name__)
    bound = _example(operator, declared, shapes, sizes)
    traced = trace(operator, Signature(bound.axes, bound.dims))
    if chosen == "triton":
        steps, lanes = bound.shape[bound.time], prod(bound.lanes)
        return kernel_source(traced.text, which, steps, lanes, len(declared.leaves), typed)
    shown = full_adjoint(traced.scan).scan if which == "backward" else traced.scan
    return module(shown, form or "loop")


def _dtype(operator: type[Operator], dtype: torch.dtype | str) -> torch.dtype:
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


def _sizes(operator: type[Operator], sizes: dict[str, int]) -> dict[str, int]:
    for axis, size in sizes.items():
        if not isinstance(size, int) or size < 0:
            raise ArgumentError(
                f"{operator.__name__}: {axis}={size!r} is no size of an axis: write {axis}=8 or the like."
            )
    if "t" not in sizes or "b" not in sizes:
        raise ArgumentError(
            f"{operator.__name__}: a bare operator has the axes b, t, d, ...: write b=8, t=512, d=64."
        )
    return sizes


def _example(
    operator: type[Operator],
    declared: Declaration,
    shapes: dict[str, tuple[int, ...]] | None,
    sizes: dict[str, int],
) -> Bound:
    """A call's binding without tensors."""
    whole = tuple(_sizes(operator, {"b": 8, "t": 512, "d": 64} | sizes).values())
    meta = {
        leaf.name: torch.empty(
            (shapes or {}).get(leaf.name, whole), device="meta", dtype=_EXAMPLE_DTYPES[leaf.kind]
        )
        for leaf in declared.leaves
    }
    unknown = set(shapes or {}) - set(meta)
    if unknown:
        raise ArgumentError(
            f"{declared.name} has no element {', '.join(sorted(unknown))}: its elements are "
            f"{', '.join(meta)}."
        )
    return bind(declared, meta, 1)


_EXAMPLE_DTYPES = {"float": torch.float32, "int": torch.int64, "bool": torch.bool}
