"""How many instances ``instance_num = "auto"`` gives a node, and why so many.

And which node would gain by more.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace._language.config.sections import AUTO
from headrace._language.plan.element import elements_of
from headrace._language.plan.nodes import Auto

if TYPE_CHECKING:
    from headrace._language.plan.element import Element
    from headrace._language.plan.nodes import NodePlan, Plan


def settle_auto(plan: Plan) -> None:
    """Work out what the nodes with ``instance_num = "auto"`` have."""
    for node in plan.nodes.values():
        if node.keys.instance_num == AUTO:
            node._settle(auto=_auto_of(node, plan.share, plan.threads))


def _auto_of(node: NodePlan, share: int, threads: int) -> Auto:
    """Work out what a node has whose share of all ``threads`` of the pipeline is ``share``."""
    device = node.keys.device if isinstance(node.keys.device, str) else None
    walked = node.tree.walk()
    here = {*node.tree.walk(lambda element: not element.cls.builds_elsewhere)}
    elements = [e for e in walked if e.named is None and e.options is not None]
    for element in elements:
        if element.cls.stateful:
            return Auto(1, f"{element.name} keeps state between requests")
    if node.alias_of is not None:
        return Auto(1, "another node answers for it")
    if device is not None and not device.startswith("cpu"):
        return Auto(1, f"one instance on {device}")
    carried = {e: _capacity_of(e, device, share, here=e in here) for e in elements}
    says = {element: number for element, number in carried.items() if number is not None}
    if not says:
        names = ", ".join(dict.fromkeys(e.name for e in elements if not e.children))
        hint = "Process[...] gives each instance an interpreter"
        return Auto(1, f"{names} may hold the interpreter lock while it computes: {hint}")
    least = min(says, key=lambda element: says[element])
    number = max(1, says[least])
    if number < share:
        return Auto(number, f"{least.name} carries {number}{_cost_of(least)}", short=True)
    wide = any(element.cls.wide for element in here) and threads > 1
    why = f"{number} of one thread"
    if wide:
        return Auto(number + 1, f"{why}, and one of {threads} for a request alone", threads)
    return Auto(number, why)


def _capacity_of(element: Element, device: str | None, share: int, *, here: bool) -> int | None:
    """Return how many instances the class of an element carries with a share of threads.

    None where it does not say.

    One that is built elsewhere, and not ``here``, takes no threads of this process. What it allows
    counts all the same.
    """
    most = element.cls.most_instances(element.options)
    number = element.cls.auto_instances(element.options, device, share) if here else None
    if element.cls.builds_elsewhere and number is None:
        number = share
    return number if most is None else min(most, share if number is None else number)


def _cost_of(element: Element) -> str:
    """Say what another instance would load."""
    paths = [value for _, value in element.options or () if isinstance(value, Path)]
    size = sum(path.stat().st_size for path in paths if path.is_file())
    return f", another would load {size / 1e6:.0f} MB more" if size else ""


# What would let a node answer more, for ``stats()``.


def advice_for(plan: Plan, name: str, nodes: dict[str, Any], cpu_s: float) -> str | None:
    """Say what would let a node answer more. None where no measurement says so.

    ``cpu_s`` is all that this process has computed, also between batches: divided by the time of
    the batches it gives the most cores that can have been at work meanwhile. It does not cover a
    device or other processes, so nothing is said of a node that waits for them.

    Args:
        plan: The plan of the pipeline.
        name: The name of the node.
        nodes: The ``nodes`` of ``stats()``.
        cpu_s: The processor time of this process since the pipeline was built.
    """
    node, shown, number = plan.nodes[name], nodes[name], len(nodes[name]["instances"])
    busy_s, waited = _busy_s(shown), _waiting_share(node, shown)
    if busy_s < 5 * number or waited < 0.5:
        return None
    cores, threads = cpu_s * number / busy_s, plan.threads  # which reads files
    device = any(not (i["device"] or "cpu").startswith("cpu") for i in shown["instances"])
    called = any(_waiting_share(plan.nodes[n], nodes[n]) >= 0.5 for n in node.links.calls)
    state = any(e.cls.stateful for e in node.tree.walk())
    children = any(e.cls.builds_elsewhere for e in elements_of(plan.expressions))
    holds = not node.batch_policy.cls.sends_when_idle or node.alias_of is not None
    if device or called or state or children or holds or not 0 <= cores <= threads / 2:
        return None
    has = "the one instance" if number == 1 else f"the {number} instances"
    waits = f"callers waited {100 * waited:.0f} % of the time for {has} of {name!r}"
    waits += f" while this process left {int(threads - cores)} of {threads} cores idle"
    alike = replace(node, keys=node.keys.model_copy(update={"instance_num": AUTO}))
    auto = _auto_of(alike, replace(plan, nodes={**plan.nodes, name: alike}).share, threads)
    if auto.instance_num > number:
        return f'{waits}: instance_num = "auto"'
    own_s = cpu_s - plan.share * (sum(map(_busy_s, nodes.values())) - busy_s)  # without other nodes
    if auto.short or cores >= 1.5 or own_s * number < 0.5 * busy_s:
        return None
    more = "" if node.auto or number >= threads else ', instance_num = "auto" uses each core'
    return f"{waits}: Process[...] gives each instance an interpreter{more}"


def _busy_s(node: dict[str, Any]) -> float:
    return float(sum(instance["busy_s"] for instance in node["instances"]))


def _waiting_share(node: NodePlan, shown: dict[str, Any]) -> float:
    """Return the share of their time that callers have waited for an instance, not for a batch."""
    waited_ms = max(0.0, shown["queue_ms"]["mean"] - node.keys.batching_timeout)
    return float(waited_ms / max(waited_ms + shown["forward_ms"]["mean"], 1e-9))
