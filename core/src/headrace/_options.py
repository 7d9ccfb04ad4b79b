"""The typed, validated options of a backend: the base class and the path types."""

from __future__ import annotations

import math
import typing
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator

__all__ = ["FilePath", "Options", "OutputPath"]


def _against_base(path: Path, info: ValidationInfo) -> Path:
    """Resolve ``path`` against the folder of the file that wrote it (``~`` is the home folder)."""
    bases: dict[str, Path] = (info.context or {}).get("bases", {})
    return bases.get(info.field_name or "", Path()) / path.expanduser()


def _existing(path: Path, info: ValidationInfo) -> Path:
    path = _against_base(path, info)
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder, not a file")
    if not path.exists():
        raise ValueError(f"no such file: {str(path)!r}")
    return path


FilePath = Annotated[Path, AfterValidator(_existing)]
"""An option that names a file to read: relative to the file that wrote it, and it must exist."""

OutputPath = Annotated[Path, AfterValidator(_against_base)]
"""An option that names a file or folder to write: relative like `FilePath`, need not exist."""


def _mentions(annotation: Any, wanted: tuple[Any, ...]) -> bool:
    """Tell whether ``annotation`` is, or has somewhere inside it, one of ``wanted``."""
    if annotation in wanted:
        return True
    return any(_mentions(part, wanted) for part in typing.get_args(annotation))


def _has(value: Any, test: typing.Callable[[Any], bool]) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has(part, test) for part in value)
    if isinstance(value, dict):
        return any(_has(part, test) for part in value.values())
    return test(value)


class Options(BaseModel):
    """Base of the ``Options`` of every backend: frozen, unknown keys refused.

    Values are read as pydantic reads them, except that a bool is no number and NaN is no value.
    Every field has a ``description`` with its unit.

    Attributes:
        positional: Names of the fields that positional args in an expression fill, in order:
            with ``positional = ("key",)``, ``HasKey(mask)`` means ``HasKey(key=mask)``.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=()
    )

    positional: ClassVar[tuple[str, ...]] = ()

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields.get(info.field_name or "")
        if field is None or _mentions(field.annotation, (Any, object)):
            return value
        if not _mentions(field.annotation, (bool,)) and _has(value, lambda x: isinstance(x, bool)):
            raise ValueError("a bool is not accepted here")
        if _has(value, lambda x: isinstance(x, float) and math.isnan(x)):
            raise ValueError("NaN is not accepted")
        return value
