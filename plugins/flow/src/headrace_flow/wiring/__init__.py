"""Configurations that wire themselves, translated into the keys of Headrace before anything is planned.

They say by ``init``, ``node_entrypoint`` and ``entrypoint`` how instances are made, which of them have a queue, and what
stands before all nodes. Here a node is its instances behind a queue, and requests enter at the first nodes.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace_flow.wiring.front import translate_front
from headrace_flow.wiring.nodes import translate_node
from headrace_flow.wiring.trees import Configuration, in_words_of_core, is_wired

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.errors import Problem
    from headrace_flow.wiring.trees import Tables

__all__ = ["translate"]

_NAMES_A_KEY = re.compile(r"\b(?:Reflect|ProxyFromParam)\s*\[\s*([A-Za-z_][A-Za-z0-9_]*)")


def translate(tables: Tables, parse: Callable[[str, str], Any]) -> Tables:
    """Translate the tables of a configuration; see `headrace.hookspecs`.

    Raises:
        ConfigError: No table can say what some expressions say. ``problems`` names each of them.
    """
    config = Configuration(tables, parse)
    steps = [partial(translate_node, config, name) for name in config.nodes]
    steps += [partial(_translate_parameters, config, name) for name in (*config.nodes, "global")]
    problems: list[Problem] = []
    for step in (*steps, partial(_translate_front, config)):
        try:
            step()
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    shared = tables["global"]
    for key in ("backend", "init", "node_entrypoint"):  # each node has its own by now
        if key == "node_entrypoint" or is_wired(shared.get(key)):
            shared.pop(key, None)
    return tables


def _translate_front(config: Configuration) -> None:
    single = next(iter(config.nodes)) if len(config.nodes) == 1 else "global"
    owner = single if "entrypoint" in config.tables[single] else "global"
    if (front := config.parse(owner, "entrypoint")) is not None:
        del config.tables[owner]["entrypoint"]
        translate_front(config, front)


def _translate_parameters(config: Configuration, name: str) -> None:
    """Translate the expressions that stand under a key which ``Reflect[key]`` names."""
    texts = [
        text for table in config.tables.values() for text in table.values() if isinstance(text, str)
    ]
    for key in {key for text in texts for key in _NAMES_A_KEY.findall(text)} - {"backend"}:
        if is_wired(config.tables[name].get(key)):
            tree = config.parse(name, key)
            config.tables[name][key] = in_words_of_core(config, name, tree)
