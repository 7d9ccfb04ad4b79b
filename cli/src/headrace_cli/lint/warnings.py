"""The warnings of ``check`` and ``explain``: what a configuration may say, but hardly means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import Problem, among, nearest
from headrace.keys import CONTEXT, DATA, REQUEST_ID, RESERVED, RESULT
from headrace_cli.lint.codes import CODES
from headrace_cli.lint.types import mismatches

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.plan import Element, NodePlan, Plan

_LONGEST_MS = 600_000
"""The longest timeout that is no slip: ten minutes."""

_Warning = tuple[str, str, str, str]
"""The code of a warning, the key that it is about, its message, and its hint."""


def warnings_about(
    config: headrace.PipelineConfig, built: Mapping[str, Any] | None = None
) -> list[Problem]:
    """Return the warnings about a configuration without problems, nodes in file order.

    Args:
        config: The configuration.
        built: The nodes that `headrace.Pipeline.describe` gave once it was built: models then say what they read.
    """
    plan = config.plan()
    warnings = dict.fromkeys(warning for warning in plan.warnings if not _is_allowed(warning, plan))
    fed = {to for node in plan.nodes.values() for to in node.links.next}
    elements = {name: _Elements(node) for name, node in plan.nodes.items()}
    for name, node in plan.nodes.items():
        if node.alias_of is None:
            pairs = [*_of_keys(name, node), *_of_own_thread(node, elements[name])]
            pairs += [*_of_cores(node, elements[name], plan), *_of_map(plan, elements, name)]
            pairs += _of_classes(node, elements[name])
            pairs += [
                *_of_units(node, fed=name in fed),
                *_of_types(elements[name], (built or {}).get(name)),
            ]
            pairs += _of_devices(node, elements[name])
            allowed = node.values["allow"].value
            for code, key, message, hint in pairs:
                if code not in allowed:
                    warnings[config.problem_at(name, key, code, message, hint or None)] = None
            for code in {*allowed} - {*CODES, *(pair[0] for pair in pairs)}:
                text = f"allow names {code!r}, and no warning has that code"
                if nearest(code, CODES):  # another one may be a plugin's
                    hint = among(code, CODES)
                    warnings[config.problem_at(name, "allow", "unused_allow", text, hint)] = None
    return list(warnings)


def _is_allowed(problem: Problem, plan: Plan) -> bool:
    """Return whether the node of a problem has its code in the key ``allow``."""
    node = plan.nodes.get((problem.path or "").partition(".")[0])
    return node is not None and problem.code in node.values["allow"].value


def explained(config: headrace.PipelineConfig) -> dict[str, Any]:
    """Return what `headrace.explain` gives, with all warnings."""
    return {
        **headrace.explain(config),
        "warnings": [w.to_dict() for w in warnings_about(config)],
    }


class _Elements:
    """The elements of a node.

    Attributes:
        tree: Those of an instance, or of the node where it registers none.
        every: Those of all its expressions.
    """

    def __init__(self, node: NodePlan) -> None:
        self.tree = node.tree.walk()
        self.every = [element for tree in node.trees for element in tree.walk()]

    def computing(self, *, threads: bool = True) -> list[Element]:
        """Return the elements of `tree` that do work of their own, in the order of writing.

        Args:
            threads: Whether elements inside ``BackgroundThread`` and ``Process`` are given as well.
        """
        inside: set[Element] = set()
        computing: list[Element] = []
        for part in self.tree:
            core = part.distribution == "headrace"
            threaded = core and part.backend == "BackgroundThread"
            if part in inside or (not threads and (threaded or part.cls.builds_elsewhere)):
                inside.update(part.children)
            elif part.instance is None and not part.children and not core:
                computing.append(part)
        return computing


def _of_keys(name: str, node: NodePlan) -> Iterator[_Warning]:
    """Warn of keys that ask for what the node does not do."""
    keys, least, instances = node.values, node.range[0], node.instance_num
    if least > 1 and not keys["batching_timeout"].value and not keys["pad"].value:
        text = (
            f"batches of this node have at least {least} requests, but nothing waits for them or "
            "fills them up: with fewer callers, requests fail"
        )
        hint = "Set batching_timeout (milliseconds) to wait for company, or pad = true."
        yield "min_without_wait", "min", text, hint
    limit, most = keys["max"], node.tree.range[1]
    if limit.origin == "node" and most is not None and limit.value > most:
        leaves = [e for e in node.tree.walk() if e.range[1] == most and not e.children]
        limits = leaves[0].name if leaves else node.tree.name
        text = f"max is {limit.value}, and {limits} takes at most {most}: no batch has more"
        yield "max_cut", "max", text, f"Set max = {most}, or leave it out."
    # The instances take them in turn.
    devices = keys["device"].value
    if isinstance(devices, list) and len(devices) > instances:
        few, unused = f"there are fewer instances ({instances})", ", ".join(devices[instances:])
        text = f"device lists {len(devices)} devices, and {few}: nothing runs on {unused}"
        hint = f"Set instance_num = {len(devices)}, or a multiple of it."
        yield "device_unused", "device", text, hint


def _of_units(node: NodePlan, *, fed: bool) -> Iterator[_Warning]:
    """Warn of times in another unit than milliseconds, and of a bound where no request enters (``fed``)."""
    wait_ms, timeout_ms = node.keys.batching_timeout, node.keys.timeout_ms
    if 0 < wait_ms < 0.05 or wait_ms > 60_000:  # a batch waits for a moment, not for minutes
        text = f"batching_timeout is in milliseconds: each batch may wait for {wait_ms:g} ms"
        meant = wait_ms * 1000 if wait_ms < 1 else wait_ms / 1000
        hint = f"Write {meant:g}, if that is meant in milliseconds."
        yield "batching_timeout_unit", "batching_timeout", text, hint
    if timeout_ms is not None and timeout_ms > _LONGEST_MS:
        text = (
            f"timeout_ms is in milliseconds: a request may take {timeout_ms / 60_000:.4g} minutes"
        )
        yield "timeout_unit", "timeout_ms", text, "Write 500 for half a second."
    if fed and node.values["queue_size"].origin == "node":
        text = "queue_size bounds the requests that enter here, and these come from another node"
        yield "queue_size_unused", "queue_size", text, "Set it where requests enter."


def _of_types(elements: _Elements, built: Mapping[str, Any] | None) -> Iterator[_Warning]:
    """Warn of a backend of an ``S`` that does not read what the one before it writes."""
    facts = [*_walk(built["tree"])] if built else []
    same = len(facts) == len(elements.tree)  # a container that builds elsewhere may tell of others
    by_part = dict(zip(elements.tree, facts, strict=True)) if same else {}
    for part in elements.tree:
        plain = (
            part.name == "S"
            and not part.prefix_texts
            and not any(c.children for c in part.children)
        )
        children = part.children if plain else ()
        for giver, gives, taker, reads in mismatches(
            children, [by_part.get(child, {}) for child in children]
        ):
            text = f"{taker} reads {reads}, and {giver} before it gives {gives}: requests fail"
            yield "types", "backend", text, "Change their order, or convert between them."


def _walk(tree: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what each backend of a built tree has said, parents first."""
    yield tree["built"]
    for child in tree["children"]:
        yield from _walk(child)


