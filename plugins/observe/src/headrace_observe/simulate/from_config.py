"""Makes a simulation from a configuration and the times of its batches."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import InputError, SetupError
from headrace_observe.memory import side_by_side
from headrace_observe.simulate.virtual_pipeline import (
    BACKEND,
    ELEMENT,
    KEPT,
    Flow,
    Simulation,
    elements_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headrace.blueprint import BatchPolicy
    from headrace.plan import Element, NodePlan
    from headrace_observe.bench.benchmark import LoadSpec
    from headrace_observe.bench.measurement import Point
    from headrace_observe.simulate.service_times import ServiceTimes

__all__ = ["STAND_IN_KEYS", "foretell", "simulation_of"]


def simulation_of(
    config: headrace.PipelineConfig,
    times: Mapping[str, ServiceTimes],
    seed: int = 0,
    wake_s: float = 0.0,
    like: Sequence[Mapping[str, Any]] = (),
) -> Simulation:
    """Make a simulation of a configuration. Nothing of the configuration is built.

    Args:
        config: The configuration: nodes with ``next`` and ``map``, with any policies. The range of a
            node comes from its classes and keys.
        times: The times of batches of each node.
        seed: The seed of the random draws of times.
        wake_s: The mean time that a woken thread takes to go on, in seconds.
        like: Sample requests, which a batch policy that picks compares: each simulated request is like one of them.

    Raises:
        SetupError: The configuration has something that is not simulated: calls of other nodes, an ``init``, a `Repost`, several roots, ``each`` at
            the only root.
        InputError: There are no times of a node, or no counts that show how often a node with ``or`` runs,
            how many elements a node with ``each`` has, or a policy
            that picks has no sample requests, or refuses one.
    """
    plan = config.plan()
    nodes = plan.nodes
    policies = headrace.plugins.policies(config)
    for name, node in nodes.items():
        _refuse(name, node, nodes)
        if name not in times:
            raise InputError(
                f"there are no times of the node {name!r}; the file has {', '.join(sorted(times))}"
            )
        _check_like(name, policies[name][0], like)
    if len(plan.roots) != 1:
        raise SetupError(
            f"only configurations with one entry node are simulated, this has {', '.join(plan.roots)}",
            hint="Simulate each of them with its own configuration.",
        )
    flows = _by_counts(nodes, times)
    lists = [elements_key(name) for name, node in nodes.items() if node.links.each]
    keys = {*KEPT, *lists, *set(like[0] if like else ()).intersection(*like)}
    tables: dict[str, Any] = {"global": {"deadlock_after_s": 0, "threads": 1}}
    if config.files:  # which may have the policies
        tables["import"] = [str(path).replace("${", "$${") for path in config.files]
    for name, node in nodes.items():
        before = [n for n, other in nodes.items() if name in other.next]
        tables[name] = _stand_in(node, before, keys)
    return Simulation(tables, flows, plan.roots[0], times, seed, wake_s, like)


def foretell(run: Simulation, load: LoadSpec, requests: int, warm_up: int | None = None) -> Point:
    """Simulate a load.

    Args:
        run: The simulation.
        load: The load.
        requests: How many requests are sent, as far as the load has so many.
        warm_up: How many answers come before the figures begin. None: a tenth of the requests.
    """
    if load.clients is not None:
        return run.closed_loop(
            load.clients, requests, requests // 10 if warm_up is None else warm_up
        )
    arriving = load.arrivals()
    sent = min(requests, len(arriving)) if isinstance(arriving, list) else requests
    left_out = sent // 10 if warm_up is None else warm_up
    return run.open_loop(itertools.islice(arriving, sent), load.about, left_out)


_COPIED = (
    *("batch_policy", "batch_sizes", "batching_timeout", "device", "dispatch_policy", "pad"),
    *("queue_full", "queue_size", "timeout_ms"),
)
"""The keys of a node that its stand-in has as well."""

STAND_IN_KEYS = (*_COPIED, *("instance_num", "carries", "min", "max", "next", "or", "each", "map"))
"""All keys that a stand-in may have beside its backend."""


def _stand_in(node: NodePlan, before: Sequence[str], keys: Iterable[str]) -> dict[str, Any]:
    """Return the table of a node with the same keys of batching and queues, whose backend takes the times of batches."""
    table = {key: node.values[key].value for key in _COPIED}
    table = {key: value for key, value in table.items() if value is not None}
    table["backend"] = f"BackgroundThread[{BACKEND}]" if node.owns_thread else BACKEND
    table["instance_num"], (table["min"], table["max"]) = side_by_side(node), node.range
    if node.auto is not None:  # its instances share what waits
        table["carries"], table["instance_num"] = table["instance_num"], "auto"
    if table["max"] is None:
        del table["max"]
    if node.next:
        table["next"] = ",".join(node.next)
    if node.links.otherwise:
        table["or"] = True
    if node.links.each:
        table["each"] = f"{elements_key(node.links.name)}:{ELEMENT}"
    if len(before) > 1:  # the branches join
        table["map"] = {before[0]: {key: key for key in keys}}
        table["map"] |= {source: {KEPT[1]: f"{KEPT[1]}_{source}"} for source in before[1:]}
    return table


def _check_like(name: str, policy: BatchPolicy, like: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a policy that picks without sample requests, or that refuses one of them."""
    if not policy.picks:
        return
    policy_name = type(policy).__name__
    if not like:
        text = f"node {name!r}: the policy {policy_name} picks requests by what they hold"
        raise InputError(f"{text}: give sample requests (--like FILE)")
    for number, request in enumerate(like, 1):
        try:
            policy.trait({**request})
        except Exception as error:
            text = (
                f"node {name!r}: the policy {policy_name} refuses sample request {number}: {error}"
            )
            raise InputError(text) from error


