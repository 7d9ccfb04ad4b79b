"""Which node of a pipeline is the limit at this moment, and what would lift it, as a sentence for the live page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Limit", "Sample", "limit_of", "running_of"]

_FULL: Final = 0.9
"""Instances, batches and processors that are used to this share have no room worth speaking of."""


class Sample(NamedTuple):
    """What a pipeline said at one moment.

    Attributes:
        at_s: When, in seconds.
        nodes: ``stats()["nodes"]``.
        processor_s: The processor time that this process had used, in seconds.
    """

    at_s: float
    nodes: Mapping[str, Any]
    processor_s: float


class Limit(NamedTuple):
    """The limit of a pipeline: the ``node`` that is it, None where no node is, and a ``text`` that says why."""

    node: str | None
    text: str


class _Load(NamedTuple):
    """What a node did: requests that waited on average, the share of time in which its instances were busy, its mean batch."""

    name: str
    waiting: float
    busy: float
    instances: int
    batch: float


def limit_of(
    samples: Sequence[Sample],
    nodes: Sequence[Mapping[str, Any]],
    processors: int,
    *,
    crowded: bool = False,
) -> Limit:
    """Say which node limits a pipeline, from what it said in the last seconds.

    A node is the limit if its instances have been busy nearly all the time while requests waited for them.

    Args:
        samples: At least one. The first is the oldest.
        nodes: The nodes, as `headrace_serve.ui.graph.nodes_of` describes them.
        processors: How many processors this process may use.
        crowded: Whether the machine has more to run than it has processors for.
    """
    about = {node["name"]: node for node in nodes}
    seconds = samples[-1].at_s - samples[0].at_s
    begun = {(name, index): since_s for name, index, since_s in running_of(samples)}
    loads = [
        _load(name, samples, seconds, begun)
        for name, node in samples[-1].nodes.items()
        if name in about and name in samples[0].nodes and node["instances"] and seconds > 0
    ]
    if not loads:
        return Limit(None, "")
    if _is_idle(samples[-2], samples[-1]):
        return Limit(None, "Nothing waits: no requests come.")
    used = (samples[-1].processor_s - samples[0].processor_s) / seconds
    full = used >= _FULL * processors
    uses = f"this process uses {used:.1f} of {processors} processors"
    if crowded and not full:  # then it is others that use them
        uses += ", which other programs use too"
    most = max(loads, key=lambda load: (load.waiting >= 1 and load.busy >= _FULL, load.waiting))
    if most.waiting >= 1 and most.busy >= _FULL:
        advice = _advice(most, about[most.name], samples[-1].nodes[most.name].get("advice"), uses)
        if full:
            advice = f"More processors or a smaller model would lift it; more instances would share what there is: {uses}"
        busy = f"{_their(most)} busy for {_percent(most.busy)} of the time"
        return Limit(most.name, f"{most.name} is the limit: {busy}, and {_waits(most)}. {advice}.")
    if full:
        return Limit(None, f"The processors are the limit: {uses}.")
    if most.waiting >= 1:
        busy = f"{_their(most)} busy for only {_percent(most.busy)} of the time"
        timeout_ms = about[most.name]["batching_timeout_ms"]
        advice = "They come in bursts: more clients would fill the pauses."
        if timeout_ms and not _is_full(most, about[most.name]):
            advice = f"A batch waits up to {timeout_ms:g} ms for company: lower batching_timeout if that is too long."
        return Limit(None, f"{_waits(most)} at {most.name}, though {busy}. {advice}")
    most = max(loads, key=lambda load: load.busy)
    if most.busy >= _FULL:
        busy = f"{_their(most)} busy for {_percent(most.busy)} of the time"
        return Limit(None, f"{most.name} is about to be the limit: {busy}. Nothing waits yet.")
    busy = f"nothing waits, and the busiest node, {most.name}, is busy for {_percent(most.busy)} of the time"
    return Limit(None, f"The clients are the limit: {busy}. More clients would get more answers.")


def running_of(samples: Sequence[Sample]) -> list[tuple[str, int, float]]:
    """Return node, instance and begin of each batch that runs, in seconds.

    An instance that has been busy with the same number of batches since an earlier sample runs one of them: it had
    begun by then.

    Args:
        samples: At least one. The first is the oldest.
    """
    last, running = samples[-1], []
    for name, node in last.nodes.items():
        for index, instance in enumerate(node["instances"]):
            since_s = last.at_s
            for sample in reversed(samples):
                before = sample.nodes.get(name, {}).get("instances", ())[index : index + 1]
                same = before and before[0]["busy"] and before[0]["batches"] == instance["batches"]
                if not instance["busy"] or not same:
                    break
                since_s = sample.at_s
            if since_s < last.at_s:
                running.append((name, index, since_s))
    return running


def _is_idle(before: Sample, now: Sample) -> bool:
    """Return whether nothing runs or waits, and nothing has come since the sample before."""
    return not any(
        node["waiting"]
        or any(instance["busy"] for instance in node["instances"])
        or (name in before.nodes and node["submitted"] != before.nodes[name]["submitted"])
        for name, node in now.nodes.items()
    )


def _load(
    name: str, samples: Sequence[Sample], seconds: float, begun: Mapping[tuple[str, int], float]
) -> _Load:
    series = [sample.nodes[name] for sample in samples if name in sample.nodes]
    first, last = series[0], series[-1]
    histogram, before = last["batch_size"]["histogram"], first["batch_size"]["histogram"]
    sizes = {int(size): count - before.get(size, 0) for size, count in histogram.items()}
    batches = sum(sizes.values())
    busy = [
        _share(
            [node["instances"][index] for node in series if index < len(node["instances"])],
            seconds,
            samples[-1].at_s - begun.get((name, index), samples[-1].at_s),
        )
        for index in range(len(last["instances"]))
        if not last["instances"][index].get("wide")  # busy only in a node that else is idle
    ]
    return _Load(
        name,
        waiting=sum(node["waiting"] for node in series) / len(series),
        busy=sum(busy) / len(busy),
        instances=len(busy),
        batch=sum(size * count for size, count in sizes.items()) / batches if batches else 0.0,
    )


def _share(series: Sequence[Mapping[str, Any]], seconds: float, running_s: float) -> float:
    """Return the share of the time in which an instance was busy.

    Its seconds are counted when a batch ends, so those of a batch that runs are added.
    """
    counted_s = max(0.0, series[-1]["busy_s"] - series[0]["busy_s"])
    return float(min(1.0, (counted_s + running_s) / seconds))


def _advice(load: _Load, node: Mapping[str, Any], measured: str | None, uses: str) -> str:
    """Return what would lift the limit: the ``advice`` of ``stats()`` where it has any, else a guess."""
    most = node["most"]
    if measured is not None:
        return measured[:1].upper() + measured[1:]
    if most == 1:
        return f"Raise instance_num, or max if its backend gains by larger batches: {uses}"
    if _is_full(load, node):
        return (
            f"Its batches are full, {load.batch:.0f} of {most}. Raise max or instance_num: {uses}"
        )
    return f"Raise instance_num: {uses}"


def _is_full(load: _Load, node: Mapping[str, Any]) -> bool:
    return node["most"] is not None and load.batch >= _FULL * node["most"]


def _their(load: _Load) -> str:
    return "its instance is" if load.instances == 1 else f"its {load.instances} instances are"


def _waits(load: _Load) -> str:
    count = round(load.waiting)
    return "1 request waits" if count == 1 else f"{count:,} requests wait"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
