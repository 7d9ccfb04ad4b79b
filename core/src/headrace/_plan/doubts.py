"""What a configuration may say and hardly means: the warnings of ``check`` and ``explain``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace._config.lines import with_lines
from headrace._config.problems import Problems
from headrace._plan.parameters import written_key
from headrace._plan.ranges import narrowed
from headrace._plan.word import planned_word
from headrace._process import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace._config.shape import Shape
    from headrace._plan.element import Element, NodePlan, PipelinePlan
    from headrace.errors import Problem

__all__ = ["doubts_about"]

_CORE = "headrace"


def doubts_about(plan: PipelinePlan, shape: Shape) -> list[Problem]:
    """Give all that is doubtful about a configuration that is right, nodes in file order."""
    doubts = Problems()
    doubts.extend(plan.doubts)
    for name in plan.order:
        node = plan.nodes[name]
        if node.door_to is not None:
            continue
        about = _About(node, shape, doubts)
        about.min_without_wait()
        about.instances()
        about.devices()
        about.work_before_own_thread()
        about.idle_cores(plan.total_instances)
    return list(with_lines(doubts))


class _About:
    """What is doubtful about one node."""

    def __init__(self, node: NodePlan, shape: Shape, doubts: Problems) -> None:
        self.node = node
        self.keys = node.keys
        self._shape = shape
        self._doubts = doubts

    def _add(self, code: str, key: str, message: str, hint: str) -> None:
        """Report a doubt, at a key of the node if that is written."""
        name, shape = self.node.name, self._shape
        place: dict[str, Any] = {"file": shape.file, "path": name}
        found = written_key(key, name, shape.nodes[name], shape.globals)
        if found is not None:
            place = found.place(at_key=True)
        self._doubts.add(code, message, hint=hint, **place)

    def min_without_wait(self) -> None:
        root = self.node.backend or self.node.entry
        least = narrowed(root.range, self.keys)[0]
        if least > 1 and not self.keys.batching_timeout and not self.keys.pad:
            self._add(
                "min_without_wait",
                "min",
                f"batches of this node have at least {least} requests, but nothing waits for them "
                "or fills them up: with fewer callers, requests fail",
                "Set batching_timeout (milliseconds) to wait for company, or pad = true.",
            )

    def instances(self) -> None:
        asked, made = self.keys.instance_num, max(1, self.node.instance_num)
        if self.node.origins["instance_num"] == "node" and asked > made:
            self._add(
                "instance_num_unused",
                "instance_num",
                f"instance_num is {asked}, and what this node is built from makes {made} instance",
                "Leave the key out, or write InstancesRegister[...] in init or node_entrypoint.",
            )

    def devices(self) -> None:
        """A list of devices is spread over the instances: later ones may get none."""
        listed = self.keys.device
        made = max(1, self.node.instance_num)
        if isinstance(listed, tuple) and len(listed) > made:
            unused = ", ".join(listed[made:])
            self._add(
                "device_unused",
                "device",
                f"device lists {len(listed)} devices, and there are fewer instances ({made}): "
                f"nothing runs on {unused}",
                f"Set instance_num = {len(listed)}, or a multiple of it.",
            )

    def work_before_own_thread(self) -> None:
        """A backend that owns its thread takes the whole expression into it."""
        if self.node.instance is None or not self.node.instance.own_thread:
            return
        before: list[str] = []
        for element in _computing(self.node.instance, threads=False):
            if element.cls.owns_thread and before:
                names, owner = ", ".join(dict.fromkeys(before)), element.name
                made = self.node.instance_num
                self._add(
                    "work_before_own_thread",
                    "backend",
                    f"{names} before {owner}, which owns its thread, is run by that thread too: on "
                    f"at most {made} of the requests at a time, however many cores there are",
                    "Put it into a node of its own before this one, with next and more instances.",
                )
                return
            if not element.cls.owns_thread and not _runs_a_file(element):
                before.append(element.name)

    def idle_cores(self, instances: int) -> None:
        """One instance is run by one thread at a time, however many call."""
        computing = list(_computing(self.node.instance or self.node.entry))
        cores = usable_cpus()
        on_cpu = self.keys.device is None or self.keys.device == "cpu"
        if (
            max(1, self.node.instance_num) > 1
            or cores <= instances
            or not on_cpu
            or not computing
            or any(element.cls.owns_thread for element in computing)
        ):
            return
        names = ", ".join(dict.fromkeys(element.name for element in computing))
        self._add(
            "idle_cores",
            "instance_num",
            f"instance_num is 1, so one batch at a time goes through {names}, and {cores} cores "
            "can be used here",
            f"Set instance_num, up to {cores}, if requests come from several threads.",
        )


def _computing(root: Element, *, threads: bool = True) -> Iterator[Element]:
    """Give the elements that do work of their own, in the order of writing.

    Args:
        root: Where to begin.
        threads: Whether to look into ``BackgroundThread`` as well.
    """
    todo = [root]
    while todo:
        element = todo.pop()
        if planned_word(element.cls)._threaded and not threads:
            continue
        todo.extend(reversed(element.children))
        if element.named is None and not element.children and element.spec.distribution != _CORE:
            yield element


def _runs_a_file(element: Element) -> bool:
    """Tell whether an option names a file: that is a model, which no other node is to run."""
    options = {} if element.options is None else dict(element.options)
    return any(isinstance(value, Path) for value in options.values())
