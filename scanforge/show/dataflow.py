"""Graph -> drawing: what a step reads above, its values below, the state passing through from the side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from textwrap import wrap

from scanforge.adjoint import full_adjoint
from scanforge.ir.scan import Scan
from scanforge.show import svg
from scanforge.show.graph import BANDS, Graph, Node, graph

LETTERS = 34  # of a line of an expression
ROW, READS = 560, 820  # pixels of nodes beside each other; of what is read
GAP, BETWEEN, AIR = 18, 34, 22  # nodes beside each other, rows, around bands
LEGEND = 26  # of its height
LEAST = 420  # of a panel
SIDE = 64  # pixels of an arrow to or from the neighbouring step
COLOURS = {"state_before": "carried"}
LABELS = {
    False: {"reads": "inputs", "element": "element", "step": "step", "readout": "outputs"},
    True: {"reads": "reads", "element": "element", "step": "step", "readout": "gradients"},
}


@dataclass(slots=True)
class Place:
    """A node's box, or where an arrow passes a row of boxes on its way to a later one."""

    node: Node
    lines: list[str]
    wide: float
    high: float
    x: float = 0.0
    y: float = 0.0
    passes: bool = False

    @property
    def middle(self) -> float:
        """Of its width."""
        return self.x + self.wide / 2


def dataflow(scan: Scan, *, alone: bool) -> str:
    """The step of a recurrence and, beside it, the step of its adjoint."""
    panels = [_Panel(graph(scan, back=False), back=False)]
    derived = full_adjoint(scan)
    if derived.initial:
        panels.append(_Panel(graph(derived.scan, back=True), back=True))
    made = [svg.Panel(p.wide, p.high, p.drawn()) for p in panels]
    return svg.drawing(made, f"dataflow of {scan.name}", alone=alone)


