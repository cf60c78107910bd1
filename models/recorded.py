"""Modules that remember what they were built with, so that they can be built again from a file."""

from __future__ import annotations

import inspect
from typing import Any


class Recorded:
    """Remembers the arguments of the constructor; `models.save_pretrained` writes them down."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Copying and unpickling come here without arguments, and bring what was recorded with them.
        made = super().__new__(cls)
        made.__dict__["_built_with"] = (args, kwargs)
        return made

    @property
    def built_with(self) -> dict[str, Any]:
        """The arguments that the constructor was given, by name; without `device`.

        Raises ValueError, with the reason, for a model that no arguments can build again.
        """
        recorded = self.__dict__["_built_with"]
        if isinstance(recorded, str):
            raise ValueError(recorded)
        args, kwargs = recorded
        bound = inspect.signature(type(self)).bind(*args, **kwargs).arguments
        return {name: value for name, value in bound.items() if name != "device"}

    def _cannot_be_rebuilt(self, reason: str) -> None:
        """Forget the arguments: `reason` is what `built_with` says instead."""
        self.__dict__["_built_with"] = reason
