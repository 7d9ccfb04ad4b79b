"""A node that says by ``init`` or ``node_entrypoint`` how its instances are made and called."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from headrace_flow.wiring.trees import (
    ONLY_WIRING,
    WAITING,
    Configuration,
    changed,
    first,
    in_words_of_core,
    is_wired,
    made,
    name_inside,
    refused,
    walk,
)

LINKS = ("next", "map", "or", "each", "each_errors", "timeout_ms", "queue_size", "queue_full")
"""The keys that stay with a node whose instances get a node of their own."""


class Queue(NamedTuple):
    """The queue of the node, before the instances of an expression; ``one``: before a single instance."""

    backend: Any
    one: bool = False


class Wiring:
    """Reads ``init`` and ``node_entrypoint`` of one node.

    Attributes:
        instances: The expression of an instance, once ``InstancesRegister`` has said it.
        called: What is called for the node, a `Queue` or an expression, once ``Register`` has said it.
        built: What is built for the node and never called.
    """

    def __init__(self, config: Configuration, node: str) -> None:
        self._config, self._node = config, node
        self.instances: Any = None
        self.called: Any = None
        self.built: list[Any] = []
        self._scope: dict[str, Any] = {}

    def read(self, call: Any) -> Any:
        """Return what an expression means: a `Queue`, an expression, or None for what only builds others."""
        if not call.phases and call.part in self._scope:
            return self._scope[call.part]
        own = {"InstancesRegister": self._instances, "Register": self._register, "List": self._list}
        words = {**own, "IoC": self._ioc, "Batching": self._batching}
        if call.name in words:
            return words[call.name](call)
        if call.name == "InstanceDispatcher":
            return None
        if call.name in ("DI", "Aspect", "Block") and first(call, ONLY_WIRING) is not None:
            *outer, nested = call.children
            for part in reversed(outer):
                nested = part.replace(phases=((nested,),))
            return self.read(nested)
        if call.name in ("Forward", "Proxy"):
            return self._named(call, name_inside(call))
        return self.expression(call)

    def expression(self, tree: Any) -> Any:
        """Return what an instance computes, with the key ``backend`` in place of ``Reflect[backend]``."""

        def with_backend(part: Any) -> Any:
            if part.name not in ("Reflect", "ProxyFromParam", "BackendProxy"):
                return part
            if part.children and part.children[0].part != "backend":
                return part
            if (backend := self._config.parse(self._node, "backend")) is None:
                text = f"node {self._node!r} needs the key 'backend'"
                raise refused(part, text, 'Write backend = "..." in the node.')
            return backend.replace(prefix=part.prefix)

        return in_words_of_core(self._config, self._node, changed(tree, with_backend))

    def _instances(self, call: Any) -> None:
        self.instances = self.expression(_child(call))

    def _register(self, call: Any) -> Any:
        own = f"node.{self._node}"
        name = str(call.args.values[0]) if len(call.args) else own
        if name != own:
            text = f"Register({name}) names an instance for all nodes, and here only nodes have such names"
            hint = f"Write it as the backend of a node of its own, and call it by Forward[node.{name}]."
            raise refused(call, text, hint)
        self.called = self.read(_child(call))
        return self.called

    def _list(self, call: Any) -> None:
        for child in call.children:
            self.build(child)

    def build(self, child: Any) -> Any:
        """Read what is built before the node is called, and keep what core has to build."""
        part = self.read(child)
        if part is not None and part is not self.called and not isinstance(part, Queue):
            self.built.append(part)
        return part

    def _ioc(self, call: Any) -> Any:
        if len(call.phases) != 2 or len(call.phases[1]) != 1:
            raise refused(call, "IoC takes two phases", "Write IoC[A,B;front].")
        count, (front,), names = len(self.built), call.phases[1], {}
        for child in call.phases[0]:
            tree = self.build(child)
            if tree is None or isinstance(tree, Queue):
                self._scope[child.part] = tree
            else:
                names[child.part] = tree.part
        tree = self.read(front)
        own = self.built[count:]
        if isinstance(tree, Queue):
            named = (e for e in walk(tree.backend) if not e.phases and not len(e.args))
            shared = next((e for e in named if e.part in names), None)
            if shared is not None:
                text = f"{shared.part} is one instance for all instances of node {self._node!r}"
                hint = f"Write IoC[{shared.part};...] in backend: each instance has its own."
                raise refused(shared, text, hint)
            return tree
        if tree is None or not own:
            return tree
        del self.built[count:]
        if len(own) == 1 and not front.phases and front.part in names:
            return own[0]
        return made(call, "IoC", tuple(own), (changed(tree, partial(_renamed, names)),))

    def _batching(self, call: Any) -> Queue | None:
        if not call.phases:
            return None  # a name, which DI puts before what it depends on
        child = _child(call)
        if child.name != "InstanceDispatcher":
            own = child.name == f"{self._node}.0" and self.instances is not None
            return Queue(self.instances if own else self.expression(child), one=True)
        if self.instances is None:
            text = "InstanceDispatcher finds no instances"
            raise refused(child, text, "Write InstancesRegister[...] before it.")
        return Queue(self.instances)

    def _named(self, call: Any, name: str) -> Any:
        if name == f"node.{self._node}":
            if self.called is None:
                text = f"nothing is registered as {name!r}"
                hint = "Write Register[DI[Batching,InstanceDispatcher]] before it."
                raise refused(call, text, hint)
            return self.called
        if name == f"{self._node}.0" and self.instances is not None:
            return self.instances
        return self._scope.get(name) or self.expression(call)


def translate_node(config: Configuration, node: str) -> None:
    """Translate what the expressions of a node say into its keys, and perhaps into those of one more node.

    Raises:
        ConfigError: No table can say it.
    """
    table, wiring = config.tables[node], Wiring(config, node)
    init, whole = config.parse(node, "init"), config.parse(node, "node_entrypoint")
    if whole is None and (init is None or first(init, ONLY_WIRING) is None):
        _translate_expressions(config, node, "backend", "init")
        return
    if init is not None:
        wiring.build(init)
    table.pop("node_entrypoint", None)
    tree = wiring.called if whole is None else wiring.read(whole)
    tree = wiring.called if tree is None else tree
    if tree is None and (whole is not None or wiring.instances is not None):
        text = f"nothing in it is called for node {node!r}"
        raise refused(whole or init, text, "Write Register[DI[Batching,InstanceDispatcher]] in it.")
    _set_init(table, init, wiring.built)
    if tree is None:
        _translate_expressions(config, node, "backend")
    elif isinstance(tree, Queue):
        table["backend"] = tree.backend
        if tree.one:
            _set_instances(config, node, 1)
    elif isinstance(wiring.called, Queue) and _calls(tree, node):
        _split(config, node, tree, wiring.called)
    else:
        table["backend"] = tree
        _set_instances(config, node, WAITING if _calls(tree) else 1)


def _translate_expressions(config: Configuration, node: str, *keys: str) -> None:
    for key in keys:
        if is_wired(config.value(node, key)):
            config.tables[node][key] = in_words_of_core(config, node, config.parse(node, key))


def _renamed(names: dict[str, str], call: Any) -> Any:
    return call.replace(name=names[call.part]) if not call.phases and call.part in names else call


def _set_init(table: dict[str, Any], init: Any, built: list[Any]) -> None:
    table.pop("init", None)
    for place, e in enumerate(built):
        if e.part in {other.part for other in built[:place]}:
            text = f"{e.part} is built twice for one node, and its init takes each name once"
            raise refused(e, text, f"Write this {e.part} in the init of another node.")
    if len(built) == 1:
        table["init"] = built[0]
    elif built:
        at = init or built[0]
        table["init"] = made(at, "IoC", tuple(built), (made(at, "Identity"),))


def _set_instances(config: Configuration, node: str, number: int) -> None:
    if config.value(node, "instance_num") not in (None, number) or number > 1:
        config.tables[node]["instance_num"] = number


def _calls(tree: Any, node: str | None = None) -> bool:
    """Tell whether an expression calls a node, or this one."""
    names = (call.name for call in walk(tree) if call.part != "Forward")
    return any(name == f"node.{node}" if node else name.startswith("node.") for name in names)


def _split(config: Configuration, node: str, front: Any, queue: Queue) -> None:
    """Put the instances of a node into one of their own, which the node calls."""
    own, table = f"{node}_instances", config.tables[node]
    inner = {key: value for key, value in table.items() if key not in LINKS}
    config.tables[own] = {
        **inner,
        "backend": queue.backend,
        **({"instance_num": 1} if queue.one else {}),
    }
    for key in inner:
        del table[key]
    renamed = changed(
        front, lambda e: e.replace(name=f"node.{own}") if e.name == f"node.{node}" else e
    )
    table.update(backend=renamed, instance_num=WAITING)


def _child(call: Any) -> Any:
    if len(call.children) != 1:
        raise refused(call, f"{call.part} takes one element in [ ]", f"Write {call.part}[X].")
    return call.children[0]
