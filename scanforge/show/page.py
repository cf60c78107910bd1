"""Explanation -> HTML: a fragment for a notebook, or one page that loads nothing."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import metadata
from typing import TYPE_CHECKING

from scanforge import dtypes
from scanforge.planned import readable
from scanforge.show import svg
from scanforge.validate import Report

if TYPE_CHECKING:
    from scanforge.show.explanation import Explanation

STYLE = """
.sf{background:var(--paper);color:var(--ink);font:15px/1.55 system-ui,"DejaVu Sans",sans-serif;
padding:8px 20px}
.sf h1{font-size:28px;margin:18px 0 2px}.sf h2{font-size:19px;margin:38px 0 10px}
.sf p.doc{font-size:17px;margin:2px 0 12px}.sf .soft{color:var(--soft);font-size:13px}
.sf code,.sf pre,.sf td.mono{font:13px/1.5 ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace}
.sf pre{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:10px 14px;
overflow-x:auto;margin:6px 0}
.sf .grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(430px,100%),1fr));gap:4px 20px}
.sf .grid h3,.sf h3{font-size:14px;margin:8px 0 0;color:var(--soft)}
.sf a{color:var(--given)}
.sf table{border-collapse:collapse;font-size:14px;margin:6px 0}
.sf th{text-align:left;color:var(--soft);font-weight:600}
.sf td,.sf th{padding:3px 18px 3px 0;border-bottom:1px solid var(--line);vertical-align:top}
.sf .badge{display:inline-block;border-radius:99px;padding:2px 12px;margin:0 8px 8px 0;font-size:13px;
border:1px solid var(--line);background:var(--panel)}
.sf .ok{color:var(--cotangent);font-weight:600}.sf .wrong{color:var(--wrong);font-weight:600}
.sf details{margin:8px 0}.sf summary{cursor:pointer;font-weight:600}
.sf ul{margin:6px 0;padding-left:20px}
.sf svg.away .edge{opacity:.12}.sf svg.away .edge.near{opacity:1;stroke-width:2}
"""
SCRIPT = """
document.querySelectorAll(".sf g.node").forEach(function(node){
  var panel=node.parentNode, drawing=node.ownerSVGElement, key=node.dataset.key;
  node.addEventListener("mouseenter",function(){
    var from={}; drawing.classList.add("away");
    panel.querySelectorAll(".edge").forEach(function(e){ if(e.dataset.to===key) from[e.dataset.from]=1; });
    panel.querySelectorAll(".edge").forEach(function(e){
      if(e.dataset.from===key||e.dataset.to===key||(e.dataset.to===""&&from[e.dataset.from]))
        e.classList.add("near"); });
  });
  node.addEventListener("mouseleave",function(){
    drawing.classList.remove("away");
    panel.querySelectorAll(".near").forEach(function(e){ e.classList.remove("near"); });
  });
});
"""
EQUATIONS = ("element", "step", "readout", "combine")


@dataclass(frozen=True, slots=True)
class Source:
    """A generated text."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Time:
    """How long a pass takes, and the bytes that it has to move at least."""

    what: str
    seconds: float
    size: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Times on a device, beside a copy of as many bytes as the forward pass moves."""

    where: str
    rows: tuple[Time, ...]
    copy: Time


def page(title: str, body: str) -> str:
    """A file of its own."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)} · scanforge</title>\n<style>body{{margin:0}}</style>\n</head>\n<body>\n"
        f"{body}\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def fragment(
    shown: Explanation,
    report: Report | None = None,
    sources: Iterable[Source] = (),
    timing: Timing | None = None,
) -> str:
    """All of it below one element with the class `sf`, whose style reaches no further."""
    written = list(sources)
    parts = [
        f'<div class="sf">\n<style>{svg.STYLE}{STYLE}{_colours() if written else ""}</style>',
        *_head(shown, report, [*["timing"] * bool(timing), *["source"] * bool(written)]),
        '<h2 id="dataflow">Dataflow, and its adjoint beside it</h2>',
        '<p class="soft">One step. Each box is a line of the recurrence, its axes and where it was written; '
        "point at one to see what it reads and who reads it.</p>",
        shown.drawing("dataflow", alone=False),
        _equations(shown),
        *(_checked(report) if report else _laws(shown)),
        *_plan(shown),
        *(_timed(timing) if timing else []),
        *(_sources(written) if written else []),
        "</div>",
    ]
    return "\n".join(parts)


