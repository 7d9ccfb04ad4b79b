"""Rules about what requests get, and what becomes of what they came with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._weights import weight_of
from headrace.testing.conformance.memory import shares_memory
from headrace.testing.conformance.rule import Broken, Rule, rule
from headrace.testing.conformance.values import difference, kept

if TYPE_CHECKING:
    from headrace.testing.conformance.subject import Live, Subject

__all__ = ["RULES"]

_SIZES = 8
"""Batches of every size up to here are compared with their items."""

_REQUESTS = 16
"""The requests that these come from, which `range` has tried."""

_LATER = 8
"""How many batches come after one whose results must not change."""


def _sizes(subject: Subject, live: Live) -> list[int]:
    """Give how many requests batches may have: each size that the range and the weights allow."""
    return sorted({len(live.take(subject.item, want)) for want in range(1, _SIZES + 1)})


@rule("batch-equals-items", "range")
def batch_equals_items(subject: Subject) -> str:
    """What a request gets must not depend on which strangers share its batch.

    In batches of every size up to 8, each request gets what it gets alone (filled up with copies of
    itself where `min` is above 1). Numbers with fractions may differ by the tolerance of the
    conformance class. Results that are right and belong to other requests of the batch are for
    `order-kept` to judge.
    """
    sizes = _sizes(subject, subject.live)
    for size in sizes:
        ks = list(range(size))
        results = subject.given(subject.live, ks)
        if not _same_in_any_order(subject, results, [subject.expected(k) for k in ks]):
            subject.must_match(results, ks, f"in a batch of {size}")
    return f"batches of {', '.join(map(str, sizes))}"


def _same_in_any_order(subject: Subject, results: list[Any], expected: list[Any]) -> bool:
    """Tell whether each result is one of those expected, each of them taken once."""
    left = list(expected)
    for result in results:
        place = next((i for i, one in enumerate(left) if subject.differ(result, one) is None), None)
        if place is None:
            return False
        del left[place]
    return True


@rule("order-kept", "batch-equals-items")
def order_kept(subject: Subject) -> None:
    """Results belong to requests, wherever they stand in the batch.

    In batches of every size up to 8 each request gets its own result, and the same requests
    backwards, and rotated, get the same results. Where only one fits in a batch, they are called
    one after the other in those orders.
    """
    live = subject.live
    for size in _sizes(subject, live):
        subject.must_give(live, list(range(size)), f"in a batch of {size}")
    size = max(3, len(live.take(subject.item)))
    for ks in (list(reversed(range(size))), [*range(1, size), 0]):
        for part in _fitting(subject, live, ks):
            subject.must_give(live, part, f"in the order {ks}")


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

    Results are compared with copies of themselves after each of nine more batches, and after
    `close`. Those of the same requests, run again, stand on other memory (as far as lists, dicts
    and arrays tell), that of the requests themselves excepted.
    """
    live = subject.build()
    batch, again = live.take(subject.item), live.take(subject.item)
    came = [dict(request) for request in (*batch, *again)]
    first = live.results(batch)
    copies = [kept(result) for result in first]
    for k, (result, later) in enumerate(zip(first, live.results(again), strict=True)):
        if shares_memory(result, later, but=came):
            raise Broken(f"the result of item {k} shares its memory with that of a later batch")

    def must_be_as_before(since: str) -> None:
        for k, (result, copy) in enumerate(zip(first, copies, strict=True)):
            subject.must_equal(result, copy, f"the result of item {k} was changed by {since}")

    for turn in range(1, _LATER + 1):
        live.results(live.take(lambda k, turn=turn: subject.item((5 * turn + k) % _REQUESTS)))  # type: ignore[misc]
        must_be_as_before("a later batch")
    subject.done(live)
    must_be_as_before("close")


@rule("inputs-kept", "life-cycle-again")
def inputs_kept(subject: Subject) -> None:
    """What callers sent is theirs: they may send it again, or to another branch at the same time.

    After a batch, and after another one and `close`, the values that requests came with are equal
    to fresh ones of `make_item`. The keys that the backend writes may hold something else; the
    objects that were there are compared.
    """
    live = subject.build()
    batch = live.take(subject.item)
    came = [dict(request) for request in batch]
    live.results(batch)
    _must_be_fresh(subject, came, "forward")
    live.results(live.take(lambda k: subject.item(5 + k)))
    _must_be_fresh(subject, came, "a later batch")
    subject.done(live)
    _must_be_fresh(subject, came, "close")


def _must_be_fresh(subject: Subject, came: list[dict[str, Any]], since: str) -> None:
    for k, request in enumerate(came):
        found = difference(request, subject.item(k))
        if found is not None:
            raise Broken(f"{since} changed what request {k} came with: {found}")


RULES: tuple[Rule, ...] = (batch_equals_items, order_kept, inputs_kept, results_kept)
