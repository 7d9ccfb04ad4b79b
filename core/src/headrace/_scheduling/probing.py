"""Putting probes into a scheduler and taking them out; without probes no request comes through here.

A probe hears of a request before the owner has the answer: with probes, a caller that waits counts its
outcome only when it is notified, as the owner of a future is. No probe is called under a lock of the
scheduler. The main thread calls probes only where all are reentrant: a signal handler that interrupts a
probe, and calls the pipeline, might wait for ever for a lock that the interrupted probe holds.
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

    Requests that wait or run go on. A thread that began a request before this call ends it with the probes
    of that time: so new probes may miss the request, and old ones may hear of it after they have gone.
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
        reports = probes.reports
        for name in ("call", "_run_alone"):
            with suppress(AttributeError):
                delattr(changed, name)
        if scheduler.needs is not DATA_ALONE:
            changed.call = scheduler._call_with_keys
        if reports:
            changed._run_alone = partial(_run_alone, node.reporter)
        if not probes.reentrant:
            changed.call = partial(_call, scheduler, scheduler.call)
        scheduler._driver.run = partial(_run, node.reporter) if reports else run
        for instance in node.every:
            # Where probes hear of batches, every request goes through `_run_alone`; else only those that are timed.
            instance.sampling, instance.mask = 0 if reports else SAMPLED, 0


def _call(
    scheduler: Scheduler, plain: Callable[..., Rest | None], request: Request, **way: Any
) -> Rest | None:
    """Run one request as ``plain`` does, in the main thread by a helper; ``way``: see `FastPath.call`."""
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
    try:
        reporter.ran(work, started, node.clock(), errors or [None] * len(work.entries))
    except KeyboardInterrupt as raised:
        interrupt = interrupt or raised
    return errors, interrupt


def _run_alone(
    reporter: Reporter, instance: Instance, request: Request, node: Node
) -> BaseException | None:
    """Run a caller's own request on the instance that the caller claimed, and report it; return its error."""
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
