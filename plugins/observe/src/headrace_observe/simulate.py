"""From a configuration and times of batches to a simulation of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import InputError, SetupError
from headrace_observe.simulated_node import NodeRules
from headrace_observe.simulation import Line, Simulation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_observe.service_times import ServiceTimes

__all__ = ["simulation_of"]

_AS_WRITTEN = "IoC[InstancesRegister[Reflect[backend]],Register[DI[Batching,InstanceDispatcher]];"


def simulation_of(
    config: headrace.PipelineConfig, times: Mapping[str, ServiceTimes], seed: int = 0
) -> Simulation:
    """Make a simulation of a configuration; nothing of it is built.

    Args:
        config: The configuration: nodes with ``next`` and ``map``, with any policies. The range of a
            node is what its classes and keys say.
        times: Per node the times of its batches.
        seed: Of the times that are drawn.

    Raises:
        SetupError: It has what depends on data or is not simulated: ``each``, ``Repost``, calls
            of other nodes, a ``node_entrypoint`` or ``init`` of its own, several
            roots, ``shed_oldest`` over several nodes.
        InputError: There are no times of a node, or no counts that tell how often one with ``or`` runs.
    """
    nodes = headrace.explain(config)["nodes"]
    policies = headrace.plugins.policies(config)
    rules = {}
    for name, node in nodes.items():
        _refuse(name, node)
        if name not in times:
            known = ", ".join(sorted(times))
            raise InputError(f"there are no times of the node {name!r}; the file has {known}")
        rules[name] = _rules(name, node, policies[name][0].options)
    after = {name: tuple(node["next"]) for name, node in nodes.items()}
    for name, node in nodes.items():
        if "or" in node["links"]:
            (before,) = [one for one, names in after.items() if name in names]
            rules[name] = replace(rules[name], share=_share(times, before, name))
    roots = [name for name in nodes if not any(name in names for names in after.values())]
    if len(roots) != 1:
        raise SetupError(
            f"one node that requests enter at is simulated, this has {', '.join(roots)}",
            hint="Simulate each of them by a configuration of its own.",
        )
    keys = nodes[roots[0]]["keys"]
    full = keys["queue_full"]["value"]
    if full == "shed_oldest" and len(nodes) > 1:
        raise SetupError(
            "queue_full = 'shed_oldest' is simulated for one node, and this has several",
            node=roots[0],
            hint="Lay another over it: --set global.queue_full=reject.",
        )
    line = Line(rules, after, roots[0], keys["queue_size"]["value"], full)
    return Simulation(line, policies, times, seed)


def _refuse(name: str, node: Mapping[str, Any]) -> None:
    links, keys = node["links"], node["keys"]
    found = [key for key in ("each", "reposts") if key in links]
    found += [key for key in ("init", "entrypoint") if _value(keys, key) is not None]
    if not node["node_expression"].startswith(_AS_WRITTEN):
        found.append("node_entrypoint")
    if node["door_to"] is not None or "Forward[" in node["expression"]:
        found.append("Forward")
    if found:
        raise SetupError(
            f"{' and '.join(dict.fromkeys(found))} cannot be simulated",
            node=name,
            hint="What is simulated are nodes with next, map and the keys of batching and queues.",
        )


def _share(times: Mapping[str, ServiceTimes], before: str, name: str) -> float:
    """Give the share of requests that run at a node with ``or``, as it was when times were measured."""
    came, ran = times[before].requests, times[name].requests
    if not came or ran is None:
        raise InputError(
            f"the node {name!r} has `or`, and the times do not say how often it runs: measure them with "
            "bench --save-times, or give each size a count: {" + f'"{name}": '
            '{"1": {"ms": [2.0], "count": 100}}}'
        )
    return min(1.0, ran / came)


def _value(keys: Mapping[str, Any], key: str) -> Any:
    return keys[key]["value"] if key in keys else None


def _rules(name: str, node: Mapping[str, Any], stated: Any) -> NodeRules:
    """Read the keys of a node; options of its batch policy win over them, as in a pipeline."""
    keys = node["keys"]
    device, limit = _value(keys, "device"), _value(keys, "timeout_ms")
    sizes = getattr(stated, "batch_sizes", _value(keys, "batch_sizes")) or ()
    return NodeRules(
        name=name,
        instance_num=node["instance_num"],
        range=(node["range"][0], node["range"][1]),
        devices=tuple(device) if isinstance(device, list) else (device,),
        batch_sizes=tuple(sorted(sizes)),
        pad=bool(getattr(stated, "pad", _value(keys, "pad"))),
        lingers=bool(_value(keys, "batching_timeout")) and node["range"][1] != 1,
        timeout_s=None if limit is None else limit / 1000,
        owns_thread=node["owns_thread"],
    )
