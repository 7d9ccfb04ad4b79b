"""Refuses a configuration in which arrays lie on one device, and a backend takes them only on another.

Nothing is built and no engine imported: each class says by `Devices` what it takes and gives.
"""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from itertools import product
from typing import Any, NamedTuple

import headrace
from headrace.errors import ConfigError

__all__ = ["Devices", "check_devices", "devices_of_engine", "hands_on"]

_HAND_ON = ("S", "IoC", "Reflect", "BackgroundThread", "Identity")
"""Words of core whose result is that of what stands in their brackets, or their data."""

_HINT = "GpuTensor of headrace-torch in front of what takes them moves them there, CpuTensor behind what leaves them moves them to the host. output_device of an engine says where it leaves them. Or give both nodes one device."


class Devices(NamedTuple):
    """Where a backend takes its ``data``, and where its ``result`` lies: devices as ``"cuda:0"`` and ``"cpu"``.

    A class gives them by a function ``devices(options, context)``, which imports no engine. The context has the
    node's ``device``, in small letters and with its number, and a ``store.instance`` for all elements of an instance.
    A class without the function is not judged, nor where it returns None.

    Attributes:
        takes: The devices on which ``data`` may lie. Empty: any.
        gives: The device of ``result``. None: that of ``data``, or of the result of what stands in its brackets.
    """

    takes: tuple[str, ...] = ()
    gives: str | None = None


def hands_on(options: Any, context: headrace.InitContext) -> Devices:
    """Return the devices of a backend that gives its data, or the result of what stands in its brackets."""
    return Devices()


def devices_of_engine(own: str, options: Any) -> Devices:
    """Return the devices of an engine on ``own``, which also takes arrays of the host; ``output_device`` says what it gives."""
    on_device = getattr(options, "output_device", "device") == "device"
    return Devices((own, "cpu"), own if on_device else "cpu")


def check_devices(config: headrace.PipelineConfig) -> None:
    """Refuse a configuration in which requests would fail because their ``data`` lie on another device.

    ``data`` are followed from element to element and along ``next``, ``map`` and ``each``, for each device of a list.
    Behind an element that does not say what it gives, they may lie anywhere.

    Raises:
        ConfigError: An element may get arrays on a device on which it takes none.
    """
    nodes = config.plan().nodes
    givers = {name: _givers(name, nodes) for name in nodes}
    left: dict[str, list[Any]] = {}
    refused: dict[tuple[str, str], None] = {}
    for name in TopologicalSorter(givers).static_order():
        data = dict.fromkeys(lying for giver in givers[name] for lying in left[giver])
        node = nodes[name].alias_of or name
        tree = nodes[node].tree
        left[name] = [
            _Way(name, headrace.InitContext(device=device), refused).behind(tree, lying)
            for device, lying in product(_devices_of(nodes[node]), data or [None])
        ]
    if refused:
        places = [(name, "device", "devices", text) for name, text in refused]
        raise ConfigError([config.problem_at(*place, _HINT) for place in places])


def _devices_of(node: Any) -> list[str | None]:
    """Return the devices of the instances of a node."""
    device = node.values["device"].value
    used = device[: node.instance_num] if isinstance(device, list) else [device]
    return [text and re.sub(r"^cuda$", "cuda:0", text.strip().lower()) for text in used]


def _givers(name: str, nodes: Any) -> list[str]:
    """Return the nodes whose ``result`` a node finds under ``data``."""
    links = nodes[name].links
    source, _, target = (links.each or "").partition(":")
    key = source if target == "data" else "data"
    if links.map:
        become = {giver: keys.get("result", ()) for giver, keys in links.map.items()}
        return [
            giver for giver, to in become.items() if key in ([to] if isinstance(to, str) else to)
        ]
    before = [giver for giver, node in nodes.items() if name in node.next]
    return before if key == "data" and not links.otherwise else []


class _Way(NamedTuple):
    """The way of ``data`` through an instance of a node.

    Where arrays lie is told by a pair: the device, and the element that has left them there. None: not known.

    Attributes:
        node: The name of the node.
        context: That of the instance.
        refused: Gets the node and what is wrong.
    """

    node: str
    context: headrace.InitContext
    refused: dict[tuple[str, str], None]

    def behind(self, part: Any, data: Any, built: Any = None) -> Any:
        """Return where the result of an element lies.

        Args:
            part: The element, of `headrace.plan`.
            data: Where its data lie.
            built: What an ``IoC`` around it has built, by name. None: nothing is around it.
        """
        if part.instance is not None:
            part = (built or {}).get(part.instance)
        if part is None or part.prefix_texts:
            return None
        word = part.distribution == "headrace" and part.backend in _HAND_ON
        says = hands_on if word else getattr(part.cls, "devices", None)
        if (devices := says and says(part.options, self.context)) is None:
            return None
        label = f"{part.backend} of node {self.node!r}"
        keys = getattr(part.options, "inputs", None) or {"": "data"}
        takes_it = not devices.takes or data is None or data[0] in devices.takes
        if "data" in keys.values() and not takes_it:
            takes = " or ".join(dict.fromkeys(devices.takes))
            text = f"{label} takes arrays on {takes}, and {data[1]} leaves them on {data[0]}: requests fail"
            self.refused[self.node, text] = None
        children = part.children
        if part.backend == "IoC":
            before = (element for child in children[:-1] for element in child.walk())
            built, children = {element.name: element for element in before}, children[-1:]
        for child in children:
            data = self.behind(child, data, built)
        return data if devices.gives is None else (devices.gives, label)
