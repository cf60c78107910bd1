"""The page of mistakes: every program raises what stands under it, word for word, before anything has run."""

from __future__ import annotations

import re

import pytest

import scanforge as sf
from tests.subprocesses import ROOT

PAGE = (ROOT / "docs" / "mistakes.md").read_text(encoding="utf-8")
MISTAKE = re.compile(
    r"^### (?P<number>\d+)\. (?P<title>.*?)\n\n```py\n(?P<code>.*?)^```\n\n```text\n(?P<said>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
FOUND = [m.groupdict() for m in MISTAKE.finditer(PAGE)]
ADVICE = r"\b([Ww]rite|[Gg]ive|[Uu]se|[Mm]ove|[Dd]eclare|[Pp]ass|[Cc]orrect|step under)\b"


def public(error: sf.ScanforgeError) -> str:
    """The name that a person imports."""
    return next(c.__name__ for c in type(error).__mro__ if c.__name__ in sf.__all__)


def test_there_are_sixty():
    assert [int(m["number"]) for m in FOUND] == list(range(1, 61))
    assert len({m["title"] for m in FOUND}) == 60
    assert len(re.findall(r"^### ", PAGE, re.MULTILINE)) == 60  # each has its program and its message
    assert PAGE.splitlines()[2].startswith("Sixty programs")


@pytest.mark.parametrize("mistake", FOUND, ids=lambda m: m["title"])
def test_the_message_is_that_of_the_page(mistake, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.delenv("SCANFORGE_FALLBACK", raising=False)
    before = sf.last_run()
    with pytest.raises(sf.ScanforgeError) as caught:
        exec(compile(mistake["code"], "program.py", "exec"), {"__name__": "program"})
    assert f"{public(caught.value)}: {caught.value}\n" == mistake["said"]
    assert sf.last_run() is before


@pytest.mark.parametrize("mistake", FOUND, ids=lambda m: m["title"])
def test_the_message_names_the_operator_and_what_to_write(mistake):
    _, _, message = mistake["said"].partition(": ")
    named = {*re.findall(r"^\s*class (\w+)\(sf", mistake["code"], re.MULTILINE), "Affine", "RunningMax"}
    assert re.search(rf"\b({'|'.join(named)}|sf\.Input|got an instance of \w+)\b", message), message
    sentence = message.split("\n")[0].rstrip()
    assert sentence.endswith((".", ".`", "`")), sentence
    assert re.search(ADVICE, sentence), sentence
