"""The few shapes that drawings are made of, as SVG text; colours come from the style around them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from math import ceil

STYLE = """
.sf{--paper:#fff;--ink:#1b1f27;--soft:#667085;--line:#d5dae3;--panel:#f7f8fb;
--given:#2563eb;--given-fill:#eef4ff;--carried:#b45309;--carried-fill:#fff6e5;
--cotangent:#047857;--cotangent-fill:#e9f9f1;--output:#7c3aed;--output-fill:#f5f0ff;
--made:#8a94a6;--made-fill:#fff;--wrong:#b42318}
@media (prefers-color-scheme:dark){.sf{--paper:#14171d;--ink:#e6e9ef;--soft:#98a2b3;--line:#353b47;
--panel:#1a1e26;--given:#7aa7ff;--given-fill:#1a2740;--carried:#f0b35a;--carried-fill:#33270f;
--cotangent:#4fd1a1;--cotangent-fill:#10301f;--output:#b794ff;--output-fill:#281c44;
--made:#7b8698;--made-fill:#20252f;--wrong:#ff8a7a}}
.sf svg text{font:12px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;fill:var(--ink)}
.sf svg text.small{font-size:10px;fill:var(--soft)}
.sf svg text.label{font:600 12px system-ui,"DejaVu Sans",sans-serif;fill:var(--soft)}
.sf svg text.title{font:600 15px system-ui,"DejaVu Sans",sans-serif}
.sf svg .edge{fill:none;stroke-width:1.3;opacity:.55}
.sf svg .rule{stroke:var(--line);fill:none}
.sf svg g.node:hover .box{stroke-width:2.5}
.sf .beside{display:flex;flex-wrap:wrap;gap:16px;align-items:flex-start;margin:6px 0}
.sf .beside svg{flex:0 1 auto;min-width:0;max-width:100%;height:auto}
@media (min-width:1100px){.sf .beside{flex-wrap:nowrap}}
"""
WIDE, SMALL = 7.25, 6.05  # of a letter of text, and of small text
BETWEEN = 16  # panels


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start", fill: str = "") -> str:
    """Text whose baseline is at y."""
    style = f' style="fill:var(--{fill})"' if fill else ""
    named = f' class="{kind}"' if kind else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" xml:space="preserve"{named}{style}>'
        f"{escape(content)}</text>"
    )


def box(
    x: float,
    y: float,
    wide: float,
    high: float,
    stroke: str,
    fill: str,
    *,
    radius: float = 6,
    extra: str = "",
) -> str:
    """A rectangle in two of the style's colours."""
    return (
        f'<rect class="box" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}" rx="{radius}" '
        f'style="fill:var(--{fill});stroke:var(--{stroke})"{extra}/>'
    )


def line(x: float, y: float, to_x: float, to_y: float, stroke: str = "line", extra: str = "") -> str:
    """A straight line."""
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" '
        f'style="stroke:var(--{stroke})"{extra}/>'
    )


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of a drawing: its size, and its shapes."""

    wide: float
    high: float
    shapes: str


def drawing(panels: Iterable[Panel], title: str, *, alone: bool) -> str:
    """Panels in a row: one file with its style (`alone`), or what wraps in a page that has the style."""
    if not alone:
        inside = "".join(_svg(p.wide, p.high, f"<g>{p.shapes}</g>", title) for p in panels)
        return f'<div class="beside">{inside}</div>'
    parts, x, high = [], 0.0, 0.0
    for p in panels:
        parts.append(f'<g transform="translate({x:.0f},0)">{p.shapes}</g>')
        x, high = x + p.wide + BETWEEN, max(high, p.high)
    style = STYLE.replace(".sf svg ", "").replace(".sf{", "svg{")
    paper = '<rect width="100%" height="100%" style="fill:var(--paper)"/>'
    return _svg(x - BETWEEN, high, f"<style>{style}</style>{paper}{''.join(parts)}", title)


def _svg(wide: float, high: float, inside: str, title: str) -> str:
    w, h = ceil(wide), ceil(high)
    size = f'viewBox="0 0 {w} {h}" width="{w}" height="{h}"'
    named = f'role="img" aria-label="{escape(title)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {named}>{inside}</svg>'
