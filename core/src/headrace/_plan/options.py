"""Finding and checking the options of one element, with the origin of every value."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from headrace._expression import Call, substitute_text
from headrace._options import Options
from headrace._registry.registry import nearest
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._config.problems import Problems
    from headrace._plan.parameters import Parameters
    from headrace._plan.scope import Layer, Scope

__all__ = ["check_options", "replaced"]

_MISSING = object()


class _Value:
    """A value for one option: what, from where, and the place to show when it is wrong."""

    def __init__(self, value: Any, origin: str, base: str, place: dict[str, Any]) -> None:
        self.value = value
        self.origin = origin
        self.base = base
        self.place = place


def plain_value(value: Any) -> Any:
    """Give a value of an expression as options read it: an expression is its text."""
    if isinstance(value, Call):
        return str(value)
    if isinstance(value, tuple):
        return [plain_value(part) for part in value]
    return value


def replaced(value: Any) -> Any:
    """Replace ``${NAME}`` in all texts of a value of the configuration; everything else stays."""
    if isinstance(value, str):
        return substitute_text(value, os.environ)
    if isinstance(value, list):
        return [replaced(part) for part in value]
    if isinstance(value, dict):
        return {key: replaced(part) for key, part in value.items()}
    return value


class _Collector:
    """Collects the values of the options of one element."""

    def __init__(
        self,
        call: Call,
        cls: type[Backend],
        scope: Scope,
        parameters: Parameters,
        problems: Problems,
    ) -> None:
        self.call = call
        self.cls = cls
        self.scope = scope
        self.parameters = parameters
        self.problems = problems
        fields: dict[str, Any] = cls.Options.model_fields
        self.keys = {field.alias or name: name for name, field in fields.items()}

    def collect(self) -> dict[str, _Value]:
        written = self._written()
        values: dict[str, _Value] = {}
        for key in self.keys:
            value = self._winner(key, written)
            if value is not None:
                values[key] = value
        return values

    def _winner(self, key: str, written: dict[str, _Value]) -> _Value | None:
        """Apply the rule of precedence to one option."""
        layer = self.scope.layer
        inline: _Value | None = None
        definition: _Value | None = None
        for scoped in layer.scoped:  # outermost first
            if key not in scoped.values:
                continue
            scoped.used.add(key)
            value = _Value(
                scoped.values[key],
                "inline" if scoped.layer.depth == 0 else "definition",
                scoped.layer.base,
                _place(scoped.layer, scoped.call, key),
            )
            if scoped.layer.depth == 0:
                inline = inline or value
            else:
                definition = definition or value
        own = written.get(key)
        if own is not None and layer.depth == 0:
            inline = inline or own
        elif own is not None:
            definition = definition or own
        names = (self.call.name, self.call.part) if self.call.plugin else (self.call.name,)
        found = self.parameters.find(names, key)
        if inline is not None:
            return inline
        if found is not None:
            return self._from_parameter(found)
        return definition

    def _from_parameter(self, found: tuple[str, Any, str]) -> _Value:
        origin, written, path = found
        place = {"file": written.file, "path": path}
        try:
            value = replaced(written.value)
        except ConfigError as error:
            self.problems.extend(error.problems, **place)
            value = _MISSING
        return _Value(value, origin, str(written.base), place)

    def _written(self) -> dict[str, _Value]:
        """Give the args of the element by key, and report those it cannot have."""
        call, layer = self.call, self.scope.layer
        positional = getattr(self.cls.Options, "positional", ())
        values: dict[str, _Value] = {}
        origin = "inline" if layer.depth == 0 else "definition"
        for index, value in enumerate(call.args.positional):
            place = _place(layer, call, index)
            if index >= len(positional):
                takes = f"takes {len(positional)}" if positional else "takes no positional args"
                self.problems.add("args", f"{call.name} {takes}", **place)
                break
            values[positional[index]] = _Value(plain_value(value), origin, layer.base, place)
        for key, value in call.args.named:
            place = _place(layer, call, key)
            if key not in self.keys:
                self.problems.add(
                    "unknown_option",
                    f"{call.name} has no option {key!r}",
                    suggestion=nearest(key, self.keys),
                    **place,
                )
            elif key in values:
                self.problems.add("twice", f"{key!r} stands there twice", **place)
            else:
                values[key] = _Value(plain_value(value), origin, layer.base, place)
        return values


def _place(layer: Layer, call: Call, which: int | str | None = None) -> dict[str, Any]:
    span = call.name_span or call.span
    if which is not None:
        span = call.args.span_of(which) or span
    return {"file": layer.file, "path": layer.path, "span": span, "text": call.text}


def check_options(
    call: Call,
    cls: type[Backend],
    scope: Scope,
    parameters: Parameters,
    problems: Problems,
) -> tuple[Options | None, dict[str, str]]:
    """Find the options of one element and check them.

    Returns:
        The checked options, None when they are wrong (which is reported), and per option where its
        value came from.
    """
    if not (isinstance(cls.Options, type) and issubclass(cls.Options, Options)):
        problems.add(
            "contract",
            f"{call.name}.Options is no subclass of headrace.Options",
            **_place(scope.layer, call),
        )
        return None, {}
    collector = _Collector(call, cls, scope, parameters, problems)
    before = len(problems)
    values = collector.collect()
    origins = {key: values[key].origin if key in values else "default" for key in collector.keys}
    if len(problems) > before:
        return None, origins
    bases = {collector.keys[key]: Path(value.base) for key, value in values.items()}
    try:
        options = cls.Options.model_validate(
            {key: value.value for key, value in values.items()}, context={"bases": bases}
        )
    except ValidationError as error:
        _report(error, call, scope, values, problems)
        return None, origins
    return options, origins


def _report(
    error: ValidationError,
    call: Call,
    scope: Scope,
    values: dict[str, _Value],
    problems: Problems,
) -> None:
    for detail in error.errors(include_url=False, include_context=False):
        location = detail["loc"]
        key = str(location[0]) if location else None
        if detail["type"] == "missing" and len(location) == 1:
            if not scope.lenient:
                problems.add(
                    "missing_option",
                    f"{call.name} needs the option {key!r}",
                    hint=f"Write {key} = ... in the node, or {call.name}({key}=...).",
                    **_place(scope.layer, call),
                )
            continue
        inner = "".join(f"[{part!r}]" for part in location[1:])
        message = detail["msg"].removeprefix("Value error, ")
        got = f", got {detail['input']!r}" if len(repr(detail["input"])) <= 80 else ""
        place = values[key].place if key in values else _place(scope.layer, call)
        what = f"{call.name}: {key}{inner}: " if key else f"{call.name}: "
        if detail["type"] == "value_error" and "no such file" in message:
            got = ""
        problems.add("option", f"{what}{message}{got}", **place)
