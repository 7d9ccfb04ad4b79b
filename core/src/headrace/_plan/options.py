"""Finding and checking the options of one element, with the origin of every value."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from headrace._config.nodekeys import KEYS_ELSEWHERE, NODE_KEYS
from headrace._config.problems import key_place, shown_value
from headrace._options import Options
from headrace._plan.values import nearest_choice, plain_value, replaced
from headrace._portable import told
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

    from headrace._config.problems import Problems
    from headrace._expression import Call
    from headrace._plan.parameters import Found, Parameters
    from headrace._plan.scope import Layer, Scope

__all__ = ["OptionsReader"]


class _Value:
    """A value for one option: what, from where, and the place to show when it is wrong.

    ``told`` says that what is wrong with it has been reported.
    """

    def __init__(self, value: Any, origin: str, base: str, place: dict[str, Any]) -> None:
        self.value = value
        self.origin = origin
        self.base = base
        self.place = place
        self.told = False


class OptionsReader:
    """Finds and checks the options of one element of an expression.

    Args:
        call: The element.
        options: The class of its options.
        scope: Where it stands.
        parameters: The keys of its node.
        problems: Where what is wrong goes.
        names: The names before ``::`` that mean this element.
    """

    def __init__(
        self,
        call: Call,
        options: Any,
        scope: Scope,
        parameters: Parameters,
        problems: Problems,
        names: tuple[str, ...],
    ) -> None:
        self.call = call
        self.options = options
        self.scope = scope
        self.parameters = parameters
        self.problems = problems
        self.names = names
        fields = options.model_fields if _is_options(options) else {}
        self.keys = {field.alias or name: name for name, field in fields.items()}
        self._wrong = False

    def read(
        self, given: Mapping[str, tuple[Any, str]] | None = None
    ) -> tuple[Options | None, dict[str, str]]:
        """Find the options and check them.

        Args:
            given: Values that are there already, by key, with their origins; args win over them.

        Returns:
            The checked options, None when they are wrong (which is reported), and per option where
            its value came from.
        """
        if not _is_options(self.options):
            self._add("contract", f"{self.call.name}.Options is no subclass of headrace.Options")
            return None, {}
        written = self._written()
        values: dict[str, _Value] = {}
        for key in self.keys:
            value = self._winner(key, written)
            if value is None and given is not None and key in given:
                value = _Value(*given[key], ".", self._place())
            if value is not None:
                values[key] = value
        origins = {key: values[key].origin if key in values else "default" for key in self.keys}
        options = self._validated(values)
        if options is None or self._wrong:
            return None, origins
        return options, origins

    def _validated(self, values: dict[str, _Value]) -> Options | None:
        bases = {self.keys[key]: Path(value.base) for key, value in values.items()}
        context = {"bases": bases, "of": self.options}
        try:
            options: Options = self.options.model_validate(
                {key: value.value for key, value in values.items()}, context=context
            )
        except ValidationError as error:
            self._report_all(error, values)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a validator or a default of the class
            self._add_raised(error)
        else:
            return options
        return None

    def _report_all(self, error: ValidationError, values: dict[str, _Value]) -> None:
        try:
            for detail in error.errors(include_url=False):
                self._report(detail, values)
        except Exception as broken:  # noqa: BLE001 - the text of what a validator raised
            self._add_raised(broken)

    def _add_raised(self, error: BaseException) -> None:
        cls = f"{self.options.__module__}.{self.options.__qualname__}"
        message = f"{self.call.name}: checking its options raised {told(error)}"
        self._add("option", message, hint=f"The class {cls} has to be mended by its author.")

    def _add(self, code: str, message: str, which: int | str | None = None, **more: Any) -> None:
        self._wrong = True
        self.problems.add(code, message, **{**self._place(which), **more})

    def _place(self, which: int | str | None = None) -> dict[str, Any]:
        return _place(self.scope.layer, self.call, which)

    # Who wins.

    def _winner(self, key: str, written: dict[str, _Value]) -> _Value | None:
        """Apply the rule of precedence to one option."""
        layer = self.scope.layer
        inline: _Value | None = None
        definition: _Value | None = None
        for scoped in layer.scoped:  # outermost first
            scoped.asked.add(key)
            if key not in scoped.values:
                continue
            scoped.used.add(key)
            value = self._argument(scoped.layer, scoped.call, key, scoped.values[key])
            if scoped.layer.depth == 0:
                inline = inline or value
            else:
                definition = definition or value
        own = written.get(key)
        if own is not None and layer.depth == 0:
            inline = inline or own
        elif own is not None:
            definition = definition or own
        found = self.parameters.find(self.names, key, wins=inline is None)
        if inline is not None:
            return inline
        return definition if found is None else self._from_parameter(found)

    def _argument(self, layer: Layer, call: Call, which: int | str, value: Any) -> _Value:
        origin = "inline" if layer.depth == 0 else "definition"
        return _Value(value, origin, layer.base, _place(layer, call, which))

    def _from_parameter(self, found: Found) -> _Value:
        origin, written, path = found
        key = path.split(".", 1)[1]
        place = key_place(written.file, path, key, written.value)
        value = _Value(written.value, origin, str(written.base), place)
        try:
            value.value = replaced(written.value)
        except ConfigError as error:
            self._wrong = value.told = True
            self.problems.extend(error.problems, file=written.file, path=path)
        return value

    def _written(self) -> dict[str, _Value]:
        """Give the args of the element by key, and report those it cannot have."""
        call, layer = self.call, self.scope.layer
        positional = getattr(self.options, "positional", ())
        values: dict[str, _Value] = {}
        for index, value in enumerate(call.args.positional):
            if index >= len(positional) or positional[index] not in self.keys:
                takes = f"takes {len(positional)}" if positional else "takes no positional args"
                hint = f"They are {', '.join(positional)}." if positional else None
                if not positional:
                    hint = "Options stand in ( ), backends in [ ]."
                    hint = f"Write {next(iter(self.keys))}=..." if self.keys else hint
                self._add("args", f"{call.name} {takes}", index, hint=hint)
                break
            key = positional[index]
            values[key] = self._argument(layer, call, index, plain_value(value))
        for index, (key, value) in enumerate(call.args.named, len(call.args.positional)):
            if key not in self.keys:
                self._add(
                    "unknown_option",
                    f"{call.name} has no option {key!r}",
                    index,
                    suggestion=self.problems.nearest(key, self.keys),
                    hint=_of_the_node(key) or _known(self.keys),
                )
            elif key in values:
                self._add("twice", f"{key!r} stands there twice", key)
            else:
                values[key] = self._argument(layer, call, key, plain_value(value))
        return values

    # What is wrong.

    def _report(self, detail: ErrorDetails, values: dict[str, _Value]) -> None:
        location = detail["loc"]
        key = str(location[0]) if location else None
        if key in values and values[key].told:
            return
        if detail["type"] == "missing" and len(location) == 1:
            if not self.scope.lenient:
                inline = f"{self.call.name}({key}=...)"
                own = self.parameters.is_own(str(key))
                ways = f'"{self.call.name}::{key}" = ...' if own else f"{key} = ..."
                self._add(
                    "missing_option",
                    f"{self.call.name} needs the option {key!r}",
                    hint=f"Write {ways} in the node, or {inline}.",
                )
            return
        inner = "".join(f"[{part!r}]" for part in location[1:])
        message = detail["msg"].removeprefix("Value error, ")
        got = "" if "no such file" in message else f", got {shown_value(detail['input'])}"
        what = f"{self.call.name}: {key}{inner}: " if key else f"{self.call.name}: "
        place = values[key].place if key in values else self._place()
        self._wrong = True
        told = f"{what}{message}{got if key else ''}"
        self.problems.add("option", told, suggestion=nearest_choice(detail), **place)


def _is_options(options: Any) -> bool:
    return isinstance(options, type) and issubclass(options, Options)


def _place(layer: Layer, call: Call, which: int | str | None = None) -> dict[str, Any]:
    span = call.name_span or call.span
    if which is not None:
        span = call.args.span_of(which) or span
    return {"file": layer.file, "path": layer.path, "span": span, "text": call.text}


def _of_the_node(key: str) -> str | None:
    """Say where a key of a node stands, that was written as an option."""
    meant = KEYS_ELSEWHERE.get(key, key)
    return f"{meant!r} is a key of the node: {meant} = ..." if meant in NODE_KEYS else None


def _known(keys: Mapping[str, str]) -> str:
    return f"It has {', '.join(keys)}." if keys else "It has none."
