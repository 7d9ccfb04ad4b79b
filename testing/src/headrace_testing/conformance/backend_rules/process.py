"""Rules about the process, which belongs to the application: its settings, and its memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import itertools
import random
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_testing.conformance.outcome import Broken, NotJudged
from headrace_testing.conformance.rule import Rule, rule
from headrace_testing.conformance.settings import restore, settings
from headrace_testing.conformance.subject import CHANGES_INPUTS, DISTINCT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.keys import Request
    from headrace_testing.conformance.live import Live
    from headrace_testing.conformance.subject import Subject

_BATCHES = 16
"""How many batches, and bad requests, are run before the memory is looked at for the first time."""

_LARGE_BYTES = 64
"""Memory that grows by this much per batch, in each of the first cycles, is kept for every request."""

_LEAST_BYTES = 6
"""Smaller growth does not count: a list takes eight bytes per element, and sometimes room for more."""

_STEADY = 0.75
"""What is kept for every request grows as much per batch in a cycle as in the one before, but for the steps of a table."""

_FIRST_CYCLES = 4
_CYCLES = 8
"""Each is twice as long as the one before. A backend that keeps nothing grows by some hundred bytes in the first."""

_WINDOW_ITEMS = 1024
"""How many different requests are run between two looks at the memory, as far as `_WINDOW_S` allows."""

_WINDOW_S = 8.0
_WINDOWS = 6
"""In each of so many windows the memory has to grow. The first one, in which caches fill, is not counted."""

_LEAST_DIFFERENT, _MOST_DIFFERENT = 1000, (_WINDOWS + 1) * _WINDOW_ITEMS
"""How many different requests are needed to judge growth, and how many are made: with fewer, a cache without a bound soon has all."""

_LEAST_ITEM_BYTES = 24
"""An int of 32 bytes that is kept for each request counts."""

_LEAST_NATIVE_BYTES = 1024
_LEAST_GROWTH_BYTES = 1 << 18
"""Memory of the process comes in pages and in larger pieces, so that less than this in a window says nothing."""

_MANY = 70_000
"""How many requests a backend has to answer alike: more than 16 bits count."""

_MANY_CPU_S = 1.0
_MANY_S = 3.0
"""How long these may take, in time of the processor and in all; of slow backends they are fewer."""

_TOGETHER = 16
"""How many of them stand in a batch, where the range allows so many."""

_SMALL_BYTES = 1 << 14
"""A request that with its result has this size is not too large, whatever the first ones are."""

_EMPTY_CACHES: Callable[[], object] | None = getattr(
    sys, "_clear_internal_caches", getattr(sys, "_clear_type_cache", None)
)
"""Empties what the interpreter keeps to find attributes faster.

That holds up to 4,096 names, so that whoever makes names at run time (``getattr(self, "of_" + kind)``. Pickle does it
with every class that it reads) makes it grow for thousands of batches.
"""


@rule("process-state-kept", "thread-state-kept")
def process_state_kept(subject: Subject) -> None:
    """The process belongs to the application, and other backends live in it.

    A whole life (`init`, `warm_up`, a batch, a bad request, `close`) leaves as they were: the environment, the
    working directory, the import path, handlers of signals and of the root logger with its level, the loggers of
    Headrace, builtins, hooks of exceptions, stdin, stdout and stderr, warning filters, switches of the interpreter, the policy of event loops, the locale, the mask of new files, the
    thread's processors and the signals that it blocks. It does not
    seed the common random numbers of Python or numpy, and prints nothing to stdout, where `headrace run`
    writes results. What a library sets once, when it is first loaded, is not counted.
    """
    ends = [_life_from(subject, seed) for seed in (1, 2)]
    for name in ends[0]:
        if ends[0][name] == ends[1][name]:
            raise Broken(f"a life of it seeds the common random numbers of {name}")


def _life_from(subject: Subject, seed: int) -> dict[str, str]:
    """Live through a whole life from the settings before the first one; give the random numbers' states."""
    present, printed = settings(), io.StringIO()
    generators = _generators()
    states = {name: get() for name, (get, _, _) in generators.items()}
    try:
        # The settings of earlier lives are undone, because this life would otherwise set the same again.
        restore(subject.settings_before)
        for _, _, plant in generators.values():
            plant(seed)
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            before = settings()
            warnings.filterwarnings("ignore", ".*")  # which is no filter that a backend would set
            filters = list(warnings.filters)
            live = subject.build()
            live.results(live.take(subject.item))
            live.alone({})
            subject.done(live)
            if list(warnings.filters) != filters:
                raise Broken("a life of it leaves other warning filters")
            after = settings()
        ends = {name: str(get()) for name, (get, _, _) in generators.items()}
    finally:
        restore(present)
        for name, (_, put, _) in generators.items():
            put(states[name])
    for name, value in before.items():
        if after[name] != value:
            raise Broken(f"a life of it changes the {name}{_which(value, after[name])}")
    if printed.getvalue():
        raise Broken(f"it prints to stdout: {printed.getvalue()[:80]!r}")
    return ends


