"""The same from a shell: scanforge check|explain|report|source|tune module:Name [b=8 t=2048]; selfcheck."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from scanforge import selfcheck as checks
from scanforge import tools, tuner
from scanforge.errors import DeclarationError, ScanforgeError
from scanforge.show.explanation import Explanation

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Target = Annotated[str, typer.Argument(help="module:Name, or path/to/file.py:Name")]
Sizes = Annotated[list[str] | None, typer.Argument(help="sizes of axes: b=8 t=2048 d=2048")]
File = Annotated[Path | None, typer.Option(help="the file to write")]


@app.command()
def check(target: Target, sizes: Sizes = None) -> None:
    """Check laws, gradients and the parity of all lowerings; exit 1 if something is wrong."""
    report = tools.check(load(target), **_parsed(sizes))
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def explain(
    target: Target, sizes: Sizes = None, dtype: str = "fp32", svg: File = None, html: File = None
) -> None:
    """Print laws, facts, the derived backward pass and the plan; or write a drawing or a page."""
    shown = tools.explain(load(target), dtype=dtype, **_parsed(sizes))
    for file, text in ((svg, shown.svg), (html, shown.html)):
        if file:
            file.write_text(text(), encoding="utf-8")
            typer.echo(f"wrote {file}")
    if not (svg or html):
        _print(shown)


@app.command()
def report(target: Target, sizes: Sizes = None, dtype: str = "fp32", out: File = None) -> None:
    """Write one HTML file: laws, gradients, drawings, plan, code, times on a GPU; exit 1 if wrong."""
    page, ok = tools.report(operator := load(target), dtype=dtype, **_parsed(sizes))
    file = out or Path(f"{operator.__name__}.html")
    file.write_text(page, encoding="utf-8")
    typer.echo(f"wrote {file}")
    raise typer.Exit(0 if ok else 1)


@app.command()
def tune(
    target: Target,
    sizes: Annotated[
        list[str] | None, typer.Argument(help="sizes of axes, b=8 t=2048 d=2048; an axis again: another call")
    ] = None,
    dtype: str = "fp32",
    budget: Annotated[
        float, typer.Option(help="seconds that tuning may take, for all calls together")
    ] = 60.0,
    again: Annotated[bool, typer.Option("--again", help="tune what was tuned before")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list what would be tried")] = False,
) -> None:
    """Find the fastest tiles for calls of these sizes on this machine's GPU, and keep them on disk."""
    calls = _calls(sizes or [])
    options: dict[str, Any] = {"dtype": dtype, "budget": budget / len(calls), "again": again}
    for call in calls:
        typer.echo(tuner.tune(load(target), dry_run=dry_run, show=True, **options, **_parsed(call)))


def _calls(words: list[str]) -> list[list[str]]:
    """The sizes of each call: an axis that comes again begins the next one."""
    calls: list[list[str]] = [[]]
    for word in words:
        axis = word.partition("=")[0]
        if axis in {w.partition("=")[0] for w in calls[-1]}:
            calls.append([])
        calls[-1].append(word)
    return calls


def _print(shown: Explanation) -> None:
    """A table on a terminal, the text as it is into a file or another program."""
    from rich.console import Console

    console = Console()
    if console.is_terminal:
        console.print(shown)
    else:
        typer.echo(shown)


@app.command()
def source(
    target: Target,
    which: Sizes = None,
    backend: str = "reference",
    lowering: str | None = None,
    dtype: str = "fp32",
) -> None:
    """Print the generated code: `forward` (the default) or `backward`, then sizes of axes."""
    words = which or []
    named = [w for w in words if w in {"forward", "backward"}] or ["forward"]
    sizes = _parsed([w for w in words if w not in named])
    options: dict[str, Any] = {"backend": backend, "lowering": lowering, "dtype": dtype}
    typer.echo(tools.source(load(target), named[0], **options, **sizes))


@app.command()
def selfcheck(
    targets: Annotated[list[str] | None, typer.Argument(help="module:Name, or nothing for all")] = None,
    backend: str | None = None,
) -> None:
    """Hold all that ships against a loop in float64 on this machine; exit 1 if a kernel is wrong.

    A GPU runs its kernels, a CPU the reference, and small kernels in Triton's interpreter if Triton is there.
    """
    declared = [load(target) for target in targets or []] or checks.shipped()
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    gpu = torch.cuda.is_available() and backend != "reference" and not interpreted
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    typer.echo(checks.machine(device))
    rows = checks.run(declared, backend or ("triton" if gpu else "reference"), device)
    right = all(row.ok for row in rows)
    if not gpu and backend is None and importlib.util.find_spec("triton") is not None:
        command = [
            sys.executable,
            "-m",
            "scanforge.cli",
            "selfcheck",
            *(targets or []),
            "--backend",
            "triton",
        ]
        right &= subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}).returncode == 0
    raise typer.Exit(0 if right else 1)


def load(target: str) -> Any:
    """The operator class that module:Name names."""
    place, colon, name = target.rpartition(":")
    if not colon:
        raise DeclarationError(
            f"{target!r} names no operator: write module:Name, as in scanforge.operators:MinMax."
        )
    found = getattr(_module(place), name, None)
    if found is None:
        raise DeclarationError(f"{place} has no {name}: write the class's name after the colon.")
    return found


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(place)
    spec = importlib.util.spec_from_file_location(Path(place).stem, place)
    if spec is None or spec.loader is None or not Path(place).exists():
        raise DeclarationError(f"There is no file {place}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _parsed(sizes: list[str] | None) -> dict[str, Any]:
    parsed: dict[str, Any] = {}
    for item in sizes or []:
        axis, equals, size = item.partition("=")
        if not equals or not size.isdigit():
            raise DeclarationError(f"{item!r} is no axis size: write t=2048.")
        parsed[axis] = int(size)
    return parsed


def main() -> None:
    """Run the command line; a scanforge error is a sentence and exit code 2."""
    try:
        app()
    except (ScanforgeError, TypeError, ModuleNotFoundError) as error:
        typer.echo(f"scanforge: {error}", err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
