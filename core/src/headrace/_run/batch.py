"""Running one batch on the instance that was claimed for it: padding, the call, the outcomes."""

from __future__ import annotations

import time
from math import inf
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._run import box
from headrace._run.checked import PENDING, filler
from headrace._run.entry import Entry, own_error
from headrace._run.threads import threads_of
from headrace._run.tracebacks import is_abandoned, with_cause
from headrace.errors import BackendError, BatchRangeError, ClosedError, NoResultError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from headrace._run.instance import Instance
    from headrace.keys import Request

    Errors: TypeAlias = "list[BaseException | None] | None"
    """One error or None per entry of a batch; None where all went well."""


batches_run: dict[int, tuple[Sequence[Entry], ...]] = {}
"""Per thread the batches from queues that it runs, the innermost first."""


def takes(instance: Instance, weight: int) -> bool:
    """Tell whether a batch of a weight, without copies, lies in the range and the sizes of an instance."""
    most, sizes = instance.max, instance.limits.batch_sizes
    if weight < instance.min or (most is not None and weight > most):
        return False
    return not sizes or weight in sizes


def refusal(node: str, weights: Sequence[int], instance: Instance) -> BatchRangeError | None:
    """Return the error of a batch outside the range or the sizes of an instance, with copies too; else None."""
    weight, sizes, pad = sum(weights), instance.limits.batch_sizes, instance.limits.pad
    hint = None
    if instance.max is not None and weight > instance.max:
        what = f"the batch policy cut a weight of {weight} for a max of {instance.max}"
    elif takes(instance, weight) or (
        pad and indices_to_repeat(weights, instance, sizes) is not None
    ):
        return None
    else:
        allowed = f"the sizes {', '.join(map(str, sizes))}" if sizes else f"a min of {instance.min}"
        copies = ", which no number of copies of its requests gives" if pad else ""
        what = f"the wait for other requests is over with a weight of {weight}, and the node has {allowed}{copies}"
        also = "" if pad else "pad = true, "
        hint = f"Set {also}a longer batching_timeout, or allow smaller batches. The request itself is right."
    limits: Any = {"weight": weight, "min": instance.min, "max": instance.max}
    return BatchRangeError(what, **limits, node=node, instance=instance.index, hint=hint)


def indices_to_repeat(
    weights: Sequence[int], taker: Any, sizes: Sequence[int] | None = None
) -> list[int] | None:
    """Return the indices of the items to repeat so that a batch has an allowed weight, None where no copies do.

    The last item is repeated as often as it fits. Earlier items fill what is left. Where that gives no allowed
    weight, the same is tried without the last item, and so on.

    Args:
        weights: The weights of the items of the batch.
        taker: Whose ``min`` and ``max`` hold.
        sizes: The weights that are allowed within them. None or empty for all.
    """
    weight, least, most = sum(weights), max(sum(weights), taker.min), taker.max
    places = sorted({one: place for place, one in enumerate(weights)}.values())
    # Without sizes: copies of any one item reach one of these weights.
    allowed = sizes or range(least, least + max(weights))
    for size in (one for one in allowed if least <= one and (most is None or one <= most)):
        for end in range(len(places), 0, -1):
            found, missing = [], size - weight
            for item in reversed(places[:end]):
                times, missing = divmod(missing, weights[item])
                found += [item] * times
            if not missing:
                return found
    return None


def run(instance: Instance, entries: Sequence[Entry], node: Any) -> Errors:
    """Run a batch on the instance that was claimed for it, in the calling thread.

    Args:
        instance: The instance.
        entries: The batch.
        node: The node.

    Returns:
        See `Errors`. An error that the backend raises is an outcome of the entries, and not raised here.
    """
    batch: list[Any] = []
    for entry in entries:  # a comprehension would cost one call more
        batch.append(entry.request)  # noqa: PERF401
    if instance.limits.pad:
        batch += _copies(instance, entries)
    outcomes: Sequence[BaseException | None] | None
    timed = not instance.batches & instance.mask
    me = get_ident()
    outer = batches_run.get(me, ())
    batches_run[me] = (entries, *outer) if outer else (entries,)
    begun = time.perf_counter() if timed else 0.0
    try:
        outcomes = instance.run(batch)
    except BaseException as error:  # noqa: BLE001 - every entry gets an outcome, whatever is raised
        outcomes = [wrap_error(node.name, instance, error) for _ in entries]
    finally:
        if outer:
            batches_run[me] = outer
        else:
            del batches_run[me]
    if timed:
        instance.note_duration(time.perf_counter() - begun)
    if outcomes is None:
        if not node.must_have_result or all(["result" in request for request in batch]):  # noqa: C419 - a generator costs more
            return None
        outcomes = [None] * len(entries)
    try:
        return _per_entry(instance, entries, node, outcomes)
    finally:
        del outcomes  # see `Entry.take_error`


