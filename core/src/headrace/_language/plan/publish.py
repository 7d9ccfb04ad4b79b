"""The public plan (`headrace.plan`), made of what the planner has found; and the same of what was built."""

from __future__ import annotations

import math
from collections import Counter
from enum import Enum
from itertools import zip_longest
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from headrace import plan as public
from headrace._language.config.problems import with_lines
from headrace._language.contract.options import keys_of
from headrace._language.plan.declared import narrow
from headrace._language.plan.element import elements_of
from headrace._language.plan.ways import owns_thread
from headrace._run.checked import largest_size
from headrace._run.route import roots
from headrace._texts import error_text
from headrace._version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace._language.contract.backend import Backend
    from headrace._language.plan.element import Element, NodePlan, PipelinePlan


def public_plan(plan: PipelinePlan) -> public.Plan:
    """Return the public plan of a configuration without problems."""
    nodes = plan.nodes.values()
    policies = [policy for node in nodes for policy in (node.batch_policy, node.dispatch_policy)]
    brought = {(policy.distribution, policy.version) for policy in (*policies, *plan.probes)} - {
        ("", "")
    }
    return public.Plan(
        headrace=__version__,
        threads=plan.threads,
        asks_for=_distributions(plan, {("headrace", __version__), *brought}),
        warnings=with_lines(plan.warnings),
        nodes={name: _node(plan, plan.nodes[name]) for name in plan.links},
        probes=tuple(probe.text for probe in plan.probes),
        roots=roots(plan.links),
    )


def _distributions(
    plan: PipelinePlan, brought: Iterable[tuple[str, str]]
) -> tuple[public.Asked, ...]:
    """Return the distributions that bring the backends of a plan, and others, each with its version."""
    names: dict[tuple[str, str], set[str]] = {by: set() for by in brought}
    # As written: nobody has written the `Reflect` of an instance.
    roots = (root for node in plan.nodes.values() for root in trees_of(node).values())
    for offer in (element.offer for element in elements_of(roots)):
        names.setdefault((offer.distribution, offer.version), set()).add(offer.name)
    return tuple(public.Asked(*by, tuple(sorted(names[by]))) for by in sorted(names))


def _node(plan: PipelinePlan, node: NodePlan) -> public.Node:
    keys, owned = node.keys, owns_thread(node)
    low, high = narrow(node.instance.range, keys, alias=node.alias_of is not None)
    return public.Node(
        expression=node.expression,
        range=(low, largest_size(keys.batch_sizes or (), high)),
        instance_num=node.instance_num,
        alias_of=node.alias_of,
        owns_thread=owned,
        run_by="own thread" if owned else "caller" if keys.timeout_ms is None else "worker",
        threads=plan.threads_of(node.name),
        auto=None if node.auto is None else node.auto.why,
        wide=node.auto is not None and node.auto.wide_threads > 0,
        next=plan.links[node.name].next,
        links=plan.links[node.name],
        keys={key: _value(getattr(keys, key), origin) for key, origin in node.origins.items()},
        processes=_processes(node),
        picked_by=node.batch_policy.cls.__name__ if node.batch_policy.cls.picks else None,
        **{key: public_element(tree) for key, tree in trees_of(node).items()},
    )


def _processes(node: NodePlan) -> public.Processes | None:
    """Tell how many processes a node starts, and how often these load each file together."""
    own = {*node.instance.walk()}
    times = {one: node.instance_num if one in own else 1 for one in elements_of(node.roots)}
    outer = [one for one in times if one.cls.builds_elsewhere]
    loads: Counter[str] = Counter()
    for one in dict.fromkeys(one for out in outer for root in out.children for one in root.walk()):
        for _, value in one.options or ():
            if isinstance(value, Path) and value.exists():
                loads[str(value)] += times[one]
    return public.Processes(sum(times[one] for one in outer), dict(loads)) if outer else None


def trees_of(node: NodePlan) -> dict[str, Element]:
    """Return the tree of a node, and those of what is written around its backend."""
    trees = {"tree": node.backend, "init": node.init}
    return {key: one for key, one in trees.items() if one is not None}


def public_element(
    element: Element,
    built: Mapping[Element, Backend] | None = None,
    there: Mapping[str, Any] | None = None,
) -> public.Element:
    """Return one element and all below it, for a public plan.

    Args:
        element: The element.
        built: The built backends by element, which say more of themselves (`headrace.Pipeline.describe`).
        there: The same element as another process has described it.
    """
    backend = None if built is None else built.get(element)
    there = there or {}
    said, range_ = there.get("built", {}), there.get("range", element.range)
    below: Sequence[Any] = there.get("children", ())
    if backend is not None:
        said, range_ = _description_of(backend), (backend.min, backend.max)
        if element.cls.builds_elsewhere and isinstance(said, dict):
            below = said.pop("children", ())
    children = zip_longest(element.children, below[: len(element.children)])
    fields = keys_of(element.cls.Options)
    values = {key: getattr(element.options, fields.get(key, key), None) for key in element.origins}
    prefixes = tuple(
        (*map(plain_copy, positional), *(f"{key}={value}" for key, value in named.items()))
        for positional, named in element.prefixes
    )
    return public.Element(
        name=element.name,
        distribution=element.offer.distribution,
        version=element.offer.version,
        options={key: _value(values[key], origin) for key, origin in element.origins.items()},
        range=range_,
        built=said,
        children=tuple(public_element(child, built, inner) for child, inner in children),
        waits=_waits(element),
        instance=None if element.named is None else element.named.name,
        target=next(iter(element.goes_on_at), None),
        own_thread=element.own_thread,
        prefixes=prefixes if any(prefixes) else (),
        stateful=element.cls.stateful,
    )


def _waits(element: Element) -> str | None:
    """Say for what an element waits while it holds its instance; None where it waits for nothing."""
    state, options = element.cls.place.waits_while, element.options
    if state is None or options is None:
        return None
    return f"holds its instance while {state.format_map(dict(options))}"


def _value(value: Any, origin: Any) -> public.Value:
    return public.Value(plain_copy(value), origin)


def plain_copy(value: Any) -> Any:
    """Return a value in a form that JSON can hold, also for numbers of libraries, enumerations and models."""
    if isinstance(value, (Enum, BaseModel)):
        return plain_copy(value.value if isinstance(value, Enum) else value.model_dump())
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, dict):
        return {str(key): plain_copy(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_copy(part) for part in value]
    return str(value) if isinstance(value, PurePath) else repr(value)


def _description_of(backend: Backend) -> Any:
    """Return what a backend says of itself, or the error that it raises."""
    try:
        return plain_copy(backend.describe())
    except Exception as error:  # noqa: BLE001 - the other backends must be described as well
        return {"error": error_text(error)}
