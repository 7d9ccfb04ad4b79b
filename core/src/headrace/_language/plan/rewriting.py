"""What plugins translate into the keys of core before anything is planned."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace._language.config.document import Written
from headrace._language.expression.tree import Call
from headrace._language.plan.parameters import key_of, read_expression_of
from headrace._language.registry.discovery import load
from headrace._language.registry.registry import registry
from headrace._run.steps.tracebacks import without_locals
from headrace._texts import error_text
from headrace.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace._language.config.problems import Problems
    from headrace._language.config.sections import Sections
    from headrace._language.registry.registry import Files, Offer

GLOBAL = "global"


def rewrite(shape: Sections, files: Files, problems: Problems) -> Sections:
    """Let plugins translate their keys and words in a configuration, each function once.

    A word that others have registered as a backend is that backend: rewriters see it with its
    qualifier.

    Raises:
        ConfigError: Something has no translation, or two plugins translate the same name.
        PluginError: A function of a plugin failed.
    """
    offers = registry.offers("rewriters")
    here = _offers_here(shape, offers)
    words = [offer for offer in here if offer.name[0].isupper()]
    means = [(word, offer) for word in words for offer in registry.find(word.name, files)]
    others = {offer.name: offer for word, offer in means if offer.distribution != word.distribution}
    for offer in {offer.path: offer for offer in here if offer.name not in others}.values():
        alike = (other for other in offers if other.name == offer.name and other != offer)
        other = next(alike, None)
        if other is not None:
            message = (
                f"{offer.name!r} is translated by {offer.distribution} and {other.distribution}"
            )
            problems.add("plugin", message, hint="Disable one of them with HEADRACE_PLUGINS.")
            problems.raise_if_any()
        shape = _Rewriting(shape, others, problems).run(offer)
    return shape


def _offers_here(shape: Sections, offers: Iterable[Offer]) -> list[Offer]:
    """Return the offers whose name is a key here, or stands in a text, as words do."""
    by_name = {offer.name: offer for offer in offers}
    names = re.escape("\n".join(by_name)).replace("\\\n", "|")  # each of them, by one call
    word = re.compile(rf"\b(?:{names})\b")
    tables = (*shape.nodes.values(), shape.globals)
    values = [written.value for table in tables for written in table.values()]
    texts = "\n".join(value for value in values if isinstance(value, str))
    here = {*word.findall(texts)}.union(*tables)
    return [offer for name, offer in by_name.items() if name in here]


def _with_qualifiers(call: Call, others: Mapping[str, Offer]) -> Call:
    """Return a tree in which what others have registered bears its qualifier."""
    name = f"{others[call.name].plugin}:{call.name}" if call.name in others else call.name
    phases = tuple(tuple(_with_qualifiers(c, others) for c in phase) for phase in call.phases)
    return call.replace(name=name, phases=phases)


class _Rewriting:
    """One translation: the tables that a function gets, and the configuration that it gives."""

    def __init__(self, shape: Sections, others: Mapping[str, Offer], problems: Problems) -> None:
        self._shape, self._others, self._problems = shape, others, problems
        self._tables = {**shape.nodes, GLOBAL: shape.globals}

    def run(self, offer: Offer) -> Sections:
        """Call the function of a plugin."""
        function: Any = load(offer.path or "", offer.distribution)
        named = self._tables.items()
        plain = {name: {k: written.value for k, written in table.items()} for name, table in named}
        try:
            tables = function(plain, self._parse)
        except ConfigError as error:
            self._problems.add_all(error.problems)
            self._problems.raise_if_any()
            raise
        except Exception as error:  # noqa: BLE001 - of a plugin, which may raise anything
            message = (
                f"{offer.distribution} could not translate {offer.name!r}: {error_text(error)}"
            )
            raise PluginError(message, hint="Report it to its author.") from without_locals(error)
        nodes = {
            name: {key: self._with_place(name, key, value) for key, value in table.items()}
            for name, table in tables.items()
        }
        return replace(self._shape, globals=nodes.pop(GLOBAL, {}), nodes=nodes)

    def _parse(self, table: str, key: str) -> Call | None:
        """Return the tree of an expression; see `headrace.hookspecs`."""
        owner = table if key in self._tables.get(table, {}) else GLOBAL
        written = self._tables[owner].get(key)
        if written is None or written.value is None:
            return None
        there = key_of(owner, key, written, "node")
        node = None if table == GLOBAL else table
        before = len(self._problems)
        call = read_expression_of(there.value, there.source, node, self._problems)
        if call is None:
            raise ConfigError(list(self._problems)[before:])
        return _with_qualifiers(call, self._others)

    def _with_place(self, name: str, key: str, value: Any) -> Written:
        """Give a value the place where it was written, if it was."""
        for owner in (name, *self._tables):
            written = self._tables.get(owner, {}).get(key)
            if written is not None and written.value is value:
                path = written.path or f"{owner}.{key}"
                return written if owner == name else replace(written, path=path)
        if isinstance(value, Call) and value.source is not None:
            return Written(value, value.source.base, value.source.file, value.source.path)
        return Written(value, Path(), self._shape.file)
