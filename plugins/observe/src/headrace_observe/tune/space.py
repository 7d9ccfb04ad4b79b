"""The search space of ``headrace tune``: keys of nodes, with the values that each may take."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError, among
from headrace.plugins import usable_cpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["KEYS", "Dimension", "Value", "as_layer", "space_of", "within"]

Value = int | str
"""A value of a key: a number, or ``AUTO``."""

AUTO = "auto"

KEYS = ("instance_num", "max", "batching_timeout", "threads")
"""The keys that are searched; ``threads`` is a key of ``[global]``, the others are keys of nodes."""

_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
_RANGE = re.compile(r"(?P<low>\d+)\.\.(?P<high>\d+)\Z")


@dataclass(frozen=True)
class Dimension:
    """One key and the values it may take.

    Attributes:
        node: The node. None for a key of ``[global]``.
        key: One of `KEYS`.
        values: The values, ascending. ``"auto"``, which `instance_num` alone has, is the first.
        start: The one of the values that is nearest to the configuration's. ``"auto"`` where that writes no number.
    """

    node: str | None
    key: str
    values: tuple[Value, ...]
    start: Value

    @property
    def name(self) -> str:
        """``node.key``, as ``--range`` has it."""
        return f"{self.node or 'global'}.{self.key}"


def space_of(
    nodes: Mapping[str, Mapping[str, Any]], ranges: Sequence[str], threads: int
) -> list[Dimension]:
    """Return the dimensions of the search.

    Without ``ranges`` these are ``instance_num`` of every node, ``"auto"`` and up to the number of CPUs, and ``max`` and
    ``batching_timeout`` of every node that takes batches. ``max`` within the range of its classes, up to 64 where that has
    no end.

    Args:
        nodes: The nodes, as ``headrace.explain(config)["nodes"]`` gives them.
        ranges: Texts such as ``infer.max=1..64``, ``max=1,4,16`` or ``instance_num=auto,1,2``. The name of the node may be left out if
            there is only one.
        threads: The threads of the configuration, ``headrace.explain(config)["threads"]``.

    Raises:
        InputError: A range cannot be read, or names a node or key that does not exist.
    """
    if ranges:
        choices = [_written(nodes, text, threads) for text in ranges]
        names = [choice.name for choice in choices]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"--range: {name} is given twice")
        return choices
    cpus = usable_cpus()
    fitting = []
    for name, node in nodes.items():
        if node["alias_of"] is not None:
            continue
        on_several = isinstance(node["keys"]["device"]["value"], list)
        auto = () if on_several else (AUTO,)
        fitting.append(_dimension(nodes, name, "instance_num", (*auto, *range(1, cpus + 1))))
        least, most = node["tree"]["range"]
        if most != 1:  # its classes take more than one request at a time
            most = most or max(64, least)
            if least < most:
                sizes = (least, *(v for v in _STEPS if least < v < most), most)
                fitting.append(_dimension(nodes, name, "max", sizes))
            fitting.append(_dimension(nodes, name, "batching_timeout", (0, 1, 2, 4, 8)))
    return fitting


def within(
    space: Sequence[Dimension], built: Mapping[str, Mapping[str, Any]]
) -> tuple[list[Dimension], list[str]]:
    """Leave out every ``max`` above what the backends of a node take themselves: it changes nothing.

    Args:
        space: The dimensions.
        built: The nodes of the built pipeline, as ``Pipeline.describe()["nodes"]`` gives them: only ``init`` knows how many rows
            a model takes.

    Returns:
        The dimensions that are left, and a sentence for each that has lost values.
    """
    left, lines = [], []
    for choice in space:
        node = choice.node if choice.key == "max" else None
        most = built[node]["tree"]["range"][1] if node else None
        numbers = [value for value in choice.values if isinstance(value, int)]
        if most is None or numbers[-1] <= most:
            left.append(choice)
            continue
        allowed = tuple(value for value in numbers if value <= most) or (most,)
        left.append(_near(choice.node, choice.key, allowed, choice.start))
        gone = ", ".join(str(value) for value in numbers if value > most)
        lines.append(f"{choice.name}: {gone} not tried, what is built there takes at most {most}")
    return left, lines


def _written(nodes: Mapping[str, Mapping[str, Any]], text: str, threads: int) -> Dimension:
    where, equals, written = text.partition("=")
    node, _, key = where.strip().rpartition(".")
    if not equals:
        raise InputError(f"--range: expected KEY=LOW..HIGH or NODE.KEY=A,B,C, got {text!r}")
    if key not in KEYS:
        raise InputError(f"--range {text}: {key!r} is not searched", hint=among(key, KEYS))
    if key == "threads":
        if node not in ("", "global"):
            raise InputError(
                f"--range {text}: threads is a key of [global]: write global.threads=..."
            )
        return _near(None, key, _values(text, written), threads)
    if not node and len(nodes) == 1:
        (node,) = nodes
    if node not in nodes:
        why = f"there is no node {node!r}" if node else "of which node?"
        raise InputError(f"--range {text}: {why}", hint=among(node, nodes))
    parts = written.split(",")
    numbers = [part for part in parts if key != "instance_num" or part.strip() != AUTO]
    auto = [AUTO] * (len(numbers) < len(parts))
    some = _values(text, ",".join(numbers)) if numbers else []
    return _dimension(nodes, node, key, [*auto, *some])


def _values(text: str, written: str) -> list[int]:
    match = _RANGE.match(written.strip())
    if match is not None:
        low, high = int(match["low"]), int(match["high"])
        inside = [value for value in _STEPS if low < value < high]
        if low <= high:
            return [low, *inside, high]
    elif all(part.strip().isdecimal() for part in written.split(",")):
        return [int(part) for part in written.split(",")]
    raise InputError(f"--range {text}: expected LOW..HIGH or A,B,C in whole numbers")


def _dimension(
    nodes: Mapping[str, Mapping[str, Any]], node: str, key: str, values: Iterable[Value]
) -> Dimension:
    state = nodes[node]["keys"].get(key, {})
    has = state.get("value")
    if key == "instance_num":
        has = AUTO if state["origin"] == "default" else has
        if has == AUTO and AUTO not in (values := [*values]):
            has = nodes[node]["instance_num"]
    elif not has:
        # Without `max` a node takes as many as its classes do.
        has = nodes[node]["range"][1] if key == "max" else 0
    return _near(node, key, values, has)


def _near(node: str | None, key: str, values: Iterable[Value], has: Value) -> Dimension:
    """Return a dimension that starts at the value nearest to what the configuration ``has``."""
    every = {*values}
    numbers = sorted(value for value in every if isinstance(value, int))
    if key != "batching_timeout" and numbers and numbers[0] < 1:
        raise InputError(f"--range: {key} is at least 1, got {numbers[0]}")
    known: tuple[Value, ...] = (*([AUTO] if AUTO in every else []), *numbers)
    if not isinstance(has, int) or not numbers:
        return Dimension(node, key, known, known[0])
    return Dimension(node, key, known, min(numbers, key=lambda value: abs(value - has)))


def as_layer(
    space: Sequence[Dimension], values: Sequence[Value], *, one_node: bool
) -> dict[str, Any]:
    """Return values as a table to lay over a configuration.

    Args:
        space: The dimensions.
        values: One value for each dimension.
        one_node: Whether the configuration has one node, whose keys are at the top of the table.
    """
    layer: dict[str, Any] = {}
    for choice, value in zip(space, values, strict=True):
        if choice.node is None:
            layer.setdefault("global", {})[choice.key] = value
        elif one_node:
            layer[choice.key] = value
        else:
            layer.setdefault(choice.node, {})[choice.key] = value
    return layer
