"""Makes the options of a command from the fields of a dataclass, and the dataclass from their values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from headrace_serve.option_fields import OPTION

__all__ = ["from_options", "with_options"]

T = TypeVar("T")

_LONGEST = 1e9
"""The greatest number of seconds, or milliseconds, that an option takes; so infinity is refused."""


def _limited(value: float | None) -> float | None:
    """Check a time; `typer.Option(max=...)` would show a limit in help that nobody reaches."""
    if value is not None and not value <= _LONGEST:
        raise typer.BadParameter(f"expected at most {_LONGEST:.0f}, got {value}")
    return value


def _options(kind: Any) -> list[tuple[Field[Any], Any]]:
    """Return the fields that are options, with their types. A dataclass inside stands for its fields."""
    options: list[tuple[Field[Any], Any]] = []
    hints = get_type_hints(kind)
    for field in fields(kind):
        if is_dataclass(hints[field.name]):
            options += _options(hints[field.name])
        elif OPTION in field.metadata:
            options.append((field, hints[field.name]))
    return sorted(options, key=lambda option: option[0].metadata[OPTION].get("last", False))


def _parameter(field: Field[Any], kind: Any) -> inspect.Parameter:
    """Return the parameter of the command for a field."""
    shown = dict(field.metadata[OPTION])
    panel, names = shown.pop("rich_help_panel"), shown.pop("names")
    words = shown.pop("words", None)
    shown.pop("last", None)
    default = field.default
    if words is not None:
        kind, default = words, str(default).lower()
    elif kind is bool:
        default = False  # the option changes the default of the field
    elif default == ():
        kind, default = list[str] | None, None
    if kind in (float, float | None) and "max" not in shown:
        shown["callback"] = _limited
    if panel:
        names = names or (f"--{field.name.replace('_', '-')}",)
        about = typer.Option(*names, rich_help_panel=panel, **shown)
    else:
        about = typer.Argument(**shown)
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, about],
    )


def with_options(kind: Any) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a command the options of a dataclass, before its own, in place of its ``**given``."""

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]
        signature = inspect.Signature([*(_parameter(*option) for option in _options(kind)), *own])
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        return command

    return decorate


def from_options(kind: Callable[..., T], given: Mapping[str, Any]) -> T:
    """Return the dataclass for the values of its options.

    Raises:
        ConfigError: As the dataclass raises it.
    """
    values: dict[str, Any] = {}
    hints = get_type_hints(kind)
    for field in fields(kind):  # type: ignore[arg-type]  # a dataclass
        if is_dataclass(hints[field.name]):
            inner: Any = hints[field.name]
            values[field.name] = from_options(inner, given)
        elif field.name in given:
            value = given[field.name]
            if field.default == ():
                value = tuple(value or ())
            elif field.default is True:
                value = value == "true" if "words" in field.metadata[OPTION] else not value
            values[field.name] = value
    return kind(**values)
