"""Rules about calling a backend: which batches it takes, and that every request gets an outcome."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from headrace.errors import BatchRangeError, ContractError, SetupError
from headrace_testing.conformance.live import MOST, USUAL_BATCH, weight_of
from headrace_testing.conformance.outcome import Broken, ends_the_run
from headrace_testing.conformance.rule import Rule, rule
from headrace_testing.conformance.subject import DISTINCT, replaced

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from headrace import Backend
    from headrace.keys import Request
    from headrace_testing.conformance.live import Live
    from headrace_testing.conformance.subject import Subject


class Spy:
    """Records the batches that ``forward`` of one backend is given, and its answers."""

    def __init__(self, root: Backend) -> None:
        self._root = root
        self._own = vars(root).get("forward")  # core may have put a function in its place
        self._forward: Callable[[list[Request]], Any] = root.forward
        self.calls: list[tuple[list[Request], list[Request], Any]] = []
        self.raised: list[tuple[int, Exception]] = []

    def __enter__(self) -> Self:
        def forward(batch: list[Request]) -> Any:
            before = list(batch)
            try:
                outcomes = self._forward(batch)
            except Exception as error:
                self.raised.append((len(before), error))
                raise
            self.calls.append((before, batch, outcomes))
            return outcomes

        self._root.forward = forward  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        del self._root.forward
        if self._own is not None:
            self._root.forward = self._own  # type: ignore[method-assign]


@rule("builds", "methods")
def builds(subject: Subject) -> None:
    """A backend that is configured right can be built and warmed up.

    It is built as a pipeline builds it: `init` with validated options and a context, then
    `warm_up`. What `init` leaves in `min` and `max` must be a range. `owns_thread` is an attribute of the
    class, which is read before anything is built.
    """
    if not subject.live.instances:
        raise Broken("a node with this backend has no instance")
    if subject.live.root.owns_thread != subject.cls.owns_thread:
        raise Broken("init sets owns_thread, which is read before init: write it in the class")


@rule("outcomes", "builds", "items")
def outcomes(subject: Subject) -> None:
    """`forward` answers for every request: None, or one exception or None per item.

    `forward` is called with valid batches and with one that holds an invalid request. If it returns
    anything else than None, or a list of as many exceptions or None, that is a ContractError for the
    whole batch.
    """
    live = subject.live
    with Spy(live.root) as spy:
        live.call(live.take(subject.item))
    calls = spy.calls
    try:
        tried = subject.tried
        bad = tried.take(subject.item)
        for key in subject.declared("reads").required | {"data"}:
            bad[-1].pop(key, None)
        with Spy(tried.root) as spy:
            tried.call(bad)
        calls = calls + spy.calls
    except BaseException as error:  # building again, and errors, have rules of their own
        if ends_the_run(error):
            raise
    for before, _, result in calls:
        if result is None:
            continue
        if not isinstance(result, list):
            raise Broken(f"forward returned {type(result).__name__}, neither None nor a list")
        if len(result) != len(before):
            raise Broken(f"forward returned {len(result)} outcomes for {len(before)} items")
        for outcome in result:
            if outcome is not None and not isinstance(outcome, Exception):
                raise Broken(f"forward returned {outcome!r} in its list, no exception and not None")


@rule("runs", "outcomes")
def runs(subject: Subject) -> None:
    """A valid request gets a `result`, and no error.

    The requests of `make_item` are run in a batch. Each must end with a `result`.
    """
    subject.live.results(subject.live.take(subject.item))


@rule("batch-list-kept", "errors-returned")
def batch_list_kept(subject: Subject) -> None:
    """`forward` may change the requests, but never the list that holds them.

    The caller still needs the list: after `forward` it must hold the same requests in the same
    order, whether they came in the order of `make_item` or backwards, in batches of every size that the
    kit tries, and beside a bad request.
    """
    live, tried = subject.live, subject.tried
    with Spy(live.root) as spy, Spy(tried.root) as bad:
        live.results(live.take(subject.item))
        live.results(live.take(subject.item)[::-1])
        for weight in live.weights:
            live.call(live.take(subject.repeating, weight))
        tried.call([*tried.take(subject.item, USUAL_BATCH - 1), {}][: tried.range[1]])
    for before, after, _ in spy.calls + bad.calls:
        if len(after) != len(before):
            raise Broken(
                f"forward got a list of {len(before)} requests and left {len(after)} in it"
            )
        for request, other in zip(before, after, strict=True):
            if request is not other:
                raise Broken("forward reordered or replaced the requests in the list it got")


@rule("empty-batch", "runs")
def empty_batch(subject: Subject) -> None:
    """An empty batch is no call: nothing runs, and nothing fails.

    `backend([])` gives None and does not reach `forward`.
    """
    live = subject.live
    with Spy(live.root) as spy:
        result = live.backend([])
    if result is not None:
        raise Broken(f"backend([]) gives {result!r}, not None")
    if spy.calls:
        raise Broken("backend([]) called forward")


@rule("range", "errors-returned")
def batch_range(subject: Subject) -> str:
    """Schedulers cut batches by the range: every batch in it must work, and none outside of it may run.

    Batches of every weight from `min` to 16, of each power of two above, of some weights between these and in the hundreds, which are
    drawn at random, always the same for an expression, and of `max` succeed. (Without a `max` that of `options` counts, at least 64. A `max` of more than 1024 counts as 1024.) A batch above
    `max` and one below `min` fail with BatchRangeError for every item, and do not reach `forward`. Where
    `rerun` is True, `forward` must not raise for a batch of equal requests at any weight: core would run
    the requests one by one, so that the error would never be seen.
    """
    live = subject.live
    least, most = live.range
    for weight in subject.weights:
        ks = _of_weight(subject, live, weight)
        try:
            subject.given_once(ks)
        except Broken as error:
            raise Broken(f"a batch inside the range {_said(live)} fails: {error}") from error
    if live.root.rerun:
        _not_saved_by_rerun(subject, live)
    if most is not None and most <= MOST:
        ks = _of_weight(subject, live, most)
        _refused(live, subject.items([*ks, len(ks) % DISTINCT]), "above its max")
    if least > 1:
        below = [dict(subject.item(0), request_size=1)]
        _refused(live, below, "below its min")
    return f"range {_said(live)}"


def _not_saved_by_rerun(subject: Subject, live: Live) -> None:
    """Refuse a backend whose ``forward`` raises inside its range, which ``rerun = True`` hides."""
    for want in subject.weights:
        batch = live.take(lambda _: subject.item(0), want)
        with Spy(live.root) as spy:
            live.call(batch)
        together = [error for size, error in spy.raised if size == len(batch) > 1]
        if together:
            raise Broken(
                f"forward raises {type(together[0]).__name__} for {len(batch)} equal requests, inside "
                f"the range {_said(live)}; only because of rerun = True each gets its result"
            )


def _of_weight(subject: Subject, live: Live, weight: int) -> list[int]:
    """Return the requests of a batch of exactly ``weight``, or of the heaviest possible batch below it."""
    ks: list[int] = []
    batch: list[Request] = []
    while not batch or _weight(live, batch) < weight:
        k = len(ks) % DISTINCT
        longer = [*batch, subject.item(k)]
        if batch and _weight(live, longer) > weight:
            break
        ks.append(k)
        batch = longer
    return ks


def _weight(live: Live, batch: list[Request]) -> int:
    return len(batch) if live.backend.max == 1 else weight_of(batch)


def _refused(live: Live, batch: list[Request], where: str) -> None:
    with Spy(live.root) as spy:
        outcomes = live.call(batch)
    wrong = [outcome for outcome in outcomes if not isinstance(outcome, BatchRangeError)]
    if wrong or spy.calls:
        got = type(wrong[0]).__name__ if wrong and wrong[0] is not None else "no error"
        raise Broken(
            f"a batch of weight {_weight(live, batch)}, {where} ({_said(live)}), is run"
            if spy.calls
            else f"a batch {where} ({_said(live)}) gives {got}, not BatchRangeError"
        )


def _said(live: Live) -> str:
    least, most = live.range
    return f"{least} to {'unbounded' if most is None else most}"


@rule("errors-returned", "life-cycle-again")
def errors_returned(subject: Subject) -> None:
    """`backend(batch)` gives errors back, one per item. It raises none of them.

    Called with requests that lack their keys, hold wrong values, or do not fit the range, the
    backend gives a list: a container must be able to go on with the items that have not failed.
    """
    live = subject.build()
    for request in ({}, {"data": object()}, {"data": None}):
        try:
            live.call(live.filled(dict(request)))
        except Exception as error:
            raise Broken(
                f"backend(batch) raised {type(error).__name__}: {error}; errors are given back"
            ) from error
        except BaseException as error:
            if ends_the_run(error):
                raise
            raise Broken(
                f"backend(batch) raised {type(error).__name__}, which ends a thread"
            ) from error


@rule("called-in-order", "closes-unused")
def called_in_order(subject: Subject) -> None:
    """After `close` and after a failed `init` a backend refuses every item.

    A call at such a time gives a ContractError per item and does not reach `forward`.
    """
    for failed in _with_failed_init(subject):
        _must_refuse(failed, failed, [subject.item(0)], "after a failed init")
    live = subject.build()
    backend, root = live.backend, live.root
    subject.done(live)
    for called in (backend, root):
        _must_refuse(called, root, live.filled(subject.item(0)), "after close")


def _with_failed_init(subject: Subject) -> list[Backend]:
    """Return a backend whose ``init`` has failed; an empty list for a word whose ``init`` core never calls."""
    failed: list[Backend] = []

    def init(self: Backend, options: object, context: object) -> None:
        failed.append(self)
        raise RuntimeError("told to fail by the conformance kit")

    with replaced(subject.cls, "init", init), contextlib.suppress(SetupError):
        subject.done(subject.build())
        if failed:
            raise Broken("an init that fails is no SetupError")
    return failed


def _must_refuse(backend: Backend, root: Backend, batch: list[Request], when: str) -> None:
    """Call a backend, and check that the judged one (``root``, which may stand inside it) refuses."""
    with Spy(root) as spy:
        try:
            result = backend(batch)
        except Exception as error:
            raise Broken(f"called {when} it raises {type(error).__name__}: {error}") from error
    if spy.calls:
        raise Broken(f"called {when} it runs forward")
    if result is None or not all(isinstance(outcome, ContractError) for outcome in result):
        raise Broken(f"called {when} it gives {result!r}, not a ContractError per item")


RULES: tuple[Rule, ...] = (
    builds,
    outcomes,
    runs,
    called_in_order,
    batch_list_kept,
    empty_batch,
    errors_returned,
    batch_range,
)