def _refuse(name: str, node: NodePlan, nodes: Mapping[str, NodePlan]) -> None:
    names = [] if node.init is None else ["init"]
    names += ["Repost"] if node.links.reposts else []
    names += [el.name for el in node.tree.walk() if _calls_a_node(el, nodes)]
    if names:
        raise SetupError(
            f"{' and '.join(dict.fromkeys(names))} cannot be simulated",
            node=name,
            hint="The simulation covers nodes with next, map and the keys of batching and queues.",
        )


def _calls_a_node(element: Element, nodes: Mapping[str, NodePlan]) -> bool:
    """Return whether an element of a tree calls a node."""
    instance = element.instance or ""
    return instance.startswith("node.") or instance.rpartition(".")[0] in nodes


def _by_counts(nodes: Mapping[str, NodePlan], times: Mapping[str, ServiceTimes]) -> dict[str, Flow]:
    """Return how requests go on at each node. What depends on data comes from the measurement of the times.

    That is the share of requests that run at a node with ``or``, the mean number of elements at a node with
    ``each``, and that of steps at a node with `Iterate`.
    """
    before = {target: name for name, node in nodes.items() for target in node.next}

    def came(name: str) -> float:
        """Return the number of requests that came to a node during the measurement."""
        if not _depends_on_data(nodes[name]):
            requests: float = _count(times, name)
        elif name not in before:
            raise SetupError(
                f"{'each' if nodes[name].links.each else 'Iterate'} cannot be simulated at the first node",
                node=name,
                hint="Put a node with Identity before it: its count is the number of requests.",
            )
        else:
            requests = came(before[name])
        if not requests:
            raise InputError(f"no request reached the node {name!r} when times were measured")
        return requests

    edges = {}
    for name, node in nodes.items():
        links, more = node.links, _by_data(node, times, came)
        for target in node.next:
            if nodes[target].links.otherwise:
                ran = _count(times, name) if links.otherwise else came(name)
                more["without_result"] = _count(times, target) / ran if ran else 0.0
        edges[name] = Flow(side_by_side(node), bool(node.keys.pad), **more)
    return edges


def _by_data(
    node: NodePlan, times: Mapping[str, ServiceTimes], came: Callable[[str], float]
) -> dict[str, Any]:
    """Return the mean steps, or elements, of a request at a node where data decide that."""
    name, word = node.links.name, _iterates(node)
    if not node.links.each and word is None:
        return {}
    all_of_them = came(name)  # it says what cannot be simulated before a count is looked for
    mean = _count(times, name) / all_of_them
    if word is None:
        return {"elements": mean}
    return {"steps": max(1.0, mean), "steps_most": word.values["limit"].value}


def _depends_on_data(node: NodePlan) -> bool:
    """Return whether the data of a request decide how often the node runs for it."""
    return node.links.otherwise or node.links.each is not None or _iterates(node) is not None


def _iterates(node: NodePlan) -> Element | None:
    """Return the word with which a node runs requests step by step; None for none."""
    iterates = (el for el in node.tree.walk() if el.name.rpartition(":")[2] == "Iterate")
    return next((el for el in iterates if el.distribution == "headrace-flow"), None)


def _count(times: Mapping[str, ServiceTimes], name: str) -> int:
    """Return the number of requests (with ``each``: of elements) that a node ran during the measurement."""
    count = times[name].requests
    if count is None:
        raise InputError(
            f"the times do not say how often the node {name!r} runs, on which `or` and `each` depend: "
            "measure them with bench --save-times"
        )
    return count