def _which(before: Any, after: Any) -> str:
    """Name what has changed in a dict of settings."""
    if not isinstance(before, dict):
        return ""
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    return f": {', '.join(sorted(map(str, changed)))}"


def _generators() -> dict[
    str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]]
]:
    """Return how the state of common random numbers is read, written and seeded."""
    generators: dict[str, Any] = {"Python": (random.getstate, random.setstate, random.seed)}
    numbers: Any = sys.modules.get("numpy.random")
    if numbers is not None:
        generators["numpy"] = (numbers.get_state, numbers.set_state, numbers.seed)
    return generators


@rule("requests-released", "closes-unused")
def requests_released(subject: Subject) -> str | None:
    """A backend that keeps something of every request fills the memory, sooner or later.

    While the same requests are run many times, the memory that Python allocates does not grow again and again
    with the number of batches: neither with valid requests nor with such that fail.
    Then come thousands of different requests. Where `make_item` gives fewer than 1000 of about one size, growth is not judged. Neither Python's memory nor that of the
    process, in which C libraries allocate, grows with each thousand. The last batch may be kept, and so may a cache that has
    a bound: `options` of the conformance class sets one of a few hundred entries.
    """
    tracemalloc = _tracemalloc()
    if tracemalloc is None:
        return "this interpreter does not count its memory"
    live = subject.build()

    def valid() -> None:
        live.call(live.take(subject.item))

    def bad() -> None:
        for outcome in live.call(live.filled({})):
            # A pipeline removes the traceback, too, because an error that is raised again would keep it.
            if outcome is not None:
                outcome.with_traceback(None)

    with _traced(tracemalloc):
        for kind, run in (("request", valid), ("request that fails", bad)):
            growth = _kept(run, tracemalloc)
            if growth is not None:
                raise Broken(f"it keeps memory of every {kind}: {growth}")
        count = _different_items(subject, live)
        runs = _run_different(subject, live, tracemalloc, count, subject.share)
    subject.done(live)
    if count < _LEAST_DIFFERENT:
        kind = f"only {count} different requests are of about one size, and growth shows with {_LEAST_DIFFERENT}"
        raise NotJudged(f"{kind}: let make_item(k) give as many")
    return f"{runs} different requests"


def _run_different(subject: Subject, live: Live, tracemalloc: Any, count: int, share: float) -> int:
    """Run different requests, window by window, until memory stays the same in one. Give how many they were.

    Raises:
        Broken: It grew in each window.
    """
    # In random order, since a request may be the larger the higher its number is.
    order = itertools.cycle(random.Random(0).sample(range(count), count))  # noqa: S311 - no secret
    counters = {"Python": lambda: _traced_bytes(tracemalloc), "the process": _anonymous_bytes}
    least = {"Python": _LEAST_ITEM_BYTES, "the process": _LEAST_NATIVE_BYTES}
    until = time.monotonic() + _WINDOW_S
    window = ran = 0
    while window < _WINDOW_ITEMS * share and time.monotonic() < until:
        window += _run_next(subject, live, order)
    before, growing, ran = (
        {name: count() for name, count in counters.items()},
        set(counters),
        window,
    )
    grown: dict[str, int] = {}
    for _ in range(_WINDOWS):
        done = 0
        while done < window:
            done += _run_next(subject, live, order)
        ran += done
        for name in sorted(growing):
            now = counters[name]()
            grown[name], before[name] = now - before[name], now
            floor = _LEAST_GROWTH_BYTES if name == "the process" else 0
            if grown[name] < max(floor, done * least[name]):
                growing.discard(name)
        if not growing:
            return min(count, ran)
    if share < 1:  # what it keeps may have a bound that so few requests do not reach
        return _run_different(subject, live, tracemalloc, count, 1.0)
    name = min(growing)  # what Python allocates is memory of the process as well
    raise Broken(
        f"it keeps memory of every different request: that of {name} grows by {grown[name] // done} bytes for each, "
        f"as it did for the {ran} before; give what it keeps a bound"
    )


