"""Models and states in files: safetensors for the numbers, JSON for what a model was built with."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from .encoding import decoded, encoded
from .mixer import State
from .recorded import Recorded

Tensor = torch.Tensor
FORMAT = "scanforge.models"
CONFIG, WEIGHTS = "config.json", "model.safetensors"


def save_pretrained(model: nn.Module, folder: str | Path) -> None:
    """Write a model to `folder`: config.json, its class and arguments, and model.safetensors, its tensors.

    Tensors are written once, in the dtype that they have, however many names they go by. The folder is made
    if it is not there; what was saved there is written over.

    Raises ValueError for a class that is not in `models`, and for arguments that no JSON can hold.

    Example:
        >>> import tempfile, torch
        >>> from models import RecurrentLM, from_pretrained, save_pretrained
        >>> model, tokens = RecurrentLM(11, 8, 1, "rglru").eval(), torch.arange(6)[None]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_pretrained(model, folder)
        ...     again = from_pretrained(folder)
        >>> torch.equal(again(tokens), model(tokens))
        True
    """
    name = type(model).__name__
    if not isinstance(model, Recorded) or _known(name) is not type(model):
        raise ValueError(
            f"save_pretrained: {name} is no model that `models` exports, and could not be found "
            "again: save its state_dict."
        )
    arguments = {key: encoded(f"{name}: {key}", value) for key, value in model.built_with.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"format": FORMAT, "version": 1, "class": name, "arguments": arguments}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file({key: _alone(x) for key, x in _tensors(model).items()}, folder / WEIGHTS)


def from_pretrained(folder: str | Path, device: torch.device | str | None = None) -> Any:
    """The model that `save_pretrained` wrote to `folder`, bit for bit, in evaluation mode.

    Raises ValueError for a config that is not one of ours, for a class that `models` does not export, and for
    tensors that are missing, unknown or of another shape than the model's; FileNotFoundError without files.
    """
    folder = Path(folder)
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if not isinstance(config, dict) or config.get("format") != FORMAT or config.get("version") != 1:
        raise ValueError(
            f"from_pretrained: {folder / CONFIG} is no config of a model of this package: give a folder that "
            "save_pretrained wrote."
        )
    kind = _known(config["class"])
    if not isinstance(kind, type) or not issubclass(kind, Recorded):
        raise ValueError(
            f"from_pretrained: {folder / CONFIG} names the class {config['class']!r}, which `models` does "
            "not export."
        )
    model = kind(**{key: decoded(value, _known) for key, value in config["arguments"].items()})
    _fill(model, load_file(folder / WEIGHTS), str(folder / WEIGHTS))
    model.eval()
    return model if device is None else model.to(device)


def save_state(state: State, file: str | Path) -> None:
    """Write a state, tensors in any nest of dicts, lists and tuples, to one safetensors file.

    Example:
        >>> import tempfile, torch
        >>> from models import load_state, save_state
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_state([{"h": torch.ones(1, 2)}], f"{folder}/state.safetensors")
        ...     load_state(f"{folder}/state.safetensors")
        [{'h': tensor([[1., 1.]])}]
    """
    found: list[Tensor] = []
    structure = encoded("save_state: state", state, found)
    tensors = {str(i): _alone(x) for i, x in enumerate(found)}
    save_file(tensors, file, metadata={"format": FORMAT, "structure": json.dumps(structure)})


def load_state(file: str | Path, device: torch.device | str | None = None) -> State:
    """The state that `save_state` wrote, bit for bit.

    Raises ValueError for a file that it did not write.
    """
    with safe_open(file, framework="pt") as opened:
        about = opened.metadata() or {}
        if about.get("format") != FORMAT:
            raise ValueError(f"load_state: {file} holds no state: give a file that save_state wrote.")
        found = [opened.get_tensor(str(i)).to(device or "cpu") for i in range(len(opened.keys()))]
    return decoded(json.loads(about["structure"]), _known, found)


def _known(name: str) -> Any:
    """What `models` exports by this name, or None; by whatever name the package itself was imported."""
    package = import_module(__package__ or "models")
    return getattr(package, name, None) if name in package.__all__ else None


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, each by the first of its names."""
    first: dict[int, str] = {}
    found = model.state_dict(keep_vars=True)
    return {name: x for name, x in found.items() if first.setdefault(id(x), name) == name}


def _alone(x: Tensor) -> Tensor:
    """The tensor on the host, in memory of its own."""
    x = x.detach().cpu().contiguous()
    return x if x.untyped_storage().nbytes() == x.nbytes else x.clone()


def _fill(model: nn.Module, loaded: dict[str, Tensor], file: str) -> None:
    own = _tensors(model)
    missing, unknown = sorted(own.keys() - loaded.keys()), sorted(loaded.keys() - own.keys())
    if missing or unknown:
        parts = [f"it lacks {missing}"] if missing else []
        parts += [f"the model has no {unknown}"] if unknown else []
        raise ValueError(
            f"from_pretrained: {file} is not of the model that its config names: {'; '.join(parts)}."
        )
    for name, x in own.items():
        if x.shape != loaded[name].shape:
            raise ValueError(
                f"from_pretrained: {file} holds {name!r} of shape {tuple(loaded[name].shape)}, and the model "
                f"that its config names has {tuple(x.shape)}."
            )
        x.data = loaded[name]  # ties and marks on the parameter stay
