"""Pages that are made from the code: the gallery, with what `sf.check` says and a plot, and the API."""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

import models
import scanforge as sf
from examples import gallery
from examples.gallery import not_associative
from scanforge import cli, distributed, maths, operators, tools
from scanforge.show import svg
from scanforge.show.explanation import Explanation

API = {
    "Declare": ("Operator", "Recurrence", "Element", "Input", "State", "Output"),
    "Run": ("scan", "step", "prefixes"),
    "Look": ("check", "explain", "source", "last_run", "set_law_check", "tune"),
}


def pages() -> dict[str, str | bytes]:
    """Every generated file, by its path in the site."""
    found: dict[str, str | bytes] = {"api.md": api(), "drawings.css": svg.STYLE + _WRAPPED}
    found["gallery/report.html"] = tools.report(gallery.entries()[REPORTED].DECLARED[0])[0]
    rows = []
    for name, module in gallery.entries().items():
        title = headline(module)
        found[f"gallery/{name}.md"] = entry(name, module)
        found[f"gallery/{name}.svg"] = plot(module)
        found |= {f"gallery/step_{d.__name__}.svg": sf.explain(d).svg() for d in module.DECLARED}
        first = inspect.getdoc(module.DECLARED[0]).splitlines()[0].rstrip(".")
        equation = first.partition(": ")[2] or first
        rows.append(f"| [{title}]({name}.md) | {formula(equation)} | {laws(module.DECLARED[0])} |")
    found["gallery/not_associative.md"] = refused(not_associative)
    found["gallery/index.md"] = "\n".join([*_OVERVIEW, *rows, "", *_REFUSED])
    return found


_OVERVIEW = (
    "# Gallery",
    "",
    "Recurrences to start from, each at most twenty lines, in `examples/gallery`. The tests check laws, "
    "gradients and every way of running them, and compare most with a formula without a scan. What "
    "`sf.check` says is printed when a page is built.",
    "",
    "| recurrence | a step | laws |",
    "| --- | --- | --- |",
)
REPORTED = "gla"
# A page's column is narrower than its window: drawings stand below each other, programs have small letters.
_WRAPPED = """
.sf .beside{flex-wrap:wrap}
.md-grid{max-width:72rem}
.md-typeset pre>code{font-size:.72em}
.md-typeset table:not([class]) :is(td,th){padding:.6em .7em;min-width:0}
@media (min-width:60em){.language-text pre>code{white-space:pre-wrap}}
"""
_REFUSED = (
    f"What `scanforge report examples/gallery/{REPORTED}.py:GLA` writes is [one page](report.html).",
    "",
    f"And what cannot be declared: [{not_associative.__doc__.splitlines()[0]}](not_associative.md).",
    "",
)


def headline(module: ModuleType) -> str:
    """The first line of a module."""
    return str(module.__doc__).splitlines()[0]


def _text(module: ModuleType) -> str:
    return markdown(inspect.cleandoc(str(module.__doc__)).partition("\n")[2])


def formula(text: str) -> str:
    """A formula as code in a table's cell."""
    return "`" + text.strip("`").replace("`", "").replace("|", "∣") + "`"


def laws(declared: type) -> str:
    """proved, or tested on so many samples, whichever says least."""
    found = [r.result for r in sf.check(declared, show=False).rows if r.subject.startswith("law")]
    tested = [result for result in found if result != "proved"]
    return tested[0] if tested else "proved"


def entry(name: str, module: ModuleType) -> str:
    """The page of one recurrence."""
    parts = [f"# {headline(module)}", _text(module), f"![what it does]({name}.svg)"]
    for declared in module.DECLARED:
        own = f"step_{declared.__name__}.svg"
        parts += [_code(declared), f"[![a step, and its adjoint beside it]({own})]({own})"]
        parts += [_block(str(sf.check(declared, show=False)))]
    helpers = [
        f
        for n, f in vars(module).items()
        if inspect.isfunction(f) and f.__module__ == module.__name__ and n != "draw"
    ]
    parts += [_block(inspect.getsource(f), "python") for f in helpers]
    parts += ["The plot:", _block(inspect.getsource(module.draw), "python")]
    return "\n\n".join(parts)


def refused(module: ModuleType) -> str:
    """The page of what has no combine, with the counter-examples that `sf.check` prints."""
    parts = [f"# {headline(module)}", _text(module)]
    for declared in module.NOT_ASSOCIATIVE:
        parts += [_code(declared), _block(str(sf.check(declared, show=False)))]
    return "\n\n".join(parts)