def _head(shown: Explanation, report: Report | None, more: Sequence[str]) -> Iterable[str]:
    name, _, doc = shown.parts[0].title.partition(": ")
    yield f"<h1>{escape(name)}</h1>"
    yield f'<p class="doc">{_ticks(doc)}</p>'
    plan = shown.plan
    if report:
        kind = "ok" if report.ok else "wrong"
        words = "laws and gradients hold" if report.ok else "WRONG: see below"
        yield f'<span class="badge {kind}">{words}</span>'
    facts = shown.part("facts")
    told = [x.partition(",")[0] for x in (facts.lines[:2] if facts else ()) if x != "rounds"]
    for words in (*told, f"{plan.kernel.lowering} on a GPU"):
        yield f'<span class="badge">{escape(words)}</span>'
    moved = " + ".join(readable(plan.bytes(which)) for which in plan.reads_and_writes)
    yield f'<span class="badge">{moved} moved</span>'
    sizes = ", ".join(f"{a}={n}" for a, n in plan.sizes.items())
    versions = f"scanforge {_version('scanforge')}, torch {_version('torch')}, Triton {_version('triton')}"
    yield (
        f'<p class="soft">For {sizes} in {dtypes.name(plan.dtype)} · {versions}, '
        f"Python {platform.python_version()}</p>"
    )
    links = ("dataflow", "equations", "laws", "facts", "plan", "bytes", *more)
    named = " · ".join(f'<a href="#{x}">{x}</a>' for x in links)
    yield f'<p class="soft">{named}</p>'


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _equations(shown: Explanation) -> str:
    found = [p for p in shown.parts if p.name in EQUATIONS]
    parts = [("declaration", shown.parts[0]), *((p.title, p) for p in found)]
    boxes = "".join(f"<div><h3>{title}</h3><pre>{_lines(p.lines)}</pre></div>" for title, p in parts)
    back = shown.part("backward")
    derived = (
        f"<details><summary>{escape(back.title)}</summary><pre>{_lines(back.lines)}</pre></details>"
        if back
        else ""
    )
    return f'<h2 id="equations">Equations</h2>\n<div class="grid">{boxes}</div>\n{derived}'


def _laws(shown: Explanation) -> Iterable[str]:
    laws = shown.part("laws")
    rows = [line.partition(": ") for line in (laws.lines if laws else ())]
    yield '<h2 id="laws">Laws</h2>\n<table>'
    for law, _, result in rows:
        yield f'<tr><td>{escape(law)}</td><td class="{_kind(result != "broken")}">{escape(result)}</td></tr>'
    yield "</table>"


def _checked(report: Report) -> Iterable[str]:
    """The laws, then values and gradients of every way of running it, against the sequential loop."""
    yield '<h2 id="laws">Laws and gradients</h2>'
    yield (
        '<p class="soft">On random inputs in float64. Values and gradients are compared with those of the '
        "sequential loop under PyTorch's own autograd.</p>\n"
        "<table><tr><th></th><th>what</th><th>found</th></tr>"
    )
    for row in report.rows:
        mark = "✓" if row.ok else "WRONG"
        yield (
            f'<tr><td class="{_kind(row.ok)}">{mark}</td><td>{escape(row.subject)}</td>'
            f"<td>{escape(row.result)}</td></tr>"
        )
    yield "</table>"


def _kind(ok: bool) -> str:
    return "ok" if ok else "wrong"


def _plan(shown: Explanation) -> Iterable[str]:
    for name, title in (("facts", "Facts"), ("plan", "Plan")):
        part = shown.part(name)
        items = "".join(f"<li>{escape(line)}</li>" for line in (part.lines if part else ()))
        yield f'<h2 id="{name}">{title}</h2>\n<ul>{items}</ul>'
    yield shown.drawing("tiles", alone=False)
    yield f'<h2 id="bytes">Bytes moved</h2>\n{shown.drawing("bytes", alone=False)}'


def _timed(timing: Timing) -> Iterable[str]:
    yield f'<h2 id="timing">Timing</h2>\n<p class="soft">{escape(timing.where)}</p>'
    yield "<table><tr><th>what</th><th>time</th><th>bytes a second</th><th>of a copy's</th></tr>"
    best = timing.copy.size / timing.copy.seconds
    for row in (*timing.rows, timing.copy):
        rate = row.size / row.seconds
        yield (
            f"<tr><td>{escape(row.what)}</td><td>{row.seconds * 1e6:.1f} µs</td>"
            f"<td>{rate / 1e9:.3g} GB/s</td><td>{100 * rate / best:.0f} %</td></tr>"
        )
    yield "</table>"


def _sources(sources: Iterable[Source]) -> Iterable[str]:
    from pygments import highlight
    from pygments.formatters.html import HtmlFormatter
    from pygments.lexers.python import PythonLexer

    yield '<h2 id="source">Generated source</h2>'
    for source in sources:
        text = highlight(source.text, PythonLexer(), HtmlFormatter(nowrap=True))
        note = f" ({source.text.count(chr(10)) + 1} lines)"
        yield (
            f"<details><summary>{escape(source.title)}{note}</summary>"
            f'<pre class="code">{text}</pre></details>'
        )


def _colours() -> str:
    from pygments.formatters.html import HtmlFormatter

    light = HtmlFormatter(style="friendly").get_style_defs(".sf pre.code")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".sf pre.code")
    return f"{light}\n@media (prefers-color-scheme:dark){{{dark}}}\n.sf pre.code{{background:var(--panel)}}"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(escape(line) for line in lines)


def _ticks(text: str) -> str:
    """Text with what stands between backticks as code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(pieces))
