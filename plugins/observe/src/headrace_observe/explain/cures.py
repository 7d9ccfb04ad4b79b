"""What would have helped a slow request: the requests before it once more, in virtual time, with other settings."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import HeadraceError
from headrace_observe.bench.arrivals import Arrival, arrivals_of
from headrace_observe.explain.causes import why
from headrace_observe.simulate.from_config import STAND_IN_KEYS, simulation_of
from headrace_observe.simulate.service_times import times_of
from headrace_observe.simulate.virtual_pipeline import BACKEND, Flow, Simulation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import headrace
    from headrace_observe.memory import Memory
    from headrace_observe.simulate.service_times import ServiceTimes

__all__ = ["MOST", "Cure", "cures", "replay_of"]

MOST = 20_000
"""At most so many requests before the slow one are simulated."""


class Cure(NamedTuple):
    """A setting, and how long the request takes with it.

    Attributes:
        setting: As the command line has it, ``main.instance_num=3``; empty for the settings as they are.
        ms: The simulated time from its arrival to its end. None where it cannot be simulated.
        why_not: Why that is so. Empty where it is not.
        requests: How many requests were simulated: it, and those before it since the pipeline had nothing to do.
    """

    setting: str
    ms: float | None
    why_not: str = ""
    requests: int = 0


def replay_of(config: headrace.PipelineConfig, memory: Memory) -> dict[str, Any]:
    """Return what simulates a pipeline where its backends are not installed, as plain data; or why it cannot be simulated."""
    try:
        run = simulation_of(config, times_of(memory))
    except HeadraceError as error:
        return {"why_not": _in_one_line(error)}
    flows = {name: asdict(flow) for name, flow in run.flows.items()}
    return {"config": run.config, "flows": flows, "entry": run.entry}


def cures(memory: Memory, request_id: str) -> list[Cure]:
    """Simulate the request with its settings, and with each that may be a cure, where most of its time went.

    Args:
        memory: What `headrace_observe.memory.read_dump` gives.
        request_id: The request; where it came more than once, the slowest.

    Returns:
        The settings as they are first, then the cures, the best first. No cures where the settings cannot be simulated.

    Raises:
        InputError: No request of this identifier is remembered.
    """
    slow = max(why(memory, request_id), key=lambda plan: plan.seconds)
    if "why_not" in memory.replay:
        return [Cure("", None, str(memory.replay["why_not"]))]
    waits = [part for part in slow.parts if part.cause not in ("run", "thread")] or slow.parts
    node = waits[0].node
    every = arrivals_of(memory, memory.idle_until(slow.began))
    places = [k for k, plan in enumerate(every) if plan.visit.arrival == slow.began]
    if not places:
        return [Cure("", None, "its arrival was forgotten")]
    (place, *_) = places
    visits, times = [plan.visit for plan in every[max(0, place - MOST) :]], times_of(memory)
    place = min(place, MOST)

    def tried(key: str = "", value: Any = None) -> Cure:
        setting = f"{node}.{key}={value}" if key else ""
        arrivals = [Arrival.of(visit, visits[0].arrival) for visit in visits]
        arrival = arrivals[place]
        try:
            run = _simulation(memory, times, node, key, value)
            sent = takewhile(lambda _: arrival.took_s is None, arrivals)
            run.open_loop(sent, {"kind": "arrivals"}, 0)
        except HeadraceError as error:
            return Cure(setting, None, _in_one_line(error))
        took_s = arrival.took_s
        return Cure(setting, None if took_s is None else 1000 * took_s, requests=place + 1)

    as_it_is = tried()
    if as_it_is.why_not:
        return [as_it_is]
    number = memory.nodes[node].instance_num
    others = [tried(*setting) for setting in _settings(memory.replay["config"][node], number)]
    return [as_it_is, *sorted(others, key=lambda cure: math.inf if cure.ms is None else cure.ms)]


def _in_one_line(error: HeadraceError) -> str:
    text, hint = str(error).partition("\n")[0], getattr(error, "hint", None)
    return f"{text}. {hint}" if hint else text


def _simulation(
    memory: Memory, times: Mapping[str, ServiceTimes], node: str, key: str, value: Any
) -> Simulation:
    tables = {name: _own(memory.replay["config"][name]) for name in memory.nodes}
    flows = {name: Flow(**flow) for name, flow in memory.replay["flows"].items()}
    if key:
        tables[node][key] = value
    if key == "instance_num":
        flows[node] = replace(flows[node], instance_num=value)
    config = {"global": {"deadlock_after_s": 0, "threads": 1}, **tables}
    return Simulation(config, flows, memory.replay["entry"], times)


def _settings(table: Mapping[str, Any], instances: int) -> Iterator[tuple[str, Any]]:
    """Give the settings that may help at a node."""
    yield "instance_num", instances + 1
    if table.get("max") is not None:
        yield "max", 2 * table["max"]
    if table.get("batching_timeout"):
        yield "batching_timeout", 0


def _own(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a stand-in alone, since a dump that comes from elsewhere may name anything."""
    backend = table["backend"] if table["backend"] == f"BackgroundThread[{BACKEND}]" else BACKEND
    return {**{key: table[key] for key in STAND_IN_KEYS if key in table}, "backend": backend}
