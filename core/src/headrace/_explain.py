"""Plain data about what a configuration asks for (``explain``), and about what was built (``describe()``)."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

import headrace
from headrace._checked import largest_size
from headrace._config.problems import Problems, with_room
from headrace._expression.parser import parse
from headrace._expression.tree import Call
from headrace._options import keys_of
from headrace._pipeline_config import PipelineConfig
from headrace._plan.declared import narrowed
from headrace._plan.element import Element, NamedPlan, NodePlan, PipelinePlan, doors, elements_of
from headrace._plan.planner import plan_expression
from headrace._plan.warnings import warnings_about
from headrace._plan.word import owns_thread, word_of
from headrace._portable import error_text

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._graph.route import Links, Pairs


def explain(
    source: str | os.PathLike[str] | Mapping[str, Any] | PipelineConfig | Call,
    *,
    allow_import: bool = True,
) -> dict[str, Any]:
    """Tell what a configuration asks for; nothing is built and no heavy library is imported.

    Args:
        source: A dict, the path of a TOML file (a text is always a path), or a configuration; or a bare
            expression, as `headrace.parse` gives it, in which options may be missing.
        allow_import: Whether the code under ``import`` may run.

    Returns:
        ``{"headrace", "threads", "asks_for", "warnings", "nodes": {name: {"expression", "node_expression",
        "range", "instance_num", "alias_of", "owns_thread", "run_by", "threads", "next", "links", "keys",
        "tree"}}}``, all of which can be written as JSON. ``keys`` and the ``options`` in ``tree`` hold
        ``{"value", "origin"}`` per key, with the origin ``inline``, ``node``, ``global``, ``definition`` or
        ``default``. ``range`` is the range that the classes state; ``init`` may narrow it. ``asks_for`` lists
        the distributions, ``{"distribution", "version", "backends"}``. ``picked_by`` is the batch policy of a node
        that picks which requests share a batch. Where there are probes, ``probes`` lists
        their texts as written. ``alias_of`` is the node whose instances a second door shares, else None. A node
        with backends in processes of their own has ``processes``: ``{"count", "loads"}``, the number of
        processes, and how often they load each file that an option names. What is written under ``init``,
        ``node_entrypoint`` and ``entrypoint`` stands under these keys, as ``tree`` does, in its node and beside
        ``nodes``. ``warnings`` lists what the configuration may say and hardly means, each as
        `headrace.errors.Problem.to_dict` gives it.

        For an expression: ``{"headrace", "expression", "range", "asks_for", "tree"}``.

    Raises:
        ConfigError: The configuration is wrong; ``problems`` holds everything that is.
        SetupError: The only problem is a ``Fallback`` whose branches are not installed here.
    """
    if isinstance(source, Call):
        return with_room(lambda: _explained_expression(source))
    config = PipelineConfig.load(source, allow_import=allow_import)
    return with_room(lambda: _explained(config))


def _explained(config: PipelineConfig) -> dict[str, Any]:
    plan = config._plan
    nodes, front = plan.nodes.values(), plan.entrypoint
    policies = [one for node in nodes for one in (node.batch_policy, node.dispatch_policy)]
    return {
        "headrace": headrace.__version__,
        "threads": plan.threads,
        "asks_for": _asks_for(plan.roots, [*policies, *plan.probes]),
        "warnings": [one.to_dict() for one in warnings_about(plan, config._shape)],
        "nodes": {name: _node(plan, plan.nodes[name]) for name in plan.order},
        **({"probes": [probe.text for probe in plan.probes]} if plan.probes else {}),
        **({"entrypoint": describe_element(front)} if front is not None else {}),
    }


def _explained_expression(call: Call) -> dict[str, Any]:
    problems = Problems()
    text = str(call)
    if call.text is not None and parse(call.text) == call:
        text = call.text  # so that errors show the expression as it was written
    element = plan_expression(text, problems)
    problems.raise_if_any()
    assert element is not None  # noqa: S101 - without a problem there is an element
    return {
        "headrace": headrace.__version__,
        "expression": str(element.call),
        "range": list(element.range),
        "asks_for": _asks_for([element]),
        "tree": describe_element(element),
    }


def _asks_for(roots: Iterable[Element], named: Iterable[NamedPlan] = ()) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], set[str]]
    found = {(one.distribution, one.version): set() for one in named if one.distribution}
    for offer in (element.offer for element in elements_of(roots)):
        found.setdefault((offer.distribution, offer.version), set()).add(offer.name)
    return [
        {"distribution": distribution, "version": version, "backends": sorted(names)}
        for (distribution, version), names in sorted(found.items())
    ]


def _node(plan: PipelinePlan, node: NodePlan) -> dict[str, Any]:
    chain = [plan.nodes[name] for name in doors(plan.nodes, node.name)]
    door, keys, owned = chain[-1], node.keys, owns_thread(chain[-1])
    limited = any(one.keys.timeout_ms is not None for one in chain)
    run_by = "runner" if limited else "caller"
    low, high = narrowed(door.runs.range, door.keys)
    return {
        "expression": node.expression,
        "node_expression": str(node.entrypoint.call),
        "range": [low, largest_size(door.keys.batch_sizes or (), high)],
        **({"picked_by": door.batch_policy.cls.__name__} if door.batch_policy.cls.picks else {}),
        "instance_num": max(1, door.instance_num),
        "alias_of": node.alias_of,
        "owns_thread": owned,
        "run_by": "own thread" if owned else run_by,
        "threads": plan.threads_of_one,
        "next": list(plan.links[node.name].next),
        "links": _links(plan.links[node.name]),
        "keys": {
            key: {"value": plain(getattr(keys, key)), "origin": origin}
            for key, origin in node.origins.items()
        },
        **trees_of(node),
        **_processes(node),
    }


def _links(links: Links) -> dict[str, Any]:
    """Return the links of a node that are set, in the form of a configuration."""
    each = links.each
    found: dict[str, Any] = {
        "next": list(links.next),
        "map": {node: _table(pairs) for node, pairs in (links.map or {}).items()},
        "or": links.otherwise,
        "each": f"{each.source}:{each.target}" if each is not None else None,
        "each_errors": "none" if each is not None and each.keep_errors else None,
        "reposts": list(links.reposts),
    }
    return {key: value for key, value in found.items() if value}


def _table(pairs: Pairs) -> dict[str, str | list[str]]:
    found: dict[str, list[str]] = {}
    for source, target in pairs:
        found.setdefault(source, []).append(target)
    return {source: to[0] if len(to) == 1 else to for source, to in found.items()}


def _processes(node: NodePlan) -> dict[str, Any]:
    """Tell how many processes a node starts, and how often these load each file together."""
    own = set() if node.instance is None else {*node.instance.walk()}
    times = {one: node.instance_num if one in own else 1 for one in elements_of(node.roots)}
    outer = [one for one in times if one.cls.builds_elsewhere]
    loads: Counter[str] = Counter()
    for one in dict.fromkeys(one for out in outer for root in out.children for one in root.walk()):
        for _, value in one.options or ():
            if isinstance(value, Path) and value.exists():
                loads[str(value)] += times[one]
    count = sum(times[one] for one in outer)
    return {"processes": {"count": count, "loads": dict(loads)}} if count else {}


# Describing one element, planned or built.


def plain(value: Any) -> Any:
    """Return a value in a form that JSON can hold, also for numbers of libraries, enumerations and models."""
    if isinstance(value, (Enum, BaseModel)):
        return plain(value.value if isinstance(value, Enum) else value.model_dump())
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, PurePath) else repr(value)


def trees_of(node: NodePlan, built: dict[Element, Any] | None = None) -> dict[str, Any]:
    """Return the tree of a node, and those of what is written around its backend; see `describe_element`."""
    trees = {"tree": node.backend or node.entrypoint, "init": node.init}
    if node.keys.node_entrypoint is not None and node.entrypoint is not trees["tree"]:
        trees["node_entrypoint"] = node.entrypoint
    return {key: describe_element(one, built) for key, one in trees.items() if one is not None}


def describe_element(element: Element, built: dict[Element, Any] | None = None) -> dict[str, Any]:
    """Return one element and all below it.

    Args:
        element: The element.
        built: The built backends, by element; None when nothing was built.
    """
    fields, options = keys_of(element.cls.Options), {}
    for key, origin in element.origins.items():
        value = plain(getattr(element.options, fields.get(key, key), None))
        options[key] = {"value": value, "origin": origin}
    backend = (built or {}).get(element)
    about = _built(backend) if backend is not None else {}
    kept = about if element.cls.builds_elsewhere and isinstance(about, dict) else {}
    described = {
        "name": element.name,
        "distribution": element.offer.distribution,
        "version": element.offer.version,
        "options": options,
        "range": list(element.range if backend is None else (backend.min, backend.max)),
        "built": about,
        "children": kept.pop("children", ())
        or [describe_element(child, built) for child in element.children],
    }
    prefixes = [
        [*map(plain, positional), *(f"{key}={value}" for key, value in named.items())]
        for positional, named in element.prefixes
    ]
    said = {
        "waits": word_of(element.cls)._waits(element),
        "definition": element.definition,
        "instance": element.named and element.named.name,
        "target": element.target,
        "own_thread": element.own_thread,
        "prefixes": prefixes if any(prefixes) else None,
        "not_chosen": dict(element.unavailable),
    }
    return described | {key: value for key, value in said.items() if value}


def _built(backend: Backend) -> Any:
    """Return what a backend says of itself, or the error that it raises."""
    try:
        return plain(backend.describe())
    except Exception as error:  # noqa: BLE001 - the other backends must be described as well
        return {"error": error_text(error)}
