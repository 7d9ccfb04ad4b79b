"""Rules about the results of requests, and about the values that requests came with."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace_testing.conformance.backend_rules.threads import in_thread
from headrace_testing.conformance.base import BackendConformance
from headrace_testing.conformance.host import cuda_runtime, is_on_device
from headrace_testing.conformance.live import USUAL_BATCH, weight_of
from headrace_testing.conformance.memory import same_memory, shares_memory
from headrace_testing.conformance.outcome import Broken, NotApplicable
from headrace_testing.conformance.rule import Rule, rule
from headrace_testing.conformance.subject import CHANGES_INPUTS, DISTINCT
from headrace_testing.conformance.values import arrays_on_device, difference, kept, said

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.keys import Request
    from headrace_testing.conformance.live import Live
    from headrace_testing.conformance.subject import Subject

_MIXED_UP = "results of other requests"
"""The key of `Subject.measured` under which `batch-equals-items` leaves an error to `order-kept`."""

_ROTATED = 16
"""The largest batch that `order-kept` runs a second time, of sizes that are a power of two."""

_TURNS = 3
"""The number of batches whose results are read as soon as they are returned."""

_PATIENCE_S = 1.0
"""How long to wait for threads that a backend has started; a library may keep its own for ever."""

_LATER = 8
"""How many batches follow a batch whose results must not change."""

_LARGER = 16
"""How many requests each of the following batches has, where the range allows so many."""


def _batches(subject: Subject, live: Live) -> list[list[int]]:
    """Return the requests of a batch of each size that is tried, as far as their weights allow."""
    item = subject.repeating
    sizes = sorted({len(live.take(item, want)) for want in subject.weights})
    return [[k % DISTINCT for k in range(size)] for size in sizes]


@rule("finished-when-answered", "runs")
def finished_when_answered(subject: Subject) -> str | None:
    """A caller reads its result at once, in any thread and on any stream.

    What a CPU can read is finished when `forward` returns: the results are the same at the end of the batch, and
    when the threads that the backend has started have ended (or a second has passed). Another thread copies the
    results as soon as the callers have them. Work that is left unfinished in the memory of a device must be finished
    by a function that `init` has given to `context.batch.at_end`: results there are copied again once the same
    requests have run once more, the backend is closed and the device has nothing left to do.
    """
    others = set(threading.enumerate())
    try:
        live = subject.build()
    except Exception:  # noqa: BLE001 - the rule `life-cycle-again` reports it
        return None
    _must_be_finished_by_forward(subject, live)
    copied: list[tuple[Any, Any]] = []
    for _ in range(_TURNS):
        results = live.results(live.take(subject.item))
        parts = [part for result in results for part in arrays_on_device(result) or [result]]
        copied += zip(parts, in_thread(functools.partial(_copies, parts)), strict=True)
    on_device = [pair for pair in copied if is_on_device(pair[0])]
    last = [pair for pair in copied[-len(parts) :] if subject.differ(*pair) is None]
    _wait_for_threads(set(threading.enumerate()) - others)
    if not on_device:
        _must_be_finished(
            subject, last, "after threads of the backend have ended; let forward wait for them"
        )
    live.results(live.take(subject.item))
    with contextlib.suppress(Broken):  # that rule also reports a `close` that fails
        subject.done(live)
    if not on_device:
        return "no result is on a device"
    _wait_for_devices()
    how = "by the time of close; finish it in a function given to context.batch.at_end"
    _must_be_finished(subject, on_device, how)
    return f"{len(on_device)} arrays on a device"


def _must_be_finished_by_forward(subject: Subject, live: Live) -> None:
    """Copy the results on the host when ``forward`` returns; what reads them next may stand in the same batch."""
    root, own = live.root, vars(live.root).get("forward")
    forward = root.forward
    copied: list[tuple[Any, Any]] = []

    def copying(batch: list[Request]) -> Any:
        outcomes = forward(batch)
        results = [request["result"] for request in batch if "result" in request]
        copied.extend((given, kept(given)) for given in results if not arrays_on_device(given))
        return outcomes

    root.forward = copying  # type: ignore[method-assign]
    try:
        live.call(live.take(subject.item))
    finally:
        del root.forward
        if own is not None:
            root.forward = own  # type: ignore[method-assign]
    how = "after the end of the batch; only the memory of a device may be unfinished until then"
    for result, copy in copied:
        changed = subject.differ(result, copy)
        if changed is not None and subject.differ(copy, kept(copy)) is None:
            raise Broken(
                f"a result is not finished when forward returns, it differs ({changed}) {how}"
            )


def _must_be_finished(subject: Subject, copied: list[tuple[Any, Any]], how: str) -> None:
    for part, copy in copied:
        changed = subject.differ(part, copy)
        if changed is not None:
            place = said(part) if is_on_device(part) else "a result"
            raise Broken(
                f"{place} is not finished when its callers are answered, it differs ({changed}) {how}"
            )


def _wait_for_threads(threads: set[threading.Thread]) -> None:
    until = time.monotonic() + _PATIENCE_S
    for thread in threads:
        with contextlib.suppress(RuntimeError):  # another thread is just starting it
            thread.join(max(0.0, until - time.monotonic()))


def _copies(parts: list[Any]) -> list[Any]:
    return [kept(part) for part in parts]


def _wait_for_devices() -> None:
    """Wait until all devices are idle, through the libraries that are loaded."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)
    runtime = cuda_runtime()
    if runtime is not None:
        runtime.cudaDeviceSynchronize()


