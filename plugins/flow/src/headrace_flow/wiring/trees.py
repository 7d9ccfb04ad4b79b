"""Reading and making the trees of expressions, and refusing what no table can say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import headrace
from headrace.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

Tables = dict[str, dict[str, Any]]
"""The keys of each node by its name, those of ``[global]`` as ``global``."""

WAITING = 32
"""``instance_num`` of a node that waits for the nodes it calls: so many of its requests wait at a time."""

ONLY_WIRING = frozenset(
    {"Register", "InstancesRegister", "List", "Batching", "InstanceDispatcher", "DagDispatcher"}
)
"""The words that stand in ``init``, ``node_entrypoint`` and ``entrypoint`` alone."""

_NEW_NAMES = {"ProxyFromParam": "Reflect"}
_IN_EACH_OTHER = ("DI", "Aspect", "Block", "With")
WORDS = ONLY_WIRING | {
    *_NEW_NAMES,
    *_IN_EACH_OTHER,
    "Proxy",
    "BackendProxy",
    "InstanceFromParam",
    "Repost",
}

NONE = headrace.parse("S").args
"""The arguments of a name without any."""


class Configuration(NamedTuple):
    """What is translated: the tables, and the function that parses the expression under one of their keys."""

    tables: Tables
    parse: Callable[[str, str], Any]

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        """The tables of the nodes."""
        return {k: table for k, table in self.tables.items() if k != "global"}

    def value(self, node: str, key: str) -> Any:
        """Return the value of a key of a node, or of ``[global]``; None where it has none."""
        table = self.tables[node]
        return table[key] if key in table else self.tables["global"].get(key)


def refused(at: Any, message: str, hint: str) -> ConfigError:
    """Return the error of a part of an expression that no table can say."""
    place = {"file": at.source.file, "path": at.source.path, "text": at.text, "span": at.name_span}
    return ConfigError([Problem("wiring", message, hint=hint, **place)])


def made(at: Any, name: str, *phases: tuple[Any, ...]) -> Any:
    """Return a new element whose errors are shown at a part of what was written."""
    return at.replace(name=name, args=NONE, phases=phases, prefix=None)


def in_order(at: Any, elements: tuple[Any, ...]) -> Any:
    """Return one element for several that run one after the other."""
    return (
        elements[0]
        if len(elements) == 1 and elements[0].prefix is None
        else made(at, "S", elements)
    )


def is_wired(value: Any) -> bool:
    """Tell whether the value of a key is a text that may have a word of wiring."""
    return isinstance(value, str) and any(word in value for word in WORDS)


def walk(tree: Any) -> Iterator[Any]:
    """Return an element and all below it."""
    todo = [tree]
    while todo:
        yield (call := todo.pop())
        todo += reversed(call.children)


def first(tree: Any, names: Collection[str]) -> Any:
    """Return the first element that has one of these names; None where there is none."""
    return next((call for call in walk(tree) if call.name in names), None)


def changed(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return a tree in which ``change(element)``, from the leaves on, has taken the place of each element."""
    phases = tuple(tuple(changed(child, change) for child in phase) for phase in tree.phases)
    return change(tree.replace(phases=phases) if tree.phases else tree)


def name_inside(call: Any) -> str:
    """Return the one name in the bracket of ``Proxy[name]`` or ``Repost[name]``.

    Raises:
        ConfigError: Something else stands there.
    """
    names = [str(c.name) for c in call.children if not (c.phases or len(c.args) or c.prefix)]
    if len(call.children) != 1 or not names:
        raise refused(call, f"{call.part} takes one name in [ ]", f"Write {call.part}[name].")
    return names[0]


def in_words_of_core(config: Configuration, node: str, tree: Any) -> Any:
    """Return an expression of a node, in which other names of words of core are replaced by those of core.

    Raises:
        ConfigError: A word of wiring stands in it.
    """
    if (word := first(tree, ONLY_WIRING)) is not None:
        text = f"{word.part} wires nodes, and stands here in what an instance computes"
        raise refused(word, text, _HINTS.get(word.part, _HINTS["Register"]))
    return changed(tree, lambda call: _in_words_of_core(config, node, call))


_HINTS = {
    "Register": "Give the instance a node of its own, and call it by Forward[node.x].",
    "Batching": "Leave it out: each node has a queue.",
    "InstanceDispatcher": "Leave it out: dispatch_policy chooses the instance.",
    "List": "Write S[...] to run several one after the other.",
    "DagDispatcher": "Link the nodes by next.",
}


def _in_words_of_core(config: Configuration, node: str, call: Any) -> Any:
    if call.name in _NEW_NAMES:
        return call.replace(name=_NEW_NAMES[call.name])
    if call.name in _IN_EACH_OTHER:
        return _in_each_other(call)
    if call.name == "BackendProxy":
        return made(call, "Reflect", (made(call, "backend"),))
    if call.name == "Proxy":
        name = name_inside(call)
        owner, _, number = name.rpartition(".")
        if owner in config.tables and number.isdigit():
            text = f"Proxy[{name}] calls one instance of node {owner!r} past its queue"
            raise refused(call, text, f"Write Forward[node.{owner}], which goes through the queue.")
        return call.replace(name="Forward")
    if call.name == "Repost" and call.phases:
        args = replace(call.args, named=(*call.args.named, ("node", name_inside(call))), spans=())
        return call.replace(args=args, phases=())
    if call.name == "InstanceFromParam":
        key = name_inside(call)
        if (named := config.parse(node, key)) is None:
            text = f"InstanceFromParam needs the parameter {key!r}"
            raise refused(
                call, text, f"Write {key} = ... in node {node!r}, with the name of an instance."
            )
        if named.phases or len(named.args):
            raise refused(
                named, f"{key!r} is to be the name of an instance", "Write the name alone."
            )
        table = config.tables[node]
        (table if key in table else config.tables["global"]).pop(key, None)
        return made(call, "Forward", (named,))
    return call


def _in_each_other(call: Any) -> Any:
    """Return ``a[b[c]]`` for ``DI[a,b,c]``: each element is the only child of the one before."""
    most = 2 if call.part == "With" else len(call.children)
    if (
        len(call.phases) != 1
        or len(call.children) < 2
        or len(call.children) != most
        or len(call.args)
    ):
        how = "W,X" if call.part == "With" else "a,b,c"
        raise refused(call, f"{call.part} takes elements in [ ]", f"Write {call.part}[{how}].")
    *outer, nested = call.children
    for word in reversed(outer):
        if word.phases:
            text = f"{word.part} is put around {nested.part}, and has a bracket of its own"
            raise refused(word, text, f"Write {nested.part} into its bracket.")
        nested = word.replace(phases=((nested,),))
    return nested.replace(prefix=call.prefix or nested.prefix)


def with_nodes(restart: Any, nodes: Collection[str]) -> Any:
    """Return the `Restart` that ends a node, from the one around ``DagDispatcher``."""
    named = (*restart.args.named, ("nodes", tuple(nodes)))
    return restart.replace(
        args=replace(restart.args, named=named, spans=()), phases=(), prefix=None
    )
