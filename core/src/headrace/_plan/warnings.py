"""The warnings of ``check`` and ``explain``: what a configuration may say, but hardly means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace._backend import Backend
from headrace._config.problems import Problems, with_lines
from headrace._graph.route import KEPT
from headrace._plan.declared import OPTIONAL, keys_named, narrowed
from headrace._plan.element import Element, NodePlan, PipelinePlan, elements_of, elements_run
from headrace._plan.parameters import written_key
from headrace._plan.word import called, word_of
from headrace._portable import error_text
from headrace._process import usable_cpus
from headrace.keys import DATA, RESULT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace._config.sections import Sections
    from headrace.errors import Problem


_CORE = "headrace"


_Warning = tuple[str, str, str, str]
"""The code of a warning, the key that it is about, its message, and its hint."""


def warnings_about(plan: PipelinePlan, shape: Sections) -> list[Problem]:
    """Return the warnings about a configuration without problems, nodes in file order."""
    warnings = Problems()
    warnings.extend(plan.warnings)
    for name in plan.order:
        node = plan.nodes[name]
        if node.alias_of is None:
            found = [*_of_keys(node), *_of_own_thread(node), *_of_cores(node, plan.total_instances)]
            found += [*_of_map(plan, name), *_of_classes(node)]
            for code, key, message, hint in found:
                warnings.add(code, message, hint=hint or None, **_place(name, key, shape))
    return list(with_lines(warnings))


def _place(name: str, key: str, shape: Sections) -> dict[str, Any]:
    """Return the place of a key of a node, or of the node where the key is not written."""
    found = written_key(key, name, shape)
    of_node = {"file": shape.file_of(name), "path": name}
    return of_node if found is None else found.place(at_key=True)


def _of_keys(node: NodePlan) -> Iterator[_Warning]:
    """Warn of keys that ask for what the node does not do."""
    keys, made = node.keys, max(1, node.instance_num)
    least = narrowed(node.runs.range, keys)[0]
    if least > 1 and not keys.batching_timeout and not keys.pad:
        what = (
            f"batches of this node have at least {least} requests, but nothing waits for them or "
            "fills them up: with fewer callers, requests fail"
        )
        hint = "Set batching_timeout (milliseconds) to wait for company, or pad = true."
        yield "min_without_wait", "min", what, hint
    most = node.runs.range[1]
    if (
        node.origins["max"] == "node"
        and most is not None
        and keys.max is not None
        and keys.max > most
    ):
        leaves = [one for one in node.runs.walk() if one.range[1] == most and not one.children]
        name = leaves[0].name if leaves else node.runs.name
        what = f"max is {keys.max}, and {name} takes at most {most}: no batch has more"
        yield "max_cut", "max", what, f"Set max = {most}, or leave it out."
    reads = {one.parameter for one in elements_of(node.roots)}
    if node.origins["backend"] == "node" and "backend" not in reads:
        what = "backend is not built: what stands in init or node_entrypoint lacks Reflect[backend]"
        hint = "Leave the key out, or write Reflect[backend] where it belongs."
        yield "backend_unused", "backend", what, hint
    if node.bypassed:
        what = (
            f"{called(node.entrypoint).name} in node_entrypoint is never called: node_entrypoint or init registers "
            f"node.{node.name}, through which the node is called"
        )
        hint = "Put it into what is registered, or into a node of its own before this one."
        yield "entrypoint_bypassed", "node_entrypoint", what, hint
    if node.origins["instance_num"] == "node" and keys.instance_num > made:
        said = keys.instance_num
        what = f"instance_num is {said}, and what this node is built from makes {made} instance"
        hint = "Leave the key out, or write InstancesRegister[...] in init or node_entrypoint."
        yield "instance_num_unused", "instance_num", what, hint
    # The instances take them in turn.
    if isinstance(keys.device, tuple) and len(keys.device) > made:
        listed, unused = len(keys.device), ", ".join(keys.device[made:])
        few = f"there are fewer instances ({made})"
        what = f"device lists {listed} devices, and {few}: nothing runs on {unused}"
        hint = f"Set instance_num = {listed}, or a multiple of it."
        yield "device_unused", "device", what, hint


def _of_own_thread(node: NodePlan) -> Iterator[_Warning]:
    """Warn of work that stands in the thread of a backend which owns its thread."""
    if not node.runs.own_thread:
        return
    before: list[str] = []
    for element in _computing(node.runs, threads=False):
        if element.cls.owns_thread and before:
            names, owner = ", ".join(dict.fromkeys(before)), element.name
            what = (
                f"{names} before {owner}, which owns its thread, is run by that thread too: on at "
                f"most {max(1, node.instance_num)} of the requests at a time, however many cores there are"
            )
            hint = "Put it into a node of its own before this one, with next and more instances."
            yield "work_before_own_thread", "backend", what, hint
            return
        if not element.cls.owns_thread and not _runs_a_file(element):
            before.append(element.name)


def _of_cores(node: NodePlan, instances: int) -> Iterator[_Warning]:
    """Warn of idle cores: one thread at a time runs an instance."""
    computing = list(_computing(node.runs))
    cores, device = usable_cpus(), node.keys.device
    could_use_them = computing and not any(one.cls.owns_thread for one in computing)
    if could_use_them and device in (None, "cpu") and node.instance_num <= 1 and cores > instances:
        names = ", ".join(dict.fromkeys(element.name for element in computing))
        alone = f"instance_num is 1, so one batch at a time goes through {names}"
        what = f"{alone}, and {cores} cores can be used here"
        hint = f"Set instance_num, up to {cores}, if requests come from several threads."
        yield "idle_cores", "instance_num", what, hint


def _of_classes(node: NodePlan) -> Iterator[_Warning]:
    """Warn of what the classes of the backends find suspicious, see `Backend.lint`."""
    most = narrowed(node.runs.range, node.keys)[1]
    for element in node.runs.walk():
        if element.named is None and element.options is not None:
            try:
                texts = [*element.cls.lint(element.options, most)]
            except Exception as error:  # noqa: BLE001 - the author's code may raise anything
                texts = [f"{element.name}: lint raised {error_text(error)}"]
            yield from (("backend_warning", "backend", text, "") for text in texts)


def _computing(root: Element, *, threads: bool = True) -> Iterator[Element]:
    """Give the elements that do work of their own, in the order of writing.

    Args:
        root: The element at which to begin.
        threads: Whether elements inside ``BackgroundThread`` and ``Process`` are given as well.
    """
    for element in root.walk(lambda one: threads or not _elsewhere(one)):
        if element.named is None and not element.children and element.offer.distribution != _CORE:
            yield element


def _elsewhere(element: Element) -> bool:
    """Tell whether the children of an element run in a thread or a process of their own."""
    return word_of(element.cls)._threaded or element.cls.builds_elsewhere


def _runs_a_file(element: Element) -> bool:
    """Tell whether an option names a file: the element runs a model, and belongs in this node."""
    options = {} if element.options is None else dict(element.options)
    return any(isinstance(value, Path) for value in options.values())


def _of_map(plan: PipelinePlan, name: str) -> Iterator[_Warning]:
    """Warn of keys that the ``map`` of a node takes from a node that is known not to write them."""
    for node, pairs in (plan.links[name].map or {}).items():
        keys = _keys_at_end(plan, node)
        for source, _ in pairs:
            if keys is not None and source not in keys and source not in OPTIONAL:
                what = (
                    f"the map takes {source!r} from {node!r}, whose backends do not write it: it "
                    "is there only when the caller's request has it and every map passes it on"
                )
                hint = f"What it ends with is {', '.join(sorted({*keys, DATA}))}."
                yield "map_source", "map", what, hint


def _keys_at_end(plan: PipelinePlan, name: str) -> set[str] | None:
    """Return the keys with which a node ends, without the caller's; None when a class does not state them."""
    way = [name]
    while plan.links[way[-1]].map is None:  # without a map a node has the dict of its predecessor
        before = [one.name for one in plan.links.values() if way[-1] in one.next]
        if not before:
            break
        way.append(before[0])
    pairs = (pair for one in (plan.links[way[-1]].map or {}).values() for pair in one)
    keys = {RESULT, *KEPT, *(target for _, target in pairs)}
    entered = {target for one in plan.links.values() for target in one.reposts}
    for one in way:
        if plan.links[one].otherwise or one in entered:
            return None  # such a node may also run on dicts that have come another way
        if plan.links[one].levels:
            continue  # with `each` the node runs on copies: keys written there are lost
        for element in elements_run(plan.nodes, plan.nodes[one].roots):
            if not _says_what_it_writes(element) or element.target is not None:
                return None
            keys.update(keys_named(element.cls, element.options, "writes", optional=True))
    return keys


def _says_what_it_writes(element: Element) -> bool:
    """Tell whether ``writes`` of a class can be relied on: the class states it, or is a plugin's."""
    stated = any("writes" in vars(cls) for cls in element.cls.__mro__ if cls is not Backend)
    return stated or (bool(element.offer.path) and not element.children)