@rule("batch-equals-items", "range")
def batch_equals_items(subject: Subject) -> str:
    """The result of a request must not depend on the strangers that share its batch.

    In batches of every size up to 16, of each power of two above, of the largest size, and of sizes from 17 to 400 that are drawn at random
    (always the same for an expression, as far as `max` and 256 MB allow), each request
    gets the same result as alone (filled up with copies of itself where `min` is above 1). The largest size
    is `max`, without one it is that of `options`, at least 64. It is never more than 1024. Large batches
    repeat the requests 0 to 16. Numbers with fractions may differ by the tolerance of the conformance class.
    Right results that other requests of the batch have got are judged by `order-kept`.
    """
    batches = _batches(subject, subject.live)
    for ks in batches:
        results = subject.given_once(ks)
        try:
            subject.must_match(results, ks, f"in a batch of {len(ks)}")
        except Broken as error:
            if not _same_in_any_order(subject, results, [subject.expected(k) for k in ks]):
                raise
            subject.measured.setdefault(_MIXED_UP, str(error))
    return f"batches of {', '.join(str(len(ks)) for ks in batches)}"


def _same_in_any_order(subject: Subject, results: list[Any], expected: list[Any]) -> bool:
    """Return whether the results are the expected ones in some order."""
    left = list(expected)
    for result in results:
        place = next(
            (i for i, other in enumerate(left) if subject.differ(result, other) is None), None
        )
        if place is None:
            return False
        del left[place]
    return True


@rule("order-kept", "batch-equals-items")
def order_kept(subject: Subject) -> None:
    """A result belongs to its request, wherever the request stands in the batch.

    In the batches of `batch-equals-items` each request gets its own result, and the same requests
    backwards, and rotated, get the same results. The batches of other sizes are rotated too, so that
    nothing is left of an earlier batch of that size. Where only one request fits in a batch, the requests are
    run one after the other in these orders.
    """
    live = subject.live
    if _MIXED_UP in subject.measured:
        raise Broken(subject.measured[_MIXED_UP])
    size = max(3, len(live.take(subject.item)))
    for ks in (list(reversed(range(size))), [*range(1, size), 0]):
        for part in _fitting(subject, live, ks):
            subject.must_give(live, part, f"in the order {ks}")
    for ks in _batches(subject, live):
        if size < len(ks) and (len(ks) <= _ROTATED or len(ks) & (len(ks) - 1)):
            subject.must_give(live, [*ks[1:], ks[0]], f"in a second batch of {len(ks)}")


def _fitting(subject: Subject, live: Live, ks: list[int]) -> list[list[int]]:
    """Cut requests into batches that fit, in order."""
    most = live.backend.max
    parts: list[list[int]] = []
    for k in ks:
        longer = [*(parts[-1] if parts else []), k]
        weight = len(longer) if most == 1 else weight_of(subject.items(longer))
        if parts and (most is None or weight <= most):
            parts[-1] = longer
        else:
            parts.append([k])
    return parts


@rule("results-kept", "order-kept")
def results_kept(subject: Subject) -> None:
    """Results own their memory: callers hold them while the backend works on.

    Results are compared with copies of themselves after each of eight larger batches, and after
    `close`. Their requests hold the same objects as when they were answered. Results of the same
    requests, run again, use other memory (as far as lists, dicts and arrays tell), except for the memory
    of the requests themselves, and no two requests of a batch, equal ones neither, get one and the same list,
    dict or array.
    """
    live = subject.build()
    batch, again = live.take(subject.item), live.take(subject.item)
    came = [dict(request) for request in (*batch, *again)]
    first = live.results(batch)
    for k, result in enumerate(first):
        if any(same_memory(result, other, but=came) for other in first[:k]):
            raise Broken(f"the result of item {k} is that of another item of its batch, too")
    copies, answered = [kept(result) for result in first], [dict(request) for request in batch]
    for k, (result, later) in enumerate(zip(first, live.results(again), strict=True)):
        if shares_memory(result, later, but=came):
            raise Broken(f"the result of item {k} shares its memory with that of a later batch")

    _must_be_two(subject, live)

    def must_be_as_before(since: str) -> None:
        for k, (result, copy) in enumerate(zip(first, copies, strict=True)):
            subject.must_equal(result, copy, f"the result of item {k} was changed by {since}")
        for k, (request, before) in enumerate(zip(batch, answered, strict=True)):
            if request.keys() != before.keys() or any(
                request[key] is not before[key] for key in before
            ):
                raise Broken(f"request {k}, which was answered, was changed by {since}")

    for turn in range(1, _LATER + 1):
        live.results(live.take(lambda k, turn=turn: subject.repeating(5 * turn + k), _LARGER))  # type: ignore[misc]
        must_be_as_before("a later batch")
    subject.done(live)
    must_be_as_before("close")


