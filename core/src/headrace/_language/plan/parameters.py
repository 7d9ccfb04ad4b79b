"""Option values.

Where they are written, which one wins (stated here alone), and which keys no backend has.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from headrace._language.config.problems import Problems, format_value, key_place
from headrace._language.config.sections import (
    EXPRESSION_KEYS,
    GLOBAL_KEYS,
    KEYS_ELSEWHERE,
    LINK_KEYS,
    NODE_KEYS,
    NODE_ONLY,
    TOP_KEYS,
    NodeKeys,
    Sections,
)
from headrace._language.contract.options import (
    Options,
    TextWithBase,
    keys_of,
    map_leaves,
    value_problems,
)
from headrace._language.expression.parser import read_expression
from headrace._language.expression.templates import substitute_text
from headrace._language.expression.tree import Call
from headrace._language.plan.element import Source, place_of
from headrace._language.registry.discovery import KNOWN_ELSEWHERE, REPLACED
from headrace._language.registry.registry import registry
from headrace._texts import nearest
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydantic_core import ErrorDetails

    from headrace._language.config.document import Written
    from headrace._language.plan.nodes import NamedPlan


K = TypeVar("K", bound=Options)

CUTTING_KEYS = ("batching_timeout", "batch_sizes", "pad")
"""The keys of a node by which its batches are formed."""

OWN_KEYS = frozenset((*NODE_KEYS, *LINK_KEYS, *GLOBAL_KEYS))
"""Keys that configure nodes and the pipeline, and are never options."""


@dataclass(frozen=True)
class Found:
    """A value that is written for an option, or for a key of the node itself.

    Attributes:
        origin: Where it is written: ``inline``, ``node`` or ``global``.
        value: The value, as written.
        source: The text that is the value, or in which it is an argument.
        key: The key under which it is written, or the key or place of the argument.
        call: The element whose argument it is, None for the value of a key.
    """

    origin: str
    value: Any
    source: Source
    key: int | str
    call: Call | None = None

    def place(self, *, at_key: bool = False) -> dict[str, Any]:
        """Return the place of the value, for a problem."""
        if self.call is not None:
            return place_of(self.call, self.key)
        source = self.source
        return key_place(source.file, source.path, str(self.key), self.value, at_key=at_key)

    def read(self, problems: Problems) -> Any:
        """Give the value with its placeholders replaced, and report those that are wrong.

        Raises:
            ConfigError: Placeholders are wrong or have no value, which has been reported.
        """
        if self.call is not None:
            return self.value  # the placeholders of an expression are replaced already
        try:
            return map_leaves(self.value, partial(_replace, problems.environ))
        except ConfigError as error:
            problems.add_all(error.problems, file=self.source.file, path=self.source.path)
            raise


def _replace(environ: Mapping[str, str], value: Any) -> Any:
    """Replace ``${NAME}`` in a text of the configuration. Give any other value unchanged.

    Raises:
        ConfigError: Placeholders are wrong or have no value.
    """
    if not isinstance(value, str):
        return value
    text = substitute_text(value, environ)
    return TextWithBase(text, value.base) if isinstance(value, TextWithBase) else text


def argument(call: Call, which: int | str, value: Any) -> Found:
    """Make the `Found` of an argument of ``call``."""
    return Found("inline", value, call.source, which, call)


def key_of(owner: str, key: str, written: Written, origin: str) -> Found:
    """Make the `Found` of a key of a table."""
    path = written.path or f"{owner}.{key}"
    return Found(origin, written.value, Source(path, written.file, written.base), key)


def read_expression_of(
    value: Any, source: Source, node: str | None, problems: Problems
) -> Call | None:
    """Parse the value of a key and replace its placeholders.

    None when it is wrong, which is reported.

    A plugin may have put the tree of another key there: it is given as it is.
    """
    if isinstance(value, Call):
        return value
    file, path = source.file, source.path
    if not isinstance(value, str):
        key = path.rpartition(".")[2]
        place = key_place(file, path, key, value)
        hint = None
        if isinstance(value, list):
            hint = f'Backends in a row are "S[{",".join(map(str, value))}]".'
        elif callable(value):
            hint = 'Name it by headrace.register("Name", it), and write "Name".'
        problems.add("type", f"{key} takes an expression, written as a text", hint=hint, **place)
        return None
    try:
        return read_expression(value, node_name=node, environ=problems.environ, source=source)
    except ConfigError as error:
        problems.add_all(error.problems, file=file, path=path)
        return None


def value_written(key: str, node: str, shape: Sections) -> Found | None:
    """Return the value under a key in the table of a node, else in ``[global]``.

    A key that is None in the node counts as missing, also where ``[global]`` has it.
    """
    owner, table, origin = node, shape.nodes.get(node, {}), "node"
    if key not in table and key not in NODE_ONLY:
        owner, table, origin = "global", shape.globals, "global"
    written = table.get(key)
    return None if written is None or written.value is None else key_of(owner, key, written, origin)


def place_at(key: str, node: str, shape: Sections, *, at_key: bool = False) -> dict[str, Any]:
    """Return the place of a key of a node, or of its value.

    Where it is not written, the place of the node.
    """
    written = value_written(key, node, shape)
    of_node = {"file": shape.file_of(node), "path": node}
    return of_node if written is None else written.place(at_key=at_key)


@dataclass(eq=False)
class Parameters:
    """The plain keys of one node and of ``[global]``, and which of them some backend has.

    Args:
        node: Name of the node. ``global`` for the probes of the pipeline.
        shape: The configuration.
        keys: The keys of the node itself, checked.
        origins: Where each of those keys comes from.

    Attributes:
        keys_read: The keys that would have set an option of some element.
        met: By path of a key, the key and why each element with that option does not use its value.
            None for one that does.
        texts: How many expressions of the node have been read.
        unresolved: How many texts and names of the node could not be understood. A key that no
            known backend has may belong to one of these, so it is reported only where it looks like
            a misspelt key of a node.
        excused: How many brackets of the node lack what cannot be had here: any key may be an
            option of that.
    """

    node: str
    shape: Sections
    keys: NodeKeys = field(default_factory=NodeKeys)
    origins: dict[str, str] = field(default_factory=dict)
    keys_read: set[str] = field(default_factory=set)
    met: dict[str, tuple[Found, list[str | None]]] = field(default_factory=dict)
    unresolved: int = 0
    texts: int = 0
    excused: int = 0

    def key(self, key: str) -> Found | None:
        """Return a key of the node itself; see `value_written`."""
        return value_written(key, self.node, self.shape)

    def take_keys_of(self, policy: NamedPlan, problems: Problems) -> None:
        """Take over the keys of the node that its batch policy has: its args, or ``Name::key``.

        The range of the node, and what its elements are told, depend on them as well.
        """
        values: dict[str, Any] = {}
        for key in CUTTING_KEYS:
            value, origin = getattr(policy.options, key, None), policy.origins.get(key)
            written = self.origins[key], getattr(self.keys, key)
            if origin is not None and (origin, value) != written:
                values[key] = value
        if not values:
            return
        try:
            self.keys = NodeKeys.model_validate(self.keys.model_dump(exclude_unset=True) | values)
        except ValidationError as error:
            place = place_at("batch_policy", self.node, self.shape)
            _report_keys(error, NodeKeys, dict.fromkeys(values, lambda: place), "", problems)
        else:
            self.origins.update({key: policy.origins[key] for key in values})

    def find(self, names: Sequence[str], key: str, inline: Found | None = None) -> Found | None:
        """Return the value of an option of an element.

        This is the rule which of several values wins.

        The first of these that is written wins. None leaves the option its default:

        1. args of the element.
        2. ``Name::key`` of the node, then its ``key``.
        3. ``Name::key`` of ``[global]``, then its ``key``.

        All keys that set the option count as known from now on.

        Args:
            names: The names of the element that may stand before ``::``, without any, keys set
                nothing.
            key: The key of the option.
            inline: The option among the args of the element itself.
        """
        keys = self._keys(names, key)
        ranked = [*([inline] if inline is not None else []), *keys]
        if not ranked:
            return None
        for found_key in keys:
            why = None if found_key is ranked[0] else f"{names[0]} has a value from a nearer place"
            self.met.setdefault(found_key.source.path, (found_key, []))[1].append(why)
        return ranked[0]

    def _keys(self, names: Sequence[str], key: str) -> list[Found]:
        """Return the keys of the node, then those of ``[global]``, that set an option."""
        plain = [key] if names and key not in OWN_KEYS else []
        table, shared = self.shape.nodes.get(self.node, {}), self.shape.globals
        of_node, of_all = [], []
        for name_of_key in [f"{name}::{key}" for name in names] + plain:
            self.keys_read.add(name_of_key)
            if name_of_key in table:
                of_node.append(key_of(self.node, name_of_key, table[name_of_key], "node"))
            if name_of_key in shared and name_of_key not in NODE_ONLY:
                of_all.append(key_of("global", name_of_key, shared[name_of_key], "global"))
        return of_node + of_all

    def unused_keys(self) -> list[str]:
        """Return the keys of the node that set no option, as far as planning has come."""
        table = self.shape.nodes.get(self.node, {})
        others = (key_of(self.node, key, table[key], "") for key in table if key not in OWN_KEYS)
        return [str(written.key) for written in others if written.source.path not in self.met]


def report_keys(nodes: Sequence[Parameters], shape: Sections, problems: Problems) -> Problems:
    """Report keys that belong elsewhere, and keys that no backend has.

    Give warnings about overruled keys.
    """
    for node in nodes:
        _report_unknown(node.node, shape.nodes.get(node.node, {}), [node], problems)
    if shape.nodes:
        _report_unknown("global", shape.globals, nodes, problems)
    warnings = Problems(problems.environ)
    if not any(node.excused for node in nodes):  # a backend that is not here may use the key
        _report_overruled(nodes, warnings)
    return warnings


def _report_overruled(nodes: Sequence[Parameters], warnings: Problems) -> None:
    """Report the keys whose value no backend has.

    All that know the option find a value that wins.
    """
    met: dict[str, tuple[Found, list[str | None]]] = {}
    for path, (written, whys) in (item for node in nodes for item in node.met.items()):
        met.setdefault(path, (written, []))[1].extend(whys)
    for written, whys in met.values():
        if None not in whys:
            why = " and ".join(filter(None, dict.fromkeys(whys)))
            message = f"nothing uses {written.key!r}: {why}"
            hint = 'Nearest is ( ) in the expression, then "Name::key", then key, then [global].'
            warnings.add("unused_option", message, hint=hint, **written.place(at_key=True))


def _report_unknown(
    owner: str, table: Mapping[str, Written], nodes: Sequence[Parameters], problems: Problems
) -> None:
    """Report the keys of a node, or of ``[global]``, that belong elsewhere or to no backend."""
    nobody = f"no backend in node {owner!r}"
    elsewhere: dict[str, Any] = {"code": "global_key", "hint": "Move it to [global]."}
    others, belongs = GLOBAL_KEYS, "belongs to the pipeline, not to a node"
    if owner == "global":
        nobody, elsewhere = "no node", {"code": "node_key"}
        others, belongs = NODE_ONLY, "belongs to a node, not to [global]"
    used = {path for node in nodes for path in node.met}
    known_here = OWN_KEYS.difference(others)
    others_of = (key_of(owner, key, table[key], owner) for key in table if key not in known_here)
    strange = [written for written in others_of if written.source.path not in used]
    if not strange:
        return
    known = OWN_KEYS.union(*(node.keys_read for node in nodes))
    excused = any(node.excused for node in nodes)
    incomplete = any(node.unresolved for node in nodes)
    for written in strange:
        key, place = str(written.key), written.place(at_key=True)
        if key in others:
            problems.add(message=f"{key!r} {belongs}", **elsewhere, **place)
        elif key in TOP_KEYS:
            message = f"{key!r} belongs to the top of the configuration"
            problems.add("top_key", message, hint="Move it above all tables.", **place)
        elif not excused:
            _report_nobody_has(written, nobody, known, problems, incomplete=incomplete)


def _report_nobody_has(
    written: Found, nobody: str, known: Iterable[str], problems: Problems, *, incomplete: bool
) -> None:
    """Report a key that no backend has, unless it may be an option of one that is not known."""
    key, place = str(written.key), written.place(at_key=True)
    missing = registry.unknown(key, ()) if key in KNOWN_ELSEWHERE else None
    if missing is not None and missing.code != "unknown_backend":
        problems.add_all([replace(missing, **place)])
        return
    with suppress(ConfigError):
        written.read(problems)
    suggestion = _meant(written, known, problems, incomplete)
    if suggestion is None and incomplete:
        return
    message, hint = f"{nobody} has an option {key!r}", None
    options = sorted(option for option in known if option not in OWN_KEYS and "::" not in option)
    if isinstance(written.value, dict):
        hint = "A table is a node only at the top level, with no backend beside it."
    elif key in REPLACED:
        suggestion, hint = None, REPLACED[key]
    elif suggestion is None and options:
        hint = f"There are: {', '.join(options)}."
    problems.add("unknown_key", message, suggestion=suggestion, hint=hint, **place)


def _meant(
    written: Found, known: Iterable[str], problems: Problems, incomplete: bool
) -> str | None:
    """Return the known key that was probably meant by a key that no backend has, or None.

    For ``Name::max`` that is ``max``, since node keys have no scope, and for ``batch_size`` as
    well. Where the key may be an option of a backend that is not known, only a nearly equal key of
    nodes is given.
    """
    key = str(written.key)
    part = key.rpartition("::")[2]
    table = nearest(key, ["global"]) if isinstance(written.value, dict) else None
    if table is not None and written.origin != "global":
        return table
    if part in NODE_KEYS:
        return part
    if incomplete:
        suggestion = problems.nearest(key, (*NODE_KEYS, *GLOBAL_KEYS))
        return suggestion and KEYS_ELSEWHERE.get(part, suggestion)
    others = NODE_KEYS if isinstance(written.value, dict) else ()  # whose values are no tables
    possible = {*known, "extends", "import"}.difference(others)
    return KEYS_ELSEWHERE.get(part) or problems.nearest(key, possible)


# The keys of nodes themselves.


def check_keys(
    model: type[K], name: str, shape: Sections, problems: Problems
) -> tuple[K, dict[str, str]]:
    """Read the keys of ``model`` from the table of a node, else from ``[global]``.

    Returns:
        The checked keys, with the default in place of a wrong value, so that planning can go on,
        and the
        origin of each key.
    """
    values: dict[str, Any] = {}
    places: dict[str, Callable[[], dict[str, Any]]] = {}
    origins = dict.fromkeys(keys_of(model), "default")
    names = shape.nodes.get(name, {}).keys() | shape.globals.keys()
    for key in origins:
        if key not in names or (written := value_written(key, name, shape)) is None:
            continue
        places[key], origins[key] = written.place, written.origin
        if key not in EXPRESSION_KEYS:
            with suppress(ConfigError):
                values[key] = written.read(problems)
        elif isinstance(written.value, (str, Call)):  # the parser reports any other type
            values[key] = str(written.value)
    while True:
        try:
            return model.model_validate(values), origins
        except ValidationError as error:
            wrong_keys = _report_keys(error, model, places, name, problems)
            right_values = {key: value for key, value in values.items() if key not in wrong_keys}
            values = right_values if len(right_values) < len(values) else {}


def _report_keys(
    error: ValidationError,
    model: type[K],
    places: dict[str, Callable[[], dict[str, Any]]],
    name: str,
    problems: Problems,
) -> set[str]:
    """Report the wrong keys of a node, and give them."""
    wrong_keys: set[str] = set()
    for detail in value_problems(error, model):
        message = detail["msg"]
        if not detail["loc"]:
            among = [key for key in places if f"{key} = " in message or key == "batch_sizes"]
            wrong_keys.update(among)
            problems.add("key", message, **places[among[-1]]() if among else {"path": name})
            continue
        key = str(detail["loc"][0])
        if key not in wrong_keys:  # one report for all items of a list is enough
            text = f"{message}, got {format_value(detail['input'])}"
            problems.add("key", text, suggestion=nearest_choice(detail), **places[key]())
        wrong_keys.add(key)
    return wrong_keys


def nearest_choice(detail: ErrorDetails) -> str | None:
    """Return the choice of an option that is most like a text which is none of its choices.

    Or None.
    """
    got, expected = detail["input"], detail.get("ctx", {}).get("expected")
    if detail["type"] not in ("literal_error", "enum") or not isinstance(got, str):
        return None
    return nearest(got, re.findall(r"'([^']*)'", str(expected)))
