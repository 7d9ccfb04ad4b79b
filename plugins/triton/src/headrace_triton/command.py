"""headrace triton: a model repository as TOML."""

from __future__ import annotations
