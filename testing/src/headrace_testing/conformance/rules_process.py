"""Rules about the process, which belongs to the application: its settings, and its memory."""

from __future__ import annotations

import contextlib
import gc
import io
import random
import sys
import warnings
from typing import TYPE_CHECKING, Any

from headrace_testing.conformance.outcome import Broken
from headrace_testing.conformance.rule import Rule, rule
from headrace_testing.conformance.settings import restore, settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_testing.conformance.subject import Subject

_BATCHES = 16
"""How many batches, and bad requests, are run before the memory is looked at for the first time."""

_CYCLES = 5


@rule("process-state-kept", "thread-state-kept")
def process_state_kept(subject: Subject) -> None:
    """The process belongs to the application, and other backends live in it.

    A whole life (`init`, `warm_up`, a batch, a bad request, `close`) leaves as they were: the environment, the
    working directory, the import path, handlers of signals and of the root logger with its level, warning
    filters, switches of the interpreter, the thread's processors and the signals that it blocks. It does not
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
        # What earlier lives have set is undone for this one, which would otherwise set the same again.
        restore(subject.settings_before)
        before = settings()
        for _, _, plant in generators.values():
            plant(seed)
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
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
            raise Broken(f"a life of it leaves another {name}{_which(value, after[name])}")
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
    """Give how the state of common random numbers is read, written and seeded."""
    found: dict[str, Any] = {"Python": (random.getstate, random.setstate, random.seed)}
    numbers: Any = sys.modules.get("numpy.random")
    if numbers is not None:
        found["numpy"] = (numbers.get_state, numbers.set_state, numbers.seed)
    return found


@rule("requests-released", "closes-unused")
def requests_released(subject: Subject) -> str | None:
    """A backend that keeps something of every request fills the memory, sooner or later.

    While the same requests are run many times, the number of memory blocks of Python does not grow again and
    again by at least one per request: neither with valid requests nor with such that fail. The last batch, or
    a cache of what was asked before, may be kept.
    """
    counted = getattr(sys, "getallocatedblocks", None)
    if counted is None or not counted():
        return "this interpreter does not count its memory blocks"
    live = subject.build()

    def valid() -> int:
        return len(live.call(live.take(subject.item)))

    def bad() -> int:
        outcomes = live.call(live.filled({}))
        for outcome in outcomes:
            # A pipeline takes the traceback off, too: an error that is raised again would keep it.
            if outcome is not None:
                outcome.with_traceback(None)
        return len(outcomes)

    for what, run in (("request", valid), ("request that fails", bad)):
        gc.collect()
        before = counted()
        for cycle in range(1, _CYCLES + 1):
            # Each cycle is longer than the one before: what grows with the requests grows with it, and what
            # another thread of the process allocates meanwhile does not.
            requests = sum(run() for _ in range(cycle * _BATCHES))
            gc.collect()
            grown, before = counted() - before, counted()
            if grown < requests:
                break
        else:
            raise Broken(
                f"it keeps memory of every {what}: {grown} blocks after {requests} of them"
            )
    subject.done(live)
    return None


RULES: tuple[Rule, ...] = (process_state_kept, requests_released)
