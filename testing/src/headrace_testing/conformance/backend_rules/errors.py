"""Rules about requests that are wrong."""

from __future__ import annotations

import copy
import pickle
import re
from typing import TYPE_CHECKING, Any

from headrace.errors import BatchRangeError, InputError
from headrace_testing.conformance.backend_rules.docs import documentation, entries, sections
from headrace_testing.conformance.live import USUAL_BATCH
from headrace_testing.conformance.outcome import Broken, NotApplicable
from headrace_testing.conformance.rule import Rule, rule
from headrace_testing.conformance.subject import CHANGES_INPUTS, DISTINCT
from headrace_testing.conformance.values import difference, kept, said
from headrace_testing.conformance.wrong_values import (
    Alien,
    foreign_dtypes,
    foreign_shapes,
    foreign_types,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.keys import Request
    from headrace_testing.conformance.subject import Subject


def _keys(subject: Subject) -> list[str]:
    """Return the keys that a request must bring; for a container those of its children."""
    return sorted(subject.declared("reads").required & subject.item(0).keys())


def _needed(subject: Subject) -> list[str]:
    """Return the keys that a request must bring, at least one.

    Raises:
        NotApplicable: A request need not bring any key.
    """
    keys = _keys(subject)
    if not keys:
        raise NotApplicable("it requires no key of a request")
    return keys


def _documented(subject: Subject, key: str) -> str:
    """Return the entry of a key in the section Reads."""
    documented = entries(sections(documentation(subject.cls)).get("Reads", ""))
    if key in documented:
        return documented[key].lower()
    declared = subject.cls.reads
    for name in declared if isinstance(declared, tuple) else ():
        option = name[1:-1]
        if name.startswith("{") and getattr(subject.element.options, option, None) == key:
            default = subject.cls.Options.model_fields[option].default
            for candidate in (str(default), option, name):
                if candidate in documented:
                    return documented[candidate].lower()
    return ""


@rule("missing-key", "reads", "works-after-failure")
def missing_key(subject: Subject) -> str | None:
    """The sender of a request without a key must be told which key it is.

    For each key that `reads` requires, a request without it fails with an InputError whose `key` is
    that key, or whose text names it. In a container the error may be that of a child.
    """
    for key in _needed(subject):
        request = subject.item(0)
        del request[key]
        outcome = subject.tried.alone(request)
        if outcome is None:
            raise Broken(f"a request without {key!r}, which it declares to read, gives no error")
        if subject.children:
            continue
        if not isinstance(outcome, InputError):
            raise Broken(f"a request without {key!r} gives {_said(outcome)}, not an InputError")
        if not _names(outcome, key):
            raise Broken(
                f"the InputError of a request without {key!r} names {outcome.key!r} as its `key`"
            )
    return None


def _names(error: InputError, key: str) -> bool:
    """Return whether an error names its key: as its `key`, or in its text."""
    if error.key is not None:
        return error.key == key
    return re.search(rf"(?<!\w){re.escape(key)}(?!\w)", error.what) is not None


def _said(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    return text if error.__cause__ is None else f"{text} (cause: {type(error.__cause__).__name__})"


def _refused(
    subject: Subject,
    foreign: Callable[[Any, str], Iterator[tuple[Any, bool]]],
    words: tuple[str, ...],
    subject_of: str,
) -> str | None:
    """Check that wrong values under each key are refused; the first unless the docstring says `anything`."""
    taken = []
    for key in _needed(subject):
        text = _documented(subject, key)
        anything = any(word in text for word in words) and not subject.children
        for place, (value, strict) in enumerate(foreign(subject.item(0)[key], text)):
            outcome = subject.tried.alone({**subject.item(0), key: value})
            if anything and not place:
                if outcome is not None:
                    raise Broken(
                        f"the section Reads says of {key!r} {text!r}, and {said(value)} gives "
                        f"{_said(outcome)}"
                    )
                taken.append(key)
            elif outcome is None:
                if strict and not anything and not subject.children:  # children may take any value
                    raise Broken(
                        f"{subject_of} under {key!r} ({said(value)}) is accepted; refuse it with an "
                        f"InputError, or let the section Reads say {words[-1]!r}"
                        + (" or name it" if place else "")
                    )
            elif not isinstance(outcome, InputError):
                raise Broken(
                    f"{subject_of} under {key!r} ({said(value)}) gives {_said(outcome)}, not an InputError"
                )
            elif not subject.children and not any(
                # An error about a value that does not fit another key (such as fewer rows) may name that key.
                _names(outcome, place_key)
                for place_key in (_keys(subject) if place and not strict else [key])
            ):
                raise Broken(
                    f"the InputError about {subject_of} under {key!r} names {outcome.key!r} as its `key`"
                )
    return f"any value of {', '.join(map(repr, taken))} is taken, as documented" if taken else None


@rule("wrong-type", "missing-key", "docstring-sections")
def wrong_type(subject: Subject) -> str | None:
    """A value of a type that the backend cannot read is the sender's error, not the backend's.

    Under each key that it reads, an object of an unknown type gives an InputError that names the
    key. A backend that takes any object says so: the entry of that key in the section Reads
    contains the word `anything`, and then the object must not be refused. None, a text, a dict, bytes, an
    empty list and numbers give an InputError too, or a result. None, a text or a dict that the backend
    takes are named in that entry ("None", "text", "dict" or words like these).
    """
    return _refused(subject, foreign_types, ("anything",), "a value of the wrong type")


@rule("wrong-shape", "wrong-type")
def wrong_shape_(subject: Subject) -> str | None:
    """A value of a shape that the backend cannot read is the sender's error.

    Under each key, an array with three more axes, or a value wrapped in three lists, gives an
    InputError that names the key. Unless the entry of the key in the section Reads contains `anything`
    or `any shape` ("any shape and dtype" says both). So does an array with one axis more, one less or none, or without elements, or it gets a
    result. Where the entry names shapes, as `[H, W, C]`, no array with another number of axes does.
    """
    words = ("anything", "any dtype and shape", "any dtype or shape", "any shape")
    return _refused(subject, foreign_shapes, words, "a value of the wrong shape")


@rule("wrong-dtype", "wrong-shape")
def wrong_dtype_(subject: Subject) -> str | None:
    """A value of a dtype that the backend cannot read is the sender's error.

    Under each key, the same array of complex numbers (or a complex number in place of each value)
    gives an InputError that names the key. Unless the entry of the key in the section Reads contains
    `anything` or `any dtype` ("any shape and dtype" says both). Where the entry names dtypes (`uint8`, "floating", "integers"), so does the same
    array of any dtype that it does not name, and one that it names gets a result or an InputError. An array
    of texts or of objects gives an InputError where the entry speaks of no text.
    """
    words = ("anything", "any shape and dtype", "any shape or dtype", "any dtype")
    return _refused(subject, foreign_dtypes, words, "a value of the wrong dtype")


@rule("works-after-failure", "order-kept")
def works_after_failure(subject: Subject) -> None:
    """One bad request must not spoil the backend for the requests that come after it.

    After requests that fail, a valid batch gives the same results as before them.
    """
    live = subject.build()
    for bad in _bad(subject):
        live.alone(bad)
        subject.must_give(live, list(range(len(live.take(subject.item)))), "after a failure")


def _bad(subject: Subject) -> Iterator[Request]:
    """Return invalid requests of several kinds."""
    yield {}
    for key in _keys(subject):
        for foreign in (foreign_types, foreign_shapes, foreign_dtypes):
            for value, _ in foreign(subject.item(0)[key], ""):
                yield {**subject.item(0), key: value}


@rule("bad-item-alone", "works-after-failure", "rerun")
def bad_item_alone(subject: Subject) -> str:
    """Requests of strangers share a batch: a bad one fails alone.

    In a batch with one request that lacks a key, and in one with an object of an unknown type, that
    request fails as it does alone, wherever it stands, and the other requests get the result that
    they get alone. The values that they came with stay as they were. Return a list with an exception or
    None per item, or raise and declare `rerun = True`. Where `min` is above 1, the other requests may instead
    fail with BatchRangeError, since too few are left. This is tried in a batch of four and in the largest
    one of `batch-equals-items`. Where all requests of a batch are bad, or all but one, each of them fails, with
    an error of the class that it has alone.
    """
    _needed(subject)
    live = subject.tried
    tried = 0
    for spoil in (_without_key, _with_alien):
        for size, places in ((USUAL_BATCH, (0, 1, -1)), (live.weights[-1], (-2,))):
            for place in places:
                tried += _judge_batch(subject, spoil, size, place)
        for good in (0, None):
            tried += _judge_bad_ones(subject, spoil, good)
        if live.backend.max == 1:
            subject.must_equal(live.result_alone(subject.item(1)), subject.expected(1), "request 1")
    return f"{tried} batches with a bad request"


def _judge_bad_ones(
    subject: Subject, spoil: Callable[[Subject, Request], Request | None], good: int | None
) -> bool:
    """Run a batch in which all requests are bad, but for the one at ``good``; False when they are taken."""
    live = subject.tried
    batch = live.take(subject.item)
    spoiled = [spoil(subject, request) for request in batch]
    alone = None if spoiled[0] is None else live.alone(dict(spoiled[0]))
    if alone is None:
        return False
    batch = [
        whole if k == good or bad is None else bad
        for k, (whole, bad) in enumerate(zip(batch, spoiled, strict=True))
    ]
    for k, outcome in enumerate(live.call(batch)):
        if k != good and (
            outcome is None or (type(outcome) is not type(alone) and live.backend.min == 1)
        ):
            got = "no error" if outcome is None else _said(outcome)
            raise Broken(
                f"alone a bad request gives {_said(alone)}; among {len(batch)} requests of which "
                f"{len(batch) - (good is not None)} are bad, item {k} gets {got}"
            )
    return True


def _judge_batch(
    subject: Subject, spoil: Callable[[Subject, Request], Request | None], size: int, place: int
) -> bool:
    """Run a batch with one bad request; False when the backend takes that request."""
    live = subject.tried
    batch = live.take(subject.repeating, size)
    if not -len(batch) <= place < len(batch):
        return False
    place %= len(batch)
    bad = spoil(subject, batch[place])
    if bad is None:
        return False
    alone = live.alone(dict(bad))
    batch[place] = bad
    came = [dict(request) for request in batch]
    outcomes = live.call(batch)
    if outcomes[place] is None:
        if alone is None:
            return False  # the backend takes the value: the rules about wrong values judge that
        wrong = next((k for k, outcome in enumerate(outcomes) if outcome is not None), None)
        raise Broken(
            f"alone a bad request gives {_said(alone)}; as item {place} of a batch of {len(batch)} "
            + ("it gives no error" if wrong is None else f"item {wrong} gets the error")
        )
    _judge_neighbours(subject, batch, outcomes, place)
    # What it changes in good batches as well, `inputs-kept` reports alone.
    for k, request in enumerate(() if CHANGES_INPUTS in subject.measured else came):
        changed = None if k == place else difference(request, subject.repeating(k))
        if changed is not None:
            raise Broken(
                f"item {place} of a batch of {len(batch)} is bad, and what item {k} came with was "
                f"changed: {changed}"
            )
    return True


def _without_key(subject: Subject, request: Request) -> Request | None:
    keys = _keys(subject)
    return {k: v for k, v in request.items() if k != keys[0]} if keys else None


def _with_alien(subject: Subject, request: Request) -> Request | None:
    keys = _keys(subject)
    return {**request, keys[0]: Alien()} if keys else None


def _judge_neighbours(
    subject: Subject, batch: list[Request], outcomes: list[Exception | None], place: int
) -> None:
    few = subject.tried.backend.min > 1
    for k, outcome in enumerate(outcomes):
        if k == place or (few and isinstance(outcome, BatchRangeError)):
            continue
        if outcome is not None:
            raise Broken(
                f"item {place} of a batch of {len(batch)} is bad, and its neighbour {k} fails too: "
                f"{_said(outcome)}; give a list with an exception or None per item, or raise and "
                "declare rerun = True"
            )
        subject.must_equal(
            batch[k].get("result"),
            subject.expected(k % DISTINCT),
            f"beside a bad item, item {k} differs",
        )


@rule("errors-pickle", "errors-returned")
def errors_pickle(subject: Subject) -> None:
    """Errors travel between processes: each can be pickled, and says the same on the other side.

    The errors of bad requests are pickled, unpickled and copied. Class, text and `key` stay.
    """
    for bad in _bad(subject):
        outcome = subject.tried.alone(bad)
        if outcome is None:
            continue
        for how, again in (("pickled", _pickled), ("copied", copy.copy)):
            try:
                twin = again(outcome)
            except Exception as error:
                raise Broken(
                    f"{type(outcome).__name__} cannot be {how}: {type(error).__name__}: {error}"
                ) from error
            same = type(twin) is type(outcome) and str(twin) == str(outcome)
            if not same or getattr(twin, "key", None) != getattr(outcome, "key", None):
                raise Broken(f"{_said(outcome)} is {_said(twin)} after it was {how}")


def _pickled(error: Exception) -> Any:
    return pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled in this line


@rule("rerun", "reads", "writes", "inputs-kept", "results-kept")
def rerun(subject: Subject) -> str:
    """`rerun = True` promises that items of a failed batch may be run again, with the same results.

    Where it is True, each request is run a second time as the first run has left it, without its
    `result`, and a third time in the batch of the first run. The results stay the same. Where it is
    False nothing is promised, and core runs no item twice.
    """
    if not subject.live.root.rerun:
        raise NotApplicable("rerun is False: the backend does not promise that it can be run again")
    live = subject.build()
    batch = live.take(subject.item)
    for turn in ("first", "second", "third"):
        for request in batch:
            request.pop("result", None)
        if turn == "second" and live.backend.min == 1:
            results = [kept(live.result_alone(request)) for request in batch]
        else:
            results = [kept(result) for result in live.results(batch)]
        for k, result in enumerate(results):
            problem = f"run for the {turn} time, request {k} differs"
            subject.must_equal(result, subject.expected(k), problem)
    return "run three times"


RULES: tuple[Rule, ...] = (
    missing_key,
    wrong_type,
    wrong_shape_,
    wrong_dtype_,
    works_after_failure,
    bad_item_alone,
    errors_pickle,
    rerun,
)