def _of_devices(node: NodePlan, elements: _Elements) -> Iterator[_Warning]:
    """Warn of a device that no backend of the node can use: all say that they compute on as many threads as there are."""
    device, computing = node.values["device"], elements.computing()
    value = device.value if isinstance(device.value, str) else "cpu"
    on_cpu = [element.name for element in computing if _ignores(value, element)]
    if not value.startswith("cpu") and computing and len(on_cpu) == len(computing):
        names = ", ".join(dict.fromkeys(on_cpu))
        text = f"{names}: this node computes on the CPU, whatever device says"
        yield "device_unused", "device", text, "Leave device out."


def _ignores(device: str, element: Element) -> bool:
    """Return whether a backend computes on the CPU, also where its node has this device."""
    try:
        options = element.options
        return options is not None and element.cls.auto_instances(options, device, 2) == 2
    except Exception:  # noqa: BLE001 - the author's code may raise anything
        return False


def _of_own_thread(node: NodePlan, elements: _Elements) -> Iterator[_Warning]:
    """Warn of work that stands in the thread of a backend which owns its thread."""
    before: list[str] = []
    for element in elements.computing(threads=False) if node.owns_thread else ():
        if element.owns_thread and before:
            names, owner = ", ".join(dict.fromkeys(before)), element.name
            text = (
                f"{names} before {owner}, which owns its thread, is run by that thread too: on at "
                f"most {node.instance_num} of the requests at a time, however many cores there are"
            )
            hint = "Put it into a node of its own before this one, with next and more instances."
            yield "work_before_own_thread", "backend", text, hint
            return
        # An element with a file runs a model, and belongs in this node.
        file = any(isinstance(value, Path) for _, value in element.options or ())
        if not element.owns_thread and not file:
            before.append(element.name)


