"""Rules that compare the keys which a backend reads and writes with those that it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_testing.conformance.live import USUAL_BATCH
from headrace_testing.conformance.outcome import Broken
from headrace_testing.conformance.rule import Rule, rule
from headrace_testing.conformance.subject import DISTINCT
from headrace_testing.conformance.values import kept
from headrace_testing.conformance.watching import DECOY, WatchedRequest
from headrace_testing.conformance.wrong_values import Alien

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.keys import Request
    from headrace_testing.conformance.subject import Subject

_ITEMS = 3
"""How many requests without the undeclared keys are compared with whole ones."""

_ALWAYS = frozenset({"request_size", "result"})
"""Keys that core itself reads around every batch."""

_MOVED = frozenset({"data", "result"})
"""Keys that containers move between their children."""


def watched(subject: Subject) -> Iterator[tuple[list[WatchedRequest], str]]:
    """Run watched requests, each alone, and in a usual and in the largest batch; give them described."""

    def item(k: int) -> WatchedRequest:
        return WatchedRequest({**subject.repeating(k), DECOY: "decoy"})

    for k in range(DISTINCT):
        request = item(k)
        subject.live.results(subject.live.filled(request))
        yield [request], f"request {k}"
    for want in (USUAL_BATCH, subject.live.weights[-1]):
        batch = subject.live.take(item, want)
        subject.live.results(batch)
        if len(batch) > 1:
            yield batch, f"a request in a batch of {len(batch)}"  # type: ignore[misc]


def watched_bad(subject: Subject) -> Iterator[WatchedRequest]:
    """Run watched requests in which one key is missing or holds what no backend knows; give those that fail."""
    for key in sorted(subject.declared("reads").required & subject.item(0).keys()):
        for bad in ({}, {key: Alien()}):
            whole = {**subject.item(0), DECOY: "decoy"}
            del whole[key]
            request = WatchedRequest({**whole, **bad})
            if subject.tried.alone(request) is not None:
                yield request


def _inside(subject: Subject, which: str) -> frozenset[str]:
    """Return the keys that the backends inside a container declare."""
    children = subject.children
    keys = [subject.declared(which, child).all for child in children]
    return frozenset().union(*keys, _MOVED if children else ())


@rule("reads", "order-kept")
def reads(subject: Subject) -> str | None:
    """Maps, `check` and readers rely on `reads`: it names all keys that matter, and no others.

    The kit records which keys of a request are read, alone, in a batch and where a request fails: only
    declared keys may be read, and every declared key must be. Requests with only the declared keys must get the results of
    the whole requests. Keys of a TypedDict that are not required may be missing. `request_size` belongs
    to core and need not be declared.
    """
    declared = subject.declared("reads")
    allowed = declared.all | _inside(subject, "reads") | _inside(subject, "writes") | _ALWAYS
    looked: set[str] = set()
    walked = False
    for k in range(_ITEMS):
        whole = subject.item(k)
        for key in sorted(declared.required - whole.keys()):
            raise Broken(f"it declares that it reads {key!r}; request {k} has none and is run")
        less = _cut_down(whole, allowed)
        error = subject.live.alone(less)
        if error is not None:
            raise Broken(f"a request with the declared keys alone fails: {error}")
        problem = f"request {k} with the declared keys alone differs"
        subject.must_equal(kept(less.get("result")), subject.expected(k), problem)
    runs = [(request, which) for batch, which in watched(subject) for request in batch]
    for request, _ in runs:
        looked |= request.read
        walked |= request.walked
    for request, which in (*runs, *((bad, "a bad request") for bad in watched_bad(subject))):
        undeclared = request.read - allowed - {DECOY}
        if undeclared and not request.walked:
            raise Broken(f"it reads {min(undeclared)!r} of {which}, which `reads` does not declare")
    together = subject.live.take(lambda k: _cut_down(subject.item(k), allowed))
    for k, result in enumerate(subject.live.results(together)):
        problem = f"in a batch, request {k} with the declared keys alone differs"
        subject.must_equal(kept(result), subject.expected(k), problem)
    never = {key for key in declared.all - looked if not _matters(subject, key)}
    if never:
        raise Broken(f"it declares that it reads {min(never)!r}, and never looks at it")
    return "it copies requests; single keys cannot be seen" if walked else None


def _matters(subject: Subject, key: str) -> bool:
    """Return whether a request without a key fails; then the key is read in a way that cannot be watched."""
    request = subject.item(0)
    return request.pop(key, None) is not None and subject.tried.alone(request) is not None


def _cut_down(request: Request, allowed: frozenset[str]) -> Request:
    return {key: value for key, value in request.items() if key in allowed}


@rule("writes", "range")
def writes(subject: Subject) -> None:
    """Maps, `check` and readers rely on `writes`: each of these keys is set, and no other is.

    After a request that went well, alone or in a batch, every declared key must have been written
    (except keys of a TypedDict that are not required), and no other key may have been set, changed
    or removed. Neither in a request that failed. In a batch the declared keys hold the same values as alone, where these are always the
    same.
    """
    declared = subject.declared("writes")
    allowed = declared.all | _inside(subject, "writes")
    written: set[str] = set()
    for batch, which in watched(subject):
        for request in batch:
            changed = _changed(request.came, dict(request.copy())) | request.written
            undeclared = changed - allowed
            if undeclared:
                raise Broken(f"it writes {_shown(undeclared)}, which `writes` does not declare")
            missing = declared.required - changed
            if missing:
                raise Broken(f"it declares that it writes {_shown(missing)}; {which} got none")
            written |= changed
    for request in watched_bad(subject):
        undeclared = (_changed(request.came, dict(request.copy())) | request.written) - allowed
        if undeclared:
            raise Broken(
                f"it writes {_shown(undeclared)} into a request that fails, which `writes` "
                "does not declare"
            )
    never = declared.all - written
    if never:
        raise Broken(f"it declares that it writes {_shown(never)}, and no request got it")
    # Results are compared by rules of their own.
    for key in sorted(declared.all - {"result"}):
        _compare_values(subject, key)


def _compare_values(subject: Subject, key: str) -> None:
    """Compare the values that a batch writes under a key with those of its requests alone.

    A value that differs from one run alone to the next, such as a time, is not compared.
    """
    batch = subject.live.take(subject.item)
    subject.live.results(batch)
    for k, request in enumerate(batch):
        first, again = subject.item(k), subject.item(k)
        for results in (first, again):
            subject.live.result_alone(results)
        if subject.differ(first.get(key), again.get(key)) is None:
            problem = f"in a batch, what it writes under {key!r} into request {k} differs"
            subject.must_equal(request.get(key), first.get(key), problem)


def _changed(before: dict[str, object], after: dict[str, object]) -> set[str]:
    changed = set(before.keys() ^ after.keys())
    return changed | {key for key in before.keys() & after.keys() if before[key] is not after[key]}


def _shown(keys: set[str] | frozenset[str]) -> str:
    first = min(keys)
    return "every key of the request" if first == DECOY else repr(first)


@rule("extra-keys-pass", "reads", "writes")
def extra_keys_pass(subject: Subject) -> None:
    """Keys that a backend does not know belong to others and pass through it untouched.

    A request with further keys gives the same result, and these keys hold the same objects afterwards, with the
    same content.
    """
    strangers = {
        f"a key of another backend {n}": value for n, value in enumerate((object(), [1], {"a": 1}))
    }
    request = strangers | subject.item(0)  # the first key of a request may be anyone's
    result = kept(subject.live.result_alone(request))
    for key, stranger in strangers.items():
        if request.get(key) is not stranger:
            raise Broken("a key that the backend does not know was changed or removed")
    if [*strangers.values()][1:] != [[1], {"a": 1}]:
        raise Broken("what a key holds that the backend does not know was changed")
    subject.must_equal(
        result, subject.expected(0), "a key that it does not know changes the result"
    )


RULES: tuple[Rule, ...] = (reads, writes, extra_keys_pass)