def plot(module: ModuleType) -> bytes:
    """A module's plot, as SVG, the same bytes in every build."""
    with mpl.rc_context({"svg.hashsalt": "scanforge"}):
        figure = Figure(figsize=(7, 3.4), layout="constrained")
        axes = figure.subplots()
        module.draw(axes)
        axes.set_xlabel(axes.get_xlabel() or "t")
        axes.spines[["top", "right"]].set_visible(False)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _code(declared: type) -> str:
    return _block(inspect.getsource(declared), "python")


def _block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.strip()}\n```"


def api() -> str:
    """Everything public, from its docstring."""
    parts = ["# API", "As the docstrings say it; every example in them is run by the tests."]
    for heading, names in API.items():
        parts += [f"## {heading}", *(_documented(f"sf.{n}", getattr(sf, n)) for n in names)]
    parts += [_documented(f"sf.explain(...).{n}", getattr(Explanation, n)) for n in ("svg", "html")]
    many = [_documented(f"sf.distributed.{n}", getattr(distributed, n)) for n in distributed.__all__]
    parts += ["## Many devices", *many]
    parts += ["## From a shell", "\n".join(["| | |", "| --- | --- |", *_commands()])]
    parts += ["`module:Name` may be `path/to/file.py:Name`; `scanforge COMMAND --help` names all options."]
    parts += [
        "## Operators",
        "`sf.Affine` is `sf.operators.Affine`.",
        *(_documented(f"sf.operators.{n}", getattr(operators, n)) for n in operators.__all__),
    ]
    parts += ["## Maths", "Functions for methods. Operators of Python work too: `+ - * / ** < <= == & | ~`."]
    parts += ["\n".join(["| | |", "| --- | --- |", *_maths()])]
    errors = [n for n in sf.__all__ if n.endswith("Error")]
    parts += ["## Errors", "\n".join(["| | |", "| --- | --- |", *_table("sf", sf, errors)])]
    parts += ["## Layers", *(_documented(f"models.{n}", getattr(models, n)) for n in sorted(models.__all__))]
    return "\n\n".join(parts) + "\n"


def _commands() -> Iterable[str]:
    """A line for each command: its name, and the first paragraph of its docstring."""
    for command in cli.app.registered_commands:
        assert command.callback is not None
        name, doc = command.callback.__name__, inspect.getdoc(command.callback) or ""
        target = "" if name == "selfcheck" else " module:Name"
        yield f"| `scanforge {name}{target}` | {escaped(' '.join(doc.split(chr(10) * 2)[0].split()))} |"


def _maths() -> Iterable[str]:
    return _table("sf", maths, maths.__all__)


def _table(prefix: str, owner: Any, names: Iterable[str]) -> Iterable[str]:
    for name in names:
        first = (inspect.getdoc(getattr(owner, name)) or "").splitlines()[0]
        yield f"| `{prefix}.{name}` | {escaped(first)} |"


def _documented(name: str, value: Any) -> str:
    return "\n\n".join(
        [f"### `{name}`", _block(signature(name, value), "python"), markdown(inspect.getdoc(value) or "")]
    )


class _Bare(str):
    """An annotation, printed without quotes."""

    def __repr__(self) -> str:
        return str(self)


def signature(name: str, value: Any) -> str:
    """The call as Python writes it, one argument a line if it is long; of a declaration, its name."""
    short = name.removeprefix("sf.")
    if isinstance(value, type) and issubclass(value, sf.Operator | sf.Recurrence):
        return short
    given = inspect.signature(value)
    taken = [p for p in given.parameters.values() if p.name != "self"]
    bare = [p.replace(annotation=_annotation(p.annotation)) for p in taken]
    returned = inspect.Signature.empty if isinstance(value, type) else _annotation(given.return_annotation)
    text = f"{short}{inspect.Signature(bare, return_annotation=returned)}"
    if len(text) <= 100:
        return text
    inside, end = text[len(short) + 1 :].rsplit(")", 1)
    rows = re.split(r", (?![^\[(]*[\])])", inside)
    return "\n".join([f"{short}(", *(f"    {row}," for row in rows), f"){end}"])


def _annotation(annotation: Any) -> Any:
    return _Bare(annotation) if isinstance(annotation, str) else annotation


def markdown(doc: str) -> str:
    """A docstring as Markdown: what is indented, aligned or an example becomes a block of code."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", doc.strip("\n")):
        lines = paragraph.splitlines()
        if lines[0].strip() == "Example:":
            lines = lines[1:]
        body = inspect.cleandoc("\n".join(["", *lines]))
        if body.startswith(">>>"):
            parts.append(_block(body, "pycon"))
        elif all(line.startswith("    ") for line in lines) or "   " in body:
            parts.append(_block(body))
        else:
            parts.append(escaped(body))
    return "\n\n".join(parts)


def escaped(text: str) -> str:
    """Text with what Markdown would take for its own, outside of code."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([*_<>|\[\]])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces)
