"""Text -> module: generated code is compiled once, and its lines show in tracebacks."""

from __future__ import annotations

import linecache
from functools import lru_cache
from hashlib import sha256
from typing import Any


@lru_cache(maxsize=1024)
def load_module(source: str) -> dict[str, Any]:
    """The names that a generated module defines."""
    name = f"<scanforge {sha256(source.encode()).hexdigest()[:12]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), namespace)
    return namespace
