"""Models from code: calls a factory that makes a module, and loads weights into it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import MissingDependencyError, PluginLoadError, SetupError, among
from headrace.plugins import import_file
from headrace_torch.models.loading import Model, first_line, kind_of
from headrace_torch.requests.signature import Port, Signature

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["load_module", "load_weights"]


def load_module(
    name: str, args: Mapping[str, Any], weights: str | Path | None, named: Iterable[str] = ()
) -> Model:
    """Make a module by calling a factory, and load its weights.

    Args:
        name: ``"package.mod:factory"``, or ``"/folder/file.py:factory"``.
        args: The keyword arguments for the factory.
        weights: A state dict (loaded with ``weights_only``) or a safetensors file. None: the weights stay as
            the factory made them.
        named: Parameters of the module's ``forward`` that are inputs although they have a default.

    Raises:
        MissingDependencyError: The code cannot be imported.
        SetupError: The factory fails or makes no module, or the weights do not fit.
    """
    factory = _find(name)
    try:
        module = factory(**args)
    except Exception as error:
        raise SetupError(f"{name} failed: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(module, torch.nn.Module):
        raise SetupError(f"{name} made {type(module).__name__}, no torch.nn.Module")
    if weights is not None:
        _fill(module, load_weights(weights), weights)
    module.eval()
    names, by_position = _parameters(module, frozenset(named))
    signature = Signature(tuple(map(Port, names)))
    if by_position:
        return Model("module", module, signature, module)

    def call(*tensors: torch.Tensor) -> Any:
        return module(**dict(zip(names, tensors, strict=True)))

    return Model("module", call, signature, module)


def _parameters(module: torch.nn.Module, named: frozenset[str]) -> tuple[list[str], bool]:
    """Return the names of the inputs of ``forward``, and whether these may be passed by position."""
    names, by_position = [], True
    parameters = inspect.signature(module.forward).parameters.values()
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        needed = parameter.default is parameter.empty
        if needed or parameter.name in named:
            by_position &= needed and parameter.kind is not parameter.KEYWORD_ONLY
            names.append(parameter.name)
    if not names:
        optional = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        named_how = f", or name in `inputs` which of {', '.join(optional)} are inputs"
        raise SetupError(
            f"the forward of {type(module).__name__} names no input",
            hint=f"Give it a parameter without default per input{named_how if optional else ''}.",
        )
    return names, by_position


def _find(name: str) -> Callable[..., Any]:
    place, _, attribute = name.rpartition(":")
    try:
        value: Any = import_file(place) if place.endswith(".py") else _imported(place)
    except PluginLoadError as error:
        raise SetupError(str(error)) from error
    try:
        for part in attribute.split("."):
            value = getattr(value, part)
    except AttributeError:
        raise SetupError(
            f"{place!r} has no {attribute!r}",
            hint=among(part, dir(value), "`module` is written 'package.mod:factory'."),
        ) from None
    if not callable(value):
        raise SetupError(f"{name} is {type(value).__name__}, which cannot be called")
    factory: Callable[..., Any] = value
    return factory


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            f"the module {name!r} cannot be imported: {error}",
            hint="`module` names a module on sys.path, or a file that ends in .py.",
        ) from error


def load_weights(path: str | Path) -> Mapping[str, torch.Tensor]:
    """Load a state dict, without running code that the file may hold.

    Returns:
        Tensors on the CPU by name.

    Raises:
        SetupError: The file holds no state dict, or one that cannot be loaded without running code.
        MissingDependencyError: The file is a safetensors file, and the library safetensors is not installed.
    """
    kind = kind_of(path)
    if kind == "safetensors":
        try:
            safetensors: Any = importlib.import_module("safetensors.torch")
        except ImportError as error:
            raise MissingDependencyError(
                f"{str(path)!r} is a safetensors file, and safetensors is not installed",
                distribution="headrace-torch",
                hint="`pip install safetensors`",
            ) from error
        loaded: Mapping[str, torch.Tensor] = safetensors.load_file(str(path))
        return loaded
    if kind not in ("state dict", "unknown"):
        # torch.load would report a corrupted file, or advise to load a TorchScript without weights_only.
        use = "" if kind == "ONNX" else "Give it as `model`, or save "
        raise SetupError(
            f"{str(path)!r} holds a model ({kind}), no state dict",
            hint=f"{use or 'Save '}model.state_dict() with torch.save, or as safetensors.",
        )
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # Only what was found in the file, without torch's advice to load the file all the same.
        other = re.search(r"GLOBAL (\S+)", str(error))
        found_there = re.search(r"WeightsUnpickler error: (.+)", str(error))
        why = found_there[1] if found_there else first_line(error)
        if isinstance(error, (EOFError, IndexError, struct.error)):  # whose texts say nothing
            why = "it is cut off or broken"
        if other or kind == "unknown":
            why = f"it holds a {other[1]}" if other else "torch.save and safetensors write others"
        raise SetupError(
            f"{str(path)!r} ({kind}) is no state dict that can be loaded safely: {why}",
            hint="Save model.state_dict() with torch.save, or as safetensors.",
        ) from error
    if isinstance(weights, dict) and isinstance(weights.get("state_dict"), dict):
        weights = weights["state_dict"]
    if not isinstance(weights, dict) or not all(
        isinstance(weight, torch.Tensor) for weight in weights.values()
    ):
        named = ", ".join(map(str, weights))[:100] if isinstance(weights, dict) else ""
        raise SetupError(
            f"{str(path)!r} holds no state dict" + (f", but a table of {named}" if named else ""),
            hint="Save model.state_dict() with torch.save, or as safetensors.",
        )
    return weights


def _fill(module: torch.nn.Module, weights: Mapping[str, torch.Tensor], path: str | Path) -> None:
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise SetupError(
            f"the weights in {str(path)!r} do not fit {type(module).__name__}: {first_line(error)}"
        ) from error
