"""The typed, validated options of a backend: the base class and the path types."""

from __future__ import annotations

import decimal
import inspect
import logging
import numbers
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    create_model,
    field_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from headrace._language.contract.addresses import is_address, places
from headrace._language.contract.missing import nearest_file, no_file
from headrace.errors import ConfigError

if sys.version_info >= (3, 14):
    from annotationlib import Format, get_annotations

    _UNRESOLVED: dict[str, Any] = {"format": Format.FORWARDREF}
else:
    from inspect import get_annotations

    _UNRESOLVED: dict[str, Any] = {}

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


try:
    create_model("First")  # pydantic looks for its plugins in all that is installed
except Exception as error:  # noqa: BLE001 - a stranger's entry_points.txt may raise anything
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    _log = logging.getLogger("headrace.plugins")
    _log.warning("pydantic runs without its plugins: what is installed cannot be read: %s", error)


class TextWithBase(str):
    """A text from a table to which several files have contributed.

    It keeps the folder of its own file.

    Attributes:
        base: The folder from which a relative path in it starts.
    """

    __slots__ = ("base",)

    base: Path

    def __new__(cls, text: str, base: Path) -> TextWithBase:  # noqa: PYI034 - Self: Python 3.11
        """Make a text with its folder."""
        value = super().__new__(cls, text)
        value.base = base
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the text together with its folder."""
        return TextWithBase, (str(self), self.base)


@lru_cache(maxsize=256)
def keys_of(model: type[BaseModel]) -> Mapping[str, str]:
    """Return the name of each field of a model, by the key under which the field is written."""
    return {field.alias or name: name for name, field in model.model_fields.items()}


def map_leaves(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Copy the lists and tables of a value, and replace every other part by ``leaf(part)``."""
    if isinstance(value, Mapping):
        return {str.__str__(key): map_leaves(part, leaf) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [map_leaves(part, leaf) for part in value]
    return leaf(value)


def without_base(value: Any) -> Any:
    """Return a value in which each text with a folder is replaced by a plain text."""
    if isinstance(value, TextWithBase):
        return str(value)
    if type(value) in (list, tuple):
        return type(value)(map(without_base, value))
    if type(value) is dict:
        return {key: without_base(part) for key, part in value.items()}
    return value


def _with_own_base(value: Any) -> Any:
    return value.base / in_home(value) if isinstance(value, TextWithBase) else path_as_text(value)


def _to_read(value: Any, info: ValidationInfo) -> Any:
    find_place = (info.context or {}).get("find_place")
    return find_place(value) if find_place and is_address(value) else _with_own_base(value)


def path_as_text(value: Any) -> Any:
    """Return the text of a path object of any kind, and every other value as it is."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def in_home(path: str | os.PathLike[str]) -> Path:
    """Return a path whose leading ``~`` is the home folder.

    Where that is unknown, the path as it is written.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111 - that of Path may raise


def _against_base(path: Path, info: ValidationInfo) -> Path:
    """Resolve ``path`` against the folder of its file (``~`` is the home folder)."""
    return Path((info.context or {}).get("base", "")) / in_home(path)


def _existing(path: Path, info: ValidationInfo) -> Path:
    if str(path) in places:  # it is fetched before `init`
        return path
    path = _against_base(path, info)
    try:
        kind = no_file(path)
        path.stat()  # `exists` takes all errors for absence from Python 3.14 on
    except (FileNotFoundError, NotADirectoryError, ValueError):  # a null character is in no name
        about = {"file": repr(str(path)), "nearest": nearest_file(path)}
        raise PydanticCustomError("no_file", "no such file: {file}", about) from None
    except OSError as error:  # the name is too long, or a folder of it may not be read
        raise ValueError(f"it cannot be looked for: {error.strerror}") from error
    if kind is not None:  # reading a pipe might never end
        raise ValueError(f"{str(path)!r} is {kind}, not a file")
    return path


FilePath = Annotated[Path, BeforeValidator(_to_read), AfterValidator(_existing)]
"""An option that names a file to read, which must exist: relative to the file in which it is
written.

It may be an address, as ``hf://org/name/model.onnx``. Then ``init`` gets the path to which the file
was fetched.
"""

OutputPath = Annotated[Path, BeforeValidator(_with_own_base), AfterValidator(_against_base)]
"""An option that names a file or folder to write, which need not exist: relative like
`FilePath`."""


_ATTRIBUTE = re.compile(r"^(\w+)(?: \(.*?\))?:(.*(?:\n(?:[ \t].*)?)*)", re.MULTILINE)
_NO_FIELD = re.compile(r"\b(?:ClassVar|Final)\b")


def attribute_texts(cls: type[Any]) -> dict[str, str]:
    """Return the text of each attribute in the section ``Attributes`` of a class's own docstring.

    There are none under ``python -OO``, which drops docstrings.
    """
    lines = f"\n{inspect.cleandoc(cls.__dict__.get('__doc__') or '')}"
    below = lines.partition("\nAttributes:\n")[2]
    section = textwrap.dedent(re.split(r"^\S", below, maxsplit=1, flags=re.MULTILINE)[0])
    return {name: " ".join(text.split()) for name, text in _ATTRIBUTE.findall(section)}


class Options(BaseModel):
    """Base of the ``Options`` of every backend, policy and probe: frozen, unknown keys refused.

    It is a pydantic model. Each field has a type, limits if there are any, a default unless you
    must set it, and a description with its unit. That is its line in the section ``Attributes`` of
    the docstring, unless the field has a ``description`` of its own::

        class Options(headrace.Options):
            \"\"\"Size and mode.

            Attributes:
                size: Side of the result, in pixels.
                mode: How (a name).
                model: A file, or none.
            \"\"\"

            positional = ("size",)
            size: int = pydantic.Field(ge=1, le=4096)
            mode: Literal["fast", "exact"] = "fast"
            model: headrace.FilePath | None = None

    Values are read as pydantic reads them, except that a bool is no number and NaN is no value. A
    `headrace.FilePath` is relative to its configuration file and must exist. A
    `headrace.OutputPath` need not exist. Check fields that depend on each other in a
    ``model_validator``, and raise ValueError there. Give a field that imports code a validator, and
    refuse it if ``info.context["allow_import"]`` is False. All this happens before anything is
    built. Node keys (``max``, ``device``, ...) are never options. A backend finds them in its
    `headrace.InitContext`.

    Attributes:
        positional: The fields for positional args of an expression, in order. With ``positional =
            ("key",)``, ``HasKey(mask)`` means ``HasKey(key=mask)``.
    """  # noqa: D214 - the first is the example's

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=()
    )

    positional: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give each field of the class the description that its docstring has."""
        super().__init_subclass__(**kwargs)
        if texts := attribute_texts(cls):
            types = get_annotations(cls, **_UNRESOLVED)
            described = {
                name: Annotated[field_type, Field(description=texts[name])]
                for name, field_type in types.items()
                if name in texts and not _NO_FIELD.search(str(field_type))
            }
            cls.__annotations__ = types | described

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse to set an option, since instances share them."""
        if name in type(self).model_fields:
            raise AttributeError(f"options are frozen: init may set self.{name} of the backend")
        super().__setattr__(name, value)

    @field_validator("*", mode="wrap")
    @classmethod
    def _read_field(
        cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        """Let pydantic read a field, and refuse a bool that became a number, and NaN."""
        context = info.context or {}
        if context.get("of") is cls:
            # Only a field of the options themselves says in which file its value was written. The
            # fields of a model nested in it are read after this, and use the same folder.
            context["base"] = context.get("bases", {}).get(info.field_name, Path())
        got = value if _has_nan(value) else handler(value)
        if _bool_became_number(value, got):
            raise ValueError("a bool is no number")
        if _has_nan(got):
            raise ValueError("NaN is no value")
        return without_base(got)


def _bool_became_number(value: Any, got: Any) -> bool:
    """Tell whether ``value``, or a bool inside it, was read as a number."""
    if _is_bool(value):
        return isinstance(got, numbers.Number) and not isinstance(got, bool)
    if isinstance(value, Mapping):
        if isinstance(got, BaseModel) or is_dataclass(got):
            of = keys_of(type(got)) if isinstance(got, BaseModel) else {key: key for key in value}
            pairs = [(v, getattr(got, of[k], v)) for k, v in value.items() if k in of]
            return any(_bool_became_number(*pair) for pair in pairs)
        if not isinstance(got, Mapping):
            return False
        return _bool_became_number([*value, *value.values()], [*got, *got.values()])
    if not isinstance(value, (list, tuple, set, frozenset)):
        return False
    if isinstance(got, (set, frozenset)):  # a set has lost the order of the list
        return any(map(_is_bool, value)) and not any(isinstance(v, bool) for v in got)
    same = isinstance(got, (list, tuple)) and len(got) == len(value)
    return same and any(map(_bool_became_number, value, got))


def _is_bool(value: Any) -> bool:
    """Tell whether a value is a bool; also numpy's, which is no subclass of Python's."""
    name = f"{type(value).__module__}.{type(value).__name__}"
    return isinstance(value, bool) or name in ("numpy.bool", "numpy.bool_")


def _has_nan(value: Any) -> bool:
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(_has_nan, value))
    if is_dataclass(value) and not isinstance(value, type):
        return any(_has_nan(getattr(value, field.name, None)) for field in fields(value))
    if isinstance(value, BaseModel):
        value = vars(value)
    if isinstance(value, decimal.Decimal):
        return value.is_nan()
    if isinstance(value, (float, complex)):
        return value != value
    if isinstance(value, (str, int)):
        return False
    return isinstance(value, (dict, Mapping)) and any(map(_has_nan, value.values()))