def _run_next(subject: Subject, live: Live, order: Iterator[int]) -> int:
    batch = live.take(lambda _: subject.item(next(order)))
    live.call(batch)
    return len(batch)


def _different_items(subject: Subject, live: Live) -> int:
    """Return how many different requests the factory gives, as far as they are not much larger than the first ones."""
    usual = max(subject.request_bytes(k, live) for k in range(DISTINCT))
    count = DISTINCT
    # From small numbers to large ones: where requests grow with their number, none that is much larger is ever made.
    while count < _MOST_DIFFERENT:
        more = min(2 * count, _MOST_DIFFERENT)
        try:  # a factory may end, as a folder of files does
            if subject.request_bytes(more - 1, live) > max(4 * usual, _SMALL_BYTES):
                break
        except Exception:  # noqa: BLE001
            break
        count = more
    return count


def _anonymous_bytes() -> int:
    """Return the memory of the process that no file backs; where the system tells only the peak, that."""
    with contextlib.suppress(Exception):  # only glibc has it: what is free goes back to the system
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS


def _kept(run: Callable[[], None], tracemalloc: Any) -> str | None:
    """Run many batches, and say how much memory they kept; None if it does not grow with their number."""
    for _ in range(_BATCHES):  # things that are made once, when they are first needed
        run()
    before, large, last = _traced_bytes(tracemalloc), True, 0.0
    for cycle in range(_CYCLES):
        # Memory that is kept per request grows with the cycle; memory that another thread allocates meanwhile does
        # not.
        batches = _BATCHES << (cycle + 1)
        for _ in range(batches):
            run()
        now = _traced_bytes(tracemalloc)
        grown, before = now - before, now
        large = large and grown >= batches * _LARGE_BYTES
        if grown < batches * _LEAST_BYTES:
            return None
        # What fills up to a bound grows less and less per batch.
        steady, last = grown / batches / (last or 1), grown / batches
        if large and cycle == _FIRST_CYCLES - 1 and steady > _STEADY:
            break
    else:
        if steady < _STEADY / 2:
            return None
    return f"{grown} bytes of {batches} batches"


def _tracemalloc() -> Any:
    """Return the module that counts the memory, where the interpreter has it."""
    try:
        import tracemalloc
    except ImportError:
        return None
    return tracemalloc


@contextlib.contextmanager
def _traced(tracemalloc: Any) -> Iterator[None]:
    """Count memory, unless the application does so already."""
    begun = not tracemalloc.is_tracing()
    if begun:
        tracemalloc.start()
    try:
        yield
    finally:
        if begun:
            tracemalloc.stop()


def _traced_bytes(tracemalloc: Any) -> int:
    if _EMPTY_CACHES is not None:
        _EMPTY_CACHES()
    gc.collect()
    traced: int = tracemalloc.get_traced_memory()[0]
    return traced


@rule("same-later", "order-kept", "closes-unused")
def same_later(subject: Subject) -> str:
    """A backend in production answers millions of requests, the last one as it did the first.

    The requests 0 to 16 are run again and again, until there were 70,000 or a second of the processor's time is over (three
    seconds in all). One result of each batch, and all of the last one, are those of the beginning.
    """
    live = subject.build()
    items = subject.items(range(DISTINCT))
    changed = CHANGES_INPUTS in subject.measured

    def item(k: int) -> Request:
        return subject.repeating(k) if changed else dict(items[k % DISTINCT])

    cpu_s, until = time.process_time() + _MANY_CPU_S * subject.share, time.monotonic() + _MANY_S
    ran = turn = 0
    while True:
        results = live.results(live.take(lambda k: item(ran + k), _TOGETHER))  # noqa: B023 - called at once
        last = (
            ran + len(results) >= _MANY or time.process_time() > cpu_s or time.monotonic() > until
        )
        for place in range(len(results)) if last else [turn % len(results)]:
            k = (ran + place) % DISTINCT
            problem = f"after {ran + place} other requests, request {k} differs"
            subject.must_equal(results[place], subject.expected(k), problem)
        ran, turn = ran + len(results), turn + 1
        if last:
            subject.done(live)
            return f"{ran} requests"


RULES: tuple[Rule, ...] = (process_state_kept, requests_released, same_later)
