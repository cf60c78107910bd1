"""`scanforge.models` is the `models` package that ships beside `scanforge`, whatever else is called `models`.

If `import models` gives the shipped package, this name is an alias of it, submodules included, so that no
class exists twice. If a user's own `models` comes first, the shipped one is loaded under this name alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

_FOLDER = Path(__file__).resolve().parent.parent / "models"


def _real_name(alias: str) -> str:
    return alias.removeprefix("scanforge.")


class _AliasFinder(MetaPathFinder, Loader):
    """Import `scanforge.models.x` as the very module `models.x`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Claim the submodules of `scanforge.models` that `models` has."""
        if not fullname.startswith(f"{__name__}.") or importlib.util.find_spec(_real_name(fullname)) is None:
            return None
        return ModuleSpec(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        """Put the real module in the alias's place; the import system returns what it finds there."""
        sys.modules[module.__name__] = importlib.import_module(_real_name(module.__name__))


def _is_shadowed() -> bool:
    """Whether `import models` gives something else than the shipped package."""
    loaded = sys.modules.get("models")
    if loaded is not None:
        origin = getattr(loaded, "__file__", None)
    else:
        spec = importlib.util.find_spec("models")
        origin = spec.origin if spec else None
    return origin is None or Path(origin).resolve() != _FOLDER / "__init__.py"


def _load_under_this_name() -> None:
    """Load the shipped package as `scanforge.models`; its submodules follow by its `__path__`."""
    spec = importlib.util.spec_from_file_location(
        __name__, _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[__name__] = module
    spec.loader.exec_module(module)


if _is_shadowed():
    _load_under_this_name()
else:
    sys.meta_path.insert(0, _AliasFinder())
    sys.modules[__name__] = importlib.import_module("models")
