"""Explanations as drawings, pages and tables: they say what the text says, of every recurrence."""

from __future__ import annotations

import io
import pickle
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise

import pytest
import torch
from rich.console import Console

import scanforge as sf
from scanforge import cli, listing, timing, tools
from scanforge.adjoint import full_adjoint
from scanforge.example import SMALL, USUAL, example
from scanforge.ir.scan import before
from scanforge.planned import planned, readable
from scanforge.schedule import next_state, step_program
from scanforge.show import dataflow
from scanforge.show.graph import graph
from tests import broken
from tests.broken import Half
from tests.catalogue import CASES
from tests.recurrence_declarations import HGRN2, RGLRU, SelectiveSSM
from tests.recurrences import ENTRIES

DECLARED = [*(case.operator for case in CASES), *(entry.recurrence for entry in ENTRIES)]
every_one = pytest.mark.parametrize("declared", DECLARED, ids=lambda x: x.__name__)
F32 = torch.float32
VOID = {"meta", "br", "link", "img"}


def scans(declared):
    """A recurrence and its adjoint, with what `graph` is told of them."""
    scan = example(declared, None, {}, USUAL).traced.scan
    derived = full_adjoint(scan)
    return [(scan, False), *([(derived.scan, True)] if derived.initial else [])]


@dataclass
class Tags(HTMLParser):
    """Tags that were left open or closed wrongly, what a page loads, its ids and its text."""

    stack: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    text: str = ""

    def __post_init__(self):
        super().__init__()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.loads += [
            v for k, v in given.items() if k in {"src", "xlink:href"} or (tag == "link" and k == "href")
        ]
        self.ids |= {given["id"]} if "id" in given else set()
        self.links += [given["href"]] if tag == "a" else []
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if not self.stack or self.stack.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.text += data


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    assert (tags.wrong, tags.stack) == ([], [])
    assert not tags.loads
    assert "url(" not in page
    assert "@import" not in page
    return tags


class TestGraph:
    @every_one
    def test_a_value_reads_what_the_program_reads(self, declared):
        """From every output and state back to the inputs and states before the step, along the edges."""
        for scan, back in scans(declared):
            nodes = {n.key: n for n in graph(scan, back=back).nodes}

            def sources(key, nodes=nodes):
                own = nodes[key]
                return {key} if not own.reads else set().union(*map(sources, own.reads))

            made = {n.name.split(" = ")[0]: n.key for n in nodes.values() if n.role == "output"}
            for output, reads in step_program(scan).dependencies().items():
                state = next((s.name for s in scan.states if next_state(s.name) == output), None)
                key = f"leaves.{state}" if state else made[output]
                names = {i.name: f"in.{i.name}" for i in scan.inputs}
                names |= {before(s.name): f"enters.{s.name}" for s in scan.states}
                assert {names[r] for r in reads} <= sources(key)

    def test_roles_axes_and_lines(self):
        (forward, _), (back, _) = scans(SelectiveSSM)
        nodes = {n.name: n for n in graph(forward, back=False).nodes}
        assert nodes["A"].axes == ("d", "n")
        assert nodes["a"].expression == "exp(dt * A)"
        assert re.fullmatch(r"recurrence_declarations.py:\d+", nodes["a"].where)
        assert nodes["h'"].axes == ("b", "d", "n")
        assert nodes["y"].role == "output"
        nodes = {n.name: n for n in graph(back, back=True).nodes}
        assert (nodes["grad_A"].axes, nodes["grad_A"].summed) == (("d", "n"), ("t", "b"))
        assert {n.role for n in nodes.values()} == {
            "given", "cotangent", "state_before", "carried", "made", "output"
        }  # fmt: skip


