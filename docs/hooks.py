"""What the site shows that no page holds: what programs print and raise, the gallery, the API.

<!-- output -->                   what the Python program above prints
<!-- output: laws -->             the part of it that begins with this title
<!-- output: triton, defs f g --> of that part, the functions f and g
<!-- error: LawError -->          what the `py` program above raises
<!-- drawing: tiles -->           a drawing of the explanation that the program above calls `shown`
"""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import scanforge as sf
from docs import generated

ROOT = Path(__file__).resolve().parent.parent
BESIDE = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PICTURES = {".png", ".svg"}

_FENCE = re.compile(r"^```(python|py)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"^<!-- (output|error|drawing)(?:: (.*?))? -->$", re.MULTILINE)
_LINK = re.compile(r"(!?)\[([^\]\n]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated, those that stand beside docs, and the pictures they show."""
    pages = generated.pages()
    for name, page in BESIDE.items():
        pages[page] = (ROOT / name).read_text(encoding="utf-8")
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    for file in [*files]:
        if file.is_documentation_page():
            for picture in _pictures(file.src_uri, file.content_string):
                if files.get_file_from_path(_public(picture)) is None:
                    at = str(ROOT / picture)
                    files.append(File.generated(config, _public(picture), abs_src_path=at))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Run the programs that a mark follows, fill the marks in, and turn links to the repository around."""
    uri = page.file.src_uri
    return _LINK.sub(lambda found: _link(uri, found), _filled(markdown, uri))


def _filled(markdown: str, uri: str) -> str:
    def fill(mark: re.Match[str]) -> str:
        above = [f for f in _FENCE.finditer(markdown) if f.end() <= mark.start()]
        if not above:
            raise PluginError(f"{uri}: {mark[0]} has no program above it.")
        if mark[1] == "error":
            return fenced(raised(above[-1][2], mark[2] or ""))
        program = [f for f in above if f[1] == "python"][-1][2]
        if mark[1] == "drawing":
            return drawing(program, mark[2] or "")
        printed = output(program)
        return fenced(part(printed, mark[2]), "python" if "defs" in (mark[2] or "") else "text")

    return _MARK.sub(fill, markdown)


def fenced(text: str, language: str = "text") -> str:
    """A code block."""
    return f"```{language}\n{text.strip()}\n```"


@cache
def ran(code: str) -> tuple[str, dict[str, Any]]:
    """What a program prints, and its names."""
    printed, names = io.StringIO(), {"__name__": "program"}
    with redirect_stdout(printed):
        exec(compile(code, "program.py", "exec"), names)
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()), names


def output(code: str) -> str:
    """What a program prints."""
    return ran(code)[0]


def drawing(code: str, picture: str) -> str:
    """A drawing of what a program calls `shown`, in the page itself, where it follows the page's colours."""
    shown = ran(code)[1].get("shown")
    if shown is None:
        raise PluginError(f"The program names nothing `shown`:\n{code}")
    return f'<div class="sf">{shown.drawing(picture, alone=False)}</div>'


def part(printed: str, title: str | None) -> str:
    """The part of an output from the line that begins with a title to the next line that is a title."""
    if title is None:
        return printed
    title, _, names = title.partition(", defs ")
    lines = printed.splitlines()
    begins = [i for i, line in enumerate(lines) if re.match(rf"{re.escape(title)}\b", line)]
    if not begins:
        raise PluginError(f"No line of the output begins with {title!r}:\n{printed}")
    if names:
        whole = "\n".join(lines[begins[0] + 1 :])
        return "\n\n\n".join(_function(whole, name) for name in names.split())
    if title == "reference":
        return "\n".join(lines[begins[0] + 1 : lines.index("triton")])
    rest = lines[begins[0] + 1 :]
    ends = next((i for i, line in enumerate(rest) if not line.startswith(" ")), len(rest))
    return "\n".join(lines[begins[0] : begins[0] + 1 + ends])


def _function(text: str, name: str) -> str:
    found = re.search(rf"(?:^@\S+\n)?^def {name}\(.*?(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise PluginError(f"The output has no function {name}.")
    return found[0]


def raised(code: str, error: str) -> str:
    """The error that a program ends with, as Python prints it, which has to be of this class exactly."""
    try:
        exec(compile(code, "program.py", "exec"), {"__name__": "program"})
    except sf.ScanforgeError as caught:
        if type(caught).__name__ != error:
            raise PluginError(f"Expected {error}, and {type(caught).__name__} came: {caught}") from caught
        return f"{error}: {caught}"
    raise PluginError(f"Expected {error}, and nothing was raised by\n{code}")


def _home(uri: str) -> PurePosixPath:
    """The folder of the repository that a page's links start from."""
    beside = {page: name for name, page in BESIDE.items()}
    return PurePosixPath(beside[uri]).parent if uri in beside else PurePosixPath("docs", uri).parent


def _target(uri: str, link: str) -> str:
    """The path in the repository that a link of a page leads to; "" if it leads out of it."""
    if ":" in link or link.startswith("/"):
        return ""
    parts: list[str] = []
    for piece in (_home(uri) / link).parts:
        if piece == ".." and not parts:
            return ""
        parts = parts[:-1] if piece == ".." else [*parts, piece]
    return "/".join(parts)


def _pictures(uri: str, markdown: str) -> list[str]:
    found = [_target(uri, m[3]) for m in _LINK.finditer(markdown) if m[1]]
    return [
        t for t in found if not t.startswith("docs/") and Path(t).suffix in PICTURES and (ROOT / t).exists()
    ]


def _public(path: str) -> str:
    return f"pictures/{path.replace('/', '-')}"


def _link(uri: str, found: re.Match[str]) -> str:
    """A link within the site; of a file that the site does not have, its name alone."""
    target, anchor = _target(uri, found[3]), found[4] or ""
    up = "../" * uri.count("/")
    if target in BESIDE:
        return f"[{found[2]}]({up}{BESIDE[target]}{anchor})"
    if target.startswith("docs/"):
        return f"{found[1]}[{found[2]}]({up}{target.removeprefix('docs/')}{anchor})"
    if found[1] and Path(target).suffix in PICTURES:
        return f"![{found[2]}]({up}{_public(target)})"
    if target and (ROOT / target).exists():
        return found[2]
    return found[0]


def on_pre_build(config: MkDocsConfig, **_: Any) -> None:
    """Programs of an earlier build may have been edited."""
    ran.cache_clear()
