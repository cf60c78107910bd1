"""An operator's laws, and its values and gradients against the sequential loop under torch's autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from scanforge import laws, op
from scanforge.backend import LOWERINGS
from scanforge.declare import Declaration, Operator, declaration
from scanforge.ir.scan import Scan, load
from scanforge.launch import Options, state_dtypes
from scanforge.pipeline import executable
from scanforge.trace import Signature, Traced, trace

Tensor = torch.Tensor
BOUND = 1e-9  # of float64 against float64: two orders of rounding in up to a hundred steps
SEED = 7


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report."""

    subject: str
    result: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Report:
    """What `sf.check` found; `ok` if nothing is wrong."""

    operator: str
    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether every row is right."""
        return all(row.ok for row in self.rows)

    def __str__(self) -> str:
        wide = max(len(row.subject) for row in self.rows)
        marks = {True: "ok   ", False: "WRONG"}
        lines = [f"  {marks[r.ok]}  {r.subject:<{wide}}  {r.result}" for r in self.rows]
        return "\n".join([f"{self.operator}: {'ok' if self.ok else 'WRONG'}", *lines])


def validate(operator: type[Operator], sizes: dict[str, int]) -> Report:
    """Laws; then values and gradients of every lowering, both directions, against the loop in float64."""
    declared = declaration(operator)
    axes = ("t", *(a for a in sizes if a != "t"))
    traced = trace(operator, Signature(axes, (tuple(sizes),) * len(declared.leaves)))
    rows = [_law_row(r) for r in laws.check_laws(traced.operator)]
    if all(row.ok for row in rows):
        rows += _numeric_rows(declared, traced, sizes)
    return Report(declared.name, tuple(rows))


def _law_row(result: laws.LawResult) -> Row:
    if result.broken is None:
        return Row(f"law: {result.law}", str(result), True)
    b = result.broken
    shown = ", ".join(f"{n} = {v}" for n, v in b.sample.items())
    return Row(
        f"law: {result.law}", f"broken for {shown}: {b.left} is not {b.right}. {result.hint}".rstrip(), False
    )


def _numeric_rows(declared: Declaration, traced: Traced, sizes: dict[str, int]) -> list[Row]:
    rows = []
    tensors, initial = _samples(declared, traced, sizes)
    for lowering in LOWERINGS["reference"]:
        for reverse in (False, True):
            options = Options(reverse, lowering, torch.float64)
            mine = _run_op(traced.text, tensors, initial, options)
            truth = _run_loop(traced.text, tensors, initial, sizes["t"], reverse)
            way = "right to left" if reverse else "left to right"
            for what in ("values", "gradients"):
                error = _distance(mine[what], truth[what])
                rows.append(
                    Row(f"{what}: {lowering}, {way}", f"within {error:.1e} of the loop", error <= BOUND)
                )
    return rows


def _samples(
    declared: Declaration, traced: Traced, sizes: dict[str, int]
) -> tuple[list[Tensor], list[Tensor]]:
    """Random inputs in each leaf's domain, and initial states."""
    random = torch.Generator().manual_seed(SEED)
    kinds = {leaf.name: leaf for leaf in declared.leaves}
    tensors = [
        _draw(kinds[i.name].kind, kinds[i.name].domain, list(sizes.values()), random)
        for i in traced.scan.inputs
    ]
    lanes = [size for axis, size in sizes.items() if axis != "t"]
    carried = state_dtypes(traced.scan, tensors, torch.float64)
    initial = [
        _draw(s.kind, "positive", lanes, random).to(d).requires_grad_(s.kind == "float")
        for s, d in zip((x for x in traced.scan.states), (c for c in carried), strict=True)
    ]
    return tensors, [x.detach().requires_grad_(x.is_floating_point()) for x in initial]


def _draw(kind: str, domain: str, shape: Sequence[int], random: torch.Generator) -> Tensor:
    if kind == "bool":
        return torch.rand(shape, generator=random) < 0.5
    if kind == "int":
        return torch.randint(0, 3, tuple(shape), generator=random)
    x = torch.randn(shape, generator=random, dtype=torch.float64)
    shaped = {"any": x, "positive": x.abs() + 0.1, "nonnegative": x.abs(), "unit": torch.sigmoid(x)}[domain]
    return shaped.detach().requires_grad_()


def _run_op(
    text: str, tensors: list[Tensor], initial: list[Tensor], options: Options
) -> dict[str, list[Tensor]]:
    outputs, finals = op.apply(text, tensors, initial, options)
    return _with_gradients([*outputs, *finals], [*tensors, *initial])


def _run_loop(
    text: str, tensors: list[Tensor], initial: list[Tensor], steps: int, reverse: bool
) -> dict[str, list[Tensor]]:
    """The emitted loop, differentiated by torch."""
    scan: Scan = load(text)
    order = [scan.outputs[0].dims.index(a) for a in scan.axes]
    aligned = [t.permute(order) for t in tensors]
    outputs, finals, _ = executable(text, "loop")(*aligned, *initial, steps=steps, reverse=reverse)
    back = [scan.axes.index(d) for d in scan.outputs[0].dims]
    return _with_gradients([*(y.permute(back) for y in outputs), *finals], [*tensors, *initial])


def _with_gradients(results: list[Tensor], leaves: list[Tensor]) -> dict[str, list[Tensor]]:
    """The float results, and the gradients of a fixed random sum of them."""
    random = torch.Generator().manual_seed(SEED + 1)
    floats = [r for r in results if r.is_floating_point()]
    wanted = [x for x in leaves if x.requires_grad]
    terms = [(r * torch.randn(r.shape, generator=random, dtype=r.dtype)).sum() for r in floats]
    if not any(t.requires_grad for t in terms):
        return {"values": results, "gradients": []}
    gradients = torch.autograd.grad(torch.stack(terms).sum(), wanted, allow_unused=True)
    return {"values": results, "gradients": [g if g is not None else torch.zeros(()) for g in gradients]}


def _distance(mine: list[Tensor], truth: list[Tensor]) -> float:
    """The largest relative distance of a pair."""
    worst = 0.0
    for a, b in zip(mine, truth, strict=True):
        a, b = a.detach().double(), b.detach().double()
        same = torch.where(a == b, 0.0, a - b)  # inf - inf is no distance
        scale = torch.where(b.isfinite(), b, 0.0).norm()
        worst = max(worst, float(same.norm() / (scale + 1e-30)) if same.numel() else 0.0)
    return worst
