"""`import scanforge` is light, and needs neither Triton nor a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import python_blocks
from tests.subprocesses import ROOT, run_python

LAZY = ["triton", "sympy", "matplotlib", "pygments", "rich", "typer"]

# What torch itself imports is torch's business, so it is imported first.
NEW_MODULES = """
import sys, torch
before = set(sys.modules)
import scanforge
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}), torch.cuda.is_initialized())
"""

BLOCK_TRITON = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""

REPEATED = """
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
import torch, scanforge as sf
a, b = (torch.rand(1, 4, 8, requires_grad=True) for _ in "ab")
for _ in range(3):
    torch.autograd.grad(sf.scan(sf.Affine, a=a, b=b, backend="triton").sum(), (a, b))
print("torch._dynamo" in sys.modules)
"""

HIDE_TRITON = """
import sys
sys.modules["triton"] = None
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What `import scanforge` imports in a fresh process, then whether CUDA was touched."""
    return run_python("-c", NEW_MODULES, cwd=tmp_path_factory.mktemp("imported")).split()


def test_import_loads_nothing_heavy(imported: list[str]):
    assert "scanforge" in imported
    assert not {*imported} & {*LAZY}


def test_import_makes_no_cuda_call(imported: list[str]):
    assert imported[-1] == "False"


def test_no_call_imports_the_compiler(tmp_path: Path):
    """torch's own takes seconds, and would come at the second call, which is noted to be done again."""
    assert run_python("-c", REPEATED, cwd=tmp_path).strip() == "False"


@pytest.mark.parametrize("missing", [BLOCK_TRITON, HIDE_TRITON], ids=["not installed", "None in sys.modules"])
def test_req50_runs_without_triton(missing: str, tmp_path: Path):
    program = python_blocks(ROOT / "README.md")[0].code
    cpu_only = "import torch; torch.cuda.is_available = lambda: False\n"
    check = "\nassert torch.isfinite(r.grad).all() and r.grad.abs().sum() > 0\nprint(tuple(states.shape))\n"
    out = run_python(*_as_file(missing + cpu_only + program + check, tmp_path), cwd=tmp_path)
    assert out.strip() == "(8, 512, 64)"


@pytest.mark.parametrize("missing", [BLOCK_TRITON, HIDE_TRITON], ids=["not installed", "None in sys.modules"])
def test_req50_triton_backend_says_what_is_missing(missing: str, tmp_path: Path):
    program = python_blocks(ROOT / "README.md")[0].code.replace("s=s)", 's=s, backend="triton")')
    code = (
        f"{missing}\nimport scanforge\ntry:\n"
        + "".join(f"    {line}\n" for line in program.splitlines())
        + "except scanforge.BackendError as error:\n    print(error)\n"
    )
    message = run_python(*_as_file(code, tmp_path), cwd=tmp_path)
    assert "riton" in message
    assert "backend='reference'" in message.replace('"', "'")


def _as_file(code: str, folder: Path) -> list[str]:
    # Tracing reads source lines, which code given by -c does not have.
    program = folder / "program.py"
    program.write_text(code, encoding="utf-8")
    return [str(program)]
