"""What is told of the batches and requests of a node, and to whom: one list of subscribers.

A subscriber has a method for each event that it wants:

==============================================  ====================================================
``on_cut(instance, size, weight, reason)``      a batch begins: in a step, or in the thread of a
                                                caller that runs its own request
``on_ended(record)``                            it has run: in its thread, which still has the
                                                instance. A `BatchRecord`
``on_settled(request, started, ended, error)``  a request has its outcome, of which its caller knows
                                                nothing yet. In no step
``on_failed(request, error)``                   a request has failed. In no step
==============================================  ====================================================

Counts, the log of failures and probes are such subscribers. A caller on the short cut tells of most
of its batches by one number, unless somebody beside the counts wants one of the first three events.
"""

from __future__ import annotations

from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._run.batches import batch
from headrace._run.contract.checked import PENDING
from headrace._run.records.probes import BatchRecord, BatchRequest
from headrace._run.records.statistics import ALONE
from headrace._run.steps.box import post
from headrace.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._run.batches.batch import Errors
    from headrace._run.batches.instance import Instance
    from headrace._run.node import Node
    from headrace._run.requests.entry import Entry
    from headrace.keys import Request

_fields_of = attrgetter(*BatchRequest._fields)


class Events:
    """The subscribers of one node.

    Args:
        counts, log: Those that it always has.

    Attributes:
        cut, ended, settled, failed: The functions that are called.
        each: Whether each batch and request is told of, also on the short cut.
        hears: The class of errors of which anybody wants to be told.
        run, run_alone: Run a batch, or the request of the caller, as `batch.run` and
            `batch.run_alone` do, and tell of its end.
    """

    def __init__(self, counts: object, log: object) -> None:
        self._always = counts, log
        self.set_listeners()

    def set_listeners(self, *subscribers: object) -> None:
        """Let these subscribers, and no others beside those that it always has, be told."""
        everybody = (*self._always, *subscribers)
        self.cut, self.ended, self.settled, self.failed = (
            tuple(filter(None, [getattr(listener, event, None) for listener in everybody]))
            for event in ("on_cut", "on_ended", "on_settled", "on_failed")
        )
        self.hears = BaseException if self.failed[1:] else BackendError  # what the log wants
        self.each = bool(self.cut[1:] or self.ended or self.settled)
        self.run = self._run if self.ended else batch.run
        self.run_alone = self._run_alone if self.each else batch.run_alone

    def report_failure(self, request: Any, error: BaseException) -> None:
        """Tell of a request that has failed. In no step."""
        for failed in self.failed:
            failed(request, error)

    def report_outcome(self, request: Any, started: float, ended: float, error: Any) -> None:
        """Tell of the outcome of a request. In no step."""
        if error is not None:
            self.report_failure(request, error)
        for settled in self.settled:
            settled(request, started, ended, error)

    def report_entry(self, node: Node, entry: Entry, ended: float) -> None:
        """Tell of the outcome of an entry, and then tell its caller. In no step."""
        try:
            if entry.then is not None or entry.lock is not None:
                entry.give_back()
            self.report_outcome(entry.request, entry.arrival, ended, entry.error)
        finally:
            post(node.box, node.tell, entry)

    def _run(self, instance: Instance, entries: Sequence[Entry], node: Node) -> Errors:
        ended, started = self.ended, node.clock()
        errors = batch.run(instance, entries, node)
        requests = [BatchRequest(*_fields_of(entry)) for entry in entries]
        _tell(ended, instance, node, requests, started, errors or [None] * len(requests))
        return errors

    def _run_alone(self, instance: Instance, request: Request, node: Node) -> BaseException | None:
        data, started, weight = request["data"], node.clock(), instance.running_weight
        error: BaseException | None = None
        for cut in self.cut:
            cut(instance, 1, weight, ALONE)
        try:
            error = batch.run_alone(instance, request, node, timed=False)
            request["data"] = data
            if error is not None:
                request.pop("result", None)
        except BaseException as raised:
            error = raised
            raise
        else:
            return error
        finally:
            alone = [BatchRequest(request, started, started, weight)]
            ended = _tell(self.ended, instance, node, alone, started, [error])
            instance.note_duration(ended - started)
            for settled in self.settled:  # who has failed, `ShortCut` tells
                settled(request, started, ended, error)
            del error  # see `Entry.take_error`


def _tell(
    functions: Any, instance: Instance, node: Node, requests: Any, started: float, errors: list[Any]
) -> float:
    """Tell of a batch that has run until now, and give the time."""
    ended, weight = node.clock(), sum([request.weight for request in requests])
    errors = [None if error is PENDING else error for error in errors]
    about = (node.name, instance.index, get_ident(), requests, started, ended, weight)
    for function in functions:
        function(BatchRecord(*about, [*errors], instance.reason))
    return ended
