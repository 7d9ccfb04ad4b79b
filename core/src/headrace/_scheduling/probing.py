"""Probes come to a scheduler, and go; without them nothing of this is called.

A probe hears of a request before its owner has the answer: a caller that is served counts its
outcome only when it is notified, as the owner of a future is. No probe is called under a lock, nor by the
main thread, but where all are reentrant: a probe takes locks of its own, and so may a signal handler that
interrupts it and calls.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling.batch import run, run_alone
from headrace._scheduling.entry import DATA_ALONE, MISSING
from headrace._scheduling.instance import FAST_S, SAMPLED
from headrace._scheduling.locks import main_thread, taking
from headrace._scheduling.probes import Reporter

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._scheduling.batch import Outcome
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node
    from headrace._scheduling.probes import Probes
    from headrace._scheduling.scheduler import Scheduler
    from headrace._scheduling.sleeper import Rest
    from headrace._scheduling.threads import Work
    from headrace.keys import Request


def listen(scheduler: Scheduler, probes: Probes) -> None:
    """Let these probes, and no others, hear of every batch and request of a node from now on.

    What waits and runs there goes on. A thread that has begun on a request before this does it to its end
    as it was then: so probes may miss it, or hear of it once they are gone.
    """
    node: Any = scheduler._node
    changed: Any = scheduler
    with taking(node.lock):
        if node.reporter is not None:
            node.reporter.probes = probes
        if not probes.listening:
            node.reporter = None
        elif node.reporter is None:
            node.reporter = Reporter(node.name, node.clock, probes)
        listens = node.reporter is not None
        for name in ("call", "_run_alone"):
            with suppress(AttributeError):
                delattr(changed, name)
        if scheduler.needs is not DATA_ALONE:
            changed.call = scheduler._call_with_keys
        if listens:
            changed._run_alone = partial(_run_alone, node.reporter)
            if not probes.reentrant:
                changed.call = partial(_call, scheduler, scheduler.call)
        scheduler._driver.run = partial(_run, node.reporter) if listens else run
        for instance in node.every:
            # Every request goes through `_run_alone`, or those that are timed.
            instance.sampling, instance.mask = 0 if listens else SAMPLED, 0


def _call(
    scheduler: Scheduler, plain: Callable[..., Rest | None], request: Request, **way: Any
) -> Rest | None:
    """Run one request as ``plain`` does, but that of the main thread by a helper; ``way``: see `FastPath.call`."""
    if get_ident() != main_thread.ident:
        return plain(request, **way)
    weight = scheduler.checked(request)
    request.pop("result", None)
    data, internal = request.get("data", MISSING), way.get("internal", False)
    return scheduler._call_slowly(request, data, weight, internal, way.get("home"), way.get("rest"))


def _run(reporter: Reporter, work: Work, node: Node) -> Outcome:
    """Run a batch, and report it while the thread still holds the instance."""
    started = node.clock()
    errors, interrupt = run(work, node)
    requests = ((e.request, e.arrival, e.cut, e.weight) for e in work.entries)
    each = errors or [None] * len(work.entries)
    try:
        reporter.ran(work.instance.index, requests, started, node.clock(), each)
    except KeyboardInterrupt as raised:
        interrupt = interrupt or raised
    return errors, interrupt


def _run_alone(
    reporter: Reporter, instance: Instance, request: Request, node: Node
) -> BaseException | None:
    """Run a caller's own request on the instance that it claimed, and report it; give its error."""
    data = request["data"]
    started = node.clock()
    error: BaseException | None
    try:
        error = run_alone(instance, request, node, may_time=False)
    except BaseException as interrupt:
        reporter.ran_alone(instance.index, request, started, node.clock(), interrupt)
        raise
    ended = node.clock()
    if instance.unqueued & SAMPLED and instance.mean_s < FAST_S:
        instance.busy_s += ended - started
    else:
        instance.timed(ended - started)
        instance.waited.add(0.0)
    request["data"] = data
    if error is not None:
        request.pop("result", None)
    reporter.ran_alone(instance.index, request, started, ended, error)
    try:
        return error
    finally:
        del error  # see `Entry.take_error`
