"""Whether what ships is right on this machine: every operator and recurrence against the loop in float64.

Kernels are compiled by another Triton for another GPU than the one they were tested on, and a fault of a
compiler shows as finite numbers that are wrong. On a GPU its kernels run, on a CPU the reference.
"""

from __future__ import annotations

import importlib
import pkgutil
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from scanforge import operators
from scanforge.chunked_choice import why_not
from scanforge.chunked_form import matrix_form
from scanforge.example import Example, example, fields_of
from scanforge.kernel_choice import can_ring
from scanforge.prepared import prepare
from scanforge.recurrence import Recurrence
from scanforge.truth import Declared, as_given, lost
from scanforge.work import at_once

Tensor = torch.Tensor
SMALL = {"b": 2, "t": 5, "d": 3, "n": 2, "h": 2, "k": 3, "v": 2, "g": 2}
MANY = {"b": 2, "t": 131, "d": 70, "n": 12, "h": 2, "k": 16, "v": 18, "g": 2}  # several tiles and chunks
ROUNDS = MANY | {"t": 1061}  # two rounds of a ring, and what is left
F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16

# Of values and of gradients, relative: a few hundred roundings of fp64, and of fp32; bf16 is rounded to once,
# and the gradient reads states that may have been.
BOUNDS = {F64: (1e-10, 1e-10), F32: (2e-6, 1e-5), BF16: (4e-3, 1e-2)}


@dataclass(frozen=True, slots=True)
class Form:
    """One way of running: a lowering (None: the plan's), a dtype, sizes of axes, a direction."""

    lowering: str | None
    dtype: torch.dtype
    sizes: dict[str, int]
    reverse: bool = False

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        way = ", right to left" if self.reverse else ""
        return f"{self.lowering or 'as planned'}, {kind}, {self.sizes['t']} steps{way}"


FORMS = {
    "reference": (Form("loop", F64, MANY), Form("parallel", F64, MANY, True), Form(None, BF16, SMALL)),
    "triton": (
        Form("ordered_tile", F32, MANY),
        Form("split", F32, MANY, True),
        Form(None, BF16, SMALL),
        Form("chunked", F32, MANY),
        Form("ring", F32, ROUNDS),
    ),
    "interpreter": (Form("ordered_tile", F32, SMALL), Form("split", F32, SMALL, True)),
}


@dataclass(frozen=True, slots=True)
class Row:
    """What one recurrence lost in one form, and whether that is rounding."""

    name: str
    form: Form
    values: float
    gradients: float

    @property
    def ok(self) -> bool:
        """Whether both are within the bounds of the dtype; a NaN is not."""
        bounds = BOUNDS[self.form.dtype]
        return self.values <= bounds[0] and self.gradients <= bounds[1]

    def text(self) -> str:
        """Both, marked if they are wrong."""
        shown = f"{self.values:.0e}, {self.gradients:.0e}"
        return shown if self.ok else f"[bold red]WRONG {shown}[/]"


def shipped() -> list[Declared]:
    """The operators, then the recurrences of the layers."""
    from scanforge import models

    found: dict[str, Declared] = {n: getattr(operators, n) for n in operators.__all__}
    for module in pkgutil.walk_packages(models.__path__, f"{models.__name__}."):
        for name, value in [*vars(importlib.import_module(module.name)).items()]:
            declares = isinstance(value, type) and issubclass(value, Recurrence) and value is not Recurrence
            if declares and name == value.__name__:  # a compiler puts variants there, under names of its own
                found.setdefault(f"{value.__module__}.{name}", value)
    return list(found.values())


def run(declared: Sequence[Declared], backend: str, device: torch.device) -> tuple[Row, ...]:
    """Each recurrence in each form of a backend, with a progress bar, then a table of them all."""
    from rich.console import Console
    from rich.progress import Progress

    kind = "interpreter" if backend == "triton" and device.type == "cpu" else backend
    waits = at_once(torch.empty(0, device=device)) > 0
    forms = [form for form in FORMS[kind] if form.lowering != "ring" or waits]
    pairs = [(one, form) for one in declared for form in forms if applies(one, form)]
    with Progress(console=Console(stderr=True), transient=True) as bar:
        rows = tuple(
            _checked(one, form, backend, device) for one, form in bar.track(pairs, description="checking")
        )
    show(rows, f"{backend} on {device}{' in its interpreter' if kind == 'interpreter' else ''}")
    return rows


