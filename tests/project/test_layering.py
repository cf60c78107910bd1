"""A stage imports the vocabulary and the stages above it, never one below; `models` sees the face only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.subprocesses import ROOT

VOCABULARY = ["errors", "dtypes", "ir"]

# From the user's class down to the shell: each may import what stands before it. `pipeline` composes the
# pure stages above it; what runs and reports stands below and calls it.
STAGES = [
    "maths", "fields", "declare", "operators", "recurrence", "compiled", "watch", "captured", "compose",
    "prune", "trace", "pieces", "trace_recurrence", "cache", "sampling", "laws", "vjp", "segments",
    "batched", "narrow", "schedule", "waves", "affine", "adjoint", "facts", "products", "chunked_form",
    "chunked_vjp", "chunked_swap", "chunked_plan", "backend", "call", "call_recurrence", "example",
    "packed", "shipped", "tile", "plan", "emit", "pipeline", "tuned", "tangent", "launch", "sequential",
    "prepared", "boundaries", "views", "chunked_choice", "tape", "lean",
    "workspace", "launcher", "replay_text", "alike", "repeats", "sums", "work",
    "pointwise", "chunked_setting", "chunked_work", "chunked_run", "chunked_back", "split", "refill",
    "packed_work", "kernel_choice", "launch_triton", "listing", "library", "op", "replay", "ops", "validate",
    "planned", "report", "show", "api", "truth", "timing", "tools", "candidates", "trial", "tuner",
    "selfcheck", "distributed", "cli", "__init__",
]  # fmt: skip

# Only an alias of the shipped layers; nothing in the compiler knows it.
APART = ["models"]
SEES_THEM = {"selfcheck"}


def imported_modules(path: Path, package: str) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every module that a file imports, in functions too.

    `package` is the dotted package that the file lies in. `from p import n` yields `p.n`.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _package(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parent.parts)


def _stage(dotted: str) -> str:
    """`scanforge.emit.text.block` -> `emit`; names re-exported by the face -> `__init__`."""
    parts = dotted.split(".")
    known = {*VOCABULARY, *STAGES, *APART}
    return parts[1] if len(parts) > 1 and parts[1] in known else "__init__"


def _allowed(stage: str) -> set[str]:
    if stage in VOCABULARY:
        return set(VOCABULARY[: VOCABULARY.index(stage) + 1])
    if stage in APART:
        return set()
    return {*VOCABULARY, *STAGES[: STAGES.index(stage) + 1], *(APART if stage in SEES_THEM else [])}


def violations(path: Path, stage: str, package: str) -> list[str]:
    """What a file of `stage` imports from scanforge and may not."""
    return [
        f"line {line}: {stage} imports {name}, which is not above it"
        for line, name in imported_modules(path, package)
        if name.split(".")[0] == "scanforge" and _stage(name) not in _allowed(stage)
    ]


def _own_stage(path: Path) -> str:
    parts = path.relative_to(ROOT / "scanforge").with_suffix("").parts
    return parts[0]


SOURCES = sorted((ROOT / "scanforge").rglob("*.py"))
LAYERS = sorted((ROOT / "models").rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_stage_imports_upwards(path: Path):
    stage = _own_stage(path)
    assert stage in {*VOCABULARY, *STAGES, *APART}, (
        f"{_name(path)}: a new module needs a place in the list STAGES of {_name(Path(__file__))}."
    )
    found = violations(path, stage, _package(path))
    assert not found, f"{_name(path)}\n" + "\n".join(found)


@pytest.mark.parametrize("path", LAYERS, ids=_name)
def test_models_use_the_face(path: Path):
    """Layers are what a user could write: `import scanforge as sf` and names of its `__all__`."""
    import scanforge

    public = {f"scanforge.{name}" for name in scanforge.__all__} | {"scanforge"}
    found = [
        f"line {line}: {name} is not in scanforge.__all__"
        for line, name in imported_modules(path, _package(path))
        if name.split(".")[0] in {"scanforge", "triton"} and name not in public
    ]
    assert not found, f"{_name(path)}\n" + "\n".join(found)


@pytest.mark.parametrize("path", LAYERS, ids=_name)
def test_models_import_each_other_relatively(path: Path):
    """The name `models` may be a user's own package; the shipped one then goes by `scanforge.models` only."""
    absolute = [
        f"line {node.lineno}: write `from . import …`"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(a.name.split(".")[0] == "models" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and not node.level and node.module.split(".")[0] == "models")
    ]
    assert not absolute, f"{_name(path)}\n" + "\n".join(absolute)


def test_an_import_from_below_is_found(tmp_path: Path):
    source = tmp_path / "trace.py"
    source.write_text(
        "from .ir import program\nfrom . import errors\n\ndef late():\n    from .plan import Plan\n"
    )
    assert violations(source, "trace", "scanforge") == [
        "line 5: trace imports scanforge.plan.Plan, which is not above it"
    ]


def test_relative_imports_inside_a_subpackage_resolve(tmp_path: Path):
    source = tmp_path / "block.py"
    source.write_text("from ..api import scan\nfrom .text import line\nfrom scanforge.facts import Facts\n")
    assert [name for _, name in imported_modules(source, "scanforge.emit")] == [
        "scanforge.api.scan",
        "scanforge.emit.text.line",
        "scanforge.facts.Facts",
    ]
    assert len(violations(source, "emit", "scanforge.emit")) == 1
