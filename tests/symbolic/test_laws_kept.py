"""What laws hold is kept on disk for other processes; what is broken, or known to other code, is not."""

from __future__ import annotations

from pathlib import Path

import pytest

import scanforge as sf
from scanforge import cache, laws
from scanforge.ir.scan import dump_operator
from scanforge.trace import Signature, trace
from tests.subprocesses import ROOT, run_python


class Proved(sf.Operator):
    """A running sum."""

    x = sf.Element(identity=0.0)
    h = sf.State()

    def combine(self, later):
        return Proved(x=self.x + later.x)

    def apply(self, h):
        return h + self.x


class Sampled(Proved):
    """The same, beyond what can be proved."""

    def combine(self, later):
        return Sampled(x=self.x + later.x)

    def apply(self, h):
        return h + self.x + sf.sin(self.x) - sf.sin(self.x)


class Broken(Proved):
    """A difference, which is not what two steps do."""

    def combine(self, later):
        return Broken(x=self.x - later.x)


def text(operator: type[sf.Operator]) -> str:
    return dump_operator(trace(operator, Signature(("t", "b", "d"), (("b", "t", "d"),))).scan.operator)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("SCANFORGE_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def again(operator: type[sf.Operator]) -> tuple[laws.LawResult, ...]:
    """As another process would check it."""
    laws.check_laws.cache_clear()
    return laws.check_laws(text(operator))


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that are checked in earnest, by name."""
    names: list[str] = []
    original = laws._checked
    monkeypatch.setattr(laws, "_checked", lambda operator: names.append(operator.name) or original(operator))
    return names


@pytest.mark.parametrize("operator", [Proved, Sampled])
def test_what_holds_is_found_once_and_told_alike(operator, checked):
    first = again(operator)
    assert again(operator) == first
    assert checked == [operator.__name__]
    assert {r.proved for r in first} == {operator is Proved}


def test_what_is_broken_is_found_each_time(checked, folder):
    for _ in range(2):
        laws.check_laws.cache_clear()
        with pytest.raises(sf.LawError, match="Broken breaks the law of associativity"):
            laws.ensure(text(Broken))
    assert checked == ["Broken"] * 2
    assert not list(folder.glob("laws_*"))


def test_one_operator_says_nothing_of_another(checked):
    again(Proved)
    again(Sampled)
    assert checked == ["Proved", "Sampled"]


def test_other_code_finds_out_for_itself(checked, monkeypatch):
    again(Proved)
    monkeypatch.setattr(cache, "_code", lambda: "another version")
    again(Proved)
    assert checked == ["Proved"] * 2


def test_the_code_is_all_of_the_package(monkeypatch, tmp_path):
    for name, line in (("laws.py", "a = 1"), ("ir/lattice.py", "b = 2")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(line, encoding="utf-8")
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "cache.py"))
    found = {cache._code.__wrapped__()}
    (tmp_path / "ir" / "lattice.py").write_text("b = 3", encoding="utf-8")
    found.add(cache._code.__wrapped__())
    (tmp_path / "ir" / "lattice.py").rename(tmp_path / "lattice.py")
    found.add(cache._code.__wrapped__())
    assert len(found) == 3


@pytest.mark.parametrize("content", ["", "{", '{"text": "of another operator", "found": []}'])
def test_a_file_that_says_something_else_is_not_believed(content, checked, folder):
    first = again(Proved)
    (file,) = folder.glob("laws_*")
    file.write_text(content, encoding="utf-8")
    assert again(Proved) == first
    assert checked == ["Proved"] * 2


def test_a_folder_that_others_can_write_to_is_not_believed(checked, folder):
    first = again(Proved)
    folder.chmod(0o777)
    assert again(Proved) == first
    assert checked == ["Proved"] * 2


def test_where_nothing_can_be_kept_the_laws_are_checked_all_the_same(checked, folder):
    folder.write_text("no folder", encoding="utf-8")
    assert again(Proved) == again(Proved)
    assert checked == ["Proved"] * 2


def test_a_second_process_does_without_sympy():
    program = (
        "import sys, torch, scanforge as sf\n"
        "sf.scan(sf.operators.Affine, a=torch.ones(1, 3), b=torch.ones(1, 3))\n"
        "print('sympy' in sys.modules)"
    )
    assert [run_python("-c", program, cwd=ROOT).strip() for _ in range(2)] == ["True", "False"]
