"""Applies tables of values to a configuration, without changing the configuration itself."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

__all__ = ["layered"]


def layered(
    source: str | os.PathLike[str] | Mapping[str, Any], *layers: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a configuration in which later tables win over earlier ones, key by key.

    Args:
        source: The path of a TOML file, or a dict of the same shape.
        layers: Tables of the same shape. A later one wins over ``source`` and over those before it.
    """
    if isinstance(source, Mapping):
        config: dict[str, Any] = copy.deepcopy(dict(source))
    else:
        config = {"extends": [os.fspath(source).replace("${", "$${")]}
    for layer in layers:
        _lay(config, layer)
    return config


def _lay(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(below.get(key), dict):
            _lay(below[key], value)
        else:
            below[key] = copy.deepcopy(value)