def applies(declared: Declared, form: Form) -> bool:
    """Whether a recurrence has this form: rings and products over chunks are of some only."""
    if form.lowering not in {"chunked", "ring"}:
        return True
    text = example(declared, None, {}, form.sizes).traced.text
    if form.lowering == "ring":
        return can_ring(text)
    found = matrix_form(text)
    return not isinstance(found, str) and not why_not(found, packed=False)


def _checked(one: Declared, form: Form, backend: str, device: torch.device) -> Row:
    try:
        return compare(one, form, backend, device)
    except Exception as error:
        error.add_note(f"This happened in the self-check of {one.__name__} ({form}).")
        raise


def show(rows: Sequence[Row], what: str) -> None:
    """Print what each recurrence lost in each form: of its values, of its gradients."""
    from rich.console import Console
    from rich.table import Table

    wrong, forms = [r for r in rows if not r.ok], list(dict.fromkeys(str(r.form) for r in rows))
    table = Table(title=f"{what}: {f'{len(wrong)} WRONG' if wrong else 'ok'}", title_justify="left")
    for heading in ("values, gradients", *forms):
        table.add_column(heading, overflow="fold")
    for name in dict.fromkeys(r.name for r in rows):
        cells = {str(r.form): r for r in rows if r.name == name}
        table.add_row(name, *(cells[form].text() if form in cells else "" for form in forms))
    console = Console()
    console.print(table)
    for r in wrong:
        console.print(
            f"{r.name} ({r.form}) is WRONG on this machine: please report all that is printed here."
        )


def compare(declared: Declared, form: Form, backend: str, device: torch.device) -> Row:
    """What a recurrence loses in one form."""
    tensors, initial = drawn(declared, form)
    where: dict[str, Any] = {"backend": backend, "lowering": form.lowering, "reverse": form.reverse}
    return Row(declared.__name__, form, *lost(declared, tensors, initial, device, **where))


def drawn(declared: Declared, form: Form) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    """Tensors and initial states in the form's dtype, always the same: gates up to modulus 1, and ties."""
    found: Example = example(declared, None, {}, form.sizes)
    random = torch.Generator().manual_seed(form.sizes["t"])
    tensors = {
        f.name: _draw(f.kind, f.domain, found.tensors[f.name].shape, random).to(_dtype(f.kind, form.dtype))
        for f in fields_of(found.declared)
    }
    call = prepare(
        declared, tensors, found.initial and as_given([torch.zeros(x.shape) for x in found.initial])
    )
    starts = call.states(call.initial)
    kinds = ["float" if x.is_floating_point() else "int" for x in starts]
    initial = [_draw(k, "unit", x.shape, random).to(x.dtype) for k, x in zip(kinds, starts, strict=True)]
    return tensors, tuple(initial)


def machine(device: torch.device) -> str:
    """Versions and the device, on one line each."""
    packages = [f"{name} {_version(name)}" for name in ("scanforge", "torch", "triton", "numpy")]
    where = f"{platform.machine()}, {torch.get_num_threads()} thread(s)"
    if device.type == "cuda":
        p = torch.cuda.get_device_properties(device)
        toolkit = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
        where = f"{device} {p.name}, capability {p.major}.{p.minor}, {toolkit}"
    return f"{', '.join(packages)}\nPython {platform.python_version()}, {platform.platform()}\n{where}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _dtype(kind: str, floats: torch.dtype) -> torch.dtype:
    return {"float": floats, "int": torch.int64, "bool": torch.bool}[kind]


def _draw(kind: str, domain: str, shape: Sequence[int], random: torch.Generator) -> Tensor:
    x = torch.rand(tuple(shape), generator=random, dtype=F64)
    if kind != "float":
        return torch.randint(0, 2 if kind == "bool" else 3, tuple(shape), generator=random)
    if domain != "any":
        return x.clamp(min=0.1) if domain == "positive" else x
    whole = torch.rand(tuple(shape), generator=random, dtype=F64) < 0.25
    sign = torch.where(torch.rand(tuple(shape), generator=random, dtype=F64) < 0.5, 1.0, -1.0)
    return sign * torch.where(whole, 1.0, x)
