"""Checking options of elements and keys of nodes against their models, with the origin of each value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from headrace._config.nodekeys import EXPRESSION_KEYS, KEYS_ELSEWHERE, NODE_KEYS
from headrace._config.problems import Problems, shown_value
from headrace._options import Options
from headrace._plan.parameters import Found, argument, written_key
from headrace._plan.scope import place_of, plain_value
from headrace._portable import error_text
from headrace._problem import nearest
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

    from headrace._config.document import Written
    from headrace._expression.tree import Call
    from headrace._plan.planning import Planning


K = TypeVar("K", bound="Options")


@dataclass(eq=False)
class OptionsReader:
    """Finds and checks the options of one element of an expression.

    Args:
        call: The element.
        options: The class of its options.
        planning: The planner, with the keys of its node.
        plugin: The qualifier of the plugin that brings it, empty where none does.
        lenient: Whether options may be missing.
    """

    call: Call
    options: Any
    planning: Planning
    plugin: str = ""
    lenient: bool = False
    _found: dict[str, Found] = field(default_factory=dict)
    _reported: set[str] = field(default_factory=set)
    _wrong: bool = False

    def __post_init__(self) -> None:
        call = self.call
        qualified = (f"{self.plugin}:{call.part}",) if self.plugin else ()
        self.names = tuple(dict.fromkeys((call.name, call.part, *qualified)))
        fields = self.options.model_fields if _is_options(self.options) else {}
        self.keys = {field.alias or name: name for name, field in fields.items()}

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
        arguments = self._arguments()
        origins = dict.fromkeys(self.keys, "default")
        values: dict[str, Any] = {}
        for key in self.keys:
            found = self.planning.parameters.find(
                self.names, key, self.call.source, arguments.get(key)
            )
            if found is not None:
                self._found[key], origins[key] = found, found.origin
                values[key] = self._value(key, found)
            elif given is not None and key in given:
                values[key], origins[key] = given[key]
        options = self._validated(values)
        return None if self._wrong else options, origins

    def _arguments(self) -> dict[str, Found]:
        """Give the args of the element by key, and report those it cannot have."""
        call = self.call
        positional = getattr(self.options, "positional", ())
        found: dict[str, Found] = {}
        for index, value in enumerate(call.args.positional):
            if index >= len(positional) or positional[index] not in self.keys:
                self._refuse_positional(index, positional)
                break
            found[positional[index]] = argument(call, index, plain_value(value))
        for index, (key, value) in enumerate(call.args.named, len(call.args.positional)):
            if key not in self.keys:
                self._add(
                    "unknown_option",
                    f"{call.name} has no option {key!r}",
                    index,
                    suggestion=self.planning.problems.nearest(key, self.keys),
                    hint=_of_the_node(key) or _known(self.keys),
                )
            elif key in found:
                self._add("twice", f"{key!r} stands there twice", key)
            else:
                found[key] = argument(call, key, plain_value(value))
        return found

    def _refuse_positional(self, index: int, positional: tuple[str, ...]) -> None:
        hint = "Options stand in ( ), backends in [ ]."
        if positional:
            hint = f"They are {', '.join(positional)}."
        elif self.keys:
            hint = f"Write {next(iter(self.keys))}=..."
        takes = f"takes {len(positional) or 'no positional args'}"
        self._add("args", f"{self.call.name} {takes}", index, hint=hint)

    def _value(self, key: str, found: Found) -> Any:
        try:
            return found.value(self.planning.problems)
        except ConfigError:
            self._wrong = True
            self._reported.add(key)
            return found.written.value

    def _validated(self, values: dict[str, Any]) -> Options | None:
        bases = {self.keys[key]: found.written.base for key, found in self._found.items()}
        context = {"bases": bases, "of": self.options, "allow_import": self.planning.allow_import}
        try:
            options: Options = self.options.model_validate(values, context=context)
        except ValidationError as error:
            try:
                for detail in error.errors():
                    self._report(detail)
            except Exception as broken:  # noqa: BLE001 - the text of what a validator raised
                self._add_raised(broken)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a validator or a default of the class
            self._add_raised(error)
        else:
            return options
        return None

    # What is wrong.

    def _add(self, code: str, message: str, which: int | str | None = None, **more: Any) -> None:
        self._wrong = True
        self.planning.problems.add(code, message, **{**place_of(self.call, which), **more})

    def _add_raised(self, error: BaseException) -> None:
        cls = f"{self.options.__module__}.{self.options.__qualname__}"
        message = f"{self.call.name}: checking its options raised {error_text(error)}"
        self._add("option", message, hint=f"Ask the author of {cls} for a correction.")

    def _report(self, detail: ErrorDetails) -> None:
        """Report one thing that is wrong with a value, where the value was written."""
        location = detail["loc"]
        key = str(location[0]) if location else None
        if key in self._reported:
            return
        if detail["type"] == "missing" and len(location) == 1:
            self._report_missing(str(key))
            return
        inner = "".join(f"[{part!r}]" for part in location[1:])
        message = detail["msg"].removeprefix("Value error, ")
        got = "" if "no such file" in message else f", got {shown_value(detail['input'])}"
        what = f"{key}{inner}: {message}{got}" if key else message
        found = self._found.get(key or "")
        place = place_of(self.call) if found is None else found.place()
        more = {**place, "suggestion": _nearest_choice(detail)}
        self._add("option", f"{self.call.name}: {what}", **more)

    def _report_missing(self, key: str) -> None:
        if self.lenient:
            return
        own = self.planning.parameters.is_own(key)
        ways = f'"{self.call.name}::{key}" = ...' if own else f"{key} = ..."
        self._add(
            "missing_option",
            f"{self.call.name} needs the option {key!r}",
            hint=f"Write {ways} in the node, or {self.call.name}({key}=...).",
        )


def _is_options(options: Any) -> bool:
    return isinstance(options, type) and issubclass(options, Options)


def _of_the_node(key: str) -> str | None:
    """Say where a key of a node stands, that was written as an option."""
    meant = KEYS_ELSEWHERE.get(key, key)
    return f"{meant!r} is a key of the node: {meant} = ..." if meant in NODE_KEYS else None


def _known(keys: Mapping[str, str]) -> str:
    return f"It has {', '.join(keys)}." if keys else "It has none."


def _nearest_choice(detail: ErrorDetails) -> str | None:
    """Give the choice most like a text that is none of those an option has, or None."""
    got, expected = detail["input"], detail.get("ctx", {}).get("expected")
    if detail["type"] not in ("literal_error", "enum") or not isinstance(got, str):
        return None
    return nearest(got, re.findall(r"'([^']*)'", str(expected)))


# Keys of nodes.


def check_keys(
    model: type[K],
    table: Mapping[str, Written],
    shared: Mapping[str, Written],
    name: str,
    problems: Problems,
) -> tuple[K, dict[str, str]]:
    """Read the keys of ``model`` from ``table``, else from ``shared``.

    Returns:
        The checked keys, with the default in place of a value that is wrong, so that the rest can
        be checked with them; and per key where its value came from.
    """
    values: dict[str, Any] = {}
    places: dict[str, dict[str, Any]] = {}
    origins = dict.fromkeys(
        (field.alias or k for k, field in model.model_fields.items()), "default"
    )
    for key in origins:
        found = written_key(key, name, table, shared)
        if found is None:
            continue
        places[key], origins[key] = found.place(), found.origin
        if key in EXPRESSION_KEYS:
            if isinstance(found.written.value, str):  # else it is reported where it is parsed
                values[key] = found.written.value
            continue
        try:
            values[key] = found.value(problems)
        except ConfigError:
            continue
    while True:
        try:
            return model.model_validate(values), origins
        except ValidationError as error:
            wrong = _report_keys(error, places, name, problems)
            kept = {key: value for key, value in values.items() if key not in wrong}
            values = kept if len(kept) < len(values) else {}


def _report_keys(
    error: ValidationError, places: dict[str, dict[str, Any]], name: str, problems: Problems
) -> set[str]:
    """Report what is wrong with keys of a node; give the keys."""
    wrong: set[str] = set()
    for detail in error.errors():
        message = detail["msg"].removeprefix("Value error, ")
        if not detail["loc"]:
            among = [key for key in places if f"{key} = " in message or key == "batch_sizes"]
            wrong.update(among)
            problems.add("key", message, **places[among[-1]] if among else {"path": name})
            continue
        key = str(detail["loc"][0])
        if key not in wrong:  # one is enough of the alternatives of a type
            what = f"{key}: {message}, got {shown_value(detail['input'])}"
            problems.add("key", what, suggestion=_nearest_choice(detail), **places[key])
        wrong.add(key)
    return wrong