class _Panel:
    """One direction: places first, then shapes."""

    def __init__(self, shown: Graph, *, back: bool) -> None:
        self.back, self.graph = back, shown
        self.places = {n.key: _place(n) for n in shown.nodes}
        self.pills = [p for p in self.places.values() if p.node.role == "carried"]
        self.rows = [(band, row) for band in BANDS for row in self._rows(band)]
        self.row_of = {p.node.key: i for i, (_, row) in enumerate(self.rows) for p in row}
        above = [i for i, (band, _) in enumerate(self.rows) if band != "readout"]
        self.row_of |= {p.node.key: max(above, default=0) for p in self.pills}
        self.ways = {key: self._way(key) for key in self.places}
        self.side = AIR + max((p.wide + SIDE for p in self.pills), default=0)
        self.wide = max(2 * self.side + max((_wide(row) for _, row in self.rows), default=0), LEAST)
        self.tops: list[tuple[str, float]] = []
        self.high = self._put()

    def _rows(self, band: str) -> list[list[Place]]:
        """The nodes of a band by how many others of it they come after, in rows that are not too wide."""
        nodes = [n for n in self.graph.nodes if n.band == band and n.role != "carried"]
        inside, depth = {n.key for n in nodes}, dict[str, int]()
        for n in nodes:
            depth[n.key] = max((depth[k] + 1 for k in n.reads if k in inside), default=0)
        rows: list[list[Place]] = []
        for level in range(max(depth.values(), default=-1) + 1):
            found = [self.places[n.key] for n in nodes if depth[n.key] == level]
            parts = -int(-_wide(found) // (READS if band == "reads" else ROW))
            each = 1 if band == "step" else -(-len(found) // max(1, parts))
            rows += [found[i : i + each] for i in range(0, len(found), each)]
        return rows

    def _way(self, key: str) -> list[Place]:
        """Where the arrows from a node pass the rows between it and those that read it."""
        node, first = self.graph.node(key), self.row_of[key] + 1
        readers = [n for n in self.graph.nodes if key in n.reads and n.role != "carried"]
        last = max((self.row_of[n.key] for n in readers), default=0)
        way = [Place(node, [], 6, 0, passes=True) for _ in range(first, last)]
        for place, (_, row) in zip(way, self.rows[first:last], strict=True):
            row.append(place)
        return way

    def _put(self) -> float:
        """Places for all of them; the bottom."""
        y = 58.0
        for band in BANDS:
            rows = [i for i, (of, _) in enumerate(self.rows) if of == band]
            pills = [p for p in self.pills if p.node.band == band]
            if rows or pills:
                self.tops.append((band, y))
                top = y + AIR
                bottom = max(self._put_rows(rows, top), top)
                y = max(bottom, self._put_pills(pills, top, bottom)) + AIR
        return y + LEGEND

    def _put_rows(self, rows: list[int], y: float) -> float:
        for i in rows:
            row = sorted(self.rows[i][1], key=partial(self._above, row=i))
            high = max(p.high for p in row)
            wanted = [self._above(p, i) or self.wide / 2 for p in row]
            for place, x in zip(row, _spread(row, wanted, self.side, self.wide - self.side), strict=True):
                place.x, place.y = x, y
                place.high = high if place.passes else place.high
            y += high + BETWEEN
        return y - BETWEEN

    def _put_pills(self, pills: list[Place], top: float, bottom: float) -> float:
        """The states at both sides, at half the height of the band."""
        for end in ("enters", "leaves"):
            own = [p for p in pills if p.node.key.startswith(end)]
            right = (end == "enters") == self.back
            y = max(top, (top + bottom - sum(p.high + 10 for p in own) + 10) / 2)
            for p in own:
                p.x, p.y = (self.wide - AIR - p.wide if right else AIR), y
                y += p.high + 10
            bottom = max(bottom, y - 10)
        return bottom

    def _above(self, place: Place, row: int) -> float:
        """Where what it reads is, on the average."""
        reads = (place.node.key,) if place.passes else place.node.reads
        at = [self._before(k, row).middle for k in reads]
        return sum(at) / len(at) if at else 0.0

    def _before(self, key: str, row: int) -> Place:
        """Where a node's arrow is just above a row: where it passed the one before, or at the node itself."""
        passed = row - self.row_of[key] - 2
        return self.ways[key][passed] if 0 <= passed < len(self.ways[key]) else self.places[key]

    def drawn(self) -> str:
        """The panel as shapes."""
        way = "derived; a step goes from t+1 to t" if self.back else "a step goes from t-1 to t"
        name = "backward" if self.back else "forward"
        parts = [svg.box(0.5, 0.5, self.wide - 1, self.high - 1, "line", "panel", radius=10)]
        parts += [svg.text(AIR, 32, name, "title"), svg.text(AIR + 104, 32, way, "label")]
        for band, y in self.tops:
            parts.append(svg.line(AIR, y, self.wide - AIR, y, extra=' stroke-dasharray="2 4"'))
            parts.append(svg.text(AIR, y + 16, LABELS[self.back][band], "label"))
        parts += [_path(place.node, self._trunk(key)) for key, place in self.places.items()]
        parts += [e for place in self.places.values() for e in self._edges(place)]
        parts += [_drawn(place) for place in self.places.values()]
        return "".join([*parts, _legend(AIR, self.high - AIR / 2)])

    def _trunk(self, key: str) -> str:
        """The way that a node's arrows share."""
        steps, last = [], self.places[key]
        for place in self.ways[key]:
            steps.append(_curve(last.middle, last.y + last.high, place.middle, place.y))
            steps.append(f"L{place.middle:.1f},{place.y + place.high:.1f}")
            last = place
        return "".join(steps)

    def _edges(self, to: Place) -> Iterable[str]:
        """The arrows into a node, each in the colour of what it brings."""
        row = self.row_of[to.node.key]
        beside = [k for k in to.node.reads if self._beside(k, to)]
        yield from (_path(self.places[k].node, _aside(self.places[k], to), to.node.key) for k in beside)
        over = [k for k in to.node.reads if k not in beside]
        for i, k in enumerate(sorted(over, key=lambda k: self._before(k, row).middle)):
            source = self._before(k, row) if to.node.role != "carried" else self.places[k]
            port = to.x + to.wide * (i + 1) / (len(over) + 1)
            curve = _curve(source.middle, source.y + source.high, port, to.y)
            yield _path(self.places[k].node, curve, to.node.key)

    def _beside(self, key: str, to: Place) -> bool:
        source = self.graph.node(key)
        return source.band == to.node.band and "carried" in {source.role, to.node.role}


def _spread(row: list[Place], wanted: list[float], left: float, right: float) -> list[float]:
    """The left edges of boxes in order, as near to where their middles are wanted as there is room.

    Boxes that would overlap form groups, each at the mean of what its members want.
    """
    starts = [sum(p.wide + GAP for p in row[:i]) for i in range(len(row))]
    groups: list[list[float]] = []
    for place, start, middle in zip(row, starts, wanted, strict=True):
        groups.append([middle - place.wide / 2 - start])
        while len(groups) > 1 and _mean(groups[-2]) > _mean(groups[-1]):
            groups[-2:] = [groups[-2] + groups[-1]]
    room = max(right - left - _wide(row), 0)
    shifts = [min(max(_mean(g), left), left + room) for g in groups for _ in g]
    return [shift + start for shift, start in zip(shifts, starts, strict=True)]


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def _path(node: Node, d: str, to: str = "") -> str:
    colour = f"stroke:var(--{_colour(node)})"
    return f'<path class="edge" data-from="{node.key}" data-to="{to}" style="{colour}" d="{d}"/>' if d else ""


def _curve(x: float, y: float, to_x: float, to_y: float) -> str:
    pull = (to_y - y) / 2
    return f"M{x:.1f},{y:.1f}C{x:.1f},{y + pull:.1f} {to_x:.1f},{to_y - pull:.1f} {to_x:.1f},{to_y:.1f}"


def _aside(source: Place, to: Place) -> str:
    """From side to side, with a head: the state on its way from step to step."""
    right = to.middle > source.middle
    x, y = source.x + (source.wide if right else 0), source.y + source.high / 2
    end, end_y, back = to.x + (0 if right else to.wide), to.y + to.high / 2, -6 if right else 6
    turn = (x + end) / 2
    head = f"M{end + back:.1f},{end_y - 4:.1f}L{end:.1f},{end_y:.1f}L{end + back:.1f},{end_y + 4:.1f}"
    return f"M{x:.1f},{y:.1f}C{turn:.1f},{y:.1f} {turn:.1f},{end_y:.1f} {end:.1f},{end_y:.1f}{head}"


def _legend(x: float, high: float) -> str:
    """What the colours mean, above this line."""
    parts, words = [], ("given", "cotangent", "carried", "output")
    meaning = {"carried": "state", "output": "output, gradient"}
    for word in words:
        shown = meaning.get(word, word)
        parts.append(svg.box(x, high - 10, 12, 12, word, f"{word}-fill", radius=3))
        parts.append(svg.text(x + 18, high, shown, "small"))
        x += 34 + svg.SMALL * len(shown)
    return "".join(parts)


def _place(node: Node) -> Place:
    written = f"{node.name} = {node.expression}" if node.expression else node.name
    lines = wrap(written, LETTERS, subsequent_indent="  ", break_long_words=False) or [written]
    below = _below(node)
    wide = max([len(x) * svg.WIDE for x in lines] + [len(below) * svg.SMALL]) + 20
    return Place(node, lines, wide, 14 + 15 * len(lines) + (13 if below else 0))


def _below(node: Node) -> str:
    summed = f"summed over {' '.join(node.summed)}" if node.summed else ""
    return "   ".join(x for x in (" ".join(node.axes), summed, node.where) if x)


def _colour(node: Node) -> str:
    return COLOURS.get(node.role, node.role)


def _drawn(place: Place) -> str:
    colour, y = _colour(place.node), place.y + 17
    radius = 15 if place.node.role == "carried" else 6
    parts = [svg.box(place.x, place.y, place.wide, place.high, colour, f"{colour}-fill", radius=radius)]
    for written in place.lines:
        parts.append(svg.text(place.x + 10, y, written))
        y += 15
    if below := _below(place.node):
        parts.append(svg.text(place.x + 10, y, below, "small"))
    return f'<g class="node" data-key="{place.node.key}">{"".join(parts)}</g>'


def _wide(row: list[Place]) -> float:
    return sum(p.wide + GAP for p in row) - GAP if row else 0.0
