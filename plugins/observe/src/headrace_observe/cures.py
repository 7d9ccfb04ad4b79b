"""What would have helped a slow request: the requests around it once more, in virtual time, with other settings."""

from __future__ import annotations

import copy
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import HeadraceError
from headrace_observe.arrivals import arrivals_of
from headrace_observe.explaining import why
from headrace_observe.service_times import times_of
from headrace_observe.simulate import STAND_IN_KEYS, simulation_of
from headrace_observe.simulation import BACKEND, Flow, Simulation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import headrace
    from headrace.hookspecs import BatchRecord
    from headrace_observe.memory import Memory

__all__ = ["MOST", "Cure", "cures", "replay_of"]

MOST = 5_000
"""At most so many requests around the slow one are simulated."""


class Cure(NamedTuple):
    """A setting, and how long the request takes with it.

    Attributes:
        setting: As the command line has it, ``main.instance_num=3``; empty for the settings as they are.
        ms: The simulated time from its arrival to its end. None where it cannot be simulated.
        why_not: Why that is so. Empty where it is not.
    """

    setting: str
    ms: float | None
    why_not: str = ""


def _own(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a stand-in alone, since a dump that comes from elsewhere may name anything."""
    backend = table["backend"] if table["backend"] == f"BackgroundThread[{BACKEND}]" else BACKEND
    return {**{key: table[key] for key in STAND_IN_KEYS if key in table}, "backend": backend}


class _Ends:
    """A probe that notes the last end of each request."""

    def __init__(self) -> None:
        self.took_s: dict[str, float] = {}
        self._came: dict[str, float] = {}

    def batch_ran(self, record: BatchRecord) -> None:
        """Note the ends of a batch; a hook of probes."""
        for one in record.requests:
            name = one.request["request_id"]
            self.took_s[name] = record.ended - self._came.setdefault(name, one.arrival)


def replay_of(config: headrace.PipelineConfig, memory: Memory) -> dict[str, Any]:
    """Return what simulates a pipeline where its backends are not installed, as plain data; or why it cannot be simulated."""
    try:
        run = simulation_of(config, times_of(memory))
    except HeadraceError as error:
        return {"why_not": str(error).partition("\n")[0]}
    flows = {name: asdict(flow) for name, flow in run.flows.items()}
    return {"config": run.config, "flows": flows, "entry": run.entry}


def cures(memory: Memory, request_id: str) -> list[Cure]:
    """Simulate the request with its settings, and with each that may be a cure, where most of its time went.

    Args:
        memory: What `headrace_observe.memory.read_dump` gives.
        request_id: The request; where it came more than once, the slowest.

    Returns:
        The settings as they are first, then the cures, the best first.

    Raises:
        InputError: No request of this identifier is remembered.
    """
    slow = max(why(memory, request_id), key=lambda one: one.seconds)
    if "why_not" in memory.replay:
        return [Cure("", None, str(memory.replay["why_not"]))]
    waits = [one for one in slow.parts if one.cause not in ("run", "thread")] or slow.parts
    found = [_cure(memory, slow.began, "", None, None)]
    for setting, value in _settings(memory.replay["config"][waits[0].node]):
        found.append(_cure(memory, slow.began, waits[0].node, setting, value))
    return [
        found[0],
        *sorted(found[1:], key=lambda one: float("inf") if one.ms is None else one.ms),
    ]


def _settings(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Give the settings that may help at a node."""
    yield "instance_num", table["instance_num"] + 1
    if table.get("max") is not None:
        yield "max", 2 * table["max"]
    if table.get("batching_timeout"):
        yield "batching_timeout", 0


def _cure(memory: Memory, began: float, node: str, setting: str | None, value: Any) -> Cure:
    replay: dict[str, Any] = copy.deepcopy({**memory.replay})
    tables = {name: _own(replay["config"][name]) for name in memory.nodes}
    replay["config"] = {"global": {"deadlock_after_s": 0}, **tables}
    flows = {name: Flow(**flow) for name, flow in replay["flows"].items()}
    said = ""
    if setting is not None:
        said = f"{node}.{setting}={value}"
        replay["config"][node][setting] = value
        if setting == "instance_num":
            replay["flows"][node]["instance_num"] = value
            flows[node] = Flow(**replay["flows"][node])
    every = arrivals_of(memory)
    place = next(k for k, one in enumerate(every) if one.came == began)
    first = max(0, place - MOST * 4 // 5)
    around = every[first : place + MOST // 5]
    ends = _Ends()
    run = Simulation(replay["config"], flows, replay["entry"], times_of(memory))
    run.probes = [ends]
    try:
        run.open_loop([one.since(around[0]) for one in around], {"kind": "arrivals"}, 0)
    except HeadraceError as error:
        return Cure(said, None, str(error).partition("\n")[0])
    took_s = ends.took_s.get(every[place].name)
    return Cure(said, None if took_s is None else 1000 * took_s, "" if took_s else "it fails there")