def _must_be_two(subject: Subject, live: Live) -> None:
    """Run equal requests, in one batch and one after the other: each gets a result of its own."""
    twins = live.take(lambda k: subject.item(0), 2)
    came = [dict(request) for request in twins]
    results = live.results(twins)
    if len(results) > 1 and same_memory(results[0], results[1], but=came):
        raise Broken("two equal requests of a batch get one and the same result")
    alone = [subject.item(0), subject.item(0)]
    came = [dict(request) for request in alone]
    first, second = (live.result_alone(request) for request in alone)
    if shares_memory(first, second, but=came):
        raise Broken("a request that is run twice shares the memory of its results")


@rule("inputs-kept", "range")
def inputs_kept(subject: Subject) -> None:
    """Callers own the values that they send: they may send them again, or to another branch at the same time.

    After a batch, the largest batch, and after another one and `close`, the values that requests came
    with are equal to fresh values of `make_item`. The keys that the backend writes may hold other objects by
    then. The original objects are compared.
    """
    live = subject.build()
    came = []
    for want in (USUAL_BATCH, live.weights[-1]):
        batch = live.take(subject.repeating, want)
        came += [(k, dict(request)) for k, request in enumerate(batch)]
        live.results(batch)
        _must_be_fresh(subject, came, "forward")
    live.results(live.take(lambda k: subject.item(5 + k)))
    _must_be_fresh(subject, came, "a later batch")
    subject.done(live)
    _must_be_fresh(subject, came, "close")


@rule("right-answers", "order-kept")
def right_answers(subject: Subject) -> str:
    """Results that agree with each other may all be wrong.

    The results of the requests 0 to 16 are those that `expected(k)` of the conformance class gives: the right
    answer, which another library has computed, or you by hand. Types, dtypes and shapes count, and
    numbers with fractions may differ by the tolerance.
    """
    if type(subject.kit).expected is BackendConformance.expected:
        raise NotApplicable("the conformance class has no expected(k), so that nobody knows")
    for k in range(DISTINCT):
        problem = f"request {k} gets a wrong answer (the second value is what expected({k}) gives)"
        subject.must_equal(subject.expected(k), subject.kit.expected(k), problem)
    return f"{DISTINCT} requests"


@rule("views-read", "order-kept")
def views_read(subject: Subject) -> str:
    """Arrays arrive as views of other arrays: backwards, with gaps, by columns, or read-only.

    Each numpy array under a key that the backend reads is given in these forms, with the same values. The
    request gets the same result, or an InputError that says what is wanted.
    """
    numpy = sys.modules.get("numpy")
    tried = 0
    keys = subject.declared("reads").all & subject.item(0).keys()
    for key in sorted(keys) if numpy is not None else ():
        if not isinstance(subject.item(0)[key], numpy.ndarray):  # type: ignore[union-attr]
            continue
        for kind, view in _views(numpy, subject.item(0)[key]):
            request, writeable = {**subject.item(0), key: view}, _writeable(view)
            outcome = subject.tried.alone(request)
            tried += 1
            if isinstance(outcome, InputError):
                continue
            if outcome is not None:
                raise Broken(f"with {kind} under {key!r} it fails: {outcome}") from outcome
            if _writeable(view) != writeable:
                raise Broken(f"it changes whether {kind} under {key!r} can be written to")
            subject.must_equal(
                request["result"], subject.expected(0), f"with {kind} under {key!r} it differs"
            )
    return f"{tried} views" if tried else "it reads no numpy array"


def _views(numpy: Any, array: Any) -> Iterator[tuple[str, Any]]:
    """Return arrays of the same values with another memory layout."""
    if array.ndim:
        yield "an array that lies backwards", array[::-1].copy()[::-1]
        yield "an array with gaps", numpy.repeat(array, 2, axis=-1)[..., ::2]
    yield "an array that lies by columns", numpy.array(array, order="F")
    fixed = array.copy()
    fixed.flags.writeable = False
    yield "a read-only array", fixed


def _writeable(value: Any) -> bool | None:
    """Return whether a numpy array can be written to; None for anything else."""
    return getattr(getattr(value, "flags", None), "writeable", None)


def _must_be_fresh(subject: Subject, came: list[tuple[int, dict[str, Any]]], since: str) -> None:
    for k, request in came:
        fresh = subject.repeating(k)
        changed = difference(request, fresh)
        for key in request.keys() & fresh.keys():
            if _writeable(request[key]) != _writeable(fresh[key]):
                changed = f"at {key!r}: whether the array can be written to"
        if changed is not None:
            subject.measured[CHANGES_INPUTS] = True
            raise Broken(f"{since} changed what request {k} came with: {changed}")


RULES: tuple[Rule, ...] = (
    finished_when_answered,
    batch_equals_items,
    order_kept,
    right_answers,
    inputs_kept,
    views_read,
    results_kept,
)