class TestDrawings:
    @every_one
    @pytest.mark.parametrize("picture", ["dataflow", "tiles", "bytes"])
    def test_each_is_a_file_of_its_own(self, declared, picture):
        drawn = ET.fromstring(sf.explain(declared).svg(picture))
        assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
        wide = float(drawn.get("width"))
        assert drawn.get("viewBox") == f"0 0 {wide:.0f} {drawn.get('height')}"
        assert "forward" in [t.text for t in drawn.iter("{http://www.w3.org/2000/svg}text")]

    @every_one
    def test_no_box_lies_on_another(self, declared):
        """And no arrow passes a row through a box: boxes and ways of a row stand beside each other."""
        for scan, back in scans(declared):
            panel = dataflow._Panel(graph(scan, back=back), back=back)
            for _, row in panel.rows:
                placed = sorted(row, key=lambda p: p.x)
                for left, right in pairwise(placed):
                    assert left.x + left.wide < right.x
                assert placed[0].x >= panel.side - 1e-6
                assert placed[-1].x + placed[-1].wide <= panel.wide - panel.side + 1e-6
            for pill in panel.pills:
                inside = pill.x + pill.wide < panel.side or pill.x > panel.wide - panel.side
                assert inside
                assert pill.y + pill.high < panel.high
            bottoms = [max(p.y + p.high for p in row) for _, row in panel.rows]
            tops = [min(p.y for p in row) for _, row in panel.rows]
            assert all(b < t for b, t in zip(bottoms[:-1], tops[1:], strict=True))

    def test_names_and_gradients_are_in_it(self):
        drawn = sf.explain(RGLRU).svg()
        words = "\n".join(t.text or "" for t in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text"))
        for name in (
            "Lambda",
            "h' = a * h + b",
            "mu_h' = a * mu_h + b",
            "previous_h",
            "grad_Lambda",
            "at t+1",
        ):
            assert name in words

    def test_a_recurrence_without_gradient_has_one_panel(self):
        assert "backward" not in sf.explain(example_of_ints()).svg()

    def test_bytes_are_those_of_the_tensors(self):
        found = example(SelectiveSSM, None, {"b": 2, "t": 8, "d": 4, "n": 3}, USUAL)
        plan = planned(found.traced.text, found.sizes, torch.bfloat16)
        sizes = {m.name: m.size for m in plan.reads_and_writes["forward"]}
        assert sizes == {"u": 128, "dt": 128, "A": 24, "B": 96, "C": 96, "D": 8, "y": 128}
        assert "608 B" in sf.explain(SelectiveSSM, b=2, t=8, d=4, n=3, dtype="bf16").svg("bytes")

    def test_tiles_say_what_the_text_says(self):
        for sizes in (
            {"b": 8, "t": 2048, "d": 2048},
            {"b": 1, "t": 65536, "d": 64},
            {"b": 1, "t": 1, "d": 1},
        ):
            shown = sf.explain(sf.operators.MinMax, **sizes, dtype="bf16")
            tiles = dict(re.findall(r"(forward|backward) R=(\d+)", shown))
            drawn = shown.svg("tiles")
            for rows in tiles.values():
                assert f" of R = {rows}<" in drawn
            assert ("for each of" in drawn) == ("chunks of" in shown)

    def test_products_over_chunks(self):
        """The kernels, in order, and what is between them: as listed."""
        sizes = {"b": 8, "t": 2048, "h": 4, "k": 64, "v": 64}
        shown, call = sf.explain(HGRN2, **sizes, dtype="bf16"), example(HGRN2, None, sizes, USUAL)
        tiles, moved = texts(shown.svg("tiles")), texts(shown.svg("bytes"))
        assert "2048 steps, 32 chunks of C = 64" in tiles
        assert "in work: 64 steps, as matrix products" in tiles
        assert "starts from the initial state" in tiles
        assert not any("keeps" in line for line in tiles)
        assert {"group 0", "group 1"} <= set(tiles)
        for way in ("forward", "backward"):
            listed = listing.shipped_launches(call.traced.text, way, call.sizes, torch.bfloat16)
            kernels = shown.plan.passes[way].kernels
            assert [k.title for k in kernels] == [*dict.fromkeys(x.what for x in listed)]
            assert sum(k.times for k in kernels) == len(listed)
            assert all(str(k) in tiles for k in kernels)
            made = {memory: size for x in listed for memory, size in x.between.values()}
            assert sum(made.values()) == sum(m.size for m in shown.plan.passes[way].between) > 10**7
            assert f"{readable(sum(made.values()))} between its kernels, written and read" in moved
            assert f"between them {readable(sum(made.values()))}, written and read" in shown

    def test_what_has_no_gradient_has_no_backward_pass(self):
        shown = sf.explain(example_of_ints())
        assert "kept for the backward pass: nothing, there is no gradient" in shown
        assert "backward kernels" not in shown
        assert "backward" not in texts(shown.svg("tiles")) + texts(shown.svg("bytes"))
        assert not any("keeps" in line for line in texts(shown.svg("tiles")))

    @pytest.mark.parametrize("declared", [sf.operators.MinMax, HGRN2], ids=lambda x: x.__name__)
    @pytest.mark.parametrize("axis", ["b", "t"])
    def test_nothing_to_launch(self, declared, axis):
        shown = sf.explain(declared, **{axis: 0})
        assert "forward kernels: nothing is launched" in shown
        assert "nothing is launched" in texts(shown.svg("tiles"))
        assert ET.fromstring(shown.svg("bytes")).tag.endswith("svg")

    def test_another_picture_is_refused(self):
        with pytest.raises(sf.ArgumentError, match=r"MinMax: there is no picture 'tree': write 'dataflow'"):
            sf.explain(sf.operators.MinMax).svg("tree")


def texts(drawn: str) -> list[str]:
    return [t.text or "" for t in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]


def example_of_ints():
    class Count(sf.Operator):
        """n <- n + step"""

        step = sf.Element(identity=0, kind="int")
        n = sf.State(kind="int")

        def combine(self, later):
            return Count(step=self.step + later.step)

        def apply(self, n):
            return n + self.step

    return Count


class TestString:
    def test_it_is_its_text(self):
        shown = sf.explain(sf.operators.MinMax)
        assert isinstance(shown, str)
        assert f"{shown}" == "\n\n".join(map(str, shown.parts))
        again = pickle.loads(pickle.dumps(shown))
        assert (again, again.svg()) == (shown, shown.svg())

    def test_a_notebook_shows_a_fragment(self):
        shown = sf.explain(HGRN2)._repr_html_()
        tags = parsed(shown)
        assert "<html" not in shown
        assert "S' = " in tags.text
        style = re.sub(r"@media \([^)]*\)\{", "", shown.split("<style>")[1].split("</style>")[0])
        rules = [
            rule for line in style.split("}") for rule in line.partition("{")[0].split(",") if rule.strip()
        ]
        assert len(rules) > 20
        assert all(rule.strip().startswith(".sf") for rule in rules)

    @every_one
    def test_a_terminal_shows_every_line(self, declared):
        shown = sf.explain(declared)
        console = Console(width=400, file=io.StringIO(), force_terminal=False)
        console.print(shown)
        words = " ".join(console.file.getvalue().replace("│", " ").split())
        for part in shown.parts:
            for line in part.lines:
                assert " ".join(line.split()) in words


class TestReport:
    def test_one_page_with_everything(self):
        page, ok = tools.report(RGLRU, b=2, t=64, d=8, dtype="bf16")
        tags = parsed(page)
        assert ok
        assert {"dataflow", "equations", "laws", "facts", "plan", "bytes", "source"} <= tags.ids
        assert all(link[1:] in tags.ids for link in tags.links)
        for piece in (
            "For b=2, t=64, d=8 in bfloat16",
            "law: action", "gradients: parallel, right to left", "laws and gradients hold",
            "on a GPU: Triton, ordered_tile", "reference, forward", "triton, backward", "@triton.jit",
        ):  # fmt: skip
            assert piece in tags.text
        assert ("timing" in tags.ids) == torch.cuda.is_available()

    def test_what_is_wrong_is_in_it(self):
        page, ok = tools.report(Half)
        assert not ok
        assert 'class="wrong">WRONG' in page
        assert "broken for a.x = " in parsed(page).text

    def test_what_users_wrote_is_text(self):
        class Odd(sf.Operator):
            """h <- a & h <b>bold</b> `code`"""

            a = sf.Element(identity=1.0)
            h = sf.State()

            def combine(self, later):
                return Odd(a=self.a * later.a)

            def apply(self, h):
                return self.a * h

        page = sf.explain(Odd).html()
        assert "<b>bold" not in page
        assert "<code>code</code>" in page
        parsed(page)

    @pytest.mark.parametrize("words", [["report"], ["explain", "--html"], ["explain", "--svg"]])
    def test_from_a_shell(self, words, monkeypatch, capsys, tmp_path):
        file = tmp_path / "page"
        option = [] if words[0] == "explain" else ["--out"]
        monkeypatch.setattr(
            "sys.argv",
            ["scanforge", words[0], "scanforge.operators:MinMax", "t=64", *words[1:], *option, str(file)],
        )
        with pytest.raises(SystemExit) as done:
            cli.main()
        assert not done.value.code
        assert f"wrote {file}" in capsys.readouterr().out
        assert "MinMax" in file.read_text(encoding="utf-8")

    def test_a_broken_operator_exits_1(self, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        shutil.copy(broken.__file__, tmp_path / "half.py")
        monkeypatch.setattr("sys.argv", ["scanforge", "report", "half.py:Half"])
        with pytest.raises(SystemExit) as done:
            cli.main()
        assert done.value.code == 1
        assert (tmp_path / "Half.html").exists()


class TestTiming:
    @pytest.mark.parametrize("declared", [sf.operators.MinMax, SelectiveSSM, sf.operators.LastFlagged])
    def test_times_and_bytes(self, declared, monkeypatch):
        monkeypatch.setattr(timing, "SECONDS", 0.001)
        found = example(declared, None, {}, SMALL)
        timed = timing.measured(declared, found, torch.float32, "cpu")
        plan = planned(found.traced.text, found.sizes, torch.float32)
        assert [r.what for r in timed.rows] == ["forward", "forward and backward"]
        assert [r.size for r in timed.rows] == [
            plan.bytes("forward"), plan.bytes("forward") + plan.bytes("backward")
        ]  # fmt: skip
        assert all(r.seconds > 0 for r in (*timed.rows, timed.copy))

    @pytest.mark.parametrize("declared", [SelectiveSSM, HGRN2], ids=lambda x: x.__name__)
    def test_states_that_grow_without_end_are_timed(self, declared, monkeypatch):
        """What overflows is in both, and is not compared."""
        monkeypatch.setattr(timing, "SECONDS", 0.001)
        monkeypatch.setattr(timing, "draw", lambda kind, domain, shape, random: torch.full(shape, 3.0))
        found = example(declared, None, {}, {**SMALL, "t": 2048})
        threes = {n: torch.full(x.shape, 3.0) for n, x in found.tensors.items()}
        assert not all(y.isfinite().all() for y in timing._listed(sf.scan(declared, **threes)))
        timed = timing.measured(declared, found, torch.float32, "cpu")
        assert all(r.seconds > 0 for r in timed.rows)

    def test_nothing_wrong_is_timed(self, monkeypatch):
        def spoiled(operator, backend=None, **tensors):
            y = sf.scan(operator, backend=backend, **tensors)
            return y if backend else y + 0.1

        monkeypatch.setattr(timing, "scan", spoiled)
        found = example(sf.Affine, None, {}, SMALL)
        with pytest.raises(sf.BackendError, match=r"Affine: values are .* apart from the reference's"):
            timing.measured(sf.Affine, found, torch.float32, "cpu")


@pytest.mark.parametrize(
    ("sizes", "lowering"),
    [
        ({"b": 1, "d": 1024}, "ring"),
        ({"b": 128, "d": 8}, "ring"),
        ({"b": 300, "d": 1}, "ring"),  # whose lanes lie side by side
        ({"b": 200, "d": 8}, "split"),
    ],
    ids=str,
)
def test_a_ring_needs_room_for_two_programs_of_each_block(sizes, lowering):
    """Blocks of lanes lie in one batch: many batches of few lanes leave no room, and their time is split."""
    p = planned(example(sf.Affine, None, sizes | {"t": 4096}, USUAL).traced.text, sizes | {"t": 4096}, F32)
    assert p.kernel.lowering == lowering
    assert (p.forward.members > 1) == (p.backward.members > 1) == (lowering == "ring")


def test_the_tile_of_most_steps_is_told():
    """A backward pass begins with the rows that fill no round: their tile is another one."""
    text = str(sf.explain(sf.Affine, b=1, t=1100, d=1024))
    assert re.search(r"backward R=32 BD=32 NS=3 G=4 S=4;", text), text
