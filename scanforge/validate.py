"""Laws; and values and gradients against the sequential loop under torch's autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from scanforge import launch, laws, op
from scanforge.backend import LOWERINGS
from scanforge.boundaries import bounded
from scanforge.declare import Operator
from scanforge.example import Example, fields_of
from scanforge.ir.scan import load_operator
from scanforge.launch import Options
from scanforge.prepared import Prepared, prepare
from scanforge.recurrence import Recurrence
from scanforge.segments import flag_axes

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


def validate(operator: type[Operator] | type[Recurrence], example: Example) -> Report:
    """Laws; then every lowering, both directions, plain and with resets and padding, in float64."""
    operators = list(dict.fromkeys(example.traced.operators))
    several, rows = len(operators) > 1, []
    for text in operators:
        of = f" of {load_operator(text).name}" if several else ""
        rows += [_law_row(r, of) for r in laws.check_laws(text)]
    if all(row.ok for row in rows):
        rows += _numeric_rows(operator, example)
    return Report(example.declared.name, tuple(rows))


def _law_row(result: laws.LawResult, of: str) -> Row:
    subject = f"law: {result.law}{of}"
    if result.broken is None:
        return Row(subject, str(result), True)
    return Row(subject, laws.counter_example(result), False)


def _numeric_rows(operator: type[Operator] | type[Recurrence], example: Example) -> list[Row]:
    call, rows = _drawn(operator, example), []
    for cut in (False, True):
        for reverse in (False, True):
            reset, mask = _flags(call) if cut else (None, None)
            made = bounded(call, reverse=reverse, reset=reset, mask=mask, lengths=None)
            truth = _run(made, Options(reverse, "", made.dtype), emitted=True)
            way = "right to left" if reverse else "left to right"
            for lowering in LOWERINGS["reference"]:
                mine = _run(made, Options(reverse, lowering, made.dtype), emitted=False)
                for what in ("values", "gradients"):
                    error = _distance(mine[what], truth[what])
                    subject = f"{what}{', resets and padding' if cut else ''}: {lowering}, {way}"
                    rows.append(Row(subject, f"within {error:.1e} of the loop", error <= BOUND))
    return rows


def _drawn(operator: type[Operator] | type[Recurrence], example: Example) -> Prepared:
    """The call with random tensors in each field's domain, and random initial states."""
    random = torch.Generator().manual_seed(SEED)
    tensors = {
        f.name: draw(f.kind, f.domain, example.tensors[f.name].shape, random)
        for f in fields_of(example.declared)
    }
    initial = example.initial and tuple(torch.zeros(x.shape, dtype=x.dtype) for x in example.initial)
    call = prepare(operator, tensors, initial)
    drawn = [
        draw(s.kind, "positive", x.shape, random).detach().to(x.dtype)
        for s, x in zip(call.scan.states, call.initial, strict=True)
    ]
    return replace(call, initial=tuple(x.requires_grad_(x.is_floating_point()) for x in drawn))


def _flags(call: Prepared) -> tuple[Tensor, Tensor]:
    """Random resets and padding, the same for the whole batch."""
    random = torch.Generator().manual_seed(SEED + 2)
    *batch, _ = flag_axes(call.scan)
    rows = torch.rand((2, *(1 for _ in batch), call.sizes["t"]), generator=random)
    return rows[0] < 0.2, rows[1] < 0.8


def draw(kind: str, domain: str, shape: Sequence[int], random: torch.Generator) -> Tensor:
    """A random tensor of a field's kind, within its domain; a float one is float64 and wants its gradient."""
    if kind == "bool":
        return torch.rand(shape, generator=random) < 0.5
    if kind == "int":
        return torch.randint(0, 3, tuple(shape), generator=random)
    x = torch.randn(shape, generator=random, dtype=torch.float64)
    shaped = {"any": x, "positive": x.abs() + 0.1, "nonnegative": x.abs(), "unit": torch.sigmoid(x)}[domain]
    return shaped.detach().requires_grad_()


def _run(call: Prepared, options: Options, *, emitted: bool) -> dict[str, list[Tensor]]:
    """Values and gradients: torch's of the emitted loop, or scanforge's."""
    inputs, initial = list(call.inputs), list(call.initial)
    if emitted:
        outputs, finals, _ = launch.evaluate(call.text, inputs, initial, "loop", options)
    else:
        outputs, finals = op.apply(call.text, inputs, initial, options)
    return _with_gradients([*outputs, *finals], [*inputs, *initial])


def _with_gradients(results: list[Tensor], leaves: list[Tensor]) -> dict[str, list[Tensor]]:
    """The float results, and the gradients of a fixed random sum of them."""
    random = torch.Generator().manual_seed(SEED + 1)
    floats = [r for r in results if r.is_floating_point()]
    wanted = list({id(x): x for x in leaves if x.requires_grad}.values())  # resets enter with initial states
    terms = [(r * torch.randn(r.shape, generator=random, dtype=r.dtype)).sum() for r in floats]
    if not any(t.requires_grad for t in terms):
        return {"values": results, "gradients": []}
    gradients = torch.autograd.grad(torch.stack(terms).sum(), wanted, allow_unused=True)
    return {"values": results, "gradients": [g if g is not None else torch.zeros(()) for g in gradients]}


def _distance(mine: list[Tensor], truth: list[Tensor]) -> float:
    """The largest relative distance of a pair; equal infinities and NaN are no distance."""
    found = [torch.zeros((), dtype=torch.float64)]
    for a, b in zip(mine, truth, strict=True):
        a, b = a.detach().double(), b.detach().double()
        apart = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, a - b)
        found.append(apart.norm() / (torch.where(b.isfinite(), b, 0.0).norm() + 1e-30))
    return float(torch.stack(found).max())
