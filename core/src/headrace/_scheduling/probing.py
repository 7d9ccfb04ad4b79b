"""Putting probes into a scheduler and taking them out; without probes no request comes through here.

A probe hears of a request before the owner has the answer: with probes, a caller that waits counts its
outcome only when it is notified, as the owner of a future is. No probe is called under a lock of the
scheduler. The main thread calls probes only where all are reentrant: a signal handler that interrupts a
probe, and calls the pipeline, might wait for ever for a lock that the interrupted probe holds.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._scheduling.batch import run, run_alone
from headrace._scheduling.instance import FAST_S, SAMPLED
from headrace._scheduling.locks import taking
from headrace._scheduling.probes import Reporter

if TYPE_CHECKING:
    from headrace._scheduling.batch import Outcome
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node
    from headrace._scheduling.probes import Probes
    from headrace._scheduling.scheduler import Scheduler
    from headrace._scheduling.threads import Work
    from headrace.keys import Request


def listen(scheduler: Scheduler, probes: Probes) -> None:
    """Let these probes, and no others, hear of every batch and request of a node from now on.

    Requests that wait or run go on. A thread that began a request before this call ends it with the probes
    of that time: so new probes may miss the request, and old ones may hear of it after they have gone.
    """
    node: Any = scheduler._node
    with taking(node.lock):
        if node.reporter is not None:
            node.reporter.probes = probes
        if not probes.listening:
            node.reporter = None
        elif node.reporter is None:
            node.reporter = Reporter(node.name, node.clock, probes)
        reports = probes.reports
        scheduler._run_alone = partial(_run_alone, node.reporter) if reports else run_alone
        scheduler.check_as_needed()
        scheduler._driver.run = partial(_run, node.reporter) if reports else run
        for instance in node.every:
            # Where probes hear of batches, every request goes through `_run_alone`; else only those that are timed.
            instance.sampling, instance.mask = 0 if reports else SAMPLED, 0


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
