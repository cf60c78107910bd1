"""`scanforge check|explain|source` from a shell: what they print, and exit codes 0, 1 and 2."""

from __future__ import annotations

from pathlib import Path

import pytest

import scanforge as sf
from scanforge import cli
from tests.subprocesses import ROOT, run_warm

FILE = '''
import scanforge as sf

class Mine(sf.Operator):
    """h <- a h + b, from a file."""
    a = sf.Element(identity=1.0)
    b = sf.Element(identity=0.0)
    h = sf.State()
    def combine(self, later):
        return Mine(a=later.a * self.a, b=later.a * self.b + later.b)
    def apply(self, h):
        return self.a * h + self.b

class Broken(Mine):
    def combine(self, later):
        return Broken(a=later.a * self.a, b=self.a * later.b + self.b)

number = 3
'''


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


@pytest.fixture
def shell(monkeypatch, capsys):
    """`scanforge` with these words: exit code, stdout, stderr."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["scanforge", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as done:
            cli.main()
        shown = capsys.readouterr()
        return int(done.value.code or 0), shown.out, shown.err

    return run


MODULE = "scanforge.operators:MinMax"


class TestShell:
    def test_check(self, shell, file):
        for target, name in ((MODULE, "MinMax"), (f"{file}:Mine", "Mine")):
            code, out, _ = shell("check", target)
            assert code == 0
            assert f"{name}: ok" in out

    def test_check_of_a_broken_operator_exits_1(self, shell, file):
        code, out, _ = shell("check", f"{file}:Broken")
        assert code == 1
        assert "WRONG" in out

    def test_explain(self, shell, file):
        code, out, _ = shell("explain", MODULE, "b=2", "t=2048", "d=8", "--dtype", "bf16")
        assert code == 0
        assert "plan for b=2, t=2048, d=8 in bfloat16" in out
        code, out, _ = shell("explain", f"{file}:Mine")
        assert code == 0
        assert "mine.py:" in out

    def test_source(self, shell, file):
        assert shell("source", MODULE)[:2] == (0, sf.source(sf.operators.MinMax) + "\n")
        backward = sf.source(sf.operators.MinMax, "backward", lowering="parallel")
        assert shell("source", MODULE, "backward", "--lowering", "parallel")[1] == backward + "\n"
        assert "def run(a, b, initial_h, steps" in shell("source", f"{file}:Mine", "forward", "t=8")[1]

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (["check", "scanforge.operators"], "module:Name"),
            (["check", "scanforge.operators:Nobody"], "scanforge.operators has no Nobody"),
            (["check", "scanforge.nowhere:MinMax"], "scanforge.nowhere"),
            (["check", "nowhere.py:MinMax"], "nowhere.py"),
            (["explain", "math:pi"], "derives from sf.Operator"),
            (["explain", MODULE, "b"], "t=2048"),
            (["explain", MODULE, "b=two"], "t=2048"),
            (["explain", MODULE, "--dtype", "bf17"], "bf16"),
            (["source", MODULE, "--lowering", "tile"], "'loop' or 'parallel'"),
        ],
    )
    def test_a_bad_call_is_a_sentence_and_exits_2(self, shell, words, sentence):
        code, out, err = shell(*words)
        assert (code, out) == (2, "")
        assert err.startswith("scanforge: ")
        assert sentence in err
        assert "Traceback" not in err
        assert err.rstrip().endswith((".", "'"))

    def test_no_words_show_the_help(self, shell):
        code, out, _ = shell("--help")
        assert code == 0
        for command in ("check", "explain", "source"):
            assert command in out

    def test_in_a_process_of_its_own(self, file):
        assert "Mine: ok" in run_warm("-m", "scanforge.cli", "check", f"{file}:Mine", cwd=ROOT)
