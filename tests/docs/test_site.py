"""The site builds without a warning, loads nothing from elsewhere, and no link in it is broken."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import models
import scanforge as sf
from docs import generated, hooks
from examples import gallery
from scanforge import cli
from tests.docs.browser import browser, walked
from tests.subprocesses import ROOT

ERRORS = ROOT / "docs" / "errors.md"
PROGRAM = re.compile(r"^```py\n(.*?)^```\n\n<!-- error: (\w+) -->$", re.MULTILINE | re.DOTALL)


@dataclass
class Found(HTMLParser):
    """Links, what a page loads, its anchors and its text."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in {"script", "img"} and given.get("src"):
            self.loads.append(given["src"])
        if tag == "link" and given.get("rel") in {"stylesheet", "icon"}:
            self.loads.append(given["href"])

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Found]:
    found = {path: Found() for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    for path, parser in found.items():
        parser.feed(path.read_text(encoding="utf-8"))
    return found


def test_every_page_is_there(site: Path, pages: dict[Path, Found]):
    names = {path.relative_to(site).as_posix() for path in pages}
    written = {
        p.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for p in (ROOT / "docs").rglob("*.md")
    }
    assert written <= names
    assert {f"gallery/{name}.html" for name in [*gallery.NAMES, "not_associative", "index"]} <= names
    assert {"readme.html", "api.html", "contributing.html", "changelog.html"} <= names
    assert not list(site.rglob("*.py"))


def test_no_link_is_broken(pages: dict[Path, Found]):
    broken, internal = [], 0
    for path, page in pages.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            internal += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchors = pages[target].anchors if target in pages else {parts.fragment}
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append((path.name, link))
    assert internal > 1000
    assert not broken


@pytest.mark.slow
@pytest.mark.skipif(not browser(), reason="no Chromium is installed: apt-get install chromium")
def test_a_browser_shows_every_page(site: Path, pages: dict[Path, Found], tmp_path: Path):
    """On a wide and on a narrow screen: headings, pictures, links and anchors; the search finds a page."""
    names = ["index.html", *(p.relative_to(site).as_posix() for p in pages if p != site / "index.html")]
    found, said = walked(site, names, "Golub", tmp_path / "profile", seconds=300)
    assert not found["error"]
    assert not said
    assert len(found["seen"]) == 2 * len(names)
    for seen in found["seen"]:
        assert seen["heading"], seen["page"]
        assert seen["wide"] <= 0, (seen["page"], seen["width"], "is wider than the screen")
        assert (seen["images"], seen["links"], seen["hidden"]) == ([], [], []), seen["page"]
    assert found["searched"] == ["Running mean and variance"]


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Found]):
    for page in pages.values():
        assert not [url for url in page.loads if urlsplit(url).netloc]


def test_no_mark_and_no_link_out_of_the_site_is_left(pages: dict[Path, Found]):
    for path, page in pages.items():
        assert not re.search(r"<!-- (output|error|drawing)", path.read_text(encoding="utf-8")), path.name
        assert not re.search(r"\]\((\.\./|\w+\.md)", page.text), path.name


def test_what_programs_print_is_shown(site: Path, pages: dict[Path, Found]):
    assert "broken for a.a = " in pages[site / "tutorial.html"].text
    assert "mu_h (t) = a * mu_h + b" in pages[site / "pipeline.html"].text
    assert "def step(gate, previous_h" in pages[site / "pipeline.html"].text
    assert "broken for e.f = " in pages[site / "gallery" / "not_associative.html"].text
    assert "h' = a * h + b" in pages[site / "pipeline.html"].text
    assert "on their way: NS = " in pages[site / "pipeline.html"].text
    assert "laws and gradients hold" in pages[site / "gallery" / "report.html"].text
    assert (site / "gallery" / "step_EMA.svg").read_text().startswith("<svg")
    assert (site / "gallery" / "ema.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("code", "error"), PROGRAM.findall(ERRORS.read_text(encoding="utf-8")), ids=lambda x: x[-20:].strip()
)
def test_each_error_has_a_program_that_raises_it(code: str, error: str):
    message = hooks.raised(code, error)
    assert message.startswith(f"{error}: ")
    assert message.endswith((".", "`"))


def test_every_error_is_on_the_page():
    shown = {error for _, error in PROGRAM.findall(ERRORS.read_text(encoding="utf-8"))}
    bases, of_processes = {"ScanforgeError", "InputError"}, {"GroupError"}
    assert shown | of_processes == {n for n in sf.__all__ if n.endswith("Error")} - bases
    headings = re.findall(r"^## (\w+)$", ERRORS.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(headings) == shown | of_processes


def test_a_mark_without_its_program_or_part_is_refused():
    program = "```python\nprint(1)\n```\n\n"
    for page in ("<!-- output -->", f"{program}<!-- output: laws -->", f"{program}<!-- drawing: tiles -->"):
        with pytest.raises(hooks.PluginError):
            hooks._filled(page, "page.md")
    with pytest.raises(hooks.PluginError, match="nothing was raised"):
        hooks.raised("x = 1", "LawError")


def test_every_public_name_is_on_the_page_of_the_api():
    text = generated.api()
    modules = {"maths", "operators", "distributed"}
    names = {f"sf.{n}" for n in sf.__all__ if n not in {*modules, "ScanforgeError", "__version__"}}
    names |= {f"sf.{m}.{n}" for m in modules - {"maths"} for n in getattr(sf, m).__all__}
    names |= {f"models.{n}" for n in models.__all__}
    names |= {f"scanforge {c.callback.__name__} " for c in cli.app.registered_commands if c.callback}
    shown = {n for n in names if f"`{n}`" in text or (n.endswith(" ") and f"`{n.strip()}" in text)}
    assert names - shown == set()


def test_docstrings_become_markdown():
    assert generated.markdown("a_b * c\n\n    x = 1\n\nExample:\n    >>> 1 + 1\n    2") == (
        "a\\_b \\* c\n\n```text\nx = 1\n```\n\n```pycon\n>>> 1 + 1\n2\n```"
    )
    assert generated.signature("sf.check", sf.check).startswith(
        "check(\n    operator: Declared,\n    shapes:"
    )
    assert "*,\n" in generated.signature("sf.check", sf.check)
    assert "kind: str = 'float'" in generated.signature("sf.Output", sf.State)


@pytest.mark.parametrize("page", ["pipeline.md", "adding.md", "errors.md", "stability.md"])
def test_files_that_a_page_names_exist(page: str):
    """Also those of a pattern; a bare name lies somewhere in the package."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w*]+/)*[\w*]+\.(?:py|txt))`", text))
    assert len(named) > 30 or page != "pipeline.md"
    for name in named:
        folders = (ROOT, ROOT / "scanforge", ROOT / "scanforge" / "emit")
        assert any(list(folder.glob(name)) for folder in folders), name