def _copies(instance: Instance, entries: Sequence[Entry]) -> list[Any]:
    """Return copies of items that fill a batch up."""
    weights = [entry.weight for entry in entries]
    items = indices_to_repeat(weights, instance, instance.limits.batch_sizes) or ()
    return [filler(entries[item].request) for item in items]


def _per_entry(
    instance: Instance,
    entries: Sequence[Entry],
    node: Any,
    outcomes: Sequence[BaseException | None],
) -> list[BaseException | None]:
    """Return one error or None per entry, and set the code of each failure; outcomes of fillers are left out."""
    errors = [_for_owner(error) for error in outcomes[: len(entries)]]
    for index, entry in enumerate(entries):
        if errors[index] is None and node.must_have_result and "result" not in entry.request:
            errors[index] = _no_result(node.name, instance, entry.request)
        failure = errors[index]
        if failure is not None and failure is not PENDING:
            # Here, and not under the lock: `code` may be a property of a plugin's error.
            entry.code = code_of(failure)
            node.failures.note(failure, entry.request)
        del failure
    try:
        return errors
    finally:
        del errors  # see `Entry.take_error`


def run_alone(
    instance: Instance, request: Request, node: Any, *, timed: bool = True
) -> BaseException | None:
    """Run a caller's own request on the instance that the caller claimed; return its error, None for none."""
    begun = time.perf_counter()
    try:
        outcomes = instance.run([request])
    except BaseException as error:  # noqa: BLE001 - raised past the backend's own guard
        return wrap_own(node.name, instance, error)
    finally:
        if timed:
            instance.note_duration(time.perf_counter() - begun)
    if outcomes is None and "result" in request:
        return None
    return judge(instance, request, outcomes, node)


def judge(
    instance: Instance, request: Request, outcomes: list[Exception | None] | None, node: Any
) -> BaseException | None:
    """Give the error of a request that its caller ran alone, None for none."""
    if outcomes is not None and outcomes[0] is not None:
        return _for_owner(outcomes.pop(0))  # see `Entry.take_error`
    if "result" in request or not node.must_have_result:
        return None
    return _no_result(node.name, instance, request)


def _for_owner(error: BaseException | None) -> BaseException | None:
    """Return an outcome to the caller: a `ClosedError` as a copy that outer backends wrap like other errors."""
    return own_error(error) if isinstance(error, ClosedError) else error


def _no_result(node: str, instance: Instance, request: Request) -> NoResultError:
    silent, index = instance.backend._last_label(request), instance.index
    return NoResultError(f"{silent} wrote no 'result'", node=node, backend=silent, instance=index)


def wrap_error(node: str, instance: Instance, error: BaseException) -> BackendError:
    """Make the error of one request whose batch ended with ``error``, past the backend's own guard."""
    backend = instance.backend._label()
    what = f"{backend} raised {type(error).__name__}"
    where: Any = {"node": node, "backend": backend, "instance": instance.index}
    return with_cause(BackendError(what, **where, abandoned=is_abandoned(error)), error)


def wrap_own(node: str, instance: Instance, error: BaseException) -> BackendError:
    """Make the error of a request that its own caller ran; raise what a signal handler may have raised in the main thread."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)) and get_ident() == box.main:
        raise error
    return wrap_error(node, instance, error)


_WITHOUT_LIMITS = Entry({})


def running_here(request: Request) -> Entry | None:
    """Return the entry of a request in a batch that runs here (see `entry_here`); None for any other dict."""
    for ident in threads_of(get_ident()):
        for batch in batches_run.get(ident, ()):
            for entry in batch:
                if entry.request is request:
                    return entry
    return None


def enter_result_of(cls: type, request: Request) -> Any:
    """Return what ``cls.enter`` returned for a request in a batch that runs here; else None."""
    entry = running_here(request)
    return None if entry is None or entry.entered is None else entry.entered.get(cls)


def entry_of(request: Request) -> Entry:
    """Return the entry of a request in a batch that runs here; see `entry_here` for an item that a container made."""
    return running_here(request) or entry_here()(request)


def deadline_here(request: Request) -> float | None:
    """Return ``context.request.deadline(request)``."""
    return entry_of(request).deadline


def entry_here() -> Callable[[Request], Entry]:
    """Return a function that finds the entry of a request in a batch that runs here, for its deadline and priority.

    Here means in the calling thread, or in one that waits for its call. An item that a container has made
    gets an entry of its own: it has the greatest priority of the entries of these batches, and their latest
    deadline, or none when one of them has none.
    """
    batches = [batch for ident in threads_of(get_ident()) for batch in batches_run.get(ident, ())]
    entries = [entry for batch in batches for entry in batch]
    if not entries:  # a caller runs its own request
        return lambda _: _WITHOUT_LIMITS
    known = {id(one.request): one for one in entries}
    latest = max([inf if one.deadline is None else one.deadline for one in entries], default=inf)
    made = Entry({}, deadline=latest if latest < inf else None)
    made.priority = max([one.priority for one in entries], default=0)
    return lambda request: known.get(id(request), made)
