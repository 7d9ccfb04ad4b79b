"""How many instances ``instance_num = "auto"`` gives a node, and why so many."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headrace._language.config.sections import AUTO
from headrace._language.plan.element import Auto

if TYPE_CHECKING:
    from headrace._language.plan.element import Element, NodePlan, PipelinePlan


def settle_auto(plan: PipelinePlan) -> None:
    """Work out what the nodes with ``instance_num = "auto"`` have."""
    for node in plan.nodes.values():
        if node.keys.instance_num == AUTO:
            node.auto = _auto_of(node, plan.share, plan.threads)


def _auto_of(node: NodePlan, share: int, threads: int) -> Auto:
    """Work out what a node has whose share of all ``threads`` of the pipeline is ``share``."""
    device = node.keys.device if isinstance(node.keys.device, str) else None
    walked = node.instance.walk(lambda element: not element.cls.builds_elsewhere)
    elements = [each for each in walked if each.named is None and each.options is not None]
    for element in elements:
        if element.cls.stateful:
            return Auto(1, f"{element.name} keeps state between requests")
    if node.alias_of is not None:
        return Auto(1, "another node answers for it")
    if device is not None and not device.startswith("cpu"):
        return Auto(1, f"one instance on {device}")
    carried = {element: _carried(element, device, share) for element in elements}
    says = {element: number for element, number in carried.items() if number is not None}
    if not says:
        names = ", ".join(dict.fromkeys(each.name for each in elements if not each.children))
        hint = "Process[...] gives each instance an interpreter"
        return Auto(1, f"{names} may hold the interpreter lock while it computes: {hint}")
    least = min(says, key=lambda element: says[element])
    number = max(1, says[least])
    if number < share:
        return Auto(number, f"{least.name} carries {number}{_cost_of(least)}", short=True)
    wide = any(element.cls.wide for element in elements) and threads > 1
    each = f"{number} of one thread"
    if wide:
        return Auto(number + 1, f"{each}, and one of {threads} for a request alone", threads)
    return Auto(number, each)


def _carried(element: Element, device: str | None, share: int) -> int | None:
    """Return how many instances the class of an element carries with a share of threads. None where it does not say."""
    if element.cls.builds_elsewhere:
        return share
    most = element.cls.most_instances(element.options)
    number = element.cls.auto_instances(element.options, device, share)
    return number if most is None else min(most, share if number is None else number)


def _cost_of(element: Element) -> str:
    """Say what another instance would load."""
    paths = [value for _, value in element.options or () if isinstance(value, Path)]
    size = sum(path.stat().st_size for path in paths if path.is_file())
    return f", another would load {size / 1e6:.0f} MB more" if size else ""