def _of_cores(node: NodePlan, elements: _Elements, plan: Plan) -> Iterator[_Warning]:
    """Warn of idle cores: one thread at a time runs an instance."""
    computing, device = elements.computing(), node.values["device"].value
    could_use_them = computing and not any(element.owns_thread for element in computing)
    instances = sum(n.instance_num for n in plan.nodes.values() if n.alias_of is None)
    one_alone = node.instance_num == 1 and node.auto is None and device in (None, "cpu")
    one_alone = one_alone and not any(map(_allows_one, elements.tree))
    if could_use_them and one_alone and plan.threads > instances:
        names = ", ".join(dict.fromkeys(element.name for element in computing))
        alone = f"instance_num is 1, so one batch at a time goes through {names}"
        text = f"{alone}, and {plan.threads} cores can be used here"
        number = f'instance_num = "auto", or up to {plan.threads}'
        hint = f"Set {number}, if requests come from several threads."
        yield "idle_cores", "instance_num", text, hint


def _allows_one(element: Element) -> bool:
    """Tell whether a node with an element has one instance at most, or is to have no more."""
    most = None
    if element.instance is None and element.options is not None:
        most = element.cls.most_instances(element.options)
    return most == 1 or element.stateful


def _of_classes(node: NodePlan, elements: _Elements) -> Iterator[_Warning]:
    """Warn of what the classes of the backends find suspicious, see `headrace.Backend.lint`."""
    for element in elements.tree:
        if element.instance is None and element.options is not None:
            try:
                texts = [*element.cls.lint(element.options, node.range[1] or 1)]
            except Exception as error:  # noqa: BLE001 - the author's code may raise anything
                from headrace.isolation import error_text

                texts = [f"{element.name}: lint raised {error_text(error)}"]
            for text in texts:
                item = text if isinstance(text, Problem) else Problem("backend_warning", str(text))
                yield item.code, "backend", item.message, item.hint or ""


def _of_map(plan: Plan, elements: dict[str, _Elements], name: str) -> Iterator[_Warning]:
    """Warn of keys that the ``map`` of a node takes from a node that is known not to write them."""
    for node, pairs in plan.nodes[name].links.map.items():
        keys = _keys_at_end(plan, elements, node)
        for source in pairs:
            if keys is not None and source not in keys and source not in RESERVED:
                text = (
                    f"the map takes {source!r} from {node!r}, whose backends do not write it: it "
                    "is there only when the caller's request has it and every map passes it on"
                )
                hint = f"What it ends with is {', '.join(sorted({*keys, DATA}))}."
                yield "map_source", "map", text, hint


def _keys_at_end(plan: Plan, elements: dict[str, _Elements], name: str) -> set[str] | None:
    """Return the keys with which a node ends, without the caller's; None when a class does not state them."""
    links = {n: node.links for n, node in plan.nodes.items()}
    way = [name]
    while not links[way[-1]].map:  # without a map a node has the dict of its predecessor
        before = [n for n, link in links.items() if way[-1] in link.next]
        if not before:
            break
        way.append(before[0])
    targets = (to for pairs in links[way[-1]].map.values() for to in pairs.values())
    listed = ([to] if isinstance(to, str) else to for to in targets)
    keys = {RESULT, CONTEXT, REQUEST_ID, *(key for name in listed for key in name)}
    entered = {target for link in links.values() for target in link.reposts}
    for node in way:
        if links[node].otherwise or node in entered:
            return None  # such a node may also run on dicts that have come another way
        if any(links[each].each for each in _with_aliased(plan, node)):
            continue  # with `each` the node runs on copies: keys written there are lost
        run = _run_in(elements, node)
        if run is None:
            return None
        for element in run:
            if element.target is not None or not _says_what_it_writes(element):
                return None
            keys.update(element.writes)
    return keys


def _with_aliased(plan: Plan, name: str) -> list[str]:
    """Return a node, and the nodes that answer for it where it is an alias."""
    behind = plan.nodes[name].alias_of
    return [name] if behind is None else [name, *_with_aliased(plan, behind)]


def _run_in(elements: dict[str, _Elements], name: str) -> list[Element] | None:
    """Return all elements that a request may meet in a node; None where a name leads to one that is not known."""
    run: list[Element] = []
    todo = [name]
    for node in todo:
        run += elements[node].every
        local = {element.name for element in elements[node].every}
        for instance in filter(None, (element.instance for element in elements[node].every)):
            home = instance.removeprefix("node.") if instance.startswith("node.") else instance
            home = home if home in elements else instance.rpartition(".")[0]
            if home in elements and home not in todo:
                todo.append(home)
            elif home not in elements and instance not in local:
                return None
    return run


def _says_what_it_writes(element: Element) -> bool:
    """Tell whether ``writes`` of a class can be relied on: the class states it, or is a plugin's."""
    classes = (cls for cls in element.cls.__mro__ if cls is not headrace.Backend)
    plugins = not element.registered and not element.children
    return plugins or any("writes" in vars(cls) for cls in classes)
