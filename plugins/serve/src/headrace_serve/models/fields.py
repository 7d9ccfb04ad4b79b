"""Bodies of JSON whose fields become keys of a request: which fields a model has, read and checked.

The serving file says them in ``[models.NAME.request]``, else they are those of the ``TypedDict`` that the first backend of
the entry node names in ``reads``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin, get_type_hints

import pydantic
from typing_extensions import NotRequired, Required, TypedDict

from headrace.errors import InputError, SetupError, among
from headrace_formats import write_json
from headrace_serve.client_input import loads
from headrace_serve.errors import FieldError
from headrace_serve.models.entries import NO_INPUTS
from headrace_serve.models.field_types import type_of
from headrace_serve.models.signature import THROUGH

if TYPE_CHECKING:
    from collections.abc import Mapping

    import headrace
    from headrace.plan import Element
    from headrace_serve.models.entries import ModelEntry
    from headrace_serve.models.signature import Port

__all__ = ["Fields", "check_keys", "read_fields"]

_MOST_SAID: Final = 5
"""So many wrong fields of one body are told."""
_MANY: Final = 1000
"""A body with more names than these is looked through for unknown ones before its values are read."""


@dataclass(frozen=True)
class Field:
    """One field of a body.

    Attributes:
        name: The key of the request.
        type: The type of its value.
        required: Whether every body has it.
        default: The value where a body lacks it. None: the request lacks it too.
        description: What it means, for people.
    """

    name: str
    type: Any
    required: bool = True
    default: Any = None
    description: str | None = None


class Fields:
    """The fields of the bodies of one model.

    Raises:
        pydantic.errors.PydanticUserError: A field has a type for which JSON has no form.
    """

    def __init__(self, fields: list[Field]) -> None:
        self.names = [field.name for field in fields]
        self._types = {field.name: field.type for field in fields}
        self._required = [field.name for field in fields if field.required]
        self._defaults = {f.name: f.default for f in fields if f.default is not None}
        self._said: dict[str, Any] = {}
        for field in fields:
            about = pydantic.Field(description=field.description)
            kind: Any = Annotated[_ending(field.type), about]
            self._said[field.name] = Required[kind] if field.required else NotRequired[kind]
        self._type = _adapter(self._said)
        self._some: dict[tuple[str, ...], pydantic.TypeAdapter[dict[str, Any]]] = {}

    def read(self, body: bytes) -> dict[str, Any]:
        """Return the keys of the request that a body has.

        Raises:
            InputError: The body is no JSON.
            FieldError: A field is missing, unknown, or of another type.
        """
        value = loads(body)  # pydantic takes NaN, and infinity for 1e400
        if body.count(b":") > _MANY:
            self._check_names(value)
        try:
            return {**self._defaults, **self._type.validate_json(body)}
        except pydantic.ValidationError as error:
            raise self._wrong(error) from None

    def read_beside(self, first: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
        """Return the keys of a request that has all fields of another one, which was read, but for those of a value.

        Raises:
            InputError, FieldError: As `read`.
        """
        body = write_json(value).encode()
        loads(body)
        names = tuple(value)
        if names not in self._some:
            self._some[names] = _adapter({name: self._said[name] for name in names})
        try:
            return {**first, **self._some[names].validate_json(body)}
        except pydantic.ValidationError as error:
            raise self._wrong(error) from None

    def _check_names(self, value: Any) -> None:
        """Refuse unknown fields before pydantic makes an error for each.

        Raises:
            FieldError: There are some.
        """
        unknown = [name for name in value if name not in self._types] if type(value) is dict else []
        if unknown:
            more = len(unknown) - _MOST_SAID
            lines = [self._unknown(name) for name in unknown[:_MOST_SAID]]
            raise FieldError("; ".join(lines) + (f"; and {more} more" if more > 0 else ""))

    def _unknown(self, name: str) -> str:
        return f"field {name[:80]!r}: there is no such field. {among(name, self.names)}"

    def completed(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a request that came as no JSON, or as other fields, with the defaults.

        Raises:
            FieldError: It lacks a field.
        """
        missing = [name for name in self._required if name not in request]
        if missing:
            raise FieldError(
                "; ".join(f"field {name!r} is missing" for name in missing[:_MOST_SAID])
                + ": the model takes JSON, by POST /run/NAME with 'Content-Type: application/json'"
            )
        return {**self._defaults, **request}

    def takes_file(self, key: str) -> bool:
        """Return whether a file as the value of a key is all that a request needs."""
        kind = self._types.get(key)
        return bytes in (kind, *get_args(kind)) and set(self._required) <= {key}

    def schema(self, prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the schema of a body, and the schemas to which it refers by their names.

        Args:
            prefix: Begins the names of those schemas.
        """
        template = f"#/components/schemas/{prefix}.{{model}}"
        schema = self._type.json_schema(ref_template=template)
        for name, default in self._defaults.items():
            schema["properties"][name]["default"] = default
        others = {f"{prefix}.{name}": kind for name, kind in schema.pop("$defs", {}).items()}
        return schema, others

    def _wrong(self, error: pydantic.ValidationError) -> InputError | FieldError:
        if error.error_count() > _MANY:  # pydantic would make an object of each
            return FieldError(
                f"{error.error_count()} values of the body are wrong; send fewer to be told which"
            )
        lines = []
        for detail in error.errors(include_url=False)[:_MOST_SAID]:
            if detail["type"] == "json_invalid":
                return InputError(f"the body is no JSON: {detail['ctx']['error']}")
            where = ".".join(map(str, detail["loc"]))[:80]
            if not detail["loc"]:
                lines.append(f"the body: expected an object with {', '.join(self.names)}")
            elif detail["type"] == "extra_forbidden":
                lines.append(self._unknown(where))
            elif detail["type"] == "missing":
                lines.append(f"field {where!r} is missing")
            else:
                got = f"{detail['input']!r:.40}"
                lines.append(f"field {where!r}: {detail['msg']}, got {got}")
        return FieldError("; ".join(lines))


def _adapter(said: dict[str, Any]) -> pydantic.TypeAdapter[dict[str, Any]]:
    """Return what reads an object of JSON with these fields."""
    typed: Any = TypedDict  # type checkers know it with fields that stand in the code alone
    fields = typed("Request", said)
    fields.__pydantic_config__ = pydantic.ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, title="Request",
        val_json_bytes="base64", ser_json_bytes="base64",
    )  # fmt: skip
    return pydantic.TypeAdapter(fields)


def _ending(kind: Any) -> Any:
    """Return a type of lists whose reading ends with the first wrong element: a body may have a million of them."""
    if get_origin(kind) is not list:
        return kind
    (inner,) = get_args(kind)
    return Annotated[list[_ending(inner)], pydantic.FailFast()]  # type: ignore[misc]


def read_fields(entry: ModelEntry, config: headrace.PipelineConfig, node: str) -> Fields | None:
    """Return the fields of a model's bodies of JSON. None if neither its entry nor its pipeline declares any.

    Args:
        entry: The entry of the model.
        config: The configuration of its pipeline.
        node: The name of the node at which requests enter.
    """
    if entry.request is not None:
        said = entry.request.items()
        return Fields([
            Field(name, type_of(field.type), field.needed, field.default, field.description)
            for name, field in said
        ])  # fmt: skip
    reads = None if entry.body is not None else _reads(config, node)
    if reads is None:
        return None
    try:
        return Fields(_fields_of(reads))
    except (NameError, TypeError, pydantic.errors.PydanticUserError):
        return None  # a key for which JSON has no form, as an array


def check_keys(
    name: str, ports: Mapping[str, Port], config: headrace.PipelineConfig, node: str
) -> None:
    """Check that the declared inputs of a model are all that its entry needs, so that requests can succeed at all.

    Args:
        name: The name of the model.
        ports: Its inputs.
        config: The configuration of its pipeline.
        node: The name of the node at which requests enter.

    Raises:
        SetupError: The first backend of the node reads a key of every request, which no input has.
    """
    element = _first(config, node)
    if element is None:
        return
    given = {port.key for port in ports.values()}
    for key in _needed(element):
        if key not in given and key not in NO_INPUTS:
            text = f"model {name!r}: {element.name} reads the key {key!r}, which no input has"
            has = ", ".join(f"{port.name} = {port.key!r}" for port in ports.values())
            raise SetupError(text, hint=f'Give one of them `key = "{key}"`; their keys are {has}.')


def _needed(element: Element) -> list[str]:
    """Return the keys that a backend needs in every request."""
    reads: Any = element.cls.reads
    if isinstance(reads, type):
        return sorted(getattr(reads, "__required_keys__", ()))
    names: list[str] = []
    for key in (reads,) if isinstance(reads, str) else reads:
        value: Any = key
        if key.startswith("{") and key.endswith("}"):
            value = getattr(element.options, key[1:-1], None)
            value = list(value.values()) if isinstance(value, dict) else value
        names += (
            [value]
            if isinstance(value, str)
            else [text for text in value or () if isinstance(text, str)]
        )
    return names


def _fields_of(reads: type) -> list[Field]:
    fields = []
    required: frozenset[str] = getattr(reads, "__required_keys__", frozenset())
    for name, hint in get_type_hints(reads, include_extras=True).items():
        needed = name in required
        if get_origin(hint) in (Required, NotRequired):
            needed = get_origin(hint) is Required
            hint = get_args(hint)[0]
        if needed or name not in NO_INPUTS:
            fields.append(Field(name, hint, needed))
    wrong = [field.name for field in fields if field.name in NO_INPUTS]
    if wrong:
        raise TypeError(f"the key {wrong[0]!r} is reserved")
    return fields


def _first(config: headrace.PipelineConfig, node: str) -> Element | None:
    """Return the first backend of a node, as its configuration says; None if that cannot be told."""
    element = config.plan().nodes[node].tree
    while element.children:
        if element.backend not in THROUGH:
            return None
        element = element.children[0]
    return element


def _reads(config: headrace.PipelineConfig, node: str) -> type | None:
    """Return the TypedDict that the first backend of a node names in ``reads``; None if it names none."""
    element = _first(config, node)
    reads = None if element is None else element.cls.reads
    return reads if isinstance(reads, type) and hasattr(reads, "__required_keys__") else None