_WORDS = {
    **dict.fromkeys(("tuple_type", "list_type", "set_type"), "Input should be a list"),
    "dict_type": "Input should be a table",
    "path_type": "Input should be a text, the path of a file",
}


def value_problems(error: ValidationError, options: type[BaseModel]) -> Iterator[ErrorDetails]:
    """Return the problems of options in the words of a configuration, once per value.

    For an option that may have several types, pydantic gives the problem of each type. If it can be
    known which type the value was meant to have, only the problem of that type is given, otherwise
    all of them in one text.
    """
    of_unions: dict[str, list[ErrorDetails]] = {}
    for detail in error.errors():
        if detail["type"] == "too_short" and len([*detail["input"]]) >= detail["ctx"]["min_length"]:
            continue  # only without the parts that are wrong, each of which is a problem of its own
        if isinstance(cause := detail.get("ctx", {}).get("error"), ConfigError):  # an address
            about = {"hint": cause.problems[0].hint}
            detail |= {"type": "no_file", "msg": cause.problems[0].message, "ctx": about}
        message = _WORDS.get(detail["type"], detail["msg"]).removeprefix("Value error, ")
        detail["msg"] = message.replace("Tuple should", "List should")
        key, *inner = detail["loc"] or ("",)
        if inner and _is_union(options.model_fields.get(str(key))):
            of_unions.setdefault(str(key), []).append(detail)
        else:
            yield detail
    for details in of_unions.values():
        meant = max(details, key=lambda detail: (len(detail["loc"]) > 2, not _is_of_type(detail)))
        relevant = [detail for detail in details if detail["loc"][1] == meant["loc"][1]]
        if len(meant["loc"]) == 2 and _is_of_type(meant):  # nothing tells which type was meant
            meant["msg"], relevant = "; or: ".join(detail["msg"] for detail in details), [meant]
        for detail in relevant:
            detail["loc"] = (detail["loc"][0], *detail["loc"][2:])
            yield detail


def _is_of_type(detail: ErrorDetails) -> bool:
    return detail["type"].endswith(("_type", "_parsing"))


def _is_union(field: FieldInfo | None) -> bool:
    """Tell whether an option may have several types, not counting None."""
    kind = None if field is None else field.annotation
    return get_origin(kind) in (Union, UnionType) and len({*get_args(kind)} - {NoneType}) > 1
