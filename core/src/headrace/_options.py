"""The typed, validated options of a backend: the base class and the path types."""

from __future__ import annotations

import decimal
import enum
import math
import numbers
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationInfo,
    field_validator,
)

__all__ = ["FilePath", "Options", "OutputPath"]


class TextWithBase(str):
    """A text out of a table that several files wrote: it keeps the folder of its own file.

    Attributes:
        base: The folder that a relative path in it starts from.
    """

    __slots__ = ("base",)

    base: Path

    def __new__(cls, text: str, base: Path) -> TextWithBase:  # noqa: PYI034 - Self needs Python 3.11
        """Make a text with its folder."""
        made = super().__new__(cls, text)
        made.base = base
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Be pickled with the folder."""
        return TextWithBase, (str(self), self.base)


def without_base(value: Any) -> Any:
    """Give a value with plain texts in the place of texts that know their folder."""
    if isinstance(value, TextWithBase):
        return str(value)
    if type(value) in (list, tuple):
        return type(value)(map(without_base, value))
    if type(value) is dict:
        return {key: without_base(part) for key, part in value.items()}
    return value


def _with_own_base(value: Any) -> Any:
    return value.base / Path(value).expanduser() if isinstance(value, TextWithBase) else value


def _against_base(path: Path, info: ValidationInfo) -> Path:
    """Resolve ``path`` against the folder of the file that wrote it (``~`` is the home folder)."""
    base: Path = (info.context or {}).get("base", Path())
    return base / path.expanduser()


def _existing(path: Path, info: ValidationInfo) -> Path:
    path = _against_base(path, info)
    if path.is_dir():
        raise ValueError(f"{str(path)!r} is a folder, not a file")
    if not path.exists():
        raise ValueError(f"no such file: {str(path)!r}")
    return path


FilePath = Annotated[Path, BeforeValidator(_with_own_base), AfterValidator(_existing)]
"""An option that names a file to read: relative to the file that wrote it, and it must exist."""

OutputPath = Annotated[Path, BeforeValidator(_with_own_base), AfterValidator(_against_base)]
"""An option that names a file or folder to write: relative like `FilePath`, need not exist."""


class Options(BaseModel):
    """Base of the ``Options`` of every backend, policy and probe: frozen, unknown keys refused.

    A pydantic model. Each field has a type, limits where there are any, a default unless it must be
    set, and a ``description`` with its unit::

        class Options(headrace.Options):
            positional = ("size",)
            size: int = pydantic.Field(ge=1, le=4096, description="Side of the result, in pixels.")
            mode: Literal["fast", "exact"] = pydantic.Field("fast", description="How (a name).")
            model: headrace.FilePath | None = pydantic.Field(None, description="A file, or none.")

    Values are read as pydantic reads them, except that a bool is no number and NaN is no value; a
    `headrace.FilePath` is relative to the file that wrote it and must exist, a `headrace.OutputPath`
    need not. Fields that depend on each other are checked in a ``model_validator`` that raises
    ValueError. All of it happens before anything is built. Node keys (``max``, ``device``, ...) are
    never options; what a backend needs of them is in its `headrace.InitContext`.

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
        name = info.field_name or ""
        bases = (info.context or {}).get("bases", {})
        if (info.context or {}).get("of") is cls and name in bases:
            # What is nested in this field was written where the field was.
            info.context["base"] = bases[name]  # type: ignore[index]
        field = cls.model_fields.get(name)
        if field is not None and _bool_for_a_number(value, field.annotation):
            raise ValueError("a bool is no number")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _no_nan(cls, value: Any) -> Any:
        if _has_nan(value):
            raise ValueError("NaN is no value")
        return without_base(value)


def _bool_for_a_number(value: Any, annotation: Any) -> bool:
    """Tell whether ``value`` is, or holds, a bool where its annotation asks for a number."""
    if not isinstance(value, (bool, list, tuple, Mapping)):
        return False
    leaves = list(_leaves(annotation))
    if isinstance(value, bool):
        return any(map(_is_number, leaves)) and not any(map(_takes_bool, leaves))
    if any(leaf in (Any, object) for leaf in leaves):
        return False
    return any(_bool_for_a_number(part, wanted) for part, wanted in _parts(value, leaves))


def _leaves(annotation: Any) -> Iterator[Any]:
    """Give the alternatives of an annotation."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        yield from _leaves(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            yield from _leaves(part)
    else:
        yield annotation


def _is_number(leaf: Any) -> bool:
    if typing.get_origin(leaf) is typing.Literal:
        return any(isinstance(v, int) and not isinstance(v, bool) for v in typing.get_args(leaf))
    number = (numbers.Number, decimal.Decimal)
    if not isinstance(leaf, type) or issubclass(leaf, bool):
        return False
    return issubclass(leaf, number) or (issubclass(leaf, enum.Enum) and issubclass(leaf, int))


def _takes_bool(leaf: Any) -> bool:
    if typing.get_origin(leaf) is typing.Literal:
        return any(isinstance(value, bool) for value in typing.get_args(leaf))
    return leaf in (Any, object, bool)


def _parts(value: Any, leaves: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Give what a list or table holds, each with the annotations that it may have, as a union."""
    wanted: dict[Any, list[Any]] = {}
    items = dict(value) if isinstance(value, Mapping) else dict(enumerate(value))
    for leaf in leaves:
        args = typing.get_args(leaf)
        if isinstance(leaf, type) and issubclass(leaf, BaseModel):
            fields = {field.alias or name: field for name, field in leaf.model_fields.items()}
            pairs = {key: fields[key].annotation for key in items if key in fields}
        elif typing.get_origin(leaf) is tuple and Ellipsis not in args:
            pairs = dict(enumerate(args))
        elif args:
            values = [arg for arg in args if arg is not Ellipsis]
            pairs = dict.fromkeys(items, values[-1])
        else:
            pairs = {}
        for key, annotation in pairs.items():
            wanted.setdefault(key, []).append(annotation)
    for key, item in items.items():
        if key in wanted:
            yield item, typing.Union[tuple(wanted[key])]  # noqa: UP007 - made of a tuple


def _has_nan(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_has_nan, value))
    if isinstance(value, Mapping):
        return any(map(_has_nan, value.values()))
    if isinstance(value, decimal.Decimal):
        return value.is_nan()
    return isinstance(value, float) and math.isnan(value)
