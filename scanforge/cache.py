"""Text -> module: generated code is compiled once, and its lines show in tracebacks.

Triton reads a kernel's text back from its file, so a kernel's module is a file in a folder of the user's own.
What takes long to find out of a text is kept beside them, for later processes.
"""

from __future__ import annotations

import importlib.util
import json
import linecache
import os
import tempfile
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from scanforge.errors import BackendError


@lru_cache(maxsize=1024)
def load_module(source: str) -> dict[str, Any]:
    """The names that a generated module defines."""
    name = f"<scanforge {sha256(source.encode()).hexdigest()[:12]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), namespace)
    return namespace


def folder() -> Path:
    """Where kernels' modules lie: SCANFORGE_CACHE, or a folder in the user's cache; private to its owner."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(os.environ.get("SCANFORGE_CACHE") or Path(home) / "scanforge")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = path.lstat()
    if path.is_symlink() or owner.st_uid != os.getuid() or owner.st_mode & 0o077:
        raise BackendError(
            f"The cache folder {path} is not private to this user, and it holds code that runs: "
            f"write chmod 700 {path}, or name another folder in SCANFORGE_CACHE."
        )
    return path


@lru_cache(maxsize=1024)
def load_kernel_module(source: str) -> Any:
    """The module of a kernel's text, in a file named after its content and compared with it before use."""
    name = f"scanforge_{sha256(source.encode()).hexdigest()[:24]}"
    path = folder() / f"{name}.py"
    if not path.exists() or path.read_text(encoding="utf-8") != source:
        _write(path, source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def recall(kind: str, text: str) -> Any:
    """What this very code has kept for a text, or None; also where no folder is private to the user."""
    try:
        kept = json.loads(_place(kind, text).read_text(encoding="utf-8"))
    except (OSError, BackendError, ValueError):
        return None
    return kept["found"] if kept["text"] == text else None


def keep(kind: str, text: str, found: Any) -> None:
    """Keep what was found out of a text, as JSON. Without a folder to write to it is found out again."""
    try:
        _write(_place(kind, text), json.dumps({"text": text, "found": found}))
    except (OSError, BackendError):
        return


def _place(kind: str, text: str) -> Path:
    name = sha256(f"{_code()} {text}".encode()).hexdigest()[:24]
    return folder() / f"{kind}_{name}.json"


@lru_cache(maxsize=1)
def _code() -> str:
    """A hash of the package's text: what other code has found is not taken on trust."""
    package = Path(__file__).parent
    found = sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(f"{path.relative_to(package)} ".encode() + path.read_bytes())
    return found.hexdigest()


def _write(path: Path, text: str) -> None:
    """A whole file at once, whoever else writes the same."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    Path(file.name).replace(path)
