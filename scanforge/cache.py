"""Text -> module: generated code is compiled once, and its lines show in tracebacks.

What runs is the text in memory, never what a file says: a kernel's file, in a folder private to the user,
is for people, profilers and debuggers. What takes long to find out of a text is kept beside it for later
processes, each entry with a hash of its content. Files appear whole or not at all.
"""

from __future__ import annotations

import json
import linecache
import os
import tempfile
import warnings
from functools import lru_cache
from hashlib import sha256
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

from scanforge.errors import BackendError


@lru_cache(maxsize=1024)
def load_module(source: str) -> dict[str, Any]:
    """The names that a generated module defines."""
    name = f"<scanforge {_hash(source)[:12]}>"
    return vars(_module(name, name, source))


@lru_cache(maxsize=1024)
def load_kernel_module(source: str) -> ModuleType:
    """The module of a kernel's text, whose file is named after its content.

    A file that says something else is written anew. Without room for it the text is in memory alone.
    """
    name = f"scanforge_{_hash(source)[:24]}"
    path = folder() / f"{name}.py"
    if _read(path) != source:
        _write(path, source)
    return _module(name, str(path), source)


def load_kernel(source: str) -> Any:
    """The function of a kernel's text, to launch; without Triton, where nothing is launched, the text."""
    return load_kernel_module(source).kernel if util.find_spec("triton") else source


def kernel_text(function: Any) -> str:
    """The text that such a function was made from."""
    return (
        function
        if isinstance(function, str)
        else "".join(linecache.getlines(function.fn.__code__.co_filename))
    )


def _module(name: str, file: str, source: str) -> ModuleType:
    """Lines without a time of change are never read again from a file, by Triton neither."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = ModuleType(name)
    module.__file__ = file
    exec(compile(source, file, "exec"), vars(module))
    return module


def folder() -> Path:
    """Where files lie: SCANFORGE_CACHE, or a folder in the user's cache; private to its owner."""
    path = Path(os.environ.get("SCANFORGE_CACHE") or _home() / "scanforge")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        if not os.path.lexists(path):
            return path  # on a disk that is read-only or full; then nothing is kept
    owner = path.lstat()
    # Windows has no owners, and all of its folders look open: there nothing is kept
    private = not owner.st_mode & 0o077 and owner.st_uid == os.getuid()
    if not (private and path.is_dir() and not path.is_symlink()):
        raise BackendError(
            f"The cache folder {path} is not a folder private to this user, and what lies in it is believed: "
            f"write chmod 700 {path} if it is yours, or name another folder in SCANFORGE_CACHE."
        )
    return path


def _home() -> Path:
    """The user's folder of caches; a place that cannot be written to if the user has no home."""
    found = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(found) if found else Path.home() / ".cache"
    except RuntimeError:  # a number without an entry among the users, as in some containers
        return Path(os.devnull)


def recall(kind: str, text: str) -> Any:
    """What this very code has kept for a text, or None; also where no folder is private to the user.

    A file that does not hold what was written is ignored, with a warning.
    """
    try:
        path = _place(kind, text)
    except BackendError:
        return None
    digest, _, content = (_read(path) or "").partition("\n")
    if digest != _hash(content):
        if path.exists():
            warnings.warn(
                f"{path} does not hold what scanforge wrote there and is ignored: delete it, or it is "
                "written anew when what it held is found out again.",
                RuntimeWarning,
                stacklevel=2,
            )
        return None
    kept = json.loads(content)
    return kept["found"] if kept["text"] == text else None


def keep(kind: str, text: str, found: Any) -> None:
    """Keep what was found out of a text, as JSON. Without a folder to write to it is found out again."""
    content = json.dumps({"text": text, "found": found})
    try:
        _write(_place(kind, text), f"{_hash(content)}\n{content}")
    except BackendError:
        return


def _place(kind: str, text: str) -> Path:
    return folder() / f"{kind}_{_hash(f'{_code()} {text}')[:24]}.json"


@lru_cache(maxsize=1)
def _code() -> str:
    """A hash of the package's text: what other code has found is not taken on trust."""
    package = Path(__file__).parent
    found = sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(f"{path.relative_to(package)} ".encode() + path.read_bytes())
    return found.hexdigest()


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _read(path: Path) -> str | None:
    """A file's text; None if there is none, or none that is text."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _write(path: Path, text: str) -> None:
    """A whole file at once, whoever else writes the same; no file where there is no room for it."""
    try:
        number, part = tempfile.mkstemp(prefix=".", dir=path.parent)
    except OSError:
        return
    try:
        with open(number, "w", encoding="utf-8") as file:
            file.write(text)
        Path(part).replace(path)
    except OSError:
        Path(part).unlink(missing_ok=True)
