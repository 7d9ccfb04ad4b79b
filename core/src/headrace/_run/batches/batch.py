"""Running one batch on the instance that was claimed for it, with an outcome for each request."""

from __future__ import annotations

import time
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING

from headrace._run.batches.fitting import copies
from headrace._run.contract.checked import PENDING
from headrace._run.requests.current import batches_run
from headrace._run.requests.entry import own_error
from headrace._run.steps import box
from headrace._run.steps.tracebacks import backend_error, is_abandoned
from headrace.errors import BackendError, ClosedError, NoResultError, code_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from headrace._run.batches.instance import Instance
    from headrace._run.node import Node
    from headrace._run.requests.entry import Entry
    from headrace.keys import Request

    Errors: TypeAlias = "list[BaseException | None] | None"
    """One error or None per entry of a batch. None where all went well."""

_request_of = attrgetter("request")


def run(instance: Instance, entries: Sequence[Entry], node: Node) -> Errors:
    """Run a batch on the instance that was claimed for it, in the calling thread.

    Args:
        instance: The instance.
        entries: The batch.
        node: The node.

    Returns:
        See `Errors`. An error of the backend is an outcome of the entries, and is not raised here.
    """
    batch: list[Request] = [*map(_request_of, entries)]
    if instance.limits.pad:
        batch += copies(instance, entries)
    outcomes: Sequence[BaseException | None] | None
    timed = not instance.batches & instance.mask
    me = get_ident()
    outer = batches_run.get(me, ())
    batches_run[me] = (entries, *outer) if outer else (entries,)
    begun = time.perf_counter() if timed else 0.0
    try:
        outcomes = instance.run(batch)
    except BaseException as error:  # every entry gets an outcome, whatever is raised
        outcomes = [wrap_error(node.name, instance, error) for _ in entries]
    finally:
        if outer:
            batches_run[me] = outer
        else:
            del batches_run[me]
    if timed:
        instance.note_duration(time.perf_counter() - begun)
    if outcomes is None:
        if not node.must_have_result or all(["result" in request for request in batch]):
            return None
        outcomes = [None] * len(entries)
    try:
        return _per_entry(instance, entries, node, outcomes)
    finally:
        del outcomes  # see `Entry.take_error`


def _per_entry(
    instance: Instance,
    entries: Sequence[Entry],
    node: Node,
    outcomes: Sequence[BaseException | None],
) -> list[BaseException | None]:
    """Return one error or None per entry, without the fillers, and set the code of each failure."""
    errors = [_for_owner(error) for error in outcomes[: len(entries)]]
    for index, entry in enumerate(entries):
        if errors[index] is None and node.must_have_result and "result" not in entry.request:
            errors[index] = _no_result(node.name, instance, entry.request)
        failure = errors[index]
        if failure is not None and failure is not PENDING:
            # Here, and not under the lock: `code` may be a property of a plugin's error.
            entry.code = code_of(failure)
        del failure
    try:
        return errors
    finally:
        del errors  # see `Entry.take_error`


def run_alone(
    instance: Instance, request: Request, node: Node, *, timed: bool = True
) -> BaseException | None:
    """Run a caller's own request on the instance that the caller claimed; return its error."""
    begun = time.perf_counter()
    try:
        outcomes = instance.run([request])
    except BaseException as error:  # raised past the backend's own guard
        return wrap_own(node.name, instance, error)
    finally:
        if timed:
            instance.note_duration(time.perf_counter() - begun)
    if outcomes is None and "result" in request:
        return None
    return judge(instance, request, outcomes, node)


def judge(
    instance: Instance, request: Request, outcomes: list[Exception | None] | None, node: Node
) -> BaseException | None:
    """Give the error of a request that its caller ran alone, None for none."""
    if outcomes is not None and outcomes[0] is not None:
        return _for_owner(outcomes.pop(0))  # see `Entry.take_error`
    if "result" in request or not node.must_have_result:
        return None
    return _no_result(node.name, instance, request)


def _for_owner(error: BaseException | None) -> BaseException | None:
    """Return an outcome; a `ClosedError` as a copy, which outer backends wrap as other errors."""
    return own_error(error) if isinstance(error, ClosedError) else error


def _no_result(node: str, instance: Instance, request: Request) -> NoResultError:
    silent, index = instance.backend._last_label(request), instance.index
    return NoResultError(
        f"{silent} wrote no 'result'",
        hint='request["result"] = ... writes it, for each request.',
        node=node,
        backend=silent,
        instance=index,
    )


def wrap_error(node: str, instance: Instance, error: BaseException) -> BackendError:
    """Make the error of a request whose batch ended with ``error``, past the backend's guard."""
    backend = instance.backend._label()
    problem = f"{backend} raised {type(error).__name__}"
    failure = backend_error(problem, error, node=node, backend=backend, instance=instance.index)
    failure.abandoned = is_abandoned(error)
    return failure


def wrap_own(node: str, instance: Instance, error: BaseException) -> BackendError:
    """Make the error of a request that its own caller ran.

    An interrupt in the main thread, where signal handlers run, is raised as it is.
    """
    if isinstance(error, (KeyboardInterrupt, SystemExit)) and get_ident() == box.main:
        raise error
    return wrap_error(node, instance, error)
