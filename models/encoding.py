"""Arguments and states as JSON: what JSON has no word for is an object with a "type"."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch

Tensor = torch.Tensor


def encoded(what: str, value: Any, tensors: list[Tensor] | None = None) -> Any:
    """`value` as JSON can hold it. Tensors are put in `tensors`, or written out where there is no such list.

    Dataclasses are those that `models` exports. Raises ValueError, naming `what`, for anything else.
    """

    def inner(v: Any) -> Any:
        return encoded(what, v, tensors)

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [inner(v) for v in value]
    if isinstance(value, tuple):
        return {"type": "tuple", "of": [inner(v) for v in value]}
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {"type": "dict", "of": {k: inner(v) for k, v in value.items()}}
    if isinstance(value, torch.dtype):
        return {"type": "dtype", "of": str(value).removeprefix("torch.")}
    if isinstance(value, Tensor):
        return _encoded_tensor(value, tensors)
    if isinstance(value, SimpleNamespace):
        return {"type": "namespace", "of": {k: inner(v) for k, v in vars(value).items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: inner(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {"type": "dataclass", "name": type(value).__name__, "of": fields}
    raise ValueError(
        f"{what} is a {type(value).__name__}, which no file here can hold: give numbers, strings, tensors, "
        "dtypes, configurations of `models`, or lists, tuples and dicts of them."
    )


def _encoded_tensor(x: Tensor, tensors: list[Tensor] | None) -> Any:
    if tensors is not None:
        tensors.append(x)
        return {"type": "stored", "of": len(tensors) - 1}
    kind = "parameter" if isinstance(x, torch.nn.Parameter) else "tensor"
    return {"type": kind, "dtype": str(x.dtype).removeprefix("torch."), "of": x.detach().cpu().tolist()}


def decoded(value: Any, known: Callable[[str], Any], tensors: list[Tensor] | None = None) -> Any:
    """What `encoded` was given; `known` finds an exported class by name."""

    def inner(v: Any) -> Any:
        return decoded(v, known, tensors)

    if isinstance(value, list):
        return [inner(v) for v in value]
    if not isinstance(value, dict):
        return value
    kind, of = value["type"], value["of"]
    if kind in ("tensor", "parameter"):
        x = torch.tensor(of, dtype=_dtype(value["dtype"]))
        return torch.nn.Parameter(x) if kind == "parameter" else x
    if kind == "dataclass":
        found = known(value["name"])
        if not isinstance(found, type) or not dataclasses.is_dataclass(found):
            raise ValueError(
                f"The file names the configuration {value['name']!r}, which `models` does not export."
            )
        return found(**{k: inner(v) for k, v in of.items()})
    kinds: dict[str, Callable[[], Any]] = {
        "tuple": lambda: tuple(inner(of)),
        "dict": lambda: {k: inner(v) for k, v in of.items()},
        "namespace": lambda: SimpleNamespace(**{k: inner(v) for k, v in of.items()}),
        "dtype": lambda: _dtype(of),
        "stored": lambda: (tensors or [])[of],
    }
    return kinds[kind]()


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"The file names the dtype {name!r}, which torch does not have.")
    return found
